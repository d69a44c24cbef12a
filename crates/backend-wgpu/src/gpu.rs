//! An adapter that was opened: buffers, pipelines, submissions, and what went wrong with them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokkata_ir::BackendError;

use crate::error::{lost, unsupported};
use crate::launch::Split;
use crate::params::PARAM_BYTES;
use crate::preprocess::Constants;

/// Storage buffers that a kernel sees, besides its parameters.
pub(crate) const STORAGES: u32 = 7;

/// Bytes that a workgroup may share where that is more than everywhere.
const MORE_SHARED: u32 = 32 << 10;

/// Most bytes of an arena: a binding of this size works on all adapters that have as much.
const MOST_BINDING: u64 = 1 << 30;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a future that never waits, as those of native adapters are.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Cooperative matrices: rows and columns, lanes of the subgroups that have them, and what tiles of them take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    pub(crate) side: u32,
    pub(crate) lanes: u32,
    /// Columns at a time.
    pub(crate) step: u32,
    /// Bytes that a workgroup shares.
    shared: u32,
}

impl Matrices {
    /// What kernels are made for: 16 by 16 on GPUs of subgroups of 32, 8 by 8 on Mesa's software adapter.
    pub(crate) const KNOWN: [Matrices; 2] = [
        Matrices {
            side: 16,
            lanes: 32,
            step: 64,
            shared: 48 << 10,
        },
        Matrices {
            side: 8,
            lanes: 8,
            step: 32,
            shared: 32 << 10,
        },
    ];

    /// Matrices of halves with sums in single floats. Only Vulkan's are known to be right.
    fn of(adapter: &wgpu::Adapter) -> Option<Matrices> {
        let info = adapter.get_info();
        let needed = Self::features();
        let has = info.backend == wgpu::Backend::Vulkan && adapter.features().contains(needed);
        let kinds = adapter.cooperative_matrix_properties();
        let most = adapter.limits().max_compute_workgroup_storage_size;
        let fits = |m: &&Matrices| {
            let lanes = (info.subgroup_min_size, info.subgroup_max_size);
            let is_it = |k: &wgpu::CooperativeMatrixProperties| {
                use wgpu::CooperativeScalarType::{F16, F32};
                [k.m_size, k.n_size, k.k_size] == [m.side; 3]
                    && (k.ab_type, k.cr_type) == (F16, F32)
            };
            lanes == (m.lanes, m.lanes) && most >= m.shared && kinds.iter().any(is_it)
        };
        has.then(|| Self::KNOWN.iter().find(fits).copied())?
    }

    fn features() -> wgpu::Features {
        wgpu::Features::SHADER_F16
            | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
            | wgpu::Features::PASSTHROUGH_SHADERS
    }
}

/// What decides which kernels are used. Each that is not has a plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Subgroups of 32 lanes and more.
    pub(crate) subgroups: bool,
    /// Threads may store the words of a vector of four one by one. Metal's compiler stores the whole vector.
    pub(crate) fours: bool,
    /// Products with what comes right before and after them.
    pub(crate) products: bool,
    /// The driver's halves are those of the file, subnormal ones too.
    pub(crate) halves: bool,
    /// Dots of bytes, which Metal has no instruction for.
    pub(crate) dots: bool,
    /// Rows that are made integers for such dots before products read them.
    pub(crate) integers: bool,
    /// Workgroups may share 32 KiB.
    pub(crate) shares_more: bool,
    /// Attention that turns heads itself.
    pub(crate) turning: bool,
    /// Attention for queries that share a key.
    pub(crate) attend: bool,
    /// The same for tiles of rows of prompts.
    pub(crate) attend_prompts: bool,
    /// Tiles for rows of prompts.
    pub(crate) tiles: bool,
    /// Cooperative matrices of halves for rows of prompts.
    pub(crate) matrices: bool,
    /// Steps that are recorded once, where the API has that.
    pub(crate) replays: bool,
    /// Weights are written where they lie: the processor and the adapter share their memory.
    pub(crate) mapped: bool,
}

impl Abilities {
    /// Every kernel that needs nothing of an adapter.
    pub(crate) const BASE: Abilities = Abilities {
        subgroups: false,
        fours: true,
        products: true,
        halves: false,
        dots: false,
        integers: true,
        shares_more: false,
        turning: true,
        attend: true,
        attend_prompts: true,
        tiles: true,
        matrices: false,
        replays: true,
        mapped: false,
    };

