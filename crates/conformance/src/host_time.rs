//! What a step costs the host apart from kernels and draws: forming works, keeping slots, giving out results.
//!
//! The engine and the host's executor run over a machine that computes nothing, and the thread's time on a processor is
//! counted, not the clock.

use std::sync::Arc;

use tokkata_core::DType;
use tokkata_engine::{
    CacheOptions, Engine, EngineOptions, EventKind, Request, Sampling, StopRules,
};
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, CacheKind, GroupId, HostExecutor, Lead, Limits, Machine,
    Plan, PlanRole, Port, Program, Shape, SlotDef, StepInputs, StepState, ValType, ValueDef,
    ValueId,
};

use crate::models::Failure;

/// Steps that are counted.
const STEPS: usize = 2000;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Sequences that answer.
    pub seqs: usize,
    /// Tokens of each one's prompt.
    pub depth: usize,
    /// Whether tokens are penalised and biased.
    pub penalties: bool,
}

/// A machine that computes nothing: every row draws the same token.
struct Null {
    drawn: Vec<i32>,
}

impl Machine for Null {
    fn replay(
        &mut self,
        _: usize,
        step: &StepState,
        _: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.drawn.clear();
        self.drawn.resize(step.logit_rows().len(), 5);
        Ok(())
    }

    fn floats(&self, _: ValueId) -> &[f32] {
        &[]
    }

    fn ints(&self, _: ValueId) -> &[i32] {
        &self.drawn
    }

    fn copy_block(&mut self, _: GroupId, _: u32, _: u32) {}

    fn export_block(&self, _: GroupId, _: u32) -> Vec<f32> {
        Vec::new()
    }

    fn import_block(&mut self, _: GroupId, _: u32, _: &[f32]) {}

    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A program that only draws, over the caches of a model with full and windowed layers.
fn program(shape: Served) -> Program {
    let plan = Plan {
        role: PlanRole::Main,
        inputs: vec![],
        outputs: vec![Port {
            name: "tokens".to_owned(),
            value: ValueId(0),
        }],
        values: vec![ValueDef {
            shape: Shape {
                lead: Lead::LogitRows,
                dims: vec![1],
            },
            dtype: ValType::I32,
        }],
        nodes: vec![],
    };
    let group = |kind| CacheGroup {
        kind,
        slots: vec![SlotDef::Kv {
            n_kv_heads: 8,
            dim_k: 128,
            dim_v: Some(128),
        }],
        dtype: DType::F16,
        block_size: 32,
    };
    Program {
        plans: vec![plan],
        weights: vec![],
        caches: vec![group(CacheKind::Full), group(CacheKind::Window(1024))],
        consts: vec![],
        limits: Limits {
            rows: 512,
            seqs: shape.seqs as u32,
            logit_rows: shape.seqs as u32,
            ctx: (shape.depth + STEPS + 64) as u32,
            ..Limits::default()
        },
        n_vocab: 151_936,
        n_embd: 1024,
    }
}

/// Microseconds of processor time of each step in which every sequence draws a token.
///
/// # Errors
/// A system that does not tell a thread's time.
pub fn measured(shape: Served) -> Result<f64, Failure> {
    let program = Arc::new(program(shape));
    let bytes: Vec<u64> = program.caches.iter().map(CacheGroup::block_bytes).collect();
    let per_seq = program.caches.iter();
    let per_seq = per_seq.map(|g| g.blocks_of_sequence(&program.limits) * shape.seqs as u64);
    let arena = ArenaLayout::for_counts(&bytes, &per_seq.collect::<Vec<u64>>());
    let null = Null { drawn: Vec::new() };
    let executor = Box::new(HostExecutor::new(null, program.clone(), arena));
    let options = EngineOptions {
        cache: CacheOptions::default(),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(program, executor, options).map_err(|e| e.to_string())?;
    for seq in 0..shape.seqs as u32 {
        let prompt = (0..shape.depth as u32).map(|i| (i * 7 + seq) % 150_000);
        let mut sampling = Sampling::default();
        if shape.penalties {
            sampling.repeat_penalty = 1.1;
            sampling.bias = vec![(1, 1.0), (2, -1.0)];
        }
        let request = Request {
            prompt: prompt.collect(),
            sampling,
            stop: StopRules {
                max_tokens: Some(STEPS + 32),
                ..StopRules::default()
            },
            ..Request::default()
        };
        engine.submit(request).map_err(|e| e.to_string())?;
    }
    let mut answering = 0;
    while answering < shape.seqs {
        let events = engine.step();
        let prompts = events.iter().filter(
            |e| matches!(e.kind, EventKind::Prompt { cached, total, .. } if cached == total),
        );
        answering += prompts.count();
    }
    let before = thread_ns()?;
    let mut steps = 0;
    while steps < STEPS - 32 {
        engine.step();
        steps += 1;
    }
    let after = thread_ns()?;
    Ok((after - before) as f64 / steps as f64 / 1000.0)
}

/// Nanoseconds that this thread has spent on processors.
fn thread_ns() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").map_err(|e| e.to_string())?;
    let ns = text.split_whitespace().next().and_then(|n| n.parse().ok());
    ns.ok_or_else(|| "the system does not tell a thread's time".to_owned())
}
