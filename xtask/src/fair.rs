//! `fair`: what a long prompt does to an answer that is being written, and to a short request that comes after it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokkata::{Drafts, EventKind, Model, OpenOptions, Request, RequestId, Sampling, StopRules};

const USAGE: &str = "usage: cargo xtask fair [--threads N] [--prompt TOKENS] [--runs N] MODEL.gguf

  --threads  worker threads (default: one for each core)
  --prompt   tokens of the long prompt (default 16384)
  --runs     how often all of it is measured (default 3)";

/// Tokens of a short prompt.
const SHORT: usize = 100;
/// Tokens of the answer before the long prompt comes.
const BEFORE: usize = 16;

struct Options {
    threads: Option<usize>,
    prompt: usize,
    runs: usize,
    model: PathBuf,
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        threads: None,
        prompt: 16_384,
        runs: 3,
        model: PathBuf::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().and_then(|v| v.parse().ok()).context(USAGE);
        match arg.as_str() {
            "--threads" => options.threads = Some(value()?),
            "--prompt" => options.prompt = value()?,
            "--runs" => options.runs = value()?,
            flag if flag.starts_with('-') => bail!(USAGE),
            model => options.model = model.into(),
        }
    }
    if options.model.as_os_str().is_empty() {
        bail!(USAGE);
    }
    Ok(options)
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let ctx = u32::try_from(options.prompt + 4096)?;
    let open = OpenOptions {
        threads: options.threads,
        ctx: std::num::NonZeroU32::new(ctx),
        seqs: 4,
        no_prefix_cache: true,
        drafts: Drafts::none(),
        ..OpenOptions::default()
    };
    let mut model = Model::open(&options.model, &open)?;
    model.engine().measure_costs()?;
    println!(
        "{} threads, {} tokens of prompt",
        model.threads(),
        options.prompt
    );
    for _ in 0..options.runs {
        let together = Together::measured(&mut model, options.prompt);
        let alone = Alone::measured(&mut model, options.prompt, together.gaps.len());
        tell(&alone, &together);
    }
    Ok(())
}

fn request(seed: u32, prompt: usize, answer: usize, n_vocab: u32) -> Request {
    let token = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed) % n_vocab;
    Request {
        prompt: (0..prompt as u32).map(token).collect(),
        sampling: Sampling::greedy(),
        stop: StopRules {
            max_tokens: Some(answer),
            ..StopRules::default()
        },
        ..Request::default()
    }
}

/// Times of each alone.
struct Alone {
    /// Between two tokens of an answer.
    token: Duration,
    /// From a long prompt to its first token.
    long: Duration,
    /// From a short prompt to its first token.
    short: Duration,
}

impl Alone {
    /// The answer is measured where it was beside the prompt: behind its first tokens, for as many.
    fn measured(model: &mut Model, prompt: usize, tokens: usize) -> Self {
        let n_vocab = model.n_vocab();
        let mut first = |prompt, answer| {
            let started = Instant::now();
            let engine = model.engine();
            let id = engine.submit(request(prompt as u32, prompt, answer, n_vocab));
            let id = id.expect("it fits");
            let (mut times, mut over) = (Vec::new(), false);
            while !over {
                engine.wait();
                while let Some(kind) = engine.next_event(id) {
                    match kind {
                        EventKind::Token { .. } => times.push(started.elapsed()),
                        EventKind::Finished { .. } | EventKind::Failed(_) => over = true,
                        _ => {}
                    }
                }
            }
            times
        };
        let _ = first(SHORT, BEFORE);
        let times = first(SHORT, BEFORE + tokens);
        Alone {
            token: (times[BEFORE + tokens - 1] - times[BEFORE - 1]) / tokens as u32,
            short: times[0],
            long: first(prompt, 1)[0],
        }
    }
}

/// Between two tokens of the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    took: Duration,
    /// Rows of the prompt that ran in it.
    rows: usize,
}

/// What each of the three saw while all ran.
struct Together {
    /// While the prompt entered.
    gaps: Vec<Gap>,
    long: Duration,
    short: Duration,
    /// Steps until the first rows of the short one.
    steps: usize,
}