    /// Plain forms alone.
    pub(crate) const PLAIN: Abilities = Abilities {
        subgroups: false,
        fours: false,
        products: false,
        halves: false,
        dots: false,
        integers: false,
        shares_more: false,
        turning: false,
        attend: false,
        attend_prompts: false,
        tiles: false,
        matrices: false,
        replays: false,
        mapped: false,
    };
}

/// What was asked of a device.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Buffers that were made.
    pub(crate) buffers: AtomicU64,
    /// Buffers as kernels see them together.
    pub(crate) groups: AtomicU64,
    pub(crate) dispatches: AtomicU64,
}

/// The pipelines of a device, by source, entry point and constants.
type Pipelines = BTreeMap<(&'static str, &'static str, Constants), wgpu::ComputePipeline>;

/// A device and its queue.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) abilities: Abilities,
    /// The cooperative matrices that it was opened with.
    pub(crate) matrices: Option<Matrices>,
    pub(crate) asked: Asked,
    pub(crate) bindings: wgpu::BindGroupLayout,
    layout: wgpu::PipelineLayout,
    pipelines: Mutex<Pipelines>,
    #[cfg(test)]
    told: Mutex<Option<Split>>,
    #[cfg(test)]
    broken: Mutex<Option<(&'static str, &'static str)>>,
    fault: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.device.adapter_info().name)
    }
}

/// Whether subgroups have 32 lanes at least, so that a run of 32 threads lies in one.
pub(crate) fn has_subgroups(adapter: &wgpu::Adapter) -> bool {
    let info = adapter.get_info();
    adapter.features().contains(wgpu::Features::SUBGROUP)
        && info.subgroup_min_size >= 32
        && info.subgroup_max_size <= 128
}

