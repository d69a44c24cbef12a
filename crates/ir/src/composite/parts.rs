//! The executor over several devices.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::cut::{Home, Segment, slot_len};
use super::job::{Job, Kept, Ran, Stage, place};
use crate::adapter::{Adapter, Attached, Places};
use crate::arena::ArenaLayout;
use crate::backend::{BackendError, StepTime};
use crate::device::{
    BlockCopy, Delta, Executor, Progress, Refusal, SeqRows, SeqSlot, Source, Ticket, Work,
};
use crate::host::part::Part as Running;
use crate::host::seats::Seats;
use crate::ids::{GroupId, ValueId};
use crate::program::{Program, ValType};
use crate::step::NO_BLOCK;

/// Works that are taken before the first of them is done.
const DEPTH: usize = 4;

/// A device's share of a program.
pub(super) struct Part {
    pub(super) executor: Box<dyn Executor>,
    pub(super) home: Home,
}

/// All of them.
pub(super) struct Parts {
    program: Arc<Program>,
    parts: Vec<Part>,
    segments: Vec<Vec<Segment>>,
    arena: ArenaLayout,
    seats: Seats,
    queue: VecDeque<Job>,
    next_id: u64,
    lost: Option<String>,
    adapters: Attached,
    /// By its number: what each device calls an adapter.
    names: Places<Vec<u32>>,
}

impl Parts {
    pub(super) fn new(
        program: Arc<Program>,
        parts: Vec<Part>,
        segments: Vec<Vec<Segment>>,
        arena: ArenaLayout,
    ) -> Self {
        Parts {
            seats: Seats::new(program.limits.seqs as usize),
            adapters: Attached::new(program.limits.adapters),
            names: Places::new(program.limits.adapters),
            program,
            parts,
            segments,
            arena,
            queue: VecDeque::new(),
            next_id: 0,
            lost: None,
        }
    }

