//! Beam search: the likeliest answers to a prompt, rather than drawn ones.
//!
//! Each step every beam is asked for one more token, with the likeliest tokens there. Of all their continuations the
//! likeliest go on; those that end are put aside. In the end answers are ordered by the logarithm of their probability
//! over their number of tokens to the power of the length penalty (as Hugging Face's Transformers scores beams).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokkata::sample::Mask;
use tokkata::{
    Answer, Constraint, DecodeOptions, EventKind, FinishReason, Logprob, Logprobs, Sampling, Stats,
};

use crate::error::{ApiError, Result};
use crate::run::Stopper;
use crate::served::Served;
use crate::talk::Prepared;

/// What a search is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) model: &'a Arc<Served>,
    /// The prompt, and how many answers there are to be: so many beams go on.
    pub(crate) one: &'a Prepared,
    pub(crate) stopper: &'a Stopper,
}

/// An answer so far.
#[derive(Clone, Debug, Default)]
struct Beam {
    tokens: Vec<Logprobs>,
    /// The logarithm of its probability.
    sum: f64,
    /// Why it ended, and the token that did it.
    end: Option<(FinishReason, Option<u32>)>,
}

/// What was asked of a beam, and what came of it.
struct Asked {
    answer: Answer,
    found: Option<Logprobs>,
    over: bool,
    /// The tokens that may follow; `None` for all.
    mask: Option<Mask>,
}

/// The search for the answers to one prompt.
pub(crate) struct Beams {
    penalty: f64,
    /// Tokens that no answer has.
    never: Vec<u32>,
    /// Tokens that an answer may have.
    most: usize,
    /// Whether that is because the context has no room for more.
    full: bool,
    /// Tokens that end an answer.
    ends: Vec<u32>,
    live: Vec<Beam>,
    done: Vec<Beam>,
    asked: Vec<Asked>,
    /// What the prompt cost.
    stats: Stats,
}

impl Beams {
    /// # Errors
    /// What a search cannot follow: a grammar, tools, or parameters that change logits.
    pub(crate) fn new(model: &Served, one: &Prepared, penalty: f64) -> Result<Self> {
        let (params, s) = (&one.params, &one.params.sampling);
        let changed = s.repeat_penalty != 1.0
            || s.frequency_penalty != 0.0
            || s.presence_penalty != 0.0
            || s.dry.is_some()
            || !s.bias.is_empty();
        let ruled = one.grammar.is_some() || one.thinking.is_some() || params.allowed.is_some();
        if changed || ruled || params.min_tokens > 0 || !params.told.is_empty() {
            return Err(ApiError::field(
                "use_beam_search",
                "cannot be used beside tools, formats, penalties, biases, chosen tokens or a thinking budget",
            ));
        }
        let request = one.request(model, 0)?;
        let ctx = model.service.limits().ctx as usize;
        let room = ctx.saturating_sub(request.prompt.len());
        let wanted = params.max_tokens.unwrap_or(usize::MAX);
        let never = request.sampling.bias.iter();
        let never = never.filter(|b| b.1 == f32::NEG_INFINITY).map(|b| b.0);
        let mut beams = Beams {
            penalty,
            never: never.collect(),
            most: wanted.min(room),
            full: wanted > room,
            ends: request.stop.stop_ids,
            live: Vec::new(),
            done: Vec::new(),
            asked: Vec::new(),
            stats: Stats::default(),
        };
        let first = Beam::default();
        match beams.most {
            0 => beams.done.push(Beam {
                end: Some((FinishReason::MaxTokens, None)),
                ..first
            }),
            _ => beams.live.push(first),
        }
        Ok(beams)
    }