impl Gpu {
    /// Opens an adapter, with what it has of what kernels use and is not kept from using.
    pub(crate) async fn open(adapter: &wgpu::Adapter, most: Abilities) -> Result<Self, String> {
        let has = adapter.limits();
        let shares_more = most.shares_more && has.max_compute_workgroup_storage_size >= MORE_SHARED;
        let limits = wgpu::Limits {
            max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
            max_buffer_size: has.max_buffer_size,
            ..wgpu::Limits::downlevel_defaults()
        };
        let limits = wgpu::Limits {
            max_storage_buffers_per_shader_stage: 8,
            max_compute_invocations_per_workgroup: 256,
            max_compute_workgroup_size_x: 256,
            ..limits
        };
        let matrices = Matrices::of(adapter).filter(|_| most.matrices);
        let shared = match shares_more {
            true => MORE_SHARED,
            false => limits.max_compute_workgroup_storage_size,
        };
        let limits = wgpu::Limits {
            max_compute_workgroup_storage_size: matrices.map_or(shared, |m| shared.max(m.shared)),
            ..limits
        };
        let subgroups = most.subgroups && has_subgroups(adapter);
        let info = adapter.get_info();
        let shared = matches!(
            info.device_type,
            wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu
        );
        let mappable = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        let mapped = most.mapped && shared && adapter.features().contains(mappable);
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SUBGROUP, subgroups);
        features.set(mappable, mapped);
        features.set(Matrices::features(), matrices.is_some());
        let asked = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits,
            experimental_features: experimental(),
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = adapter.request_device(&asked).await;
        let (device, queue) = opened.map_err(|e| e.to_string())?;
        let fours = most.fours && info.backend != wgpu::Backend::Metal;
        let abilities = Abilities {
            subgroups,
            fours,
            dots: most.dots && info.backend != wgpu::Backend::Metal,
            shares_more,
            mapped,
            matrices: matrices.is_some(),
            ..most
        };
        Ok(Gpu {
            matrices,
            ..Self::of(device, queue, abilities)
        })
    }

    pub(crate) fn of(device: wgpu::Device, queue: wgpu::Queue, abilities: Abilities) -> Self {
        let fault = Arc::new(Mutex::new(None));
        let note = Arc::clone(&fault);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            locked(&note).get_or_insert(error.to_string());
        }));
        let note = Arc::clone(&fault);
        device.set_device_lost_callback(move |reason, why| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                locked(&note).get_or_insert(why);
            }
        });
        let bindings = bindings(&device);
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        Gpu {
            device,
            queue,
            abilities,
            matrices: None,
            asked: Asked::default(),
            bindings,
            layout,
            pipelines: Mutex::default(),
            #[cfg(test)]
            told: Mutex::default(),
            #[cfg(test)]
            broken: Mutex::default(),
            fault,
        }
    }

    /// Fails once anything has gone wrong that nobody asked about.
    pub(crate) fn healthy(&self) -> Result<(), BackendError> {
        match &*locked(&self.fault) {
            Some(why) => Err(lost(one_line(why))),
            None => Ok(()),
        }
    }

    /// Bytes that one binding may have.
    pub(crate) fn binding_bytes(&self) -> u64 {
        let limits = self.device.limits();
        let most = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        most / 256 * 256
    }

    /// Bytes of an arena of weights.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.binding_bytes().min(MOST_BINDING)
    }

    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        let plain = wgpu::CommandEncoderDescriptor::default();
        self.device.create_command_encoder(&plain)
    }

    /// Storage of zeros.
    pub(crate) fn alloc(&self, what: &str, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        self.buffer(what, bytes, usage)
    }

    /// Storage of weights, which the processor writes where it lies if it can: until [`wgpu::Buffer::unmap`].
    pub(crate) fn arena(&self, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        if !self.abilities.mapped {
            return self.alloc("weights", bytes);
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::MAP_WRITE;
        self.buffer("weights", bytes, usage)
    }

    pub(crate) fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, BackendError> {
        let size = bytes.next_multiple_of(4).max(256);
        let short = |available| BackendError::OutOfMemory {
            what: format!("{what} on the GPU"),
            needed: bytes,
            available,
        };
        let mappable = usage.contains(wgpu::BufferUsages::MAP_READ);
        let most = match mappable {
            true => self.device.limits().max_buffer_size,
            false => self.binding_bytes(),
        };
        if size > most {
            return Err(short(most));
        }
        self.asked.buffers.fetch_add(1, Ordering::Relaxed);
        let memory = self.watch(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: usage.contains(wgpu::BufferUsages::MAP_WRITE),
        });
        if caught(memory).is_some() {
            return Err(short(0));
        }
        Ok(buffer)
    }

    /// Storage that begins with these words.
    pub(crate) fn upload(&self, what: &str, words: &[u32]) -> Result<wgpu::Buffer, BackendError> {
        let buffer = self.alloc(what, words.len() as u64 * 4)?;
        self.queue
            .write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(buffer)
    }

    /// Parameters of dispatches, and room behind them.
    pub(crate) fn params(&self, params: &[u32], room: usize) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let bytes = (params.len() * 4 + room * PARAM_BYTES) as u64;
        let buffer = self.buffer("parameters", bytes, usage)?;
        self.queue
            .write_buffer(&buffer, 0, bytemuck::cast_slice(params));
        Ok(buffer)
    }

    /// Memory that the host reads.
    pub(crate) fn readback(&self, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.buffer("results", bytes, usage)
    }

    /// Errors of a kind from here on, as far as they can be waited for: in a page they come later, as faults.
    fn watch(&self, errors: wgpu::ErrorFilter) -> Option<wgpu::ErrorScopeGuard> {
        (!cfg!(target_arch = "wasm32")).then(|| self.device.push_error_scope(errors))
    }

    /// Bytes of a buffer, once everything that was submitted is done.
    pub(crate) fn read(
        &self,
        buffer: &wgpu::Buffer,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        if cfg!(target_arch = "wasm32") {
            return Err(unsupported("values that are read in a page".to_owned()));
        }
        let to = self.readback(out.len() as u64)?;
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, offset, &to, 0, out.len() as u64);
        self.queue.submit([encoder.finish()]);
        let done = Mapping::start(&to, out.len() as u64);
        let bytes = loop {
            let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
            waited.map_err(|e| lost(e.to_string()))?;
            self.healthy()?;
            // Another thread that waits may be the one that is told.
            match done.bytes(&to) {
                Some(bytes) => break bytes?,
                None => std::thread::yield_now(),
            }
        };
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// The text of a kernel.
    pub(crate) fn text(&self, file: &str, constants: &Constants) -> String {
        let text = crate::kernels::text(file, constants);
        #[cfg(test)]
        let text = match *locked(&self.broken) {
            Some((right, wrong)) => text.replace(right, wrong),
            None => text,
        };
        text
    }

    /// The pipeline of a kernel, made once.
    pub(crate) fn pipeline(
        &self,
        (file, entry): (&'static str, &'static str),
        constants: &Constants,
    ) -> Result<wgpu::ComputePipeline, BackendError> {
        let key = (file, entry, constants.clone());
        if let Some(found) = locked(&self.pipelines).get(&key) {
            return Ok(found.clone());
        }
        let text = self.text(file, constants);
        let invalid = self.watch(wgpu::ErrorFilter::Validation);
        let module = match crate::kernels::is_cooperative(file) {
            true => self.cooperative(&text, entry)?,
            false => self.module(text),
        };
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: Some(&self.layout),
                module: &module,
                entry_point: Some(entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..wgpu::PipelineCompilationOptions::default()
                },
                cache: None,
            });
        if let Some(error) = caught(invalid) {
            let why = format!("kernel {entry} of {file}: {error}");
            return Err(lost(why));
        }
        locked(&self.pipelines).insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// How keys are divided, where that does not follow from the step.
    pub(crate) fn told(&self) -> Option<Split> {
        #[cfg(test)]
        return *locked(&self.told);
        #[cfg(not(test))]
        None
    }

    #[cfg(test)]
    pub(crate) fn tell(&self, split: Option<Split>) {
        *locked(&self.told) = split;
    }

    #[cfg(test)]
    pub(crate) fn break_kernels(&self, text: &'static str, other: &'static str) {
        assert!(crate::kernels::has_text(text), "no kernel has: {text}");
        *locked(&self.broken) = Some((text, other));
    }

    /// A module for cooperative matrices, which wgpu is given as SPIR-V.
    #[allow(unsafe_code)]
    fn cooperative(&self, text: &str, entry: &str) -> Result<wgpu::ShaderModule, BackendError> {
        let words = crate::spirv::cooperative(text, entry).map_err(|why| lost(one_line(&why)))?;
        let entry = wgpu::PassthroughShaderEntryPoint {
            name: entry.into(),
            workgroup_size: (256, 1, 1),
        };
        let source = wgpu::ShaderModuleDescriptorPassthrough {
            label: None,
            entry_points: vec![entry].into(),
            spirv: Some(words.into()),
            ..wgpu::ShaderModuleDescriptorPassthrough::default()
        };
        // SAFETY: naga made the words of a valid module, whose bindings are those of the layout.
        Ok(unsafe { self.device.create_shader_module_passthrough(source) })
    }

    /// A module without the checks that wgpu would add: every index follows from places that were laid out.
    #[allow(unsafe_code)]
    fn module(&self, text: String) -> wgpu::ShaderModule {
        let source = wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        };
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            bounds_checks: cfg!(debug_assertions),
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: kernels are this crate's own; their loops end, since each counts up to a bound.
        unsafe { self.device.create_shader_module_trusted(source, checks) }
    }
}

