//! Adapters as devices of the contract.

use std::sync::Arc;

use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, Device, Executor, LoadOptions, Loaded, Plan, Program,
    ValueId, WeightId, WeightSource,
};

use crate::error::unsupported;
use crate::exec::WgpuExecutor;
use crate::formats;
#[cfg(test)]
use crate::gpu::Abilities;
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::now;
use crate::gpu::{Gpu, has_subgroups, one_line};
use crate::layout::{self, GroupLayout, SLOT_WORDS, StepLayout, ValuePlaces};
use crate::lower::{Ground, Grown, Lowered, lower};
use crate::preprocess::Constants;
use crate::select;
use crate::weights::Weights;

/// An adapter that was opened.
#[derive(Debug)]
pub struct WgpuDevice {
    gpu: Arc<Gpu>,
}

/// What can be said of an adapter before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, such as `Apple M4` or `AMD Radeon RX 7900 XTX (RADV NAVI31)`.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub api: String,
    /// The driver and its version.
    pub driver: String,
    /// Whether it is the processor that computes.
    pub software: bool,
    /// Bytes that one piece of memory may have.
    pub binding_bytes: u64,
    /// What kernels would use that it does not have.
    pub lacks: Vec<String>,
}

#[cfg(target_arch = "wasm32")]
mod page;

#[cfg(not(target_arch = "wasm32"))]
fn adapters() -> Vec<wgpu::Adapter> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut found = now(instance.enumerate_adapters(backends));
    // Stable: those of one kind stay in the order in which they were found.
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    found
}

/// What keeps an adapter from being used at all.
fn misfit(adapter: &wgpu::Adapter) -> Option<String> {
    let limits = adapter.limits();
    let has_compute = adapter
        .get_downlevel_capabilities()
        .flags
        .contains(wgpu::DownlevelFlags::COMPUTE_SHADERS);
    if !has_compute {
        return Some("it cannot compute".to_owned());
    }
    (limits.max_storage_buffers_per_shader_stage < 7
        || limits.max_compute_invocations_per_workgroup < 256)
        .then(|| "its kernels see too few buffers or threads".to_owned())
}

fn describe(adapter: &wgpu::Adapter) -> Description {
    let info = adapter.get_info();
    let features = adapter.features();
    let mut lacks: Vec<String> = misfit(adapter).into_iter().collect();
    if !has_subgroups(adapter) {
        lacks.push("subgroups of 32".to_owned());
    }
    if !features.contains(wgpu::Features::SHADER_F16) {
        lacks.push("f16".to_owned());
    }
    let limits = adapter.limits();
    Description {
        name: info.name,
        api: info.backend.to_string(),
        driver: one_line(&format!("{} {}", info.driver, info.driver_info)),
        software: info.device_type == wgpu::DeviceType::Cpu,
        binding_bytes: limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size),
        lacks,
    }
}

impl WgpuDevice {
    /// Every adapter, in the order of their numbers: GPUs of their own first, the processor last.
    #[must_use]
    pub fn adapters() -> Vec<Description> {
        #[cfg(target_arch = "wasm32")]
        return page::opened().into_iter().map(|o| o.0).collect();
        #[cfg(not(target_arch = "wasm32"))]
        adapters().iter().map(describe).collect()
    }

    /// Asks the browser for its GPU, which is `wgpu:0` from then on.
    ///
    /// # Errors
    /// One line that says why there is none.
    #[cfg(target_arch = "wasm32")]
    pub async fn ask() -> Result<Description, String> {
        page::ask().await
    }

    /// The adapter with this number.
    ///
    /// # Errors
    /// One line that says why it cannot be used.
    pub fn open(index: usize) -> Result<Self, String> {
        Self::open_as(index, false)
    }

    /// As [`WgpuDevice::open`], with the kernels that every adapter can run.
    ///
    /// # Errors
    /// As there.
    pub fn open_plain(index: usize) -> Result<Self, String> {
        Self::open_as(index, true)
    }