    /// Goes on as far as it can; at the end of the search, what happened to each answer, the best first.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        subject: Subject<'_>,
    ) -> Poll<Result<Vec<VecDeque<EventKind>>>> {
        loop {
            let mut waits = false;
            for asked in &mut self.asked {
                waits |= asked.listen(cx, &mut self.stats)?.is_pending();
            }
            if waits {
                return Poll::Pending;
            }
            if !self.asked.is_empty() {
                self.advance(subject)?;
            }
            if self.is_over(subject.one.params.n) {
                return Poll::Ready(self.results(subject));
            }
            self.ask(subject)?;
        }
    }

    /// Asks every beam for one more token.
    fn ask(
        &mut self,
        Subject {
            model,
            one,
            stopper,
        }: Subject<'_>,
    ) -> Result<()> {
        let n_vocab = model.service.n_vocab() as usize;
        let most = (2 * one.params.n).max(one.params.logprobs.unwrap_or(0));
        for beam in &self.live {
            let mut request = one.request(model, 0)?;
            let so_far = beam.tokens.iter().map(|t| t.picked.token);
            request.prompt.extend(so_far);
            request.sampling = Sampling::greedy();
            request.stop.max_tokens = Some(1);
            // A token that ends an answer is told as any other.
            request.stop.stop_ids.clear();
            request.stop.stop_strings.clear();
            request.decoder = None;
            let mask = match request.constraint.take() {
                Some(mut rule) => after(&mut *rule, beam).map_err(ApiError::invalid)?,
                None => None,
            };
            request.logprobs = Some(most.min(n_vocab));
            let answer = model.service.generate(request);
            stopper.add(&answer);
            self.asked.push(Asked {
                answer,
                found: None,
                over: false,
                mask,
            });
        }
        Ok(())
    }

    /// Takes what every beam's next token may be.
    fn advance(&mut self, subject: Subject<'_>) -> Result<()> {
        let width = subject.one.params.n;
        let asked = std::mem::take(&mut self.asked);
        let live = std::mem::take(&mut self.live);
        for (beam, asked) in live.into_iter().zip(asked) {
            let Some(found) = asked.found else {
                // Whoever asked has left.
                let end = Some((FinishReason::Cancelled, None));
                self.done.push(Beam { end, ..beam });
                continue;
            };
            let may = |id: u32| asked.mask.as_ref().is_none_or(|mask| mask.allows(id));
            for &next in found.top.iter().take(2 * width) {
                if self.never.contains(&next.token) || !may(next.token) {
                    continue;
                }
                self.take(subject, &beam, (next, &found.top))?;
            }
        }
        self.live.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        self.live.truncate(width);
        let penalty = self.penalty;
        let score = |b: &Beam| scored(b.sum, b.tokens.len(), penalty);
        self.done.sort_by(|a, b| score(b).total_cmp(&score(a)));
        self.done.truncate(width);
        Ok(())
    }

    /// One of the tokens that may follow a beam.
    fn take(
        &mut self,
        Subject { model, one, .. }: Subject<'_>,
        beam: &Beam,
        (next, top): (Logprob, &[Logprob]),
    ) -> Result<()> {
        if !next.logprob.is_finite() {
            return Ok(());
        }
        let mut beam = beam.clone();
        beam.sum += f64::from(next.logprob);
        let tokenizer = model.service.tokenizer()?;
        if self.ends.contains(&next.token) {
            beam.end = Some((FinishReason::EndOfText, Some(next.token)));
        } else {
            let shown = one.params.logprobs.unwrap_or(0);
            beam.tokens.push(Logprobs {
                picked: next,
                top: top.iter().take(shown).copied().collect(),
            });
            let stops = &one.params.stop;
            let ids: Vec<u32> = beam.tokens.iter().map(|t| t.picked.token).collect();
            let text = match stops.is_empty() {
                true => Vec::new(),
                false => tokenizer.decode(&ids, CONTINUES),
            };
            let stop = stops.iter().position(|stop| find(&text, stop).is_some());
            let last = (beam.tokens.len() >= self.most).then_some(match self.full {
                true => FinishReason::ContextFull,
                false => FinishReason::MaxTokens,
            });
            let why = stop.map(FinishReason::StopString).or(last);
            beam.end = why.map(|why| (why, None));
        }
        match beam.end {
            Some(_) => self.done.push(beam),
            None => self.live.push(beam),
        }
        Ok(())
    }

    /// Nothing goes on, or nothing that does can come before what has ended.
    fn is_over(&self, width: usize) -> bool {
        let Some(worst) = self.done.get(width - 1) else {
            return self.live.is_empty();
        };
        let worst = scored(worst.sum, worst.tokens.len(), self.penalty);
        // A sum only falls: at best it stays what it is, at the length that favours it.
        let best = |beam: &Beam| {
            let at = |n| scored(beam.sum, n, self.penalty);
            at(beam.tokens.len()).max(at(self.most))
        };
        self.live.iter().all(|beam| best(beam) <= worst)
    }

    /// The events of each answer, as if it had been drawn.
    fn results(&mut self, subject: Subject<'_>) -> Result<Vec<VecDeque<EventKind>>> {
        let beams = std::mem::take(&mut self.done);
        let last = beams.last();
        // There may be fewer answers than are asked for.
        let all = (0..subject.one.params.n).map(|i| beams.get(i).or(last));
        all.map(|beam| {
            let beam = beam.ok_or_else(|| ApiError::internal("no token can follow the prompt"))?;
            self.events(subject, beam)
        })
        .collect()
    }

    fn events(
        &self,
        Subject { model, one, .. }: Subject<'_>,
        beam: &Beam,
    ) -> Result<VecDeque<EventKind>> {
        let (reason, end_token) = beam.end.unwrap_or((FinishReason::MaxTokens, None));
        let mut text = Vec::new();
        let mut ends = Vec::new();
        if let Some(mut decoder) = one.request(model, 0)?.decoder {
            for token in &beam.tokens {
                decoder.push(token.picked.token, &mut text);
                ends.push(text.len());
            }
            decoder.finish(&mut text);
        }
        if let FinishReason::StopString(which) = reason {
            let cut = find(&text, &one.params.stop[which]);
            text.truncate(cut.unwrap_or(text.len()));
        }
        let mut told = 0;
        let mut events = VecDeque::new();
        for (token, end) in beam.tokens.iter().zip(ends) {
            let end = end.min(text.len());
            events.push_back(EventKind::Token {
                id: token.picked.token,
                text: text[told..end].to_vec(),
                logprobs: one.params.logprobs.map(|_| token.clone()),
            });
            told = end;
        }
        let generated_tokens = beam.tokens.len() + usize::from(end_token.is_some());
        events.push_back(EventKind::Finished {
            text: text[told..].to_vec(),
            reason,
            stats: Stats {
                generated_tokens,
                end_token,
                ..self.stats
            },
        });
        Ok(events)
    }
}