/// wgpu wants to hear that its cooperative matrices may be wrong.
#[allow(unsafe_code)]
fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: what naga leaves out is put in (`spirv.rs`), and the check tries the kernels before they are used.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

fn caught(scope: Option<wgpu::ErrorScopeGuard>) -> Option<wgpu::Error> {
    scope.and_then(|scope| now(scope.pop()))
}

/// The text of an error without its line breaks.
pub(crate) fn one_line(text: &str) -> String {
    let parts: Vec<&str> = text.split_whitespace().collect();
    parts.join(" ")
}

/// Parameters, then storage: what plans write, and what they read.
fn bindings(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    let entry = |binding, ty, has_dynamic_offset, size: Option<u64>| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset,
            min_binding_size: size.and_then(std::num::NonZero::new),
        },
        count: None,
    };
    let mut entries = vec![entry(
        0,
        wgpu::BufferBindingType::Uniform,
        true,
        Some(PARAM_BYTES as u64),
    )];
    for binding in 1..=STORAGES {
        let read_only = matches!(binding, 4..=6);
        let ty = wgpu::BufferBindingType::Storage { read_only };
        entries.push(entry(binding, ty, false, None));
    }
    entries.push(entry(
        STORAGES + 1,
        wgpu::BufferBindingType::Uniform,
        false,
        None,
    ));
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    })
}

/// A buffer on its way to the host.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    state: Arc<AtomicU64>,
    bytes: u64,
}

impl Mapping {
    pub(crate) fn start(buffer: &wgpu::Buffer, bytes: u64) -> Self {
        let state = Arc::new(AtomicU64::new(0));
        let set = Arc::clone(&state);
        buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |result| {
            set.store(if result.is_ok() { 1 } else { 2 }, Ordering::Release);
        });
        Mapping { state, bytes }
    }

    /// What arrived, and the buffer is free again; `None` while it is under way.
    pub(crate) fn bytes(&self, buffer: &wgpu::Buffer) -> Option<Result<Vec<u8>, BackendError>> {
        match self.state.load(Ordering::Acquire) {
            0 => None,
            1 => {
                let view = buffer.get_mapped_range(0..self.bytes);
                let bytes = view.map(|v| v.to_vec()).map_err(|e| lost(e.to_string()));
                buffer.unmap();
                Some(bytes)
            }
            _ => Some(Err(lost("memory cannot be read"))),
        }
    }
}
