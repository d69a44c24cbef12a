//! The executor: works in order on one stream, their steps launched a few ahead of their results.

mod laps;
mod launching;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokkata_ir::adapter::{Attached, Ways};
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, Delta, Executor, Progress, Refusal, SeqSlot, Source,
    StepTime, Ticket, ValType, ValueId, Work,
};

use crate::device::Resident;
use crate::driver::{Buffer, Event, Fault, Function, Graph, Pinned, Stream};
use crate::error::lost;
use crate::kept::{Kept, Pool};
use crate::launch::Bucket;
use crate::lower::Lowered;
use crate::params::Params;
use crate::work::{Record, SlotLists, Step, Words, record_words};
use laps::Laps;

/// Works that are taken before the first of them is done.
const DEPTH: usize = 4;
/// Steps that are launched before the results of the first of them are read.
const AHEAD: usize = 6;
/// For how long news are waited for awake: a sleep of 20 µs takes 77, and steps of answers take less than this.
const SPUN: Duration = Duration::from_millis(10);
/// Records of steps; more than are ahead.
const RECORDS: u64 = 8;
/// Most rows of a step that is captured, where it is one row of each sequence.
const CAPTURED: usize = 256;
/// Rows of a step up to which it is one where answers try drafts.
const CAPTURED_DRAFTS: usize = 32;

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
    /// Of its last step, where works are measured.
    laps: Option<(Way, Arc<Laps>)>,
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

/// Launches that are replayed together, and the events between them where they are measured.
struct Replay {
    graph: Graph,
    laps: Option<Arc<Laps>>,
}

/// A plan, and whether rows of a step go through adapters.
type Way = (usize, bool);

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
    graphs: BTreeMap<(Way, Bucket), Replay>,
    /// Whether works are measured.
    measured: bool,
    plans: Vec<Ways<Lowered>>,
    attached: Attached,
    staging: Vec<Arc<Staging>>,
    lists: Vec<SlotLists>,
    /// What slots have cached at most: those that stopped inside of a chain have less.
    lengths: Vec<u32>,
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
        plans: Vec<Ways<Lowered>>,
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
            measured: false,
            plans,
            attached: Attached::new(limits.adapters),
            staging: Vec::new(),
            lists,
            lengths: vec![0; limits.seqs as usize],
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
            laps: None,
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
        for (slot, delta) in &self.queue[i].work.deltas {
            match delta {
                Delta::Clear => self.lengths[slot.index()] = 0,
                Delta::Length(n) => self.lengths[slot.index()] = *n,
                _ => {}
            }
        }
        let job = &self.queue[i];
        let there = self.attached.check(&job.work.rows, job.id);
        let prepared = there.and_then(|()| self.prepare_feeds(i));
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

    /// Where each fed value comes from.
    fn prepare_feeds(&mut self, i: usize) -> Result<Vec<Feed>, BackendError> {
        let job = &self.queue[i];
        let plan = &self.resident.program.plans[job.work.plan];
        let (mut feeds, mut before) = (Vec::new(), 0);
        for (value, source) in &job.work.feeds {
            let def = plan.value(*value);
            let from = match source {
                Source::Host(data) => {
                    let first = before;
                    before += data.len().next_multiple_of(4);
                    From::Host(first, data.len())
                }
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

    /// What comes after the rows of a work.
    fn end(&mut self, i: usize) -> Result<(), BackendError> {
        if self.queue[i].ended {
            return Ok(());
        }
        self.queue[i].ended = true;
        let ended = self.end_on_device(i);
        self.note(ended)
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
            if let Some((row, rows)) = record.no_row() {
                let steps = job.steps();
                job.launched = steps;
                self.end(0)?;
                let failure = BackendError::no_row("cuda", row, rows as usize);
                return Ok(Some(self.close(Vec::new(), Some(failure))));
            }
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
        if let Some((way, laps)) = self.queue[0].laps.take() {
            let times = self.times_of(way, &laps);
            let times = self.note(times)?;
            self.queue[0].kept.measured(times);
        }
        Ok(self.close(rows, None))
    }

    fn close(
        &mut self,
        rows: Vec<tokkata_ir::RowResult>,
        failure: Option<BackendError>,
    ) -> Progress {
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
    /// Floats of the host, which go to the device behind the work's words: how many are before them, and their number.
    Host(usize, usize),
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
            let long = start.elapsed() > SPUN;
            if long || turns.is_multiple_of(4096) {
                self.healthy()?;
            }
            match long {
                true => std::thread::sleep(Duration::from_micros(20)),
                false => std::hint::spin_loop(),
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

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.alive()?;
        let number = self.attached.free()?;
        if self.resident.adapters.grows(adapter) {
            let bound = self.resident.context.bind();
            let idle = bound.and_then(|()| self.stream.synchronize());
            self.note(idle)?;
        }
        self.resident.adapters.put(number, adapter)?;
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
        self.resident.bytes() + self.cache.bytes()
    }

    fn measure(&mut self, on: bool) {
        self.measured = on;
    }

    fn times(&self, ticket: &Ticket) -> Vec<StepTime> {
        ticket.kept::<Kept>().map(Kept::times).unwrap_or_default()
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
