//! What is fastest on one adapter: one choice after another, each held against what is best until then, by its numbers and then by the
//! clock, and taken where it is faster twice.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use tokkata_backend_wgpu::WgpuDevice;
use tokkata_core::DType;
use tokkata_engine::{
    Engine, EngineOptions, EventKind, Feed, FeedLogits, Request, RowKind, Sampling, SessionId,
};
use tokkata_ir::{Device, Limits, LoadOptions};
use tokkata_plan::BuildOptions;

use crate::checkpoint::Checkpoint;
use crate::device::Tried;
use crate::error::{Error, Result};
use crate::model::arena;
use crate::weights::FileWeights;

/// Rows of a prompt, and answers at once.
const PROMPT: usize = 256;
const MANY: usize = 8;
/// Tokens of an answer alone, and of each of many.
const TOKENS: [usize; 2] = [32, 16];
/// Rows of the prompt whose logits are compared: keys behind it are divided among workgroups.
const HEAD: usize = 100;
/// Squared error that logits of a choice which changes bits may have, of all squares.
const MOST_ERROR: f64 = 1e-5;
/// What a round may take, in seconds; where it takes longer, it has this part of the tokens at least.
const ROUND: f64 = 1.0;
const LEAST: usize = 8;
/// Repetitions, of which the fastest counts.
const ROUNDS: usize = 3;
/// Rounds in turn with what was best until then, of which all but one must be won.
const AGAIN: usize = 5;
/// By how much another choice must be faster on the whole, and how much it may be slower at one of the three.
const FASTER: f64 = 1.02;
const SLOWER: f64 = 0.98;

/// A model on a device.
struct Runner {
    engine: Engine,
    n_vocab: u32,
    next: u32,
    /// Which part of all tokens a round has.
    part: usize,
}

impl Runner {
    fn load(checkpoint: &Checkpoint, device: &WgpuDevice, part: usize) -> Result<Self> {
        let trained = checkpoint.trained_ctx().filter(|&n| n > 0);
        let limits = Limits {
            rows: PROMPT as u32,
            seqs: MANY as u32,
            logit_rows: MANY as u32,
            ctx: trained.unwrap_or(u32::MAX).min(2 * PROMPT as u32),
            kv_dtype: DType::F16,
            ..Limits::default()
        };
        let program = checkpoint.program(&limits, &BuildOptions::default())?;
        let program = Arc::new(program);
        let weights = FileWeights::new(checkpoint.file(), None);
        let failed = || Error::backend(checkpoint.path());
        let loaded = device.load(Arc::clone(&program), &weights, &LoadOptions::default());
        let loaded = loaded.map_err(failed())?;
        let arena = arena(&program, loaded.as_ref(), (None, 0));
        let executor = loaded.open(arena).map_err(failed())?;
        let options = EngineOptions {
            ahead: 3,
            ..EngineOptions::default()
        };
        let n_vocab = program.n_vocab.max(1);
        Ok(Runner {
            engine: Engine::new(program, executor, options)?,
            n_vocab,
            next: 1,
            part,
        })
    }

    /// A token that no cache foresees.
    fn token(&mut self) -> u32 {
        self.next = self
            .next
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.next >> 8) % self.n_vocab
    }

    /// Seconds of a prompt.
    fn prompt(&mut self) -> Result<f64> {
        let rows = (self.engine.limits().ctx as usize / 2).min(PROMPT / self.part);
        let tokens: Vec<u32> = (0..rows).map(|_| self.token()).collect();
        let session = self.engine.open_session(0);
        let started = Instant::now();
        let feed = Feed {
            session,
            tokens: &tokens,
            rows: RowKind::Prompt,
            logits: FeedLogits::Last,
        };
        let fed = self.engine.feed(&[feed], &[]);
        let took = started.elapsed();
        self.engine.close_session(session);
        fed?;
        Ok(took.as_secs_f64())
    }

    /// Seconds of a token of so many answers at once, behind the first of each.
    fn answers(&mut self, many: usize, tokens: usize) -> Result<f64> {
        for _ in 0..many {
            let mut request = Request {
                prompt: vec![self.token(), self.token()],
                sampling: Sampling::greedy(),
                ..Request::default()
            };
            request.stop.max_tokens = Some(tokens + 1);
            self.engine.submit(request)?;
        }
        let (mut begun, mut came, mut started) = (0, 0, None);
        while !self.engine.is_idle() {
            for event in self.engine.step() {
                match event.kind {
                    EventKind::Failed(error) => return Err(error.into()),
                    EventKind::Token { .. } if started.is_some() => came += 1,
                    EventKind::Token { .. } => begun += 1,
                    _ => {}
                }
            }
            if started.is_none() && begun >= many {
                started = Some(Instant::now());
            }
        }
        let took = started.map_or(0.0, |at| at.elapsed().as_secs_f64());
        Ok(took / f64::from(came.max(1)))
    }

    /// Logits of a prompt's last row, of a row behind it, and of rows of several answers.
    fn logits(&mut self) -> Result<Vec<f32>> {
        self.next = 1;
        let port = self.engine.logits_port()?;
        let sessions: Vec<_> = (0..MANY).map(|_| self.engine.open_session(0)).collect();
        let mut all = Vec::new();
        let steps = [
            (1, HEAD, RowKind::Prompt),
            (1, 1, RowKind::Answer),
            (MANY, 1, RowKind::Answer),
        ];
        let mut run = || {
            for (many, rows, kind) in steps {
                let tokens: Vec<u32> = (0..rows).map(|_| self.token()).collect();
                let feed = |&session: &SessionId| Feed {
                    session,
                    tokens: &tokens,
                    rows: kind,
                    logits: FeedLogits::Last,
                };
                let feeds: Vec<Feed<'_>> = sessions[..many].iter().map(feed).collect();
                let fed = self.engine.feed(&feeds, &[port])?;
                all.extend(self.engine.read(&fed, port, None)?);
            }
            Ok::<_, Error>(())
        };
        let ran = run();
        for session in sessions {
            self.engine.close_session(session);
        }
        ran.map(|()| all)
    }

    /// Seconds of each of [`TIMED`](crate::device::TIMED).
    fn once(&mut self) -> Result<[f64; 3]> {
        let tokens = TOKENS.map(|n| n / self.part);
        let alone = self.answers(1, tokens[0])?;
        Ok([alone, self.answers(MANY, tokens[1])?, self.prompt()?])
    }

    /// Makes rounds as long as they may be; kernels are made in the first.
    fn fit(&mut self) -> Result<()> {
        self.once()?;
        let started = Instant::now();
        self.once()?;
        let took = started.elapsed().as_secs_f64();
        while self.part > 1 && took * (LEAST / self.part) as f64 * 2.0 < ROUND {
            self.part /= 2;
        }
        Ok(())
    }

    /// The best of some rounds.
    fn times(&mut self) -> Result<[f64; 3]> {
        let mut best = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            let took = self.once()?;
            best = std::array::from_fn(|i| best[i].min(took[i]));
        }
        Ok(best)
    }
}

