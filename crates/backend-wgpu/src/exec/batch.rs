//! What is submitted together: dispatches, their parameters, and results to be read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokkata_ir::BackendError;

use super::{Flight, Submission, Way, WgpuExecutor};
use crate::device::{ROOM, Resident};
use crate::gpu::Mapping;
use crate::launch::{Size, UNIT};
use crate::params::{PARAM_BYTES, Params};
use crate::replay::{Buffers, Call, Piece, Prepared, Recorded, Replay, Set};

/// Kernels of `step.wgsl`.
pub(super) struct StepKernels {
    pub(super) apply: wgpu::ComputePipeline,
    pub(super) prepare: wgpu::ComputePipeline,
    pub(super) finish: wgpu::ComputePipeline,
    pub(super) keep: wgpu::ComputePipeline,
    pub(super) feed: wgpu::ComputePipeline,
    pub(super) copy: wgpu::ComputePipeline,
    pub(super) export: wgpu::ComputePipeline,
    pub(super) import: wgpu::ComputePipeline,
}

impl StepKernels {
    pub(super) fn new(resident: &Resident) -> Result<Self, BackendError> {
        let of = |name: &'static str| {
            resident
                .gpu
                .pipeline(("step.wgsl", name), &resident.constants)
        };
        Ok(StepKernels {
            apply: of("apply_deltas")?,
            prepare: of("prepare")?,
            finish: of("finish")?,
            keep: of("keep")?,
            feed: of("feed")?,
            copy: of("copy_block")?,
            export: of("export_plane")?,
            import: of("import_plane")?,
        })
    }
}

/// Steps that are kept recorded for the words of a work.
const KEPT: usize = 8;

/// What kernels see beside a work's words, by the arena of weights; behind those with adapters.
struct Seen {
    groups: Vec<Option<wgpu::BindGroup>>,
    sets: Vec<Option<Arc<Set>>>,
    /// Steps that were recorded, the oldest first.
    steps: VecDeque<(Way, Size, Arc<Recorded>)>,
}

/// Device memory for a work's words, with what kernels see beside it.
pub(super) struct Staging {
    words: wgpu::Buffer,
    seen: Mutex<Seen>,
}

impl Staging {
    fn new(words: wgpu::Buffer, arenas: usize) -> Self {
        let seen = Seen {
            groups: vec![None; arenas + 1],
            sets: vec![None; arenas + 1],
            steps: VecDeque::new(),
        };
        Staging {
            words,
            seen: Mutex::new(seen),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kernels see adapters elsewhere from now on.
    pub(super) fn forget_adapters(&self) {
        let mut seen = self.seen();
        let adapters = seen.groups.len() - 1;
        seen.groups[adapters] = None;
        seen.sets[adapters] = None;
        seen.steps.retain(|((_, adapts), ..)| !adapts);
    }
}

/// A kernel, what it sees, and the byte at which its parameters begin.
pub(super) struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    grid: [u32; 3],
    params: u32,
}

/// What is submitted: through wgpu, or what wgpu does not see.
pub(super) enum Item {
    Dispatch(Dispatch),
    Replayed(Piece),
}

impl Item {
    fn is_replayed(&self) -> bool {
        self.piece().is_some()
    }

    fn piece(&self) -> Option<&Piece> {
        match self {
            Item::Replayed(piece) => Some(piece),
            Item::Dispatch(_) => None,
        }
    }
}

/// Replays of steps, with the kernels before and behind those of a plan.
pub(super) struct Replays {
    replay: Replay,
    pub(super) prepare: Prepared,
    pub(super) finish: Prepared,
}

impl Replays {
    /// `None` where steps cannot be replayed.
    pub(super) fn new(resident: &Resident) -> Option<Self> {
        let replay = resident.replays.then(|| Replay::new(&resident.gpu))??;
        let of = |name| replay.prepare(("step.wgsl", name), &resident.constants);
        Some(Replays {
            prepare: of("prepare").ok()?,
            finish: of("finish").ok()?,
            replay,
        })
    }
}

/// Work for the device that is not submitted yet.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    /// What was submitted without results that would tell when it is done.
    before: Vec<Item>,
    /// Parameters that were made up for it.
    params: Vec<u32>,
    flights: Vec<(u64, Range<usize>)>,
    staging: Vec<Arc<Staging>>,
}

