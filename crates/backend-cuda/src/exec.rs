//! The executor: works in order on one stream, their steps launched a few ahead of their results.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, Executor, GroupId, Lead, Progress, Refusal, SeqSlot,
    Source, Ticket, ValType, ValueId, Work,
};

use crate::device::Resident;
use crate::driver::{Buffer, Event, Fault, Function, Graph, Pinned, Stream};
use crate::error::{lost, unsupported};
use crate::kept::{Kept, Pool};
use crate::launch::Bucket;
use crate::layout::Plane;
use crate::lower::Lowered;
use crate::params::Params;
use crate::work::{Record, SlotLists, Step, Words, record_words};

/// Works that are taken before the first of them is done.
const DEPTH: usize = 4;
/// Steps that are launched before the results of the first of them are read.
const AHEAD: usize = 6;
/// Records of steps; more than are ahead.
const RECORDS: u64 = 8;
/// Most rows of a step that is captured, where it is one row of each sequence.
const CAPTURED: usize = 256;

/// Kernels of `step.cu` and those that handle blocks.
struct StepKernels {
    apply: Function,
    prepare: Function,
    finish: Function,
    keep: Function,
    to_floats: Function,
    to_ints: Function,
    copy: Function,
    export: Function,
    import: Function,
}

/// Host memory that a work's words are written to, and device memory that they are copied to.
struct Staging {
    host: Pinned,
    device: Buffer,
    used: Event,
}