    fn alive(&self) -> Result<(), BackendError> {
        match &self.lost {
            Some(why) => Err(BackendError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    /// Goes on until there are news, or until a device has none yet.
    fn go_on(&mut self, wait: bool) -> Result<Option<Progress>, BackendError> {
        self.alive()?;
        let Some(mut job) = self.queue.pop_front() else {
            return Ok(None);
        };
        let news = self.advance(&mut job, wait);
        if let Err(error) = &news {
            self.lost = Some(match error {
                BackendError::Lost(why) => why.clone(),
                other => other.to_string(),
            });
        }
        if matches!(&news, Ok(Some(Progress { done: true, .. }))) {
            self.let_go(job.id);
        } else {
            self.queue.push_front(job);
        }
        news
    }

    /// Takes away adapters that were detached before a later work than this came.
    fn let_go(&mut self, done: u64) {
        for number in self.adapters.ended(done) {
            let names = self.names.get(number).cloned().unwrap_or_default();
            self.names.set(number, None);
            for (part, name) in self.parts.iter_mut().zip(names) {
                part.executor.detach(name);
            }
        }
    }

    /// Rows of a work with a device's numbers of adapters.
    fn rows_on(&self, device: usize, job: &Job) -> Result<Vec<SeqRows>, BackendError> {
        self.adapters.check(&job.rows, job.id)?;
        let own = |rows: &SeqRows| SeqRows {
            adapter: self.names.get(rows.adapter).map_or(0, |n| n[device]),
            ..rows.clone()
        };
        Ok(job.rows.iter().map(own).collect())
    }

    fn advance(&mut self, job: &mut Job, wait: bool) -> Result<Option<Progress>, BackendError> {
        if !job.begun {
            self.begin(job);
        }
        loop {
            if let Some((stage, ticket)) = job.running.clone() {
                let device = self.device(job, stage);
                let executor = &mut self.parts[device].executor;
                let news = if wait {
                    executor.wait()
                } else {
                    executor.poll()
                };
                let Some(news) = news? else { return Ok(None) };
                job.running = None;
                if self.finish(job, (stage, ticket), news)? {
                    return Ok(Some(job.news(false)));
                }
            } else if let Some(stage) = job.stages.pop_front() {
                self.start(job, stage)?;
            } else {
                return Ok(Some(job.news(true)));
            }
        }
    }

    fn device(&self, job: &Job, stage: Stage) -> usize {
        match stage {
            Stage::Prepare(device) | Stage::Export(device) => device,
            Stage::Segment(i) => self.segments[job.work.plan][i].device,
        }
    }

    /// Notes the changes of slots and lists what is to be done.
    fn begin(&mut self, job: &mut Job) {
        job.begun = true;
        for (slot, delta) in &job.work.deltas {
            self.seats.apply(*slot, delta);
        }
        let devices = 0..self.parts.len();
        if !job.work.exports.is_empty() {
            job.stages.extend(devices.clone().map(Stage::Export));
        }
        let rows = job.work.rows.clone();
        if !rows.is_empty() {
            self.begin_step(job, rows);
        }
        for device in devices.rev() {
            job.stages.push_front(Stage::Prepare(device));
        }
    }

    fn begin_step(&mut self, job: &mut Job, mut rows: Vec<SeqRows>) {
        let slots = rows.iter().map(|r| r.slot);
        let stopped = slots.filter(|&slot| self.seats.is_stopped(slot)).collect();
        self.seats.resolve(&mut rows);
        job.begin_step((rows, stopped), self.segments[job.work.plan].len());
    }

    /// Gives a stage to its device.
    fn start(&mut self, job: &mut Job, stage: Stage) -> Result<(), BackendError> {
        let work = match stage {
            Stage::Prepare(device) => self.preparation(&job.work, device),
            Stage::Segment(i) => match self.segment(job, i) {
                Err(error @ (BackendError::NotKept { .. } | BackendError::Adapter(_))) => {
                    self.seats.fail(&job.rows);
                    job.fail(error);
                    return Ok(());
                }
                work => work?,
            },
            Stage::Export(device) => self.exports(&job.work, device),
        };
        let device = self.device(job, stage);
        let executor = &mut self.parts[device].executor;
        if let Stage::Segment(_) = stage {
            job.stopped.iter().for_each(|&slot| executor.stop(slot));
        }
        let ticket = executor.submit(work).map_err(|refusal| match refusal {
            Refusal::Backend(error) => error,
            Refusal::Busy(_) => unreachable!("a part has one work at a time"),
        })?;
        job.running = Some((stage, ticket));
        Ok(())
    }

    /// Takes what a stage gave. Whether there are news of a step while its chain goes on.
    fn finish(
        &mut self,
        job: &mut Job,
        (stage, ticket): (Stage, Ticket),
        news: Progress,
    ) -> Result<bool, BackendError> {
        if let Some(error) = news.failure {
            self.seats.fail(&job.rows);
            job.fail(error);
            return Ok(false);
        }
        match stage {
            Stage::Prepare(_) => Ok(false),
            Stage::Export(device) => self.take_blocks(job, device, &ticket).map(|()| false),
            Stage::Segment(i) => {
                let segments = &self.segments[job.work.plan];
                let Segment {
                    device,
                    first,
                    draws,
                    ref gives,
                    ..
                } = segments[i];
                let made = gives.iter().map(|&v| (v, (device, ticket.clone())));
                job.values.extend(made);
                job.ran.push((device, first, ticket));
                if draws || job.results.is_empty() {
                    job.results = news.rows;
                }
                Ok(i + 1 == segments.len() && self.end_step(job))
            }
        }
    }

    /// Settles a step. Whether another one begins.
    fn end_step(&mut self, job: &mut Job) -> bool {
        job.keep();
        job.first = false;
        let results = std::mem::take(&mut job.results);
        let running = Running::new(&job.rows, |slot| !job.stopped.contains(&slot));
        let results = self.seats.follow(&running, results);
        let next = if job.chained == 0 {
            Vec::new()
        } else {
            self.seats.goes_on(&job.work)
        };
        let goes_on = !next.is_empty();
        if goes_on {
            job.chained -= 1;
            self.begin_step(job, next);
        }
        job.results = results;
        goes_on
    }

    /// Copies, imports and deltas in a device's terms.
    fn preparation(&self, work: &Work, device: usize) -> Work {
        let block = |group, name| self.block(device, group, name);
        let copies = work.copies.iter().map(|c| BlockCopy {
            group: c.group,
            from: block(c.group, c.from),
            to: block(c.group, c.to),
        });
        let imports = work.imports.iter().map(|(group, name, data)| {
            let own = self.own_slots(device, *group, data);
            (*group, block(*group, *name), own)
        });
        let deltas = work.deltas.iter().filter_map(|(slot, delta)| match delta {
            // Where answers end is decided here.
            Delta::Stop { .. } => None,
            Delta::Table {
                group,
                first,
                blocks,
            } => {
                let blocks = blocks.iter().map(|&b| block(*group, b)).collect();
                let (group, first) = (*group, *first);
                Some((
                    *slot,
                    Delta::Table {
                        group,
                        first,
                        blocks,
                    },
                ))
            }
            other => Some((*slot, other.clone())),
        });
        Work {
            copies: copies.collect(),
            imports: imports.collect(),
            deltas: deltas.collect(),
            ..Work::default()
        }
    }

    /// The `i`-th segment of a step. Lengths are told anew: a device may have several segments of a step.
    fn segment(&mut self, job: &Job, i: usize) -> Result<Work, BackendError> {
        let segment = self.segments[job.work.plan][i].clone();
        let feeds = self.feeds(job, &segment)?;
        let later = &self.segments[job.work.plan][i + 1..];
        let wanted =
            |v: &ValueId| job.work.keep.contains(v) || later.iter().any(|s| s.takes.contains(v));
        let slots = job.rows.iter().map(|r| r.slot);
        let running = slots.filter(|slot| !job.stopped.contains(slot));
        Ok(Work {
            plan: segment.plan,
            deltas: running.map(|s| (s, self.seats.length(s))).collect(),
            rows: self.rows_on(segment.device, job)?,
            feeds,
            keep: segment.gives.iter().copied().filter(wanted).collect(),
            ..Work::default()
        })
    }

    fn feeds(
        &mut self,
        job: &Job,
        segment: &Segment,
    ) -> Result<Vec<(ValueId, Source)>, BackendError> {
        let mut feeds = Vec::new();
        let ports = if job.first { &job.work.feeds[..] } else { &[] };
        for (port, source) in ports.iter().filter(|f| segment.ports.contains(&f.0)) {
            let (device, def) = (segment.device, (job.work.plan, *port));
            let source = match source {
                Source::Kept {
                    ticket,
                    value,
                    rows,
                } if ticket.kept::<Kept>().is_some() => {
                    let made = place(ticket, *value)?;
                    self.carry(made, (*value, rows.clone()), device, def)?
                }
                other => other.clone(),
            };
            feeds.push((*port, source));
        }
        for &value in &segment.takes {
            let made = job.values[&value].clone();
            let rows = 0..self.parts[made.0].executor.rows(&made.1, value)?;
            let def = (job.work.plan, value);
            let source = self.carry(made, (value, rows), segment.device, def)?;
            feeds.push((value, source));
        }
        Ok(feeds)
    }

    /// A value for a device, in the form of a value of a plan: where it was made there it stays, otherwise the host
    /// carries it.
    fn carry(
        &mut self,
        (from, ticket): (usize, Ticket),
        (value, rows): (ValueId, Range<usize>),
        to: usize,
        (plan, like): (usize, ValueId),
    ) -> Result<Source, BackendError> {
        if from == to {
            return Ok(Source::Kept {
                ticket,
                value,
                rows,
            });
        }
        let def = self.program.plans[plan].value(like);
        let mut floats = vec![0.0; rows.len() * def.shape.width()];
        let executor = &mut self.parts[from].executor;
        match def.dtype {
            ValType::F32 => executor.read(&ticket, value, rows, &mut floats)?,
            ValType::I32 => {
                let mut ints = vec![0; floats.len()];
                executor.read_ints(&ticket, value, rows, &mut ints)?;
                floats = ints.iter().map(|&x| x as f32).collect();
            }
        }
        Ok(Source::Host(floats))
    }

    fn exports(&self, work: &Work, device: usize) -> Work {
        let exports = work.exports.iter();
        let exports = exports.map(|&(group, name)| (group, self.block(device, group, name)));
        Work {
            exports: exports.collect(),
            ..Work::default()
        }
    }

    /// Writes a device's slots of the blocks into them.
    fn take_blocks(
        &mut self,
        job: &Job,
        device: usize,
        ticket: &Ticket,
    ) -> Result<(), BackendError> {
        for (i, &(group, _)) in job.work.exports.iter().enumerate() {
            let own = self.parts[device].executor.exported(ticket, i)?;
            let spans = self.spans(group);
            let mut kept = job.kept.inner();
            let blocks = &mut kept.blocks;
            if blocks.len() == i {
                blocks.push(vec![0.0; spans.last().map_or(0, |s| s.end)]);
            }
            let mut own = &own[..];
            for &slot in &self.parts[device].home.slots[group.index()] {
                let to = &mut blocks[i][spans[slot as usize].clone()];
                let (data, rest) = own.split_at(to.len());
                to.copy_from_slice(data);
                own = rest;
            }
        }
        Ok(())
    }

    /// A device's slots of a block.
    fn own_slots(&self, device: usize, group: GroupId, data: &[f32]) -> Vec<f32> {
        let spans = self.spans(group);
        let slots = &self.parts[device].home.slots[group.index()];
        let own = slots.iter().flat_map(|&s| &data[spans[s as usize].clone()]);
        own.copied().collect()
    }

    /// Where each slot of a group lies in the canonical form of a block.
    fn spans(&self, group: GroupId) -> Vec<Range<usize>> {
        let (mut end, group) = (0, self.program.group(group));
        let span = |slot| {
            let start = end;
            end += slot_len(group, slot);
            start..end
        };
        group.slots.iter().map(span).collect()
    }

    /// A device's name of a block.
    fn block(&self, device: usize, group: GroupId, name: u32) -> u32 {
        if name == NO_BLOCK {
            return NO_BLOCK;
        }
        let (slab, i) = self.arena.place(group, name);
        self.parts[device].executor.arena().block(group, slab, i)
    }
}

impl Executor for Parts {
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
        let job = Job::new(self.next_id, work);
        let ticket = Ticket::new(job.id, Arc::clone(&job.kept) as _);
        self.queue.push_back(job);
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Progress>, BackendError> {
        self.go_on(false)
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        self.go_on(true)
    }

    fn stop(&mut self, slot: SeqSlot) {
        self.seats.stop(slot);
    }

    fn rows(&self, ticket: &Ticket, value: ValueId) -> Result<usize, BackendError> {
        let (device, own) = place(ticket, value)?;
        self.parts[device].executor.rows(&own, value)
    }

    fn read(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.alive()?;
        let (device, own) = place(ticket, value)?;
        self.parts[device].executor.read(&own, value, rows, out)
    }

    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        self.alive()?;
        let (device, own) = place(ticket, value)?;
        let executor = &mut self.parts[device].executor;
        executor.read_ints(&own, value, rows, out)
    }

    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError> {
        self.alive()?;
        let kept = ticket.kept::<Kept>();
        let block = kept.and_then(|kept| kept.inner().blocks.get(i).cloned());
        block.ok_or(BackendError::NotKept { value: ValueId(0) })
    }

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.alive()?;
        let number = self.adapters.free()?;
        let mut names = Vec::new();
        for device in 0..self.parts.len() {
            let Part { executor, home } = &mut self.parts[device];
            let own = adapter.part(|weight| home.weights.get(&weight).copied());
            match executor.attach(&Arc::new(own)) {
                Ok(name) => names.push(name),
                Err(error) => {
                    let taken = self.parts.iter_mut().zip(names);
                    taken.for_each(|(part, name)| part.executor.detach(name));
                    return Err(error);
                }
            }
        }
        self.adapters.take(number);
        self.names.set(number, Some(names));
        Ok(number)
    }

    fn detach(&mut self, adapter: u32) {
        self.adapters.detach(adapter, self.next_id);
        if self.queue.is_empty() {
            self.let_go(self.next_id);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.executor.memory_bytes()).sum()
    }

    fn measure(&mut self, on: bool) {
        for part in &mut self.parts {
            part.executor.measure(on);
        }
    }

    fn times(&self, ticket: &Ticket) -> Vec<StepTime> {
        let Some(kept) = ticket.kept::<Kept>() else {
            return Vec::new();
        };
        let kept = kept.inner();
        let step = |(device, first, own): &Ran| {
            let (plan, first) = (kept.plan, *first);
            let times = self.parts[*device].executor.times(own).into_iter();
            times.map(move |time| StepTime {
                plan,
                node: first + time.node,
                ..time
            })
        };
        kept.ran.iter().flat_map(step).collect()
    }
}
