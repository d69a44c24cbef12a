//! Many callers at once: every answer must be the one that the same request gets alone.
//!
//! Requests of all kinds (answers, grammars, values, bad ones, cancelled ones) reach one engine at the same time, over
//! an arena that holds a small part of what they would need together.

mod requests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokkata_archs::{FileWeights, Registry, ResolveOptions};
use tokkata_core::DType;
use tokkata_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, EventKind};
use tokkata_formats::ModelFile;
use tokkata_ir::{ArenaLayout, Device, Executor, Limits, LoadOptions, Program};
use tokkata_plan::BuildOptions;

use crate::golden::Golden;
use crate::late::Late;
use crate::models::Failure;
use requests::{Kind, Plan, Plans};

/// Works that nobody waits for any more end within this.
const SETTLES: Duration = Duration::from_secs(10);

/// Positions of a sequence.
const CTX: u32 = 4096;
/// Sequences of a step.
const SEQS: u32 = 32;
/// How long nothing may happen to a request.
const PATIENCE: Duration = Duration::from_secs(300);
/// Memory that a run may grow by between its middle and its end.
const GROWTH_BYTES: u64 = 64 << 20;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in all.
    pub requests: usize,
    /// What they are follows from it.
    pub seed: u64,
    /// Requests at once.
    pub in_flight: usize,
    /// News of the device come late, and works run ahead and chain.
    pub slow: bool,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    /// Bits of the values that were read.
    values: Vec<u32>,
    failure: Option<String>,
    cancelled: bool,
}

/// Figures of a run over one model.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The model.
    pub model: String,
    /// Requests, and how many of each kind.
    pub requests: Vec<(&'static str, usize)>,
    /// What is wrong, one line each.
    pub faults: Vec<String>,
    /// Slabs of the arena, and those that all requests in flight would need on average.
    pub slabs: (u64, u64),
    /// Time of the run, and of all requests alone.
    pub took: (Duration, Duration),
    /// Memory of the process in the middle and at the end.
    pub resident: (u64, u64),
}

/// Runs a load over one golden's model.
///
/// # Errors
/// A model that cannot be loaded. What is wrong with answers is among the figures.
pub fn run(golden: &Golden, device: &dyn Device, load: Load) -> Result<Figures, Failure> {
    let file = crate::generate::model(golden)?;
    let model = Loadable::new(&file, device)?;
    let plans = Plans::new(load.seed, load.requests, model.program.n_vocab)?;
    let (least, wanted) = model.arenas(&plans, load.in_flight);
    let mut figures = Figures {
        model: golden.name.clone(),
        requests: plans.kinds(),
        slabs: (least.slabs().into(), wanted.slabs().into()),
        ..Figures::default()
    };
    let options = EngineOptions {
        ahead: if load.slow { 3 } else { 1 },
        chain: if load.slow { 4 } else { 0 },
        queue: usize::MAX,
        prompt_step: Some(Duration::from_millis(100)),
        ..EngineOptions::default()
    };
    let executor = model.executor(&least)?;
    let executor: Box<dyn Executor> = match load.slow {
        true => Box::new(Late::new(executor)),
        false => executor,
    };
    let engine = model.engine(executor, options)?;
    let (handle, thread) = engine.spawn().map_err(|e| e.to_string())?;
    let started = Instant::now();
    let together = all(&handle, &plans, load, &mut figures);
    figures.took.0 = started.elapsed();
    // Works of those who were cancelled may still be under way.
    let ended = Instant::now();
    let mut unused = (false, false);
    while !unused.0 && ended.elapsed() < SETTLES {
        let look = handle.with(|engine| {
            engine.forget_prefixes();
            (engine.is_idle(), engine.cache().pools().is_unused())
        });
        unused = look.map_err(|e| e.to_string())?;
    }
    if unused != (true, true) {
        figures.faults.push("blocks were not given back".to_owned());
    }
    drop(handle);
    thread.join().map_err(|_| "the engine's thread panicked")?;
    let started = Instant::now();
    alone(&model, &plans, &together, &mut figures)?;
    figures.took.1 = started.elapsed();
    Ok(figures)
}

/// A model whose programs are built and whose weights can be loaded.
struct Loadable<'a> {
    file: &'a ModelFile,
    device: &'a dyn Device,
    program: Arc<Program>,
}

impl<'a> Loadable<'a> {
    fn new(file: &'a ModelFile, device: &'a dyn Device) -> Result<Self, Failure> {
        let registry = Registry::builtin();
        let spec = registry.resolve(file, &ResolveOptions { ctx: CTX });
        let spec = spec.map_err(|e| e.to_string())?;
        let limits = Limits {
            rows: 256,
            seqs: SEQS,
            logit_rows: 64,
            ctx: CTX,
            kv_dtype: DType::F16,
            ..Limits::default()
        };
        let options = BuildOptions {
            outputs: ["logits", "tokens", "hidden"].map(str::to_owned).into(),
            ..BuildOptions::default()
        };
        let program = tokkata_plan::build_with(&spec, &limits, &options);
        Ok(Loadable {
            file,
            device,
            program: Arc::new(program.map_err(|e| e.to_string())?),
        })
    }

