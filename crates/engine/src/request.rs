//! Requests, and the events that answer them.

use std::sync::Arc;

use tokkata_ir::PlanRole;
use tokkata_ir::sample::Mask;
pub use tokkata_ir::{Logprob, Logprobs};
use web_time::Instant;

use crate::engine::Through;
use crate::error::EngineError;
use crate::input::{EncoderInput, Media};
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

/// Restricts the tokens that may come next, such as a grammar. It is asked on a thread of the engine's mask pool.
pub trait Constraint: Send {
    /// Appends the tokens that the answer must begin with, which count as taken.
    ///
    /// # Errors
    /// Why the answer cannot begin.
    fn begin(&mut self, forced: &mut Vec<u32>) -> Result<(), String> {
        let _ = forced;
        Ok(())
    }

    /// Takes the token that was picked, and appends the tokens that must follow it, which count as taken.
    ///
    /// # Errors
    /// Why the answer cannot go on.
    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String>;

    /// What may come next; `None` allows all.
    ///
    /// # Errors
    /// Why nothing can.
    fn mask(&mut self) -> Result<Option<Mask>, String>;

    /// Takes back the newest tokens that were taken, forced ones among them, as if they had never come.
    ///
    /// # Errors
    /// A constraint that cannot go back; fewer tokens than that.
    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        Err(format!("this constraint cannot take {tokens} tokens back"))
    }

    /// Whether [`Constraint::rollback`] works: drafts are tried only where it does.
    fn goes_back(&self) -> bool {
        false
    }

    /// Whether it refuses so rarely that tokens are drawn without its mask, ahead of what it has seen. Each is held
    /// against [`Constraint::refuses`]; one that is refused is drawn again by the mask, and what ran behind it does not
    /// count. Such a constraint forces nothing, and is asked on the engine's own
    /// thread.
    fn free(&self) -> bool {
        false
    }

    /// Whether its mask forbids a token, where the constraint is [`free`](Constraint::free).
    fn refuses(&mut self, token: u32) -> bool {
        let _ = token;
        false
    }
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
    /// Stretches of the prompt that are embeddings, in order.
    pub media: Vec<Media>,
    /// What the encoder reads, in models that have one; the prompt is the decoder's then.
    pub encoder: Option<EncoderInput>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Where the answer ends.
    pub stop: StopRules,
    /// Turns tokens into text; without one, events carry ids alone.
    pub decoder: Option<Box<dyn Decoder>>,
    /// Restricts tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens to report with each token. More than [`tokkata_ir::sample::MOST_LISTED`] are
    /// worked out by the host, a step at a time.
    pub logprobs: Option<usize>,
    /// Tokens to report instead of the likeliest, where any are reported; by the host, a step at a time.
    pub told: Vec<u32>,
    /// What to do when the context is full: `None` ends the answer; else the first so many tokens stay (whole blocks of
    /// them), half of the rest is forgotten, and the answer goes on.
    pub shift: Option<usize>,
    /// The adapter that its rows go through.
    pub adapter: Through,
    /// Requests share cached prefixes only within one salt, and one adapter.
    pub salt: u64,
    /// Where it stands among requests, and until when it is worth anything.
    pub urgency: Urgency,
}

/// A request's place among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// Higher ones are let in first; equal ones in the order they came.
    pub priority: i32,
    /// When it fails if it has not ended.
    pub deadline: Option<Instant>,
}

/// Values to compute of given tokens: vectors, scores, logits.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRequest {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// What the encoder reads before them, in models that have one.
    pub encoder: Option<EncoderInput>,
    /// What the plan's ports hold, by name: a row for each token.
    pub inputs: Vec<(String, Arc<[f32]>)>,
    /// Output of the plan that is read.
    pub output: String,
    /// The plan it is an output of.
    pub role: PlanRole,
    /// Whether the rows see each other in both directions, so that all run in one step.
    pub whole: bool,
    /// The adapter that its rows go through.
    pub adapter: Through,
    /// Requests share cached prefixes only within one salt, and one adapter.
    pub salt: u64,
    /// Where it stands among requests, and until when it is worth anything.
    pub urgency: Urgency,
}

impl ReadRequest {
    /// An output of a plan for these tokens, which may run in several steps.
    #[must_use]
    pub fn new(tokens: Vec<u32>, role: PlanRole, output: &str) -> Self {
        ReadRequest {
            tokens,
            encoder: None,
            inputs: Vec::new(),
            output: output.to_owned(),
            role,
            whole: false,
            adapter: Through::default(),
            salt: 0,
            urgency: Urgency::default(),
        }
    }
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
    /// The token that ended it, where one did: it is no token of the answer.
    pub end_token: Option<u32>,
    /// Drafts that were tried.
    pub drafts: usize,
    /// Tokens that were guessed and tried.
    pub drafted_tokens: usize,
    /// Those of them that were drawn.
    pub accepted_tokens: usize,
    /// From the first step to the first token.
    pub prompt_ns: u64,
    /// From the first token to the last.
    pub generate_ns: u64,
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
        /// Those of them that were cached before it came.
        reused: usize,
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
    /// Rows of the output that a [`ReadRequest`] named, `[rows, width]`, in order; of a pooled output the newest row
    /// stands for all before it.
    Values {
        /// The floats.
        values: Vec<f32>,
        /// Elements of a row.
        width: usize,
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
