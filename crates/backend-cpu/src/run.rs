//! A loaded program: a flat list of prepared steps per plan, and the loop that replays it.
//!
//! A replay looks nothing up, allocates nothing and decides nothing: every worker of the pool walks the list,
//! takes its share of each step and meets the others where the list says so.
#![allow(unsafe_code)]

pub(crate) mod acts;
mod adapt;
mod attention;
mod cache;
mod chain;
mod conv1d;
pub(crate) mod cx;
mod gain;
mod indexer;
mod linear;
mod lower;
mod moe;
mod recurrent;
mod rope;
mod rowops;
mod rows;
mod summary;
pub(crate) mod sweep;
mod walk;
#[cfg_attr(not(debug_assertions), path = "run/unwatched.rs")]
mod watch;
pub(crate) mod weights;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokkata_ir::tape::{Instr, ResourceId, Tape};
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, GroupId, Lead, LoadOptions, Machine, Op, Plan, Port,
    Program, StepInputs, StepState, StepTime, ValType, ValueId, WeightSource,
};

use crate::arena::{self, Place};
use crate::kernels::{Forms, Kernel as Set};
use crate::memory::Aligned;
use crate::pool::{Pool, PoolError, Worker};
use crate::select::{self, Facts, What};
use acts::{ActSet, Key};
use adapt::Adapters;
use attention::Scratch as AttentionScratch;
use cache::Caches;
use chain::Finder;
use cx::{Cx, Memory, Own, Scratch, Ticket, count};
use gain::Gain;
use lower::Lower;
use moe::{Scratch as MoeScratch, Sizes};
use rope::{TurnSpec, TurnTable};
use walk::{Lowered, Step};
use watch::Watcher;
use weights::Weights;

const LEADS: [Lead; 3] = [Lead::Rows, Lead::LogitRows, Lead::Seqs];
/// Floats that attention and indexers may keep between their two halves.
const PARTIALS: usize = 2 << 20;

/// A program on the processor.
pub struct CpuInstance {
    program: Arc<Program>,
    pool: Arc<Pool>,
    gain: Gain,
    kernel: Set,
    plans: Vec<Lowered>,
    caches: Caches,
    adapters: Adapters,
    acts: ActSet,
    arena: Aligned<f32>,
    partials: Aligned<f32>,
    turns: Vec<TurnTable>,
    scratch: Vec<Own>,
    tickets: Vec<Ticket>,
    /// Plan replayed last and the rows that each lead had.
    last: Option<(usize, [usize; 3])>,
    weight_bytes: u64,
    times: Option<Vec<(u64, u64)>>,
    /// Why it can no longer run: a worker panicked, and nobody knows what it left undone.
    lost: Option<PoolError>,
    watcher: Watcher,
}

/// The plans of a program before memory is taken for them.
struct Draft {
    tapes: Vec<Tape<What>>,
    keys: Vec<Key>,
    places: Vec<(Vec<Place>, usize)>,
}

/// The epochs in which each value of a plan lives.
fn lives(plan: &Plan, tape: &Tape<What>) -> Vec<Option<RangeInclusive<usize>>> {
    let values = |ports: &[Port]| -> Vec<ResourceId> {
        ports.iter().map(|port| ResourceId(port.value.0)).collect()
    };
    tape.lives(&values(&plan.inputs), &values(&plan.outputs))
}

fn draft(program: &Program, weights: &Weights, kernel: Set, options: &LoadOptions) -> Draft {
    let product = |node: &tokkata_ir::Node, plan: &Plan| {
        let Op::Matmul { weight, .. } = node.op else {
            unreachable!("products are matmuls")
        };
        let matrix = weights.matrix(weight);
        let shape = &plan.value(node.ins[0]).shape;
        (
            matrix.is_aligned(),
            Key {
                lead: shape.lead,
                times: 1,
                k: matrix.k(),
                forms: kernel.forms(&matrix),
            },
        )
    };
    let facts = Facts {
        program,
        product: &product,
        fuse: !options.no_fuse,
    };
    let mut keys = Vec::new();
    let tapes: Vec<Tape<What>> = program
        .plans
        .iter()
        .map(|p| select::schedule(p, &facts, &mut keys))
        .collect();
    let places = program.plans.iter().zip(&tapes);
    let places = places
        .map(|(p, tape)| arena::assign(p, &program.limits, &lives(p, tape), &tape.over()))
        .collect();
    Draft {
        tapes,
        keys,
        places,
    }
}