impl Together {
    fn measured(model: &mut Model, prompt: usize) -> Self {
        let n_vocab = model.n_vocab();
        let engine = model.engine();
        let answer = engine.submit(request(1, SHORT, 1 << 20, n_vocab));
        let answer = answer.expect("it fits");
        let mut written = 0;
        while written < BEFORE {
            engine.wait();
            written += count(engine, answer);
        }
        let started = Instant::now();
        let long = engine
            .submit(request(2, prompt, 1, n_vocab))
            .expect("it fits");
        let (mut short, mut short_at, mut steps) = (None, started, 0);
        let mut seen = Together {
            gaps: Vec::new(),
            long: Duration::ZERO,
            short: Duration::ZERO,
            steps: 0,
        };
        let (mut last, mut entered, mut before) = (Instant::now(), 0, 0);
        while seen.long.is_zero() {
            engine.wait();
            steps += 1;
            while let Some(kind) = engine.next_event(long) {
                match kind {
                    EventKind::Prompt { cached, .. } => {
                        entered = cached;
                        if cached > prompt / 4 && short.is_none() {
                            short = engine.submit(request(3, SHORT, 1, n_vocab)).ok();
                            (short_at, steps) = (Instant::now(), 0);
                        }
                    }
                    EventKind::Token { .. } => seen.long = started.elapsed(),
                    _ => {}
                }
            }
            while let Some(kind) = short.and_then(|id| engine.next_event(id)) {
                match kind {
                    EventKind::Prompt { .. } if seen.steps == 0 => seen.steps = steps,
                    EventKind::Token { .. } => seen.short = short_at.elapsed(),
                    _ => {}
                }
            }
            for _ in 0..count(engine, answer) {
                seen.gaps.push(Gap {
                    took: last.elapsed(),
                    rows: entered - before,
                });
                (last, before) = (Instant::now(), entered);
            }
        }
        engine.cancel(answer);
        while !engine.is_idle() {
            engine.step();
        }
        engine.events();
        seen
    }
}

/// Tokens of an answer that came since the last time.
///
/// # Panics
/// When the answer ends, which leaves the prompt all time.
fn count(engine: &mut tokkata::Engine, id: RequestId) -> usize {
    let events = std::iter::from_fn(|| engine.next_event(id));
    events
        .filter(|kind| {
            let over = matches!(kind, EventKind::Finished { .. } | EventKind::Failed(_));
            assert!(!over, "the answer ended before the prompt had entered");
            matches!(kind, EventKind::Token { .. })
        })
        .count()
}

fn tell(alone: &Alone, together: &Together) {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let mut gaps = together.gaps.clone();
    gaps.sort_unstable();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize].took;
    let took = |gaps: &[Gap]| gaps.iter().map(|g| g.took).sum::<Duration>();
    let mean = took(&gaps) / gaps.len() as u32;
    let slices: Vec<Gap> = gaps.iter().filter(|g| g.rows > 0).copied().collect();
    let rows: usize = slices.iter().map(|g| g.rows).sum();
    let share = 100.0 * ms(alone.token) / ms(mean);
    println!(
        "answer: {:.1} ms a token alone, {:.1} ms beside the prompt ({share:.0} % of its speed); gaps {:.1} ms (median), {:.1} ms (99 %)",
        ms(alone.token),
        ms(mean),
        ms(at(0.5)),
        ms(at(0.99)),
    );
    println!(
        "prompt: {:.0} ms alone, {:.0} ms beside the answer ({:.2} times)",
        ms(alone.long),
        ms(together.long),
        ms(together.long) / ms(alone.long),
    );
    println!(
        "slices: {} of {:.0} rows in {:.1} ms, an answer's step in each",
        slices.len(),
        rows as f64 / slices.len() as f64,
        ms(took(&slices)) / slices.len() as f64,
    );
    println!(
        "short request: first rows in step {}, first token after {:.0} ms, alone {:.0} ms ({:.2} times)",
        together.steps,
        ms(together.short),
        ms(alone.short),
        ms(together.short) / ms(alone.short),
    );
}