    #[cfg(target_arch = "wasm32")]
    fn open_as(index: usize, _: bool) -> Result<Self, String> {
        let opened = page::opened().filter(|_| index == 0);
        let gpu = opened.ok_or("no GPU was asked for")?.1;
        Ok(WgpuDevice { gpu })
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn open_as(index: usize, plain: bool) -> Result<Self, String> {
        let adapters = adapters();
        let Some(adapter) = adapters.get(index) else {
            let count = adapters.len();
            return Err(format!(
                "there is no wgpu:{index}; {count} adapters were found"
            ));
        };
        if let Some(why) = misfit(adapter) {
            return Err(format!("wgpu:{index}: {why}"));
        }
        let gpu = now(Gpu::open(adapter, plain));
        let gpu = gpu.map_err(|e| format!("wgpu:{index}: {}", one_line(&e)))?;
        Ok(WgpuDevice { gpu: Arc::new(gpu) })
    }

    /// A device that takes everything and computes nothing, to count what it is asked.
    #[cfg(test)]
    pub(crate) fn noop() -> Self {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
        let gpu = Gpu::of(device, queue, Abilities { subgroups: false });
        WgpuDevice { gpu: Arc::new(gpu) }
    }
}

impl Device for WgpuDevice {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let resident = Resident::new(&self.gpu, &program, weights, !options.no_fuse)?;
        Ok(Box::new(resident))
    }
}

/// A program's weights and work space on a device.
pub(crate) struct Resident {
    pub(crate) arenas: Vec<wgpu::Buffer>,
    pub(crate) vectors: wgpu::Buffer,
    pub(crate) work: wgpu::Buffer,
    pub(crate) state: wgpu::Buffer,
    /// Where the parts of the state begin.
    pub(crate) starts: wgpu::Buffer,
    /// Parameters of dispatches, and room behind them.
    pub(crate) params: wgpu::Buffer,
    pub(crate) params_bytes: u64,
    pub(crate) plans: Vec<(Lowered, ValuePlaces)>,
    pub(crate) step: StepLayout,
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) program: Arc<Program>,
    pub(crate) constants: Constants,
    pub(crate) gpu: Arc<Gpu>,
}

/// Parameters of dispatches that a submission makes up.
pub(crate) const ROOM: usize = 512;

fn placed(
    plan: &Plan,
    program: &Program,
    (weights, fuse): (&Weights, bool),
) -> (Vec<select::Item>, ValuePlaces) {
    let form = |id: WeightId| {
        let columns = program.weights[id.index()].cols();
        match &weights.place(id).segments[..] {
            [one] if columns.is_multiple_of(8) => Some((one.dtype, one.arena)),
            _ => None,
        }
    };
    let items = select::items(plan, fuse, &form);
    let traffic: Vec<_> = items.iter().map(|i| i.traffic(plan)).collect();
    let places = layout::values(plan, &traffic, &program.limits);
    (items, places)
}

impl Resident {
    fn new(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        source: &dyn WeightSource,
        fuse: bool,
    ) -> Result<Self, BackendError> {
        let layout = |group: &CacheGroup| {
            let layout = GroupLayout::new(group);
            layout.ok_or_else(|| unsupported(format!("a cache of {}", group.dtype)))
        };
        let groups = program
            .caches
            .iter()
            .map(layout)
            .collect::<Result<Vec<_>, _>>()?;
        let step = StepLayout::new(program);
        let (tables, places) = formats::tables();
        let mut constants = step.constants().clone();
        constants.extend(places.iter().map(|t| (t.0.to_owned(), t.1)));
        constants.push(("SUBGROUPS".to_owned(), gpu.abilities.subgroups.into()));
        let weights = Weights::load(gpu, program, source, tables)?;
        let ground = Ground {
            program,
            weights: &weights,
            groups: &groups,
            step: &step,
            constants: &constants,
        };
        let cut = program.plans.iter();
        let cut: Vec<_> = cut.map(|p| placed(p, program, (&weights, fuse))).collect();
        let mut grown = Grown::behind(cut.iter().map(|c| c.1.end).max().unwrap_or(0));
        let mut plans = Vec::new();
        for (plan, (items, places)) in program.plans.iter().zip(cut) {
            let lowered = lower(&ground, (plan, &items), &places, &mut grown)?;
            plans.push((lowered, places));
        }
        let mut vectors = weights.vectors;
        vectors.extend(&grown.vectors);
        let resident = Resident {
            vectors: gpu.upload("vectors", &vectors)?,
            work: gpu.alloc("work space", grown.work * 4)?,
            state: gpu.alloc("the step's state", step.words * 4)?,
            starts: gpu.params(&step.starts, 0)?,
            params: gpu.params(&grown.params, ROOM)?,
            params_bytes: grown.params.len() as u64 * 4,
            arenas: weights.arenas,
            plans,
            step,
            groups,
            program: Arc::clone(program),
            constants,
            gpu: Arc::clone(gpu),
        };
        gpu.healthy()?;
        Ok(resident)
    }