/// Bytes of sets of activations, roughly.
fn act_bytes(program: &Program, keys: &[Key]) -> u64 {
    let bytes = |key: &Key| {
        let rows = arena::most(&program.limits, key.lead) * key.times;
        let Forms {
            integer,
            words,
            folded,
            float,
            split,
        } = key.forms;
        let bytes = 2 * (usize::from(integer) + usize::from(words) + usize::from(folded));
        let floats = 4 * (usize::from(float) + usize::from(split));
        (rows * key.k * (bytes + floats)) as u64
    };
    keys.iter().map(bytes).sum()
}

/// Heads of attention, at most: columns of keys and of values.
fn widest_heads(program: &Program) -> (usize, usize) {
    let ops = program
        .plans
        .iter()
        .flat_map(|p| &p.nodes)
        .filter_map(|n| match &n.op {
            Op::Attention(op) => {
                Some((op.dim_k as usize, (op.dim_v as usize).next_multiple_of(16)))
            }
            _ => None,
        });
    ops.fold((0, 0), |m, d| (m.0.max(d.0), m.1.max(d.1)))
}

/// What routed products need at most.
fn routing(program: &Program, weights: &Weights, kernel: Set) -> Sizes {
    let rows = program.limits.rows as usize;
    let mut sizes = Sizes {
        rows,
        ..Sizes::default()
    };
    for op in program.plans.iter().flat_map(|p| &p.nodes).map(|n| &n.op) {
        let (weight, parts) = match *op {
            Op::Experts { weight, top_k, .. } => (weight, top_k as usize),
            Op::HeadMatmul { weight, heads } => (weight, heads as usize),
            Op::Conv1d(ref op) => {
                sizes.rows = sizes.rows.max(rows * op.frames as usize);
                (op.weight, 0)
            }
            Op::Route(ref op) => {
                sizes.experts = sizes.experts.max(op.n_experts as usize);
                continue;
            }
            _ => continue,
        };
        let matrix = weights.matrix(weight);
        sizes.routed = sizes.routed.max(rows * parts);
        sizes.experts = sizes
            .experts
            .max(program.weights[weight.index()].shape[0] as usize);
        sizes.k = sizes.k.max(matrix.k());
        sizes.forms = sizes.forms.union(kernel.forms(&matrix));
    }
    sizes
}

impl CpuInstance {
    pub(crate) fn load(
        program: Arc<Program>,
        source: &dyn WeightSource,
        options: &LoadOptions,
        (pool, kernel): (Arc<Pool>, Set),
    ) -> Result<Self, BackendError> {
        let caches = Caches::lay_out(&program)?;
        let weight_bytes = weights::bytes_needed(&program, source, options.no_repack)?;
        crate::device::check_memory("the model's weights", weight_bytes)?;
        let weights = Weights::load(&program, source, &pool, options.no_repack)?;
        let draft = draft(&program, &weights, kernel, options);
        let arena_floats = draft.places.iter().map(|p| p.1).max().unwrap_or(0) + 64;
        let work = arena_floats as u64 * 4 + act_bytes(&program, &draft.keys);
        crate::device::check_memory("the work space", work)?;
        let (mut turns, mut tickets) = (Vec::new(), 0);
        let watcher = Watcher::default();
        let limits = LEADS.map(|lead| arena::most(&program.limits, lead));
        let mut plans = Vec::new();
        let drafts = draft.tapes.into_iter().zip(draft.places);
        let fuse = !options.no_fuse;
        for (plan, (tape, (places, _))) in program.plans.iter().zip(drafts) {
            let lower = Lower {
                program: &program,
                plan,
                weights: &weights,
                places: &places,
                turns: &mut turns,
                tickets: &mut tickets,
            };
            let lowered = lower_plan(lower, tape, (fuse, pool.count()))?;
            watcher.prove(&lowered, pool.count(), limits);
            plans.push(lowered);
        }
        let workers = pool.count();
        let rows = program.limits.rows as usize;
        let heads = widest_heads(&program);
        let routing = routing(&program, &weights, kernel);
        let indexing = indexer::Sizes::of(&program);
        let partials = match (indexing.scores, heads.0) {
            (0, 0) => 0,
            (0, _) if workers == 1 => 0,
            (scores, _) => scores.max(PARTIALS),
        };
        let summary = summary::scratch_floats(&program);

        let widest = program
            .plans
            .iter()
            .flat_map(|p| &p.values)
            .map(|v| v.shape.width())
            .max()
            .unwrap_or(0);
        let scratch = || {
            Own::new(Scratch {
                matmul: crate::kernels::Scratch::default(),
                attention: AttentionScratch::new(heads.0, heads.1),
                moe: MoeScratch::new(&routing),
                indexer: indexer::Scratch::new(&indexing),
                summary: vec![0.0; summary],
                row: vec![0.0; widest.max(routing.k)],
                low: Vec::new(),
                draw: tokkata_ir::sample::Scratch::default(),
            })
        };
        Ok(CpuInstance {
            acts: ActSet::new(&draft.keys, &program.limits, workers),
            arena: Aligned::zeroed(arena_floats),
            partials: Aligned::zeroed(partials),
            turns: turns
                .into_iter()
                .map(|t: TurnSpec| TurnTable::new(t, rows))
                .collect(),
            scratch: (0..workers).map(|_| scratch()).collect(),
            tickets: (0..tickets).map(|_| Ticket::default()).collect(),
            gain: Gain::new(weights.bytes(), pool.count()),
            weight_bytes: weights.bytes(),
            times: None,
            lost: None,
            watcher,
            last: None,
            adapters: Adapters::new(&program),
            plans,
            caches,
            pool,
            kernel,
            program,
        })
    }