impl Batch {
    /// Adds parameters that are made up; the byte at which they begin.
    fn own(&mut self, resident: &Resident, params: &Params) -> u32 {
        let at = resident.params_bytes as usize + self.params.len() * 4;
        self.params.extend(params.words());
        at as u32
    }

    pub(super) fn steps(&self) -> usize {
        self.flights.len()
    }
}

/// A dispatch that a step or a work needs besides those of its plan.
pub(super) struct Extra<'a> {
    pub(super) staging: &'a Arc<Staging>,
    /// In the place of `other`.
    pub(super) other: Option<&'a wgpu::Buffer>,
    pub(super) groups: u32,
}

impl WgpuExecutor {
    /// Words on their way to the device, in memory that nobody reads any more.
    pub(super) fn stage(&mut self, words: &[u32]) -> Result<Arc<Staging>, BackendError> {
        let bytes = words.len() as u64 * 4;
        let fits = |s: &&Arc<Staging>| s.words.size() >= bytes && Arc::strong_count(s) == 1;
        let found = self.staging.iter().find(fits).cloned();
        let staging = match found {
            Some(staging) => staging,
            None => {
                let gpu = &self.resident.gpu;
                let room = bytes.next_power_of_two().max(1 << 14);
                let arenas = self.resident.arenas.len();
                let words = gpu.alloc("words", room)?;
                let staging = Arc::new(Staging::new(words, arenas));
                self.staging
                    .retain(|s| s.words.size() >= room || Arc::strong_count(s) > 1);
                self.staging.push(Arc::clone(&staging));
                staging
            }
        };
        self.resident
            .gpu
            .queue
            .write_buffer(&staging.words, 0, bytemuck::cast_slice(words));
        Ok(staging)
    }

    /// Buffers in the order of their bindings.
    fn buffers(
        &self,
        words: &wgpu::Buffer,
        weights: &wgpu::Buffer,
        other: &wgpu::Buffer,
    ) -> Buffers {
        let r = &self.resident;
        let (params, work, state, cache) = (&r.params, &r.work, &r.state, &self.cache);
        let (vectors, starts) = (&r.vectors, &r.starts);
        [
            params, work, state, cache, weights, vectors, words, other, starts,
        ]
        .map(Clone::clone)
    }

