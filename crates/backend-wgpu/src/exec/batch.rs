//! What is submitted together: dispatches, their parameters, and results to be read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokkata_ir::BackendError;

use super::{Flight, Submission, Way, WgpuExecutor};
use crate::device::{ROOM, Resident};
use crate::gpu::Mapping;
use crate::params::{PARAM_BYTES, Params};

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

/// Device memory for a work's words, with what kernels see beside it, by the arena of weights; behind those with adapters.
pub(super) struct Staging {
    words: wgpu::Buffer,
    groups: Mutex<Vec<Option<wgpu::BindGroup>>>,
}

impl Staging {
    fn groups(&self) -> MutexGuard<'_, Vec<Option<wgpu::BindGroup>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kernels see adapters elsewhere from now on.
    pub(super) fn forget_adapters(&self) {
        if let Some(group) = self.groups().last_mut() {
            *group = None;
        }
    }
}

/// A kernel, what it sees, and the byte at which its parameters begin.
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    grid: [u32; 3],
    params: u32,
}

/// Work for the device that is not submitted yet.
#[derive(Default)]
pub(super) struct Batch {
    dispatches: Vec<Dispatch>,
    /// Parameters that were made up for it.
    params: Vec<u32>,
    flights: Vec<(u64, Range<usize>)>,
    staging: Vec<Arc<Staging>>,
}

impl Batch {
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
                let staging = Arc::new(Staging {
                    words: gpu.alloc("words", room)?,
                    groups: Mutex::new(vec![None; arenas + 1]),
                });
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

    fn bind(
        &self,
        words: &wgpu::Buffer,
        weights: &wgpu::Buffer,
        other: &wgpu::Buffer,
    ) -> wgpu::BindGroup {
        let r = &self.resident;
        let params = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &r.params,
            offset: 0,
            size: std::num::NonZero::new(PARAM_BYTES as u64),
        });
        let storage = [
            &r.work,
            &r.state,
            &self.cache,
            weights,
            &r.vectors,
            words,
            other,
        ];
        let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
        let resources = storage.iter().map(|b| b.as_entire_binding());
        let starts = std::iter::once(r.starts.as_entire_binding());
        let entries: Vec<_> = (0..)
            .zip(std::iter::once(params).chain(resources).chain(starts))
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

    fn group(&self, staging: &Arc<Staging>, arena: usize) -> wgpu::BindGroup {
        let (r, nothing) = (&self.resident, &self.nothing);
        let [weights, other] = match r.arenas.get(arena) {
            Some(weights) => [weights, nothing],
            None => {
                let pairs = r.adapters.pairs().unwrap_or(&r.arenas[0]);
                [pairs, r.adapters.low().unwrap_or(nothing)]
            }
        };
        let mut groups = staging.groups();
        let made = groups[arena].get_or_insert_with(|| self.bind(&staging.words, weights, other));
        made.clone()
    }

    fn hold(&mut self, staging: &Arc<Staging>) {
        let held = self.batch.staging.last();
        if held.is_none_or(|s| !Arc::ptr_eq(s, staging)) {
            self.batch.staging.push(Arc::clone(staging));
        }
    }

    /// A dispatch with parameters that are made up for it.
    pub(super) fn add(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        extra: &Extra<'_>,
        params: &Params,
    ) -> Result<(), BackendError> {
        if self.batch.params.len() >= ROOM * PARAM_BYTES / 4 {
            self.submit_batch()?;
        }
        let group = match extra.other {
            Some(other) => {
                let weights = &self.resident.arenas[0];
                self.bind(&extra.staging.words, weights, other)
            }
            None => self.group(extra.staging, 0),
        };
        let at = self.resident.params_bytes as usize + self.batch.params.len() * 4;
        self.batch.params.extend(params.words());
        self.batch.dispatches.push(Dispatch {
            pipeline: pipeline.clone(),
            group,
            grid: [extra.groups, 1, 1],
            params: at as u32,
        });
        self.hold(extra.staging);
        Ok(())
    }

    /// The dispatches of a plan for a step.
    pub(super) fn add_plan(
        &mut self,
        (plan, adapts): Way,
        size: crate::launch::Size,
        staging: &Arc<Staging>,
    ) -> Result<(), BackendError> {
        let seen = self.resident.arenas.len() + usize::from(adapts);
        let groups: Vec<_> = (0..seen).map(|a| self.group(staging, a)).collect();
        for launch in &self.resident.plans[plan].of(adapts).0.launches {
            if let Some((pipeline, grid)) = launch.of(size) {
                self.batch.dispatches.push(Dispatch {
                    pipeline: pipeline.get(&self.resident.gpu)?,
                    group: groups[launch.arena].clone(),
                    grid,
                    params: launch.params * PARAM_BYTES as u32,
                });
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
        if self.batch.dispatches.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let gpu = Arc::clone(&self.resident.gpu);
        let dispatches = batch.dispatches.len() as u64;
        gpu.asked
            .dispatches
            .fetch_add(dispatches, Ordering::Relaxed);
        gpu.queue.write_buffer(
            &self.resident.params,
            self.resident.params_bytes,
            bytemuck::cast_slice(&batch.params),
        );
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in &batch.dispatches {
                pass.set_pipeline(&dispatch.pipeline);
                pass.set_bind_group(0, &dispatch.group, &[dispatch.params]);
                let [x, y, z] = dispatch.grid;
                pass.dispatch_workgroups(x, y, z);
            }
        }
        let words = batch.flights.last().map_or(0, |f| f.1.end);
        let readback = match words {
            0 => None,
            _ => Some(self.readback(words as u64 * 4)?),
        };
        if let Some(to) = &readback {
            let step = &self.resident.step;
            for (i, (_, words)) in batch.flights.iter().enumerate() {
                let from = (step.records + i as u64 * step.record_words) * 4;
                let (at, bytes) = (words.start as u64 * 4, words.len() as u64 * 4);
                encoder.copy_buffer_to_buffer(&self.resident.state, from, to, at, bytes);
            }
        }
        let index = gpu.queue.submit([encoder.finish()]);
        let readback = readback.map(|buffer| {
            let mapping = Mapping::start(&buffer, words as u64 * 4);
            (buffer, mapping)
        });
        if readback.is_some() {
            let flights = batch.flights.into_iter();
            let flights: VecDeque<Flight> =
                flights.map(|(job, words)| Flight { job, words }).collect();
            self.submissions.push_back(Submission {
                flights,
                readback,
                index,
                results: Vec::new(),
                _staging: batch.staging,
            });
        }
        gpu.healthy()
    }

    fn readback(&mut self, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let fits = |b: &wgpu::Buffer| b.size() >= bytes;
        match self.readbacks.iter().position(fits) {
            Some(i) => Ok(self.readbacks.swap_remove(i)),
            None => self.resident.gpu.readback(bytes.next_power_of_two()),
        }
    }
}