    /// Bytes of a block of each cache group.
    pub(crate) fn cache_bytes(&self) -> Vec<u64> {
        self.caches.block_bytes()
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Makes the caches.
    ///
    /// # Errors
    /// Memory.
    pub fn make_caches(&mut self, arena: &ArenaLayout) -> Result<(), BackendError> {
        crate::device::check_memory("the cache", arena.bytes())?;
        self.caches.make(arena);
        Ok(())
    }

    /// Lets workers sleep before steps picked at random, so that a missing barrier shows in the numbers.
    #[cfg(debug_assertions)]
    pub fn jitter(&mut self, seed: u64) {
        self.watcher.jitter(seed);
    }

    /// Records in each replay from now on what every worker touches.
    ///
    /// # Panics
    /// In a replay, when a kernel touches what its step does not declare, or two workers hold the same memory, one of
    /// them to write, with no meeting between.
    #[cfg(debug_assertions)]
    pub fn record(&mut self) {
        self.watcher.record(self.pool.count());
    }

    /// Copies what comes from outside into the arena.
    fn set_inputs(&mut self, plan: usize, step: &StepState, inputs: &StepInputs<'_>) {
        let (lowered, defs) = (&self.plans[plan], &self.program.plans[plan].values);
        for value in &lowered.embeds {
            let place = lowered.places[value.index()];
            let to = &mut self.arena[place.at..][..count(step, place.lead) * place.width];
            match inputs.embeds {
                Some(x) => to.copy_from_slice(&x[..to.len()]),
                None => to.fill(0.0),
            }
        }
        for (value, data) in &inputs.values {
            let place = lowered.places[value.index()];
            let to = &mut self.arena[place.at..][..data.len()];
            match defs[value.index()].dtype {
                ValType::F32 => to.copy_from_slice(data),
                ValType::I32 => {
                    to.iter_mut()
                        .zip(data)
                        .for_each(|(to, &x)| *to = f32::from_bits(x as i32 as u32));
                }
            }
        }
        for table in &mut self.turns {
            (0..step.n_rows()).for_each(|row| table.fill(row, step.pos4(row)));
        }
        self.tickets.iter_mut().for_each(|t| *t.0.get_mut() = 0);
        self.acts.begin(step);
    }

    /// Replays one plan over one step state, and waits for the end. Outputs are read with [`CpuInstance::value`].
    ///
    /// # Errors
    /// When a worker panics, or a step fails.
    pub(crate) fn run(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.alive()?;
        self.set_inputs(plan, step, inputs);
        let counts = LEADS.map(|lead| count(step, lead));
        self.last = Some((plan, counts));
        let failure = Mutex::new(None);
        let shared = Cx {
            kernel: self.kernel,
            step,
            inputs,
            caches: &self.caches,
            acts: &self.acts,
            adapters: &self.adapters,
            adapts: self.adapters.are_named(step),
            memory: Memory::new(&mut self.arena),
            partials: Memory::new(&mut self.partials),
            turns: &self.turns,
            scratch: &self.scratch,
            tickets: &self.tickets,
            failure: &failure,
            watch: self.watcher.of(0),
        };
        let cx = |worker: &Worker<'_>| Cx {
            watch: self.watcher.of(worker.index()),
            ..shared
        };
        let lowered = &self.plans[plan];
        let (rows, start) = (step.n_rows(), Instant::now());
        let most = match cfg!(debug_assertions) {
            // So that what workers share is looked at wherever it is watched.
            true => None,
            false => Some(self.gain.most(rows)),
        };
        let done = match &mut self.times {
            None => self.pool.run_some(most, &|worker| {
                let cx = cx(worker);
                walk::work(lowered, (&cx, worker), |_, _| cx.watch.pause());
            }),
            Some(times) => {
                let fresh = Mutex::new(Vec::new());
                let timed =
                    |worker: &Worker<'_>| walk::work_timed(lowered, (&cx(worker), worker), &fresh);
                let done = self.pool.run_some(most, &timed);
                *times = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
                done
            }
        };
        self.gain.saw(rows, start.elapsed());
        let workers = *done.as_ref().unwrap_or(&0);
        self.lost = done.err();
        self.alive()?;
        self.watcher.check(&self.plans[plan], workers, counts);
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(()), Err)
    }

    fn alive(&self) -> Result<(), BackendError> {
        let lost = self.lost.as_ref();
        lost.map_or(Ok(()), |error| Err(BackendError::Lost(error.to_string())))
    }

    /// Floats of a value of the plan replayed last.
    pub(crate) fn value(&self, value: ValueId) -> &[f32] {
        let Some((plan, rows)) = self.last else {
            return &[];
        };
        let place = self.plans[plan].places[value.index()];
        &self.arena[place.at..][..rows[place.lead as usize] * place.width]
    }
}