    pub(crate) fn value_at(&self, plan: usize, value: ValueId) -> u32 {
        self.plans[plan].1.values[value.index()] as u32
    }

    pub(crate) fn bytes(&self) -> u64 {
        let others = [&self.vectors, &self.work, &self.state, &self.params];
        let buffers = self.arenas.iter().chain(others);
        buffers.map(wgpu::Buffer::size).sum()
    }

    /// Slots without sequences.
    fn reset(&self) {
        let limits = &self.program.limits;
        let queue = &self.gpu.queue;
        let slots = vec![0u32; (u64::from(limits.seqs) * SLOT_WORDS) as usize];
        queue.write_buffer(
            &self.state,
            self.step.slots * 4,
            bytemuck::cast_slice(&slots),
        );
        let none = vec![u32::MAX; self.step.table_words as usize];
        queue.write_buffer(
            &self.state,
            self.step.tables * 4,
            bytemuck::cast_slice(&none),
        );
    }
}

impl Loaded for Resident {
    fn block_bytes(&self) -> Vec<u64> {
        self.groups.iter().map(|g| g.block_words * 4).collect()
    }

    fn memory_bytes(&self) -> u64 {
        self.bytes()
    }

    fn available_bytes(&self) -> Option<u64> {
        Some(self.gpu.binding_bytes())
    }

    fn open(self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        let cache = self.gpu.alloc("caches", arena.bytes())?;
        self.reset();
        self.gpu.healthy()?;
        let executor = WgpuExecutor::new(self, arena, cache)?;
        Ok(Box::new(executor))
    }
}

#[cfg(test)]
mod tests {
    use tokkata_archs::{FileWeights, Registry, ResolveOptions};
    use tokkata_conformance::generate;
    use tokkata_conformance::golden::Golden;
    use tokkata_formats::ModelFile;
    use tokkata_ir::Limits;

    use super::*;
    use crate::launch::Size;

    /// Dispatches of a step of one row of an answer, and layers.
    fn dispatches(name: &str, fuse: bool) -> (usize, usize) {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        let file = generate::gguf(&golden).expect("a file");
        let file = ModelFile::from_bytes(file).expect("a file");
        let options = ResolveOptions { ctx: 64 };
        let spec = Registry::builtin()
            .resolve(&file, &options)
            .expect("a spec");
        let limits = Limits {
            rows: 16,
            ctx: 64,
            ..Limits::default()
        };
        let layers = 4;
        let program = Arc::new(tokkata_plan::build(&spec, &limits).expect("a program"));
        let device = WgpuDevice::noop();
        let weights = FileWeights(&file);
        let resident = Resident::new(&device.gpu, &program, &weights, fuse).expect("a load");
        let size = Size {
            rows: 1,
            seqs: 1,
            logits: 1,
            prompts: false,
            replies: true,
            singles: true,
        };
        let launches = resident.plans[0].0.launches.iter();
        (launches.filter(|l| l.of(size).is_some()).count(), layers)
    }

    #[test]
    fn a_layer_takes_few_dispatches() {
        for name in ["llama", "qwen3"] {
            let ((fused, layers), (plain, _)) = (dispatches(name, true), dispatches(name, false));
            // Heads of these are too narrow for one dispatch: norm and products, two rotations, two writes, attention, product
            // and sum, norm and gate, product and sum.
            assert!(
                fused <= 9 * layers + 10,
                "{name}: {fused} for {layers} layers"
            );
            assert!(plain > 14 * layers, "{name}: {plain} for {layers} layers");
        }
    }
}