impl Asked {
    /// Takes what has come; ready once nothing more will.
    fn listen(&mut self, cx: &mut Context<'_>, stats: &mut Stats) -> Result<Poll<()>> {
        while !self.over {
            match self.answer.poll_next(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Some(EventKind::Token { logprobs, .. })) => self.found = logprobs,
                Poll::Ready(Some(EventKind::Failed(error))) => return Err(error.into()),
                Poll::Ready(Some(EventKind::Finished { stats: cost, .. })) => {
                    self.over = true;
                    if stats.prompt_tokens == 0 {
                        *stats = cost;
                    }
                }
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => {
                    let text = "the answer ended without a reason";
                    return Err(ApiError::internal(text));
                }
            }
        }
        Ok(Poll::Ready(()))
    }
}

/// What may follow a beam by a rule that forces nothing, such as that no call is spelled out where there are no tools.
fn after(rule: &mut dyn Constraint, beam: &Beam) -> std::result::Result<Option<Mask>, String> {
    let mut forced = Vec::new();
    rule.begin(&mut forced)?;
    for token in &beam.tokens {
        rule.accept(token.picked.token, &mut forced)?;
    }
    rule.mask()
}

const CONTINUES: DecodeOptions = DecodeOptions {
    special: false,
    continues: true,
};

/// What an answer of so many tokens is ordered by: the largest comes first.
fn scored(sum: f64, tokens: usize, penalty: f64) -> f64 {
    sum / (tokens.max(1) as f64).powf(penalty)
}

/// Where a text begins in another.
fn find(text: &[u8], part: &str) -> Option<usize> {
    let mut places = text.windows(part.len());
    places.position(|window| window == part.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows the tokens above the last one.
    #[derive(Default)]
    struct Rising(u32);

    impl Constraint for Rising {
        fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> std::result::Result<(), String> {
            self.0 = token;
            Ok(())
        }

        fn mask(&mut self) -> std::result::Result<Option<Mask>, String> {
            Ok(Some(Mask::new(vec![u32::MAX << (self.0 + 1)])))
        }
    }

    #[test]
    fn a_rule_has_seen_the_tokens_of_its_beam() {
        let token = |token| Logprobs {
            picked: Logprob {
                token,
                logprob: 0.0,
            },
            top: Vec::new(),
        };
        let beam = Beam {
            tokens: vec![token(9), token(4)],
            ..Beam::default()
        };
        let mask = after(&mut Rising::default(), &beam).expect("it follows");
        let mask = mask.expect("not all may come");
        assert!(!mask.allows(4) && mask.allows(5));
    }

    #[test]
    fn long_answers_lose_by_their_length_only_without_a_penalty() {
        assert!(scored(-2.0, 4, 1.0) > scored(-1.0, 1, 1.0));
        assert!(scored(-2.0, 4, 0.0) < scored(-1.0, 1, 0.0));
        assert_eq!(scored(-2.0, 0, 1.0), -2.0);
        assert_eq!((find(b"abcb", "b"), find(b"abc", "x")), (Some(1), None));
    }
}
