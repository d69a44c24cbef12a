//! An executor for machines that run a step when they are called: the host's own processor, and interpreters.
//!
//! A [`Machine`] replays one plan over one step; a [`HostExecutor`] keeps sequence slots and a queue of works on top
//! of it. It has no thread of its own: a step of the oldest work runs inside [`Executor::poll`].

mod kept;
pub(crate) mod part;
pub(crate) mod seats;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::adapter::{Adapter, Attached};
use crate::arena::ArenaLayout;
use crate::backend::{BackendError, StepTime};
use crate::device::{
    Delta, Executor, Progress, Refusal, RowResult, SeqRows, SeqSlot, Source, Ticket, Work,
};
use crate::ids::{GroupId, ValueId};
use crate::program::{Program, ValType};
use crate::sample::SampleSide;
use crate::step::StepState;
use kept::Kept;
use part::Part;
use seats::Seats;

/// Works that are taken before the first of them is done.
const DEPTH: usize = 4;

/// Inputs of a step that are not part of its state.
#[derive(Default)]
pub struct StepInputs<'a> {
    /// Rows of embeddings `[rows, D]`, read where a row's flags say so.
    pub embeds: Option<&'a [f32]>,
    /// Values set from outside.
    pub values: Vec<(ValueId, Vec<f32>)>,
    /// Per logit row: masks, biases and penalties of the sampler.
    pub sample: &'a [SampleSide],
}

/// A loaded program that runs a step when it is called. A replay makes no decision of its own: all that varies is in
/// the [`StepState`] and the [`StepInputs`].
pub trait Machine: Send {
    /// Runs a plan over one step. Where a row's logits are no numbers, or nothing may be drawn, the token's place holds
    /// [`NOT_A_NUMBER`](crate::sample::NOT_A_NUMBER) or [`NO_CANDIDATE`](crate::sample::NO_CANDIDATE).
    ///
    /// # Errors
    /// What ends the whole step.
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError>;

    /// Floats of a value of the plan replayed last: `[lead, width]`. Only outputs are kept.
    fn floats(&self, value: ValueId) -> &[f32];

    /// Integers of a value of the plan replayed last.
    fn ints(&self, value: ValueId) -> &[i32];

    /// Copies a block of a group to another.
    fn copy_block(&mut self, group: GroupId, from: u32, to: u32);

    /// A block in canonical form: per slot keys then values of every position as f32, or the state's values.
    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32>;

    /// Sets a block from its canonical form.
    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]);

    /// Puts an adapter at a number, or takes it away. It was checked against the program.
    ///
    /// # Errors
    /// Memory; an op that the machine has no adapters for.
    fn set_adapter(
        &mut self,
        number: u32,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(), BackendError> {
        let _ = number;
        let op = "an adapter".to_owned();
        adapter.map_or(Ok(()), |_| {
            Err(BackendError::Unsupported {
                backend: "this machine",
                op,
            })
        })
    }

    /// Bytes held for weights, caches and work space.
    fn memory_bytes(&self) -> u64;

    /// Whether replays measure their steps from now on; a machine that cannot ignores it.
    fn measure(&mut self, _on: bool) {}

    /// Times of the steps of the last replay, when it was measured.
    fn times(&self) -> Vec<StepTime> {
        Vec::new()
    }
}

impl<M: Machine + ?Sized> Machine for Box<M> {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        (**self).replay(plan, step, inputs)
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        (**self).floats(value)
    }

    fn ints(&self, value: ValueId) -> &[i32] {
        (**self).ints(value)
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        (**self).copy_block(group, from, to);
    }

    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        (**self).export_block(group, block)
    }

    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        (**self).import_block(group, block, data);
    }

    fn set_adapter(
        &mut self,
        number: u32,
        adapter: Option<&Arc<Adapter>>,
    ) -> Result<(), BackendError> {
        (**self).set_adapter(number, adapter)
    }

    fn memory_bytes(&self) -> u64 {
        (**self).memory_bytes()
    }

    fn measure(&mut self, on: bool) {
        (**self).measure(on);
    }

    fn times(&self) -> Vec<StepTime> {
        (**self).times()
    }
}

/// A work under way.
struct Job {
    id: u64,
    work: Work,
    kept: Arc<Kept>,
    /// Whether copies, imports, deltas and the first step are done.
    begun: bool,
    /// Steps of the chain that are left.
    chained: u32,
}