/// A work under way.
struct Job {
    id: u64,
    work: Work,
    kept: Arc<Kept>,
    words: Words,
    staging: Option<Arc<Staging>>,
    first: Step,
    chain: Step,
    /// Values that are kept, in the order of the work.
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

/// A step that was launched.
struct Flight {
    number: u32,
    job: u64,
    /// Read by the step's kernels.
    _staging: Arc<Staging>,
}

/// A program on a device, with its caches.
pub(crate) struct CudaExecutor {
    queue: VecDeque<Job>,
    flights: VecDeque<Flight>,
    graphs: BTreeMap<(usize, Bucket), Graph>,
    plans: Vec<Lowered>,
    staging: Vec<Arc<Staging>>,
    lists: Vec<SlotLists>,
    kernels: StepKernels,
    stream: Stream,
    records: Pinned,
    records_at: u64,
    /// Requests to stop, counted per slot.
    requests: Pinned,
    requests_at: u64,
    groups: Buffer,
    pool: Arc<Pool>,
    arena: ArenaLayout,
    cache: Buffer,
    resident: Box<Resident>,
    next_id: u64,
    next_number: u32,
    lost: Option<String>,
}

impl CudaExecutor {
    pub(crate) fn new(
        resident: Box<Resident>,
        plans: Vec<Lowered>,
        (arena, cache): (ArenaLayout, Buffer),
    ) -> Result<Self, Fault> {
        let context = &resident.context;
        let limits = &resident.program.limits;
        let words = record_words(limits.seqs as usize, limits.logit_rows as usize);
        let records = Pinned::new(context, words * RECORDS as usize)?;
        let requests = Pinned::new(context, limits.seqs as usize)?;
        let groups: Vec<u32> = resident.step.groups.iter().flatten().copied().collect();
        let of = |name: &str| resident.kernels.function("step", name);
        let blocks = |name: &str| resident.kernels.function("attention", name);
        let kernels = StepKernels {
            apply: of("apply_deltas")?,
            prepare: of("prepare")?,
            finish: of("finish")?,
            keep: of("keep")?,
            to_floats: of("to_floats")?,
            to_ints: of("to_ints")?,
            copy: blocks("copy_block")?,
            export: blocks("export_plane")?,
            import: blocks("import_plane")?,
        };
        let mut lists = Vec::new();
        lists.resize_with(limits.seqs as usize, SlotLists::default);
        Ok(CudaExecutor {
            queue: VecDeque::new(),
            flights: VecDeque::new(),
            graphs: BTreeMap::new(),
            plans,
            staging: Vec::new(),
            lists,
            kernels,
            stream: Stream::new(context)?,
            records_at: records.device_address()?,
            records,
            requests_at: requests.device_address()?,
            requests,
            groups: context.upload(&groups)?,
            pool: Arc::default(),
            arena,
            cache,
            resident,
            next_id: 0,
            next_number: 0,
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
    fn note<T>(&mut self, result: Result<T, Fault>) -> Result<T, BackendError> {
        result.map_err(|fault| {
            self.lost = Some(fault.to_string());
            lost(fault)
        })
    }

    fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        params: &Params,
    ) -> Result<(), Fault> {
        self.stream
            .launch(function, grid, (block, 0), params.bytes())
    }

    fn step_params(&self) -> Params {
        self.resident.step.params(self.resident.step_at())
    }

    /// A work's words and everything that depends on them.
    fn job(&mut self, work: Work, id: u64) -> Result<Job, BackendError> {
        let mut words = Words::new();
        let resident = &self.resident;
        let lists = (&resident.context, &mut self.lists[..]);
        words.deltas(&work.deltas, &resident.step, lists)?;
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

    /// Staging that nobody reads any more, or more of it.
    fn stage(&mut self, words: usize) -> Result<Arc<Staging>, Fault> {
        let fits =
            |s: &Arc<Staging>| s.device.bytes() >= words as u64 * 4 && Arc::strong_count(s) == 1;
        for staging in self.staging.iter().filter(|s| fits(s)) {
            if staging.used.is_done()? {
                return Ok(Arc::clone(staging));
            }
        }
        let context = &self.resident.context;
        let words = words.next_power_of_two().max(4096);
        let staging = Arc::new(Staging {
            host: Pinned::new(context, words)?,
            device: context.alloc(words as u64 * 4)?,
            used: Event::new(context)?,
        });
        // Those that are too small go when their works are done.
        self.staging
            .retain(|s| s.device.bytes() >= words as u64 * 4 || Arc::strong_count(s) > 1);
        self.staging.push(Arc::clone(&staging));
        Ok(staging)
    }

    /// Launches what may be launched.
    fn pump(&mut self) -> Result<(), BackendError> {
        for i in 0..self.queue.len() {
            if !self.queue[i].begun {
                self.begin(i)?;
            }
            while self.queue[i].launched < self.queue[i].steps() && self.flights.len() < AHEAD {
                let launched = self.launch_step(i);
                self.note(launched)?;
            }
            if self.queue[i].launched < self.queue[i].steps() {
                return Ok(());
            }
            self.end(i)?;
        }
        Ok(())
    }

    /// What comes before the rows of a work.
    fn begin(&mut self, i: usize) -> Result<(), BackendError> {
        self.queue[i].begun = true;
        let prepared = self.prepare_feeds(i);
        let feeds = match prepared {
            Ok(feeds) => feeds,
            Err(error) => {
                self.fail(i, error);
                Vec::new()
            }
        };
        let begun = self.begin_on_device(i, &feeds);
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
        let job = &mut self.queue[i];
        let plan = &self.resident.program.plans[job.work.plan];
        let mut feeds = Vec::new();
        for (value, source) in &job.work.feeds {
            let def = plan.value(*value);
            let from = match source {
                Source::Host(data) => From::Words(job.words.floats(data), data.len()),
                Source::Kept {
                    ticket,
                    value: kept,
                    rows,
                } => {
                    let absent = BackendError::NotKept { value: *kept };
                    let from = ticket.kept::<Kept>().ok_or(absent)?;
                    let (at, dtype, width, written) = from.source(*kept, rows)?;
                    From::Device(at, dtype, rows.len() * width, written)
                }
            };
            let embeds = plan
                .inputs
                .iter()
                .any(|p| p.value == *value && p.name == "embeds");
            feeds.push(Feed {
                value: *value,
                dtype: def.dtype,
                width: def.shape.width(),
                embeds,
                from,
            });
        }
        Ok(feeds)
    }

    fn begin_on_device(&mut self, i: usize, feeds: &[Feed]) -> Result<(), Fault> {
        self.resident.context.bind()?;
        let blocks = std::mem::take(&mut self.queue[i].work.imports);
        let mut imports = Vec::new();
        for (group, block, data) in blocks {
            imports.push((group, block, self.queue[i].words.floats(&data)));
        }
        let words = std::mem::take(&mut self.queue[i].words.words);
        let staging = self.stage(words.len())?;
        for (to, word) in staging.host.words().iter().zip(&words) {
            to.store(*word, Ordering::Relaxed);
        }
        let at = staging.device.at();
        self.stream.upload(&staging.host, words.len() * 4, at)?;
        for copy in &self.queue[i].work.copies {
            self.copy_block(copy.group, copy.from, copy.to)?;
        }
        for (group, block, first) in imports {
            self.import_block(group, block, at + first as u64 * 4)?;
        }
        let (first, count) = self.queue[i].words.deltas;
        if count > 0 {
            let resident = &self.resident;
            let params = Params::new().u64s(&[
                resident.step_at() + resident.step.slots(),
                resident.step_at() + resident.step.tables,
                self.groups.at(),
            ]);
            let params = params.u32(resident.step.groups.len() as u32);
            let params = params.u64s(&[self.requests_at, at + first as u64 * 4]);
            self.launch(self.kernels.apply, [1; 3], 256, &params.u32(count))?;
        }
        self.queue[i].staging = Some(Arc::clone(&staging));
        if self.queue[i].failure.is_some() {
            return Ok(());
        }
        for feed in feeds {
            self.feed(i, feed, at)?;
        }
        self.keep_places(i)
    }

    /// Makes room for what is kept.
    fn keep_places(&mut self, i: usize) -> Result<(), Fault> {
        let job = &self.queue[i];
        let plan = &self.resident.program.plans[job.work.plan];
        let [rows, seqs, logits] = job.first.counts();
        for &value in &job.work.keep {
            let def = plan.value(value);
            let lead = match def.shape.lead {
                Lead::Rows => rows,
                Lead::Seqs => seqs,
                Lead::LogitRows => logits,
            };
            let shape = (lead, def.shape.width());
            job.kept
                .put(&self.resident.context, value, def.dtype, shape)?;
        }
        Ok(())
    }

    /// Writes an input of the plan.
    fn feed(&self, i: usize, feed: &Feed, words_at: u64) -> Result<(), Fault> {
        let job = &self.queue[i];
        let to = self.resident.value_at(job.work.plan, feed.value);
        let (from, dtype, len) = match &feed.from {
            From::Words(first, len) => (words_at + *first as u64 * 4, ValType::F32, *len),
            From::Device(at, dtype, len, written) => {
                self.stream.wait_for(written)?;
                (*at, *dtype, *len)
            }
        };
        if feed.embeds {
            // A row for each row that reads one.
            let (mut from, mut row) = (from, 0u64);
            let row_bytes = feed.width as u64 * 4;
            for part in &job.first.parts {
                let bytes = part.len() as u64 * row_bytes;
                if matches!(part.input, tokkata_ir::RowInput::Embeds(_)) {
                    self.stream.copy(from, to + row * row_bytes, bytes)?;
                    from += bytes;
                }
                row += part.len() as u64;
            }
            return Ok(());
        }
        let kernel = match (dtype, feed.dtype) {
            (ValType::F32, ValType::I32) => self.kernels.to_ints,
            (ValType::I32, ValType::F32) => self.kernels.to_floats,
            _ => return self.stream.copy(from, to, len as u64 * 4),
        };
        let params = Params::new().u64s(&[len as u64, from, to]);
        let blocks = len.div_ceil(256).clamp(1, 1024) as u32;
        self.launch(kernel, [blocks, 1, 1], 256, &params)
    }

    /// Launches the next step of a work.
    fn launch_step(&mut self, i: usize) -> Result<(), Fault> {
        self.resident.context.bind()?;
        let job = &self.queue[i];
        if job.failure.is_some() {
            self.queue[i].launched = self.queue[i].steps();
            return Ok(());
        }
        let staging = Arc::clone(job.staging.as_ref().expect("a work begins with its words"));
        let (plan, index) = (job.work.plan, job.launched);
        let step = job.step(index);
        let [rows, seqs, logits] = step.counts();
        let first = if index == 0 {
            job.words.first
        } else {
            job.words.chain
        };
        let words_at = staging.device.at();
        let plan_at = words_at + first as u64 * 4;
        let params = self
            .step_params()
            .u64s(&[self.requests_at, words_at, plan_at]);
        let threads = (seqs * 32).clamp(64, 1024) as u32;
        self.launch(self.kernels.prepare, [1; 3], threads, &params)?;
        self.replay(plan, [rows, seqs, logits])?;
        for (value, to) in self.queue[i].kept.places() {
            self.keep(plan, (value, to), plan_at, (index, [rows, seqs, logits]))?;
        }
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let number = self.next_number;
        self.finish(plan, plan_at, number)?;
        self.flights.push_back(Flight {
            number,
            job: self.queue[i].id,
            _staging: staging,
        });
        self.queue[i].launched += 1;
        Ok(())
    }

    fn keep(
        &self,
        plan: usize,
        (value, to): (ValueId, u64),
        plan_at: u64,
        (index, counts): (u32, [usize; 3]),
    ) -> Result<(), Fault> {
        let def = self.resident.program.plans[plan].value(value);
        let count = match def.shape.lead {
            Lead::Rows => counts[0],
            Lead::Seqs => counts[1],
            Lead::LogitRows => counts[2],
        };
        if count == 0 {
            return Ok(());
        }
        let lead = crate::layout::lead_code(def.shape.lead);
        let params = self.step_params().u64(plan_at);
        let params = params.u32s(&[lead, def.shape.width() as u32, u32::from(index > 0)]);
        let params = params.u64s(&[self.resident.value_at(plan, value), to]);
        self.launch(self.kernels.keep, [count as u32, 1, 1], 128, &params)
    }

    fn finish(&self, plan: usize, plan_at: u64, number: u32) -> Result<(), Fault> {
        let program = &self.resident.program;
        let drawn = program.plans[plan].output("tokens");
        let drawn = drawn.map_or(0, |v| self.resident.value_at(plan, v));
        let (seqs, logits) = (program.limits.seqs, program.limits.logit_rows);
        let words = record_words(seqs as usize, logits as usize) as u64;
        let record = self.records_at + u64::from(number) % RECORDS * words * 4;
        let params = self.step_params().u64s(&[plan_at, drawn]);
        let params = params.u64s(&[self.plans[plan].reports, record]);
        let params = params.u32s(&[number, seqs, logits]);
        self.launch(self.kernels.finish, [1; 3], 256, &params)
    }

    /// Runs the launches of a plan: those of decode steps as a graph.
    fn replay(&mut self, plan: usize, [rows, seqs, logits]: [usize; 3]) -> Result<(), Fault> {
        let limits = &self.resident.program.limits;
        let up = |n: usize, most: u32| (n.next_power_of_two() as u32).min(most.max(1));
        let bucket = Bucket {
            rows: up(rows, limits.rows),
            seqs: up(seqs, limits.seqs),
            logits: up(logits, limits.logit_rows),
        };
        let launches = &self.plans[plan].launches;
        let stream = &self.stream;
        let run = || launches.iter().try_for_each(|l| l.run(stream, bucket));
        if rows != seqs || rows > CAPTURED || !self.resident.captures {
            return run();
        }
        let key = (plan, bucket);
        if !self.graphs.contains_key(&key) {
            let graph = stream.capture(run)?;
            self.graphs.insert(key, graph);
        }
        stream.replay(&self.graphs[&key])
    }

    /// What comes after the rows of a work.
    fn end(&mut self, i: usize) -> Result<(), BackendError> {
        if self.queue[i].ended {
            return Ok(());
        }
        self.queue[i].ended = true;
        let ended = self.end_on_device(i);
        self.note(ended)
    }

    fn end_on_device(&mut self, i: usize) -> Result<(), Fault> {
        let job = &self.queue[i];
        self.resident.context.bind()?;
        for &(group, block) in &job.work.exports {
            let layout = &self.resident.groups[group.index()];
            let planes = layout.slots.iter().flatten();
            let floats: u32 = planes.map(|p| p.width * layout.entries).sum();
            let to = job
                .kept
                .put_block(&self.resident.context, floats as usize)?;
            self.export_block(group, block, to)?;
        }
        if let Some(staging) = &job.staging {
            self.stream.record(&staging.used)?;
        }
        if !job.work.keep.is_empty() {
            let written = Event::new(&self.resident.context)?;
            self.stream.record(&written)?;
            job.kept.launched(written);
        }
        Ok(())
    }

    fn block_at(&self, block: u32) -> u64 {
        self.cache.at() + ArenaLayout::offset(block)
    }

    fn copy_block(&self, group: GroupId, from: u32, to: u32) -> Result<(), Fault> {
        let bytes = self.resident.groups[group.index()].block_bytes;
        let offsets = [from, to].map(ArenaLayout::offset);
        let params = Params::new().u64(self.cache.at()).u64s(&offsets).u64(bytes);
        let blocks = bytes.div_ceil(16 * 256).clamp(1, 1024) as u32;
        self.launch(self.kernels.copy, [blocks, 1, 1], 256, &params)
    }

    /// Calls with each plane of a group and the floats before it.
    fn planes(&self, group: GroupId) -> Vec<(Plane, u32, u64)> {
        let layout = &self.resident.groups[group.index()];
        let mut before = 0;
        let mut planes = Vec::new();
        for &plane in layout.slots.iter().flatten() {
            planes.push((plane, layout.entries, before));
            before += u64::from(plane.width * layout.entries);
        }
        planes
    }

    fn export_block(&self, group: GroupId, block: u32, to: u64) -> Result<(), Fault> {
        for (plane, entries, before) in self.planes(group) {
            let params = plane.params(Params::new().u64(self.block_at(block)));
            let params = params.u32(entries).u64(to + before * 4);
            let blocks = (plane.width * entries).div_ceil(256).clamp(1, 1024);
            self.launch(self.kernels.export, [blocks, 1, 1], 256, &params)?;
        }
        Ok(())
    }

    fn import_block(&self, group: GroupId, block: u32, from: u64) -> Result<(), Fault> {
        for (plane, entries, before) in self.planes(group) {
            let params = plane.params(Params::new().u64(self.block_at(block)));
            let params = params.u32(entries).u64(from + before * 4);
            let runs = plane.width.div_ceil(32) * entries;
            self.launch(
                self.kernels.import,
                [runs.div_ceil(8).clamp(1, 1024), 1, 1],
                256,
                &params,
            )?;
        }
        Ok(())
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
            let Some(flight) = self.flights.front() else {
                return Ok(None);
            };
            let limits = &self.resident.program.limits;
            let (seqs, logits) = (limits.seqs as usize, limits.logit_rows as usize);
            let words = record_words(seqs, logits);
            let first = (u64::from(flight.number) % RECORDS) as usize * words;
            let record = &self.records.words()[first..first + words];
            if record[0].load(Ordering::Acquire) != flight.number {
                return Ok(None);
            }
            let (id, own) = (flight.job, job.id);
            self.flights.pop_front();
            if id != own {
                // Launched ahead for a work that had ended by then.
                continue;
            }
            let values: Vec<u32> = record[1..]
                .iter()
                .map(|w| w.load(Ordering::Relaxed))
                .collect();
            let record = Record {
                words: &values,
                seqs,
                logits,
            };
            let outcome = job.step(job.read).results(&record);
            if job.read > 0 && outcome.ran > 0 {
                job.kept.set_rows(outcome.ran);
            }
            job.read += 1;
            if job.read == job.steps() || !outcome.goes_on {
                return Ok(Some(self.finish_job(outcome.rows)?));
            }
            return Ok(Some(Progress {
                ticket: own,
                rows: outcome.rows,
                done: false,
                failure: None,
            }));
        }
    }

    /// The oldest work has no steps left.
    fn finish_job(&mut self, rows: Vec<tokkata_ir::RowResult>) -> Result<Progress, BackendError> {
        let steps = self.queue[0].steps();
        self.queue[0].launched = steps;
        self.end(0)?;
        Ok(self.close(rows, None))
    }

    fn close(
        &mut self,
        rows: Vec<tokkata_ir::RowResult>,
        failure: Option<BackendError>,
    ) -> Progress {
        let job = self.queue.pop_front().expect("a work is under way");
        job.kept.done();
        Progress {
            ticket: job.id,
            rows,
            done: true,
            failure,
        }
    }

    /// Fails when the device has.
    fn healthy(&mut self) -> Result<(), BackendError> {
        let bound = self.resident.context.bind();
        let asked = bound.and_then(|()| self.stream.is_idle());
        self.note(asked).map(|_| ())
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
    /// Floats among the work's words: the first and their number.
    Words(usize, usize),
    /// On the device: address, type, elements, and when they are there.
    Device(u64, ValType, usize, Arc<Event>),
}

impl Executor for CudaExecutor {
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
        let news = self.news()?;
        if news.is_none() && !self.flights.is_empty() {
            self.healthy()?;
        }
        Ok(news)
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        self.alive()?;
        let start = Instant::now();
        let mut turns = 0u32;
        loop {
            if let Some(news) = self.news()? {
                return Ok(Some(news));
            }
            if self.queue.is_empty() {
                return Ok(None);
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(4096) || start.elapsed() > Duration::from_millis(2) {
                self.healthy()?;
                std::thread::sleep(Duration::from_micros(20));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn stop(&mut self, slot: SeqSlot) {
        self.requests.words()[slot.index()].fetch_add(1, Ordering::AcqRel);
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
        let kept = kept(ticket, ValueId(0))?;
        let bound = self.resident.context.bind();
        let idle = bound.and_then(|()| self.stream.synchronize());
        self.note(idle)?;
        kept.block(i)
    }

    fn attach(&mut self, _: &Arc<Adapter>) -> Result<u32, BackendError> {
        Err(unsupported("adapters"))
    }

    fn detach(&mut self, _: u32) {}

    fn memory_bytes(&self) -> u64 {
        self.resident.bytes() + self.cache.bytes()
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Nothing is freed while the device may use it.
        let _ = self.resident.context.bind();
        let _ = self.stream.synchronize();
    }
}

fn kept(ticket: &Ticket, value: ValueId) -> Result<&Kept, BackendError> {
    ticket.kept().ok_or(BackendError::NotKept { value })
}
