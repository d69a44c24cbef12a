//! Requests, and the events that answer them.

use tokkata_ir::sample::Mask;

use crate::error::EngineError;
use crate::sampling::Sampling;

/// Names a request of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Names a sequence that is kept between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Turns tokens into bytes, holding back what is not yet certain.
pub trait Decoder: Send {
    /// Appends the bytes that `token` settles.
    fn push(&mut self, token: u32, out: &mut Vec<u8>);

    /// Appends what was held back.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// Restricts the tokens that may come next, such as a grammar.
pub trait Constraint: Send {
    /// Appends the tokens that the answer must begin with, which count as taken.
    ///
    /// # Errors
    /// Why the answer cannot begin.
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        let _ = forced;
        Ok(())
    }

    /// What may come next; `None` allows all. It is read when a token is drawn, so it may be computed until then.
    fn mask(&mut self) -> Option<Mask>;

    /// Takes the token that was picked, and appends the tokens that must follow it, which count as taken.
    ///
    /// # Errors
    /// Why the answer cannot go on.
    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String>;
}

/// Where an answer ends.
#[derive(Clone, Debug, Default)]
pub struct StopRules {
    /// Tokens to generate at most; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer and are no part of it.
    pub stop_ids: Vec<u32>,
    /// Texts that end the answer and are no part of it.
    pub stop_strings: Vec<Vec<u8>>,
}

/// What to generate.
#[derive(Default)]
pub struct Request {
    /// Every token before the answer; those already cached are not computed again.
    pub prompt: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Where the answer ends.
    pub stop: StopRules,
    /// Turns tokens into text; without one, events carry ids alone.
    pub decoder: Option<Box<dyn Decoder>>,
    /// Restricts tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens to report with each token.
    pub logprobs: Option<usize>,
    /// Requests share cached prefixes only within one salt.
    pub salt: u64,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    EndOfText,
    /// A stop string, by its place in the request.
    StopString(usize),
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

impl FinishReason {
    /// The word that APIs use: `stop`, `length` or `cancelled`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::EndOfText | FinishReason::StopString(_) => "stop",
            FinishReason::MaxTokens | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// What an answer cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens whose cache was already there.
    pub reused_tokens: usize,
    /// Tokens fed to the model for the prompt.
    pub computed_tokens: usize,
    /// Tokens generated, the one that ended the answer included.
    pub generated_tokens: usize,
    /// From the first step to the first token.
    pub prompt_ns: u64,
    /// From the first token to the last.
    pub generate_ns: u64,
}

/// A token and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability, before sampling parameters.
    pub logprob: f32,
}

/// The picked token's probability and the likeliest tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The picked token.
    pub picked: Logprob,
    /// The likeliest, best first.
    pub top: Vec<Logprob>,
}

/// What happened to a request.
#[derive(Debug)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// One happening.
#[derive(Debug)]
pub enum EventKind {
    /// A step computed prompt tokens: so many of so many are cached.
    Prompt {
        /// Tokens cached.
        cached: usize,
        /// Tokens in all.
        total: usize,
    },
    /// A token was picked.
    Token {
        /// Its id.
        id: u32,
        /// Bytes that became certain with it.
        text: Vec<u8>,
        /// Its probability, when asked for.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete.
    Finished {
        /// Bytes that were held back and belong to it.
        text: Vec<u8>,
        /// Why it ended.
        reason: FinishReason,
        /// What it cost.
        stats: Stats,
    },
    /// The request cannot be answered.
    Failed(EngineError),
}

/// Probabilities of a row of logits.
#[must_use]
pub fn logprobs(logits: &[f32], picked: u32, top: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = sum.ln() + f64::from(max);
    let of = |token: u32| Logprob {
        token,
        logprob: (f64::from(logits[token as usize]) - log_sum) as f32,
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    let top = top.min(ids.len());
    if top < ids.len() {
        ids.select_nth_unstable_by(top, order);
        ids.truncate(top);
    }
    ids.sort_unstable_by(order);
    Logprobs {
        picked: of(picked),
        top: ids.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_sum_to_one_and_come_best_first() {
        let got = logprobs(&[0.0, 2.0, 1.0, 2.0], 2, 3);
        let ids: Vec<u32> = got.top.iter().map(|l| l.token).collect();
        assert_eq!(ids, [1, 3, 2]);
        let all = logprobs(&[0.0, 2.0, 1.0, 2.0], 0, 9);
        let sum: f32 = all.top.iter().map(|l| l.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(
            got.picked,
            Logprob {
                token: 2,
                logprob: got.top[2].logprob
            }
        );
    }
}