/// A [`Machine`] as an [`Executor`].
pub struct HostExecutor<M> {
    machine: M,
    program: Arc<Program>,
    arena: ArenaLayout,
    state: StepState,
    seats: Seats,
    queue: VecDeque<Job>,
    next_id: u64,
    lost: Option<String>,
    measured: bool,
    adapters: Attached,
}

impl<M: Machine> HostExecutor<M> {
    /// An executor over a machine whose caches lie in `arena`.
    #[must_use]
    pub fn new(machine: M, program: Arc<Program>, arena: ArenaLayout) -> Self {
        HostExecutor {
            machine,
            arena,
            state: StepState::new(&program.limits, &program.caches),
            seats: Seats::new(program.limits.seqs as usize),
            adapters: Attached::new(program.limits.adapters),
            program,
            queue: VecDeque::new(),
            next_id: 0,
            lost: None,
            measured: false,
        }
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    fn alive(&self) -> Result<(), BackendError> {
        match &self.lost {
            Some(why) => Err(BackendError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    /// One step of a work; before the first of them what comes before its rows.
    fn advance(&mut self, job: &mut Job) -> Result<Progress, BackendError> {
        let first = !job.begun;
        let rows = if first {
            self.prepare(&job.work);
            job.chained = job.work.chained;
            job.work.rows.clone()
        } else {
            job.chained -= 1;
            self.seats.goes_on(&job.work)
        };
        job.begun = true;
        let mut news = Progress {
            ticket: job.id,
            rows: Vec::new(),
            done: true,
            failure: None,
        };
        if !rows.is_empty() {
            match self.run(job, &rows, first) {
                Ok(results) => {
                    news.done = job.chained == 0 || self.seats.goes_on(&job.work).is_empty();
                    news.rows = results;
                }
                Err(BackendError::Lost(why)) => return Err(BackendError::Lost(why)),
                Err(error) => {
                    self.seats.fail(&rows);
                    news.failure = Some(error);
                }
            }
        }
        if news.done {
            self.export(job);
        }
        Ok(news)
    }

    fn prepare(&mut self, work: &Work) {
        for copy in &work.copies {
            self.machine.copy_block(copy.group, copy.from, copy.to);
        }
        for (group, block, data) in &work.imports {
            self.machine.import_block(*group, *block, data);
        }
        for (slot, delta) in &work.deltas {
            self.seats.apply(*slot, delta);
            self.set(*slot, delta);
        }
    }

    /// Makes a change of the step state.
    fn set(&mut self, slot: SeqSlot, delta: &Delta) {
        let (state, slot) = (&mut self.state, slot.index());
        match delta {
            Delta::Clear => {
                state.clear_tables(slot);
                state.set_enc_len(slot, 0);
            }
            Delta::Table {
                group,
                first,
                blocks,
            } => state.set_table(slot, *group, *first as usize, blocks),
            Delta::Encoded(n) => state.set_enc_len(slot, *n as usize),
            _ => {}
        }
    }

    fn run(
        &mut self,
        job: &Job,
        rows: &[SeqRows],
        first: bool,
    ) -> Result<Vec<RowResult>, BackendError> {
        self.adapters.check(rows, job.id)?;
        let part = Part::new(rows, |slot| !self.seats.is_stopped(slot));
        let running = part.running();
        let mut results = Vec::new();
        if !running.is_empty() {
            let feeds = if first { &job.work.feeds[..] } else { &[] };
            let (embeds, values) = self.feeds(job.work.plan, feeds, &part)?;
            let sides = self.seats.form(&running, &mut self.state);
            let inputs = StepInputs {
                embeds: embeds.as_deref(),
                values,
                sample: &sides,
            };
            let replayed = self.machine.replay(job.work.plan, &self.state, &inputs);
            replayed.map_err(|error| self.note(error))?;
            let plan = &self.program.plans[job.work.plan];
            let drawn = plan.output("tokens").map(|v| self.machine.ints(v));
            let logits = plan.output("logits").map(|v| self.machine.floats(v));
            results = self.seats.results(&running, drawn, logits);
        }
        self.keep(job, &part);
        Ok(self.seats.follow(&part, results))
    }

    fn note(&mut self, error: BackendError) -> BackendError {
        if let BackendError::Lost(why) = &error {
            self.lost = Some(why.clone());
        }
        error
    }

    /// Embeddings and other values of a step.
    fn feeds(
        &self,
        plan: usize,
        feeds: &[(ValueId, Source)],
        part: &Part<'_>,
    ) -> Result<Fed, BackendError> {
        let plan = &self.program.plans[plan];
        let (mut embeds, mut values) = (None, Vec::new());
        for (value, source) in feeds {
            let data = match source {
                Source::Host(data) => data.clone(),
                Source::Kept {
                    ticket,
                    value,
                    rows,
                } => kept(ticket, *value)?.floats(*value, rows)?,
            };
            let port = plan.inputs.iter().find(|p| p.value == *value);
            let shape = &plan.value(*value).shape;
            if port.is_some_and(|p| p.name == "embeds") {
                embeds = Some(part.embeddings(shape.width(), &data));
            } else {
                values.push((*value, part.of_running(shape, data)));
            }
        }
        Ok((embeds, values))
    }

    /// Keeps what the work asks for; after a step that no slot ran, zeros.
    fn keep(&self, job: &Job, part: &Part<'_>) {
        let plan = &self.program.plans[job.work.plan];
        for &value in &job.work.keep {
            let def = plan.value(value);
            let (shape, width) = (&def.shape, def.shape.width());
            let ran = !part.running().is_empty();
            match def.dtype {
                ValType::F32 => {
                    let x = if ran { self.machine.floats(value) } else { &[] };
                    job.kept
                        .put_floats(value, width, &part.with_stopped(shape, x));
                }
                ValType::I32 => {
                    let x = if ran { self.machine.ints(value) } else { &[] };
                    job.kept
                        .put_ints(value, width, &part.with_stopped(shape, x));
                }
            }
        }
        if self.measured {
            job.kept.put_times(self.machine.times());
        }
    }

    /// Takes away adapters that were detached before a later work than this came.
    fn let_go(&mut self, done: u64) {
        for number in self.adapters.ended(done) {
            let gone = self.machine.set_adapter(number, None);
            gone.expect("an adapter can always be taken away");
        }
    }

    fn export(&self, job: &Job) {
        for &(group, block) in &job.work.exports {
            job.kept.put_block(self.machine.export_block(group, block));
        }
    }
}

/// Embeddings, and values by id.
type Fed = (Option<Vec<f32>>, Vec<(ValueId, Vec<f32>)>);

fn kept(ticket: &Ticket, value: ValueId) -> Result<&Kept, BackendError> {
    ticket.kept().ok_or(BackendError::NotKept { value })
}

impl<M: Machine> Executor for HostExecutor<M> {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn arena(&self) -> &ArenaLayout {
        &self.arena
    }

    fn submit(&mut self, work: Work) -> Result<Ticket, Refusal> {
        self.alive()?;
        if self.queue.len() >= DEPTH {
            return Err(Refusal::Busy(Box::new(work)));
        }
        self.next_id += 1;
        let kept = Arc::new(Kept::default());
        self.queue.push_back(Job {
            id: self.next_id,
            work,
            kept: Arc::clone(&kept),
            begun: false,
            chained: 0,
        });
        Ok(Ticket::new(self.next_id, kept))
    }

    fn poll(&mut self) -> Result<Option<Progress>, BackendError> {
        self.alive()?;
        let Some(mut job) = self.queue.pop_front() else {
            return Ok(None);
        };
        let news = self.advance(&mut job)?;
        if news.done {
            self.let_go(job.id);
        } else {
            self.queue.push_front(job);
        }
        Ok(Some(news))
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        self.poll()
    }

    fn stop(&mut self, slot: SeqSlot) {
        self.seats.stop(slot);
    }

    fn rows(&self, ticket: &Ticket, value: ValueId) -> Result<usize, BackendError> {
        kept(ticket, value)?.rows(value)
    }

    fn read(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.alive()?;
        kept(ticket, value)?.read(value, rows, out)
    }

    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        self.alive()?;
        kept(ticket, value)?.read_ints(value, rows, out)
    }

    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError> {
        self.alive()?;
        let kept = kept(ticket, ValueId(0))?;
        kept.block(i)
            .ok_or(BackendError::NotKept { value: ValueId(0) })
    }

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.alive()?;
        let number = self.adapters.free()?;
        self.machine.set_adapter(number, Some(adapter))?;
        self.adapters.take(number);
        Ok(number)
    }

    fn detach(&mut self, adapter: u32) {
        self.adapters.detach(adapter, self.next_id);
        if self.queue.is_empty() {
            self.let_go(self.next_id);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.machine.memory_bytes()
    }

    fn measure(&mut self, on: bool) {
        self.measured = on;
        self.machine.measure(on);
    }

    fn times(&self, ticket: &Ticket) -> Vec<StepTime> {
        ticket.kept::<Kept>().map(Kept::times).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