    /// The arena of the run, and one that all requests in flight would fit on average.
    fn arenas(&self, plans: &Plans, in_flight: usize) -> (ArenaLayout, ArenaLayout) {
        let caches = &self.program.caches;
        let bytes: Vec<u64> = caches
            .iter()
            .map(tokkata_ir::CacheGroup::block_bytes)
            .collect();
        let need = |positions: u64| {
            let limits = Limits {
                ctx: positions as u32,
                ..self.program.limits
            };
            let counts = caches.iter().map(|g| g.blocks_of_sequence(&limits));
            ArenaLayout::for_counts(&bytes, &counts.collect::<Vec<u64>>())
        };
        let mean = plans.positions() / plans.len().max(1) as u64;
        let all = need(mean.max(1)).bytes() * in_flight as u64;
        // One whole context must fit.
        let least = (all / 20).max(need(CTX.into()).bytes() * 5 / 4);
        (
            ArenaLayout::new(&bytes, least),
            ArenaLayout::new(&bytes, all),
        )
    }

    fn executor(&self, arena: &ArenaLayout) -> Result<Box<dyn Executor>, Failure> {
        let options = LoadOptions {
            threads: 2,
            ..LoadOptions::default()
        };
        let weights = FileWeights(self.file);
        let loaded = self.device.load(self.program.clone(), &weights, &options);
        let loaded = loaded.map_err(|e| e.to_string())?;
        let arena = ArenaLayout::new(&loaded.block_bytes(), arena.bytes());
        loaded.open(arena).map_err(|e| e.to_string())
    }

    fn engine(
        &self,
        executor: Box<dyn Executor>,
        options: EngineOptions,
    ) -> Result<Engine, Failure> {
        let engine = Engine::new(self.program.clone(), executor, options);
        engine.map_err(|e| e.to_string())
    }
}

/// Every request, so many at a time.
fn all(handle: &EngineHandle, plans: &Plans, load: Load, figures: &mut Figures) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Outcome>> = Mutex::new(vec![Outcome::default(); plans.len()]);
    let faults = Mutex::new(Vec::new());
    let middle = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..load.in_flight.min(plans.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= plans.len() {
                        return;
                    }
                    if i == plans.len() / 2 {
                        *middle.lock().expect("no holder panics") = resident_bytes();
                    }
                    match ask(handle, &plans.get(i)) {
                        Ok(outcome) => outcomes.lock().expect("no holder panics")[i] = outcome,
                        Err(fault) => faults.lock().expect("no holder panics").push(fault),
                    }
                }
            });
        }
    });
    figures.resident = (
        middle.into_inner().expect("no holder panics"),
        resident_bytes(),
    );
    if figures.resident.1 > figures.resident.0 + GROWTH_BYTES {
        figures.faults.push("memory grew".to_owned());
    }
    figures
        .faults
        .extend(faults.into_inner().expect("no holder panics"));
    outcomes.into_inner().expect("no holder panics")
}

/// One request to its end.
fn ask(handle: &EngineHandle, plan: &Plan) -> Result<Outcome, String> {
    let mut answer = plan.ask(handle);
    let mut outcome = Outcome::default();
    loop {
        match answer.next_within(PATIENCE) {
            Some(EventKind::Token { id, .. }) => outcome.tokens.push(id),
            Some(EventKind::Values { values, .. }) => {
                outcome.values.extend(values.iter().map(|x| x.to_bits()));
            }
            Some(EventKind::Failed(error)) => outcome.failure = Some(error.to_string()),
            Some(EventKind::Prompt { .. } | EventKind::Finished { .. }) => {}
            None if answer.is_over() => return Ok(outcome),
            None => return Err(format!("request {} is stuck", plan.number)),
        }
        if plan.cancel_after.is_some_and(|n| outcome.tokens.len() >= n) && !outcome.cancelled {
            outcome.cancelled = true;
            answer.cancel();
        }
    }
}

/// Every request again, with nobody beside it and nothing stored before it.
fn alone(
    model: &Loadable<'_>,
    plans: &Plans,
    together: &[Outcome],
    figures: &mut Figures,
) -> Result<(), Failure> {
    let cache = CacheOptions {
        no_prefix_cache: true,
        ..CacheOptions::default()
    };
    let options = EngineOptions {
        cache,
        ..EngineOptions::default()
    };
    let (arena, _) = model.arenas(plans, 1);
    let engine = model.engine(model.executor(&arena)?, options)?;
    let (handle, thread) = engine.spawn().map_err(|e| e.to_string())?;
    for (i, got) in together.iter().enumerate() {
        let plan = plans.get(i).uncancelled();
        let want = ask(&handle, &plan)?;
        if !agrees(plan.kind, got, &want) {
            let number = plan.number;
            figures.faults.push(format!(
                "request {number} ({}): {} differs from {}",
                plan.kind.name(),
                told(got),
                told(&want)
            ));
        }
    }
    drop(handle);
    thread
        .join()
        .map_err(|_| "the engine's thread panicked".to_owned())
}

/// Whether an answer is the one that its request gets alone, or the beginning of it where it was cancelled.
fn agrees(kind: Kind, got: &Outcome, want: &Outcome) -> bool {
    match kind {
        Kind::Bad => got.failure.is_some() && got.failure == want.failure,
        _ if got.cancelled => want.tokens.starts_with(&got.tokens) && got.failure.is_none(),
        _ => got == want && got.failure.is_none(),
    }
}

fn told(outcome: &Outcome) -> String {
    let Outcome {
        tokens,
        values,
        failure,
        ..
    } = outcome;
    let shown: Vec<String> = tokens.iter().take(8).map(u32::to_string).collect();
    let tokens = format!("{} tokens ({})", tokens.len(), shown.join(" "));
    let failure = failure.as_deref().unwrap_or("no failure");
    format!("{tokens}, {} values, {failure}", values.len())
}

/// Bytes of memory that the process has; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|t| t.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
