//! The executor: works in order on one queue, several steps of a chain in one submission, the next one under way before the
//! results of the last are read.

mod batch;
mod running;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::adapter::Attached;
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, Executor, Progress, Refusal, RowResult, SeqSlot, Source,
    Ticket, ValType, ValueId, Work,
};

use crate::device::Resident;
use crate::error::lost;
use crate::gpu::Mapping;
use crate::kept::{Found, Kept, Pool};
use crate::work::{Lists, Record, Step, Words};
use batch::{Batch, Item, Replays, Staging, StepKernels};

/// Works that are taken before the first of them is done.
const DEPTH: usize = 4;
/// Steps of a submission.
const CHUNK: usize = 4;
/// Submissions that are under way.
const AHEAD: usize = 2;

/// A plan, and whether rows of a step go through adapters.
type Way = (usize, bool);

/// A work under way.
struct Job {
    id: u64,
    work: Work,
    kept: Arc<Kept>,
    words: Words,
    staging: Option<Arc<Staging>>,
    first: Step,
    chain: Step,
    begun: bool,
    launched: u32,
    ended: bool,
    /// Results that were read.
    read: u32,
    failure: Option<BackendError>,
}

impl Job {
    /// Steps in all.
    fn steps(&self) -> u32 {
        match self.first.parts.is_empty() {
            true => 0,
            false if self.chain.parts.is_empty() => 1,
            false => 1 + self.work.chained,
        }
    }

    fn step(&self, i: u32) -> &Step {
        if i == 0 { &self.first } else { &self.chain }
    }
}

/// A step that was submitted: its words among the results.
struct Flight {
    job: u64,
    words: Range<usize>,
}

/// Steps that were submitted together.
struct Submission {
    flights: VecDeque<Flight>,
    readback: Option<(wgpu::Buffer, Mapping)>,
    index: wgpu::SubmissionIndex,
    /// Results, once they are here.
    results: Vec<u32>,
    /// Read by the device until then.
    _items: Vec<Item>,
    _staging: Vec<Arc<Staging>>,
}

/// A program on a device, with its caches.
pub(crate) struct WgpuExecutor {
    queue: VecDeque<Job>,
    submissions: VecDeque<Submission>,
    batch: Batch,
    /// Where steps are recorded once.
    replays: Option<Replays>,
    staging: Vec<Arc<Staging>>,
    readbacks: Vec<wgpu::Buffer>,
    lists: Lists,
    kernels: StepKernels,
    /// In the place of kept values where there are none.
    nothing: wgpu::Buffer,
    attached: Attached,
    /// Requests to stop, counted per slot.
    requests: Vec<u32>,
    /// Positions of each slot behind the steps that were added, or more: a sequence may have stopped.
    lengths: Vec<u32>,
    pool: Arc<Pool>,
    arena: ArenaLayout,
    cache: wgpu::Buffer,
    resident: Box<Resident>,
    next_id: u64,
    lost: Option<String>,
}

impl WgpuExecutor {
    pub(crate) fn new(
        resident: Box<Resident>,
        arena: ArenaLayout,
        cache: wgpu::Buffer,
    ) -> Result<Self, BackendError> {
        let limits = &resident.program.limits;
        let seqs = limits.seqs as usize;
        Ok(WgpuExecutor {
            queue: VecDeque::new(),
            submissions: VecDeque::new(),
            batch: Batch::default(),
            replays: Replays::new(&resident),
            staging: Vec::new(),
            readbacks: Vec::new(),
            lists: Lists::new(&resident.step, seqs),
            kernels: StepKernels::new(&resident)?,
            nothing: resident.gpu.alloc("nothing", 256)?,
            attached: Attached::new(limits.adapters),
            requests: vec![0; seqs],
            lengths: vec![0; seqs],
            pool: Arc::new(Pool::new(&resident.gpu)),
            arena,
            cache,
            resident,
            next_id: 0,
            lost: None,
        })
    }