    fn bind(
        &self,
        words: &wgpu::Buffer,
        weights: &wgpu::Buffer,
        other: &wgpu::Buffer,
    ) -> wgpu::BindGroup {
        let r = &self.resident;
        let buffers = self.buffers(words, weights, other);
        let params = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &buffers[0],
            offset: 0,
            size: std::num::NonZero::new(PARAM_BYTES as u64),
        });
        let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
        let others = buffers[1..].iter().map(|b| b.as_entire_binding());
        let entries: Vec<_> = (0..)
            .zip(std::iter::once(params).chain(others))
            .map(entry)
            .collect();
        let descriptor = wgpu::BindGroupDescriptor {
            label: None,
            layout: &r.gpu.bindings,
            entries: &entries,
        };
        r.gpu.asked.groups.fetch_add(1, Ordering::Relaxed);
        r.gpu.device.create_bind_group(&descriptor)
    }

    /// The arena of weights with this number, or adapters, and what stands in the place of `other`.
    fn arena(&self, arena: usize) -> [&wgpu::Buffer; 2] {
        let (r, nothing) = (&self.resident, &self.nothing);
        match r.arenas.get(arena) {
            Some(weights) => [weights, nothing],
            None => {
                let pairs = r.adapters.pairs().unwrap_or(&r.arenas[0]);
                [pairs, r.adapters.low().unwrap_or(nothing)]
            }
        }
    }

    fn group(&self, staging: &Arc<Staging>, arena: usize) -> wgpu::BindGroup {
        let [weights, other] = self.arena(arena);
        let mut seen = staging.seen();
        let made =
            seen.groups[arena].get_or_insert_with(|| self.bind(&staging.words, weights, other));
        made.clone()
    }

    /// The same where it is replayed.
    fn set(
        &self,
        replay: &Replay,
        staging: &Arc<Staging>,
        arena: usize,
    ) -> Result<Arc<Set>, BackendError> {
        let [weights, other] = self.arena(arena);
        let mut seen = staging.seen();
        if let Some(made) = &seen.sets[arena] {
            return Ok(Arc::clone(made));
        }
        let set = Arc::new(replay.set(self.buffers(&staging.words, weights, other))?);
        seen.sets[arena] = Some(Arc::clone(&set));
        Ok(set)
    }

    /// A plan's dispatches for a step of one row of each sequence, recorded once; `None` where they are not replayed.
    pub(super) fn recorded(
        &self,
        (plan, adapts): Way,
        size: Size,
        staging: &Arc<Staging>,
    ) -> Result<Option<Arc<Recorded>>, BackendError> {
        let Some(Replays { replay, .. }) = self.replays.as_ref().filter(|_| size.singles) else {
            return Ok(None);
        };
        // Grids follow from whole units of positions.
        let size = Size {
            positions: size.positions.next_multiple_of(UNIT),
            ..size
        };
        let is_it = |s: &&(Way, Size, _)| s.0 == (plan, adapts) && s.1 == size;
        if let Some((.., found)) = staging.seen().steps.iter().find(is_it) {
            return Ok(Some(Arc::clone(found)));
        }
        let mut calls = Vec::new();
        for launch in &self.resident.plans[plan].of(adapts).0.launches {
            let Some((pipeline, grid)) = launch.of(size) else {
                continue;
            };
            calls.push(Call {
                kernel: pipeline.prepared(replay)?,
                set: self.set(replay, staging, launch.arena)?,
                grid,
                params: launch.params * PARAM_BYTES as u32,
                beside: launch.beside,
            });
        }
        let made = Arc::new(replay.record(&calls)?);
        let mut seen = staging.seen();
        if seen.steps.len() == KEPT {
            seen.steps.pop_front();
        }
        let step = ((plan, adapts), size, Arc::clone(&made));
        seen.steps.push_back(step);
        Ok(Some(made))
    }

    /// One of the kernels around those of a plan, where these are replayed.
    pub(super) fn add_call(
        &mut self,
        kernel: Prepared,
        staging: &Arc<Staging>,
        params: &Params,
    ) -> Result<(), BackendError> {
        let Some(replays) = &self.replays else {
            return Ok(());
        };
        let set = self.set(&replays.replay, staging, 0)?;
        self.room_for(1)?;
        let params = self.batch.own(&self.resident, params);
        self.batch.items.push(Item::Replayed(Piece::Call(Call {
            kernel,
            set,
            grid: [1; 3],
            params,
            beside: false,
        })));
        self.hold(staging);
        Ok(())
    }

    pub(super) fn add_recorded(&mut self, recorded: Arc<Recorded>) {
        let step = Item::Replayed(Piece::Recorded(recorded));
        self.batch.items.push(step);
    }

    fn hold(&mut self, staging: &Arc<Staging>) {
        let held = self.batch.staging.last();
        if held.is_none_or(|s| !Arc::ptr_eq(s, staging)) {
            self.batch.staging.push(Arc::clone(staging));
        }
    }

    /// Submits what there is where so many parameters more have no room.
    pub(super) fn room_for(&mut self, dispatches: usize) -> Result<(), BackendError> {
        let words = self.batch.params.len() + dispatches * PARAM_BYTES / 4;
        match words > ROOM * PARAM_BYTES / 4 {
            true => self.submit_batch(),
            false => Ok(()),
        }
    }

    /// A dispatch with parameters that are made up for it.
    pub(super) fn add(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        extra: &Extra<'_>,
        params: &Params,
    ) -> Result<(), BackendError> {
        self.room_for(1)?;
        let group = match extra.other {
            Some(other) => {
                let weights = &self.resident.arenas[0];
                self.bind(&extra.staging.words, weights, other)
            }
            None => self.group(extra.staging, 0),
        };
        let params = self.batch.own(&self.resident, params);
        self.batch.items.push(Item::Dispatch(Dispatch {
            pipeline: pipeline.clone(),
            group,
            grid: [extra.groups, 1, 1],
            params,
        }));
        self.hold(extra.staging);
        Ok(())
    }

    /// The dispatches of a plan for a step.
    pub(super) fn add_plan(
        &mut self,
        (plan, adapts): Way,
        size: Size,
        staging: &Arc<Staging>,
    ) -> Result<(), BackendError> {
        let seen = self.resident.arenas.len() + usize::from(adapts);
        let groups: Vec<_> = (0..seen).map(|a| self.group(staging, a)).collect();
        for launch in &self.resident.plans[plan].of(adapts).0.launches {
            if let Some((pipeline, grid)) = launch.of(size) {
                self.batch.items.push(Item::Dispatch(Dispatch {
                    pipeline: pipeline.get(&self.resident.gpu)?,
                    group: groups[launch.arena].clone(),
                    grid,
                    params: launch.params * PARAM_BYTES as u32,
                }));
            }
        }
        self.hold(staging);
        Ok(())
    }

    /// Remembers that a step's record is to be read: where the next record of the batch lies, in words of the state.
    pub(super) fn next_record(&self) -> u64 {
        let step = &self.resident.step;
        step.records + self.batch.flights.len() as u64 * step.record_words
    }

    pub(super) fn add_flight(&mut self, job: u64, words: usize) {
        let first = self.batch.flights.last().map_or(0, |f| f.1.end);
        self.batch.flights.push((job, first..first + words));
    }

    /// Submits what was added.
    pub(super) fn submit_batch(&mut self) -> Result<(), BackendError> {
        if self.batch.items.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let gpu = Arc::clone(&self.resident.gpu);
        let dispatches = batch.items.len() as u64;
        gpu.asked
            .dispatches
            .fetch_add(dispatches, Ordering::Relaxed);
        gpu.queue.write_buffer(
            &self.resident.params,
            self.resident.params_bytes,
            bytemuck::cast_slice(&batch.params),
        );
        let mut encoders = self.encode(&batch.items);
        let words = batch.flights.last().map_or(0, |f| f.1.end);
        let readback = match words {
            0 => None,
            _ => Some(self.readback(words as u64 * 4)?),
        };
        if let Some(to) = &readback {
            // Nothing else is recorded where something is replayed.
            if batch.items.last().is_some_and(Item::is_replayed) {
                encoders.push(gpu.encoder());
            }
            let step = &self.resident.step;
            for (i, (_, words)) in batch.flights.iter().enumerate() {
                let from = (step.records + i as u64 * step.record_words) * 4;
                let (at, bytes) = (words.start as u64 * 4, words.len() as u64 * 4);
                if let Some(encoder) = encoders.last_mut() {
                    encoder.copy_buffer_to_buffer(&self.resident.state, from, to, at, bytes);
                }
            }
        }
        let buffers = encoders.into_iter().map(wgpu::CommandEncoder::finish);
        let index = gpu.queue.submit(buffers);
        let readback = readback.map(|buffer| {
            let mapping = Mapping::start(&buffer, words as u64 * 4);
            (buffer, mapping)
        });
        let mut items = batch.before;
        items.extend(batch.items);
        if readback.is_some() {
            let flights = batch.flights.into_iter();
            let flights: VecDeque<Flight> =
                flights.map(|(job, words)| Flight { job, words }).collect();
            self.submissions.push_back(Submission {
                flights,
                readback,
                index,
                results: Vec::new(),
                _items: items,
                _staging: batch.staging,
            });
        } else {
            self.batch.before = items;
        }
        gpu.healthy()
    }

    /// Items in their order: those that wgpu sees in passes, others in buffers of their own.
    fn encode(&self, items: &[Item]) -> Vec<wgpu::CommandEncoder> {
        let runs = items.chunk_by(|a, b| a.is_replayed() == b.is_replayed());
        let encoded = runs.map(|run| {
            let mut encoder = self.resident.gpu.encoder();
            match &self.replays {
                Some(replays) if run[0].is_replayed() => {
                    let pieces = run.iter().filter_map(Item::piece);
                    replays.replay.encode(&mut encoder, pieces);
                }
                _ => dispatch(&mut encoder, run),
            }
            encoder
        });
        encoded.collect()
    }

    fn readback(&mut self, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let fits = |b: &wgpu::Buffer| b.size() >= bytes;
        match self.readbacks.iter().position(fits) {
            Some(i) => Ok(self.readbacks.swap_remove(i)),
            None => self.resident.gpu.readback(bytes.next_power_of_two()),
        }
    }
}

/// Dispatches in one pass.
fn dispatch(encoder: &mut wgpu::CommandEncoder, items: &[Item]) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    for item in items {
        let Item::Dispatch(dispatch) = item else {
            continue;
        };
        pass.set_pipeline(&dispatch.pipeline);
        pass.set_bind_group(0, &dispatch.group, &[dispatch.params]);
        let [x, y, z] = dispatch.grid;
        pass.dispatch_workgroups(x, y, z);
    }
}