/// How many times as fast, as [`TIMED`](crate::device::TIMED).
fn faster(before: [f64; 3], now: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| before[i] / now[i].max(f64::MIN_POSITIVE))
}

/// Whether a choice is worth taking.
fn pays(faster: [f64; 3]) -> bool {
    let whole = faster.iter().product::<f64>().cbrt();
    whole >= FASTER && faster.iter().all(|&one| one >= SLOWER)
}

/// Whether a choice that seemed to pay does so again, in turn with what was best until then.
fn pays_again(best: &mut Runner, other: &mut Runner) -> Result<Option<[f64; 3]>> {
    let (mut before, mut now) = ([f64::INFINITY; 3], [f64::INFINITY; 3]);
    let mut won = 0;
    for _ in 0..AGAIN {
        let (a, b) = (best.once()?, other.once()?);
        won += usize::from(faster(a, b).iter().product::<f64>() > 1.0);
        before = std::array::from_fn(|i| before[i].min(a[i]));
        now = std::array::from_fn(|i| now[i].min(b[i]));
    }
    let ratio = faster(before, now);
    Ok((won + 1 >= AGAIN && pays(ratio)).then_some(ratio))
}

/// Whether logits are those of what is best without the choice: bit by bit if the choice is a number, else nearly.
fn agrees(choice: &str, usual: &[f32], found: &[f32]) -> bool {
    if choice.contains('=') {
        return usual == found;
    }
    let square = |x: f32| f64::from(x).powi(2);
    let off: f64 = usual.iter().zip(found).map(|(a, b)| square(a - b)).sum();
    off <= MOST_ERROR * usual.iter().map(|&x| square(x)).sum::<f64>()
}

/// Tries everything that may be chosen otherwise on a device for which nothing is chosen, and gives what is best, as
/// [`WgpuDevice::choose`] takes it; `None` if `said` stops it.
pub(super) fn tune(
    usual: &WgpuDevice,
    checkpoint: &Checkpoint,
    said: &mut dyn FnMut(&Tried) -> ControlFlow<()>,
) -> Result<Option<Vec<String>>> {
    let mut chosen = usual.clone();
    let mut best = Runner::load(checkpoint, usual, LEAST)?;
    best.fit()?;
    // Of what is best: a class that is left out may change bits.
    let mut logits = best.logits()?;
    for choice in usual.alternatives() {
        let mut device = chosen.clone();
        let right = device.choose(&choice) && device.is_right();
        let mut tried = Tried {
            choice,
            faster: None,
            taken: false,
        };
        if right {
            let mut runner = Runner::load(checkpoint, &device, best.part)?;
            let found = runner.logits()?;
            if agrees(&tried.choice, &logits, &found) {
                // Kernels are made in the first round.
                runner.once()?;
                let mut ratio = faster(best.times()?, runner.times()?);
                if pays(ratio)
                    && let Some(again) = pays_again(&mut best, &mut runner)?
                {
                    ratio = again;
                    tried.taken = true;
                    (best, chosen, logits) = (runner, device, found);
                }
                tried.faster = Some(ratio);
            }
        }
        if said(&tried).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(chosen.chosen()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_pays_that_is_faster_and_nowhere_slower() {
        assert!(pays([1.1, 1.0, 1.0]) && pays([1.02, 1.03, 1.02]));
        assert!(!pays([1.01, 1.01, 1.01]), "that may be chance");
        assert!(!pays([1.3, 1.2, 0.9]), "prompts lose");
        assert_eq!(faster([2.0, 1.0, 3.0], [1.0, 2.0, 3.0]), [2.0, 0.5, 1.0]);
    }

    #[test]
    fn numbers_change_no_bit_and_classes_little() {
        let (usual, near, far) = ([1.0, -2.0], [1.001, -2.0], [1.1, -2.0]);
        assert!(agrees("keys=64", &usual, &usual) && !agrees("keys=64", &usual, &near));
        assert!(agrees("without tiles", &usual, &near));
        assert!(!agrees("without tiles", &usual, &far));
        assert!(!agrees("without tiles", &usual, &[f32::NAN, -2.0]));
    }
}