    fn alive(&self) -> Result<(), BackendError> {
        match &self.lost {
            Some(why) => Err(BackendError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    /// Remembers a lost device.
    fn note<T>(&mut self, result: Result<T, BackendError>) -> Result<T, BackendError> {
        if let Err(BackendError::Lost(why)) = &result {
            self.lost = Some(why.clone());
        }
        result
    }

    /// A work's words and everything that depends on them.
    fn job(&mut self, work: Work, id: u64) -> Result<Job, BackendError> {
        let mut words = Words::new();
        words.deltas(&work.deltas, &self.resident.step, &mut self.lists)?;
        let first = Step::first(&work);
        let chain = match work.chained {
            0 => Step::default(),
            _ => Step::chained(&work),
        };
        self.check(&first);
        words.first = words.step(&first);
        words.chain = words.step(&chain);
        Ok(Job {
            id,
            kept: Arc::new(Kept::new(&self.pool)),
            work,
            words,
            staging: None,
            first,
            chain,
            begun: false,
            launched: 0,
            ended: false,
            read: 0,
            failure: None,
        })
    }

    /// Panics where a work exceeds what the program was built for: the scheduler's bug.
    fn check(&self, step: &Step) {
        let limits = &self.resident.program.limits;
        let [rows, seqs, logits] = step.counts();
        assert!(
            rows <= limits.rows as usize,
            "more rows than the limits allow"
        );
        assert!(
            seqs <= limits.seqs as usize,
            "more sequences than the limits allow"
        );
        assert!(
            logits <= limits.logit_rows as usize,
            "more logit rows than allowed"
        );
    }

    /// Submits what may be submitted.
    fn pump(&mut self) -> Result<(), BackendError> {
        for i in 0..self.queue.len() {
            if !self.queue[i].begun {
                self.begin(i)?;
            }
            while self.queue[i].launched < self.queue[i].steps() {
                if self.under_way() >= AHEAD {
                    return self.flush();
                }
                let launched = self.add_step(i);
                self.note(launched)?;
                if self.batch.steps() == CHUNK {
                    self.flush()?;
                }
            }
            self.end(i)?;
        }
        self.flush()
    }

    /// Submissions whose results have not arrived.
    fn under_way(&self) -> usize {
        let waits = |s: &&Submission| s.readback.is_some();
        self.submissions.iter().filter(waits).count()
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        let flushed = self.submit_batch();
        self.note(flushed)
    }

    /// What comes before the rows of a work.
    fn begin(&mut self, i: usize) -> Result<(), BackendError> {
        self.queue[i].begun = true;
        let job = &self.queue[i];
        let there = self.attached.check(&job.work.rows, job.id);
        let prepared = there.and_then(|()| self.prepare_feeds(i));
        let prepared = self.note(prepared);
        let feeds = match prepared {
            Ok(feeds) => feeds,
            Err(error) => {
                self.alive()?;
                self.fail(i, error);
                Vec::new()
            }
        };
        let begun = self.add_beginning(i, feeds);
        self.note(begun)
    }

    /// A work that cannot run: its slots stop.
    fn fail(&mut self, i: usize, error: BackendError) {
        let slots: Vec<SeqSlot> = self.queue[i].work.rows.iter().map(|r| r.slot).collect();
        for slot in slots {
            self.stop(slot);
        }
        self.queue[i].failure = Some(error);
    }

    /// Where each fed value comes from; data of the host goes into the work's words.
    fn prepare_feeds(&mut self, i: usize) -> Result<Vec<Feed>, BackendError> {
        let gpu = &self.resident.gpu;
        let job = &mut self.queue[i];
        let plan = &self.resident.program.plans[job.work.plan];
        let mut feeds = Vec::new();
        for (value, source) in &job.work.feeds {
            let def = plan.value(*value);
            let from = match source {
                Source::Host(data) => From::Words(job.words.floats(data), data.len(), ValType::F32),
                Source::Kept {
                    ticket,
                    value: kept,
                    rows,
                } => {
                    let absent = || BackendError::NotKept { value: *kept };
                    let from = ticket.kept::<Kept>().ok_or_else(absent)?;
                    let found = from.source(*kept, rows).ok_or_else(absent)?;
                    let len = rows.len() * found.width;
                    if Arc::ptr_eq(&found.gpu, gpu) {
                        From::Device(found, len)
                    } else {
                        // Of another device: through the host.
                        let mut data = vec![0f32; len];
                        let bytes = bytemuck::cast_slice_mut(&mut data);
                        found.gpu.read(&found.buffer, found.at * 4, bytes)?;
                        From::Words(job.words.floats(&data), len, found.dtype)
                    }
                }
            };
            let is_embeds = |p: &tokkata_ir::Port| p.value == *value && p.name == "embeds";
            feeds.push(Feed {
                value: *value,
                dtype: def.dtype,
                width: def.shape.width(),
                embeds: plan.inputs.iter().any(is_embeds),
                from,
            });
        }
        Ok(feeds)
    }

    /// What comes after the rows of a work.
    fn end(&mut self, i: usize) -> Result<(), BackendError> {
        if self.queue[i].ended {
            return Ok(());
        }
        self.queue[i].ended = true;
        let ended = self.add_end(i);
        self.note(ended)?;
        self.queue[i].kept.submitted();
        Ok(())
    }

    /// The words of the oldest step that was submitted, and whose they are; `None` while they are under way.
    fn arrived(&mut self) -> Result<Option<(u64, Vec<u32>)>, BackendError> {
        loop {
            let Some(front) = self.submissions.front_mut() else {
                return Ok(None);
            };
            if let Some((buffer, mapping)) = &front.readback {
                let Some(bytes) = mapping.bytes(buffer) else {
                    return Ok(None);
                };
                let bytes = bytes?;
                front.results = bytemuck::pod_collect_to_vec(&bytes);
                let readback = front.readback.take();
                self.readbacks.extend(readback.map(|r| r.0));
            }
            match front.flights.pop_front() {
                Some(flight) => {
                    let words = front.results[flight.words].to_vec();
                    return Ok(Some((flight.job, words)));
                }
                None => drop(self.submissions.pop_front()),
            }
        }
    }

    /// News of the oldest work, if there are any.
    fn news(&mut self) -> Result<Option<Progress>, BackendError> {
        loop {
            self.pump()?;
            let Some(job) = self.queue.front_mut() else {
                return Ok(None);
            };
            if job.ended && (job.steps() == 0 || job.failure.is_some()) {
                let failure = job.failure.take();
                return Ok(Some(self.close(Vec::new(), failure)));
            }
            let arrived = self.arrived();
            let Some((id, values)) = self.note(arrived)? else {
                return Ok(None);
            };
            let job = self.queue.front_mut().expect("a work is under way");
            if id != job.id {
                // Submitted for a work that had ended by then.
                continue;
            }
            let step = job.step(job.read);
            let [_, seqs, logits] = step.counts();
            let record = Record {
                words: &values,
                seqs,
                logits,
            };
            if let Some((row, rows)) = record.no_row() {
                let steps = job.steps();
                job.launched = steps;
                self.end(0)?;
                self.flush()?;
                let failure = BackendError::no_row("wgpu", row, rows as usize);
                return Ok(Some(self.close(Vec::new(), Some(failure))));
            }
            let outcome = step.results(&record);
            // What stopped did not move on.
            if self.submissions.iter().all(|s| s.flights.is_empty()) && self.batch.steps() == 0 {
                for (slot, length) in step.lengths(&record) {
                    self.lengths[slot.index()] = length;
                }
            }
            if job.read > 0 && outcome.ran > 0 {
                job.kept.set_rows(outcome.ran);
            }
            job.read += 1;
            if job.read == job.steps() || !outcome.goes_on {
                let steps = job.steps();
                job.launched = steps;
                self.end(0)?;
                self.flush()?;
                return Ok(Some(self.close(outcome.rows, None)));
            }
            return Ok(Some(Progress {
                ticket: id,
                rows: outcome.rows,
                done: false,
                failure: None,
            }));
        }
    }

    fn close(&mut self, rows: Vec<RowResult>, failure: Option<BackendError>) -> Progress {
        let job = self.queue.pop_front().expect("a work is under way");
        job.kept.done();
        self.let_go(job.id);
        Progress {
            ticket: job.id,
            rows,
            done: true,
            failure,
        }
    }

    /// Takes away adapters that were detached before a later work than this came.
    fn let_go(&mut self, done: u64) {
        let ended = self.attached.ended(done);
        ended
            .into_iter()
            .for_each(|n| self.resident.adapters.let_go(n));
    }

    /// Lets the device make progress, and fails when it has failed.
    fn turn(&mut self, kind: wgpu::PollType) -> Result<(), BackendError> {
        let polled = self.resident.gpu.device.poll(kind);
        let polled = polled.map(|_| ()).map_err(|e| lost(e.to_string()));
        let healthy = polled.and_then(|()| self.resident.gpu.healthy());
        self.note(healthy)
    }
}

/// An input of a plan on its way to the device.
struct Feed {
    value: ValueId,
    dtype: ValType,
    width: usize,
    embeds: bool,
    from: From,
}

enum From {
    /// Numbers among the work's words: the first, how many, and of what type.
    Words(usize, usize, ValType),
    /// On the device, so many.
    Device(Found, usize),
}

impl Executor for WgpuExecutor {
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
        let id = self.next_id;
        let job = self.job(work, id)?;
        let ticket = Ticket::new(id, Arc::clone(&job.kept) as _);
        self.queue.push_back(job);
        self.pump()?;
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Progress>, BackendError> {
        self.alive()?;
        if !self.submissions.is_empty() {
            self.turn(wgpu::PollType::Poll)?;
        }
        self.news()
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        self.alive()?;
        loop {
            if let Some(news) = self.news()? {
                return Ok(Some(news));
            }
            if self.queue.is_empty() {
                return Ok(None);
            }
            let index = self.submissions.front().map(|s| s.index.clone());
            self.turn(wgpu::PollType::Wait {
                submission_index: index,
                timeout: None,
            })?;
        }
    }

    fn stop(&mut self, slot: SeqSlot) {
        let request = &mut self.requests[slot.index()];
        *request = request.wrapping_add(1);
        let at = (self.resident.step.requests + u64::from(slot.0)) * 4;
        self.resident
            .gpu
            .queue
            .write_buffer(&self.resident.state, at, &request.to_le_bytes());
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
        let bytes = bytemuck::cast_slice_mut(out);
        kept(ticket, value)?.read((value, ValType::F32), &rows, bytes)
    }

    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        self.alive()?;
        let bytes = bytemuck::cast_slice_mut(out);
        kept(ticket, value)?.read((value, ValType::I32), &rows, bytes)
    }

    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError> {
        self.alive()?;
        kept(ticket, ValueId(0))?.block(i)
    }

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.alive()?;
        let number = self.attached.free()?;
        self.flush()?;
        let put = self.resident.adapters.put(number, adapter);
        if self.note(put)? {
            self.staging.iter().for_each(|s| s.forget_adapters());
        }
        self.attached.take(number);
        Ok(number)
    }

    fn detach(&mut self, adapter: u32) {
        self.attached.detach(adapter, self.next_id);
        if self.queue.is_empty() {
            self.let_go(self.next_id);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.resident.bytes() + self.cache.size()
    }
}

impl Drop for WgpuExecutor {
    fn drop(&mut self) {
        // Nothing is freed while the device may use it.
        let _ = self
            .resident
            .gpu
            .device
            .poll(wgpu::PollType::wait_indefinitely());
    }
}

fn kept(ticket: &Ticket, value: ValueId) -> Result<&Kept, BackendError> {
    ticket.kept().ok_or(BackendError::NotKept { value })
}