fn lower_plan(
    mut lower: Lower<'_>,
    tape: Tape<What>,
    (fuse, workers): (bool, usize),
) -> Result<Lowered, BackendError> {
    let tape = tape.try_map(|planned| {
        Ok(Step {
            kernel: lower.step(planned)?,
            node: planned.kernel.node(),
        })
    })?;
    let finder = Finder {
        tape: &tape,
        workers,
        tickets: lower.tickets,
    };
    let inputs = lower.plan.inputs.iter();
    Ok(Lowered {
        chains: if fuse { finder.find() } else { vec![] },
        places: lower.places.to_vec(),
        embeds: inputs
            .filter(|p| p.name == "embeds")
            .map(|p| p.value)
            .collect(),
        tape,
    })
}

impl Machine for CpuInstance {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.run(plan, step, inputs)
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        self.value(value)
    }

    fn ints(&self, value: ValueId) -> &[i32] {
        let floats = self.value(value);
        // SAFETY: both types have the same size and alignment and no invalid bits.
        unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        self.caches.copy_block(group, from, to);
    }

    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        self.caches.export_block(group, block)
    }

    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        self.caches.import_block(self.kernel, group, block, data);
    }

    fn set_adapter(
        &mut self,
        number: u32,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(), BackendError> {
        crate::device::check_memory("an adapter", adapter.map_or(0, |a| a.bytes()))?;
        self.adapters
            .set(&self.program, number, adapter.map(|a| &**a));
        for scratch in &mut self.scratch {
            let low = &mut scratch.get_mut().low;
            low.resize(low.len().max(self.adapters.rank()), 0.0);
        }
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        let floats = self.arena.len() + self.partials.len();
        let given = self.weight_bytes + self.adapters.bytes();
        given + self.caches.bytes() + floats as u64 * 4
    }

    fn measure(&mut self, on: bool) {
        self.times = on.then(Vec::new);
    }

    fn times(&self) -> Vec<StepTime> {
        let (Some((plan, _)), Some(times)) = (self.last, &self.times) else {
            return Vec::new();
        };
        let nodes = &self.program.plans[plan].nodes;
        let time = |(instr, &(wait_ns, run_ns)): (&Instr<Step>, &(u64, u64))| {
            let Step { kernel, node } = &instr.kernel;
            StepTime {
                plan,
                node: *node,
                kernel: kernel.name().unwrap_or(nodes[*node].op.name()),
                site: nodes[*node].site.clone(),
                wait_ns,
                run_ns,
            }
        };
        let instrs = self.plans[plan].tape.instrs();
        instrs.iter().zip(times).map(time).collect()
    }
}
