//! The engine over a model whose logits betray any wrong cache entry.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use tokkata_ir::{CacheKind, Executor, HostExecutor, Limits};

use tokkata_conformance::late::Late;

use crate::fake::{Fake, POISON_TOKEN, Reads, arena, expected, group, program};
use crate::*;

const FULL: CacheKind = CacheKind::Full;
const WINDOW: CacheKind = CacheKind::Window(7);
const STATE: CacheKind = CacheKind::Recurrent;

fn limits() -> Limits {
    Limits {
        rows: 24,
        seqs: 4,
        logit_rows: 4,
        ctx: 200,
        draft: 3,
        adapters: 2,
        ..Limits::default()
    }
}

/// What an engine runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// An executor that computes when it is asked, one work at a time.
    Prompt,
    /// One that answers late, with several works under way.
    Late { ahead: usize, chain: u32 },
}

thread_local! {
    static HOW: Cell<How> = const { Cell::new(How::Prompt) };
}

/// Every one of these tests on every kind of executor.
macro_rules! everywhere {
    ($($name:ident)*) => {
        mod prompt_executor {
            $(#[test] fn $name() {
                crate::tests::HOW.set(crate::tests::How::Prompt);
                super::$name();
            })*
        }
        mod late_executor {
            $(#[test] fn $name() {
                crate::tests::HOW.set(crate::tests::How::Late { ahead: 3, chain: 0 });
                super::$name();
            })*
        }
        mod chaining_executor {
            $(#[test] fn $name() {
                crate::tests::HOW.set(crate::tests::How::Late { ahead: 2, chain: 4 });
                super::$name();
            })*
        }
    };
}

mod adapters;
mod basics;
mod constraints;
mod drafts;
mod fairness;
mod inputs;
mod many;
mod shift;
mod spawned;
mod speculation;
mod watermark;

/// An engine whose arena holds `positions` of every group.
fn engine(kinds: &[CacheKind], block_size: u32, positions: u32, limits: Limits) -> Engine {
    engine_and_model(kinds, block_size, positions, limits).0
}

/// The model's own counters.
struct Model {
    /// Rows that it has computed.
    rows: Arc<AtomicUsize>,
    /// Nanoseconds on its clock.
    spent: Arc<AtomicU64>,
    /// Rows by token and position, and whether they were a prompt's.
    seen: Arc<Mutex<Vec<(u32, usize, bool)>>>,
    /// Steps until it is lost.
    lost_after: Arc<AtomicUsize>,
    /// Its values cannot be read, where its news come late.
    hides: Arc<AtomicBool>,
}

fn engine_and_model(
    kinds: &[CacheKind],
    block_size: u32,
    positions: u32,
    limits: Limits,
) -> (Engine, Model) {
    let blocks = kinds.iter().map(|&kind| match kind {
        CacheKind::Recurrent => u64::from(limits.seqs * (1 + limits.draft)),
        _ => u64::from(positions.div_ceil(block_size)),
    });
    let arena = arena(kinds.len(), blocks.sum());
    let caches = kinds.iter().map(|&kind| match kind {
        CacheKind::Recurrent => group(kind, 1),
        _ => group(kind, block_size),
    });
    let program = program(caches.collect(), limits);
    let fake = Fake::new(&program);
    let mut model = Model {
        rows: fake.rows.clone(),
        spent: fake.spent.clone(),
        seen: fake.seen.clone(),
        lost_after: fake.lost_after.clone(),
        hides: Arc::default(),
    };
    let executor = HostExecutor::new(fake, program.clone(), arena);
    let cache = CacheOptions {
        shuffle_blocks: Some(5),
        ..CacheOptions::default()
    };
    let options = EngineOptions {
        cache,
        ..EngineOptions::default()
    };
    let (executor, options): (Box<dyn Executor>, _) = match HOW.get() {
        How::Prompt => (Box::new(executor), options),
        How::Late { ahead, chain } => {
            let options = EngineOptions {
                ahead,
                chain,
                ..options
            };
            let late = Late::new(Box::new(executor));
            model.hides = late.hides();
            (Box::new(late), options)
        }
    };
    (Engine::new(program, executor, options).unwrap(), model)
}

fn request(prompt: &[u32], n: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling::greedy(),
        stop: StopRules {
            max_tokens: Some(n),
            ..StopRules::default()
        },
        ..Request::default()
    }
}

fn prompt(n: usize, seed: u64) -> Vec<u32> {
    let token = |i| (tokkata_ir::sample::uniform(seed, i) % u64::from(POISON_TOKEN)) as u32;
    (0..n as u64).map(token).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Given {
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    stats: Stats,
    failed: Option<String>,
}

/// Answers of every request, until the engine is idle.
fn run(engine: &mut Engine) -> HashMap<RequestId, Given> {
    let mut answers: HashMap<RequestId, Given> = HashMap::new();
    for _ in 0..10_000 {
        if engine.is_idle() {
            return answers;
        }
        collect(&mut answers, engine.step());
    }
    panic!("the engine makes no progress");
}

/// What came of every request until one has so many tokens.
fn until(engine: &mut Engine, id: RequestId, tokens: usize) -> HashMap<RequestId, Given> {
    let mut answers: HashMap<RequestId, Given> = HashMap::new();
    while answers.get(&id).is_none_or(|a| a.tokens.len() < tokens) {
        collect(&mut answers, engine.step());
    }
    answers
}

/// The greedy answer without any cache.
fn greedy(prompt: &[u32], n: usize, kinds: &[CacheKind]) -> Vec<u32> {
    greedy_over(given(prompt), n, kinds)
}

/// A sequence of tokens alone.
fn given(tokens: &[u32]) -> Reads<'_> {
    Reads {
        tokens,
        ..Reads::default()
    }
}

/// As [`greedy`], beside what is no token.
fn greedy_over(reads: Reads<'_>, n: usize, kinds: &[CacheKind]) -> Vec<u32> {
    let prompt = reads.tokens;
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let tokens_so_far = Reads {
            tokens: &tokens,
            ..reads
        };
        let logits = expected(tokens_so_far, kinds);
        tokens.push(tokkata_ir::sample::argmax(&logits).unwrap());
    }
    tokens.split_off(prompt.len())
}

const KINDS: [&[CacheKind]; 4] = [&[FULL], &[FULL, WINDOW], &[STATE], &[STATE, FULL, WINDOW]];

/// Forgets everything: then every block must be free.
fn assert_no_leak(engine: &mut Engine) {
    let sessions: Vec<SessionId> = engine.sessions.keys().copied().collect();
    sessions.into_iter().for_each(|id| engine.close_session(id));
    engine.cache.forget();
    assert!(
        engine.cache.pools().is_unused(),
        "{:?}",
        engine.cache.pools()
    );
    let prefixes = engine.cache.prefixes().unwrap();
    assert_eq!((prefixes.len(), prefixes.salts()), (0, 0));
}

fn collect(answers: &mut HashMap<RequestId, Given>, events: Vec<Event>) {
    for event in events {
        let answer = answers.entry(event.request).or_default();
        match event.kind {
            EventKind::Token { id, .. } => answer.tokens.push(id),
            EventKind::Failed(error) => answer.failed = Some(error.to_string()),
            EventKind::Finished { reason, stats, .. } => {
                (answer.reason, answer.stats) = (Some(reason), stats);
            }
            EventKind::Prompt { .. } | EventKind::Values { .. } => {}
        }
    }
}
