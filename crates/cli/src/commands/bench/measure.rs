//! One test, repeated: what is timed is feeding tokens, without sampling or tokenising.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokkata::{EventKind, Feed, FeedLogits, Model, Request, RowKind, Sampling, SessionId};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Prompt tokens.
    pub(super) prompt: usize,
    /// Generated tokens.
    pub(super) generated: usize,
    /// Tokens cached before.
    pub(super) depth: usize,
    /// Sequences at once.
    pub(super) sequences: usize,
    /// Generated as answers are, rather than fed.
    pub(super) answers: bool,
}

impl Test {
    /// Tokens that are timed.
    pub(super) fn tokens(&self) -> usize {
        (self.prompt + self.generated) * self.sequences
    }

    /// The name in a table, such as `pp512 @ d128`.
    pub(super) fn name(&self) -> String {
        let mut name = match (self.prompt, self.generated) {
            (p, 0) => format!("pp{p}"),
            (0, g) => format!("tg{g}"),
            (p, g) => format!("pp{p}+tg{g}"),
        };
        if self.depth > 0 {
            name += &format!(" @ d{}", self.depth);
        }
        if self.sequences > 1 {
            name += &format!(" x{}", self.sequences);
        }
        name
    }
}

/// Tokens that no run can foresee the caches of; the same in every run.
struct Tokens {
    state: u64,
    n_vocab: u64,
}

impl Tokens {
    fn next(&mut self) -> u32 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % self.n_vocab) as u32
    }
}

/// Nanoseconds of each repetition.
pub(super) fn run(
    model: &mut Model,
    test: &Test,
    repetitions: usize,
    warmup: bool,
) -> Result<Vec<u64>> {
    let mut tokens = Tokens {
        state: 7,
        n_vocab: model.n_vocab().max(1).into(),
    };
    if warmup {
        let short = Test {
            generated: test.generated.min(1),
            depth: 0,
            ..*test
        };
        once(model, &short, &mut tokens)?;
    }
    (0..repetitions)
        .map(|_| once(model, test, &mut tokens))
        .collect()
}

fn once(model: &mut Model, test: &Test, tokens: &mut Tokens) -> Result<u64> {
    let sessions: Vec<SessionId> = (0..test.sequences).map(|_| model.open_session()).collect();
    let result = timed(model, test, &sessions, tokens);
    for id in sessions {
        model.engine().close_session(id);
    }
    result
}

fn timed(
    model: &mut Model,
    test: &Test,
    sessions: &[SessionId],
    tokens: &mut Tokens,
) -> Result<u64> {
    prompt(model, sessions, test.depth, tokens)?;
    let start = Instant::now();
    prompt(model, sessions, test.prompt, tokens)?;
    if test.answers && test.generated > 0 {
        let took = start.elapsed() + answers(model, sessions, test.generated, tokens)?;
        return Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    for _ in 0..test.generated {
        let next: Vec<[u32; 1]> = sessions.iter().map(|_| [tokens.next()]).collect();
        let feed = |(&session, token): (&SessionId, _)| Feed {
            session,
            tokens: token,
            rows: RowKind::Answer,
            logits: FeedLogits::Last,
        };
        let feeds: Vec<Feed<'_>> = sessions
            .iter()
            .zip(next.iter().map(|t| &t[..]))
            .map(feed)
            .collect();
        model.engine().feed(&feeds, &[])?;
    }
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Lets every sequence go on for `n` tokens, greedily, and says how long they took: behind the first of each, which comes of
/// the step of its prompt.
fn answers(
    model: &mut Model,
    sessions: &[SessionId],
    n: usize,
    tokens: &mut Tokens,
) -> Result<Duration> {
    for &session in sessions {
        let mut request = Request {
            prompt: model.engine().session_tokens(session).to_vec(),
            sampling: Sampling::greedy(),
            ..Request::default()
        };
        request.prompt.push(tokens.next());
        request.stop.max_tokens = Some(n + 1);
        model.engine().submit_to(session, request)?;
    }
    let (mut begun, mut started, mut counted) = (HashSet::new(), None, 0);
    while !model.engine().is_idle() {
        for event in model.engine().step() {
            match event.kind {
                EventKind::Failed(error) => return Err(error.into()),
                EventKind::Token { .. } if started.is_some() => counted += 1,
                EventKind::Token { .. } => {
                    begun.insert(event.request);
                }
                _ => {}
            }
        }
        if started.is_none() && begun.len() == sessions.len() {
            started = Some(Instant::now());
        }
    }
    let took = started.map_or(Duration::ZERO, |at| at.elapsed());
    // More than the first may have come at once.
    Ok(took.mul_f64((n * sessions.len()) as f64 / f64::from(counted.max(1))))
}

/// Feeds every sequence `n` tokens, in steps as full as they can be.
fn prompt(model: &mut Model, sessions: &[SessionId], n: usize, tokens: &mut Tokens) -> Result<()> {
    let rows = model.limits().rows as usize;
    for &session in sessions {
        let mut left = n;
        while left > 0 {
            let now = left.min(rows);
            left -= now;
            let ids: Vec<u32> = (0..now).map(|_| tokens.next()).collect();
            let logits = if left == 0 {
                FeedLogits::Last
            } else {
                FeedLogits::None
            };
            let feed = Feed {
                session,
                tokens: &ids,
                rows: RowKind::Prompt,
                logits,
            };
            model.engine().feed(&[feed], &[])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_in_llama_bench() {
        let test = |prompt, generated, depth, sequences| {
            Test {
                prompt,
                generated,
                depth,
                sequences,
                answers: false,
            }
            .name()
        };
        assert_eq!(test(512, 0, 0, 1), "pp512");
        assert_eq!(test(0, 128, 64, 1), "tg128 @ d64");
        assert_eq!(test(512, 128, 0, 4), "pp512+tg128 x4");
    }
}
