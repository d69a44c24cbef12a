//! Adapters as devices of the contract.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokkata_ir::adapter::{Ways, additions};
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, Device, Executor, LoadOptions, Loaded, Op, Plan,
    Program, ValueId, WeightId, WeightSource,
};

use crate::adapters::Adapters;
use crate::check;
use crate::choices::Choices;
use crate::error::unsupported;
use crate::exec::WgpuExecutor;
use crate::formats;
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::now;
use crate::gpu::{Abilities, Gpu, has_subgroups, one_line};
use crate::layout::{self, GroupLayout, SLOT_WORDS, StepLayout, ValuePlaces};
use crate::lower::{Ground, Grown, Lowered, lower};
use crate::preprocess::Constants;
use crate::select;
use crate::weights::Weights;

/// An adapter that was opened. Clones share it with its kernels, and may choose others.
#[derive(Clone, Debug)]
pub struct WgpuDevice {
    gpu: Arc<Gpu>,
    /// What programs that are loaded use.
    pub(crate) abilities: Abilities,
    /// Classes of kernels that are not used, since they compute wrongly.
    wrong: Vec<String>,
    /// Those that are not used since others are faster.
    slow: Vec<String>,
    pub(crate) choices: Choices,
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

/// What stands before the name of a class of kernels that is not chosen.
const WITHOUT: &str = "without ";

/// Why there is nothing.
pub const NO_ADAPTER: &str =
    "no adapter was found: there is no driver for Vulkan, Metal or DirectX 12";

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
        let most = Abilities {
            subgroups: true,
            halves: true,
            dots: true,
            shares_more: true,
            matrices: true,
            mapped: true,
            ..Abilities::BASE
        };
        Self::open_as(index, most)
    }

    /// As [`WgpuDevice::open`], with kernels that ask for nothing an adapter may lack.
    ///
    /// # Errors
    /// As there.
    pub fn open_plain(index: usize) -> Result<Self, String> {
        let most = Abilities {
            fours: false,
            ..Abilities::BASE
        };
        Self::open_as(index, most)
    }

    #[cfg(target_arch = "wasm32")]
    pub(crate) fn open_as(index: usize, _: Abilities) -> Result<Self, String> {
        let opened = page::opened().filter(|_| index == 0);
        let gpu = opened.ok_or("no GPU was asked for")?.1;
        Ok(Self::of(gpu))
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn open_as(index: usize, most: Abilities) -> Result<Self, String> {
        let adapters = adapters();
        let Some(adapter) = adapters.get(index) else {
            return Err(match adapters.len() {
                0 => NO_ADAPTER.to_owned(),
                1 => format!("there is no wgpu:{index}; the only adapter is wgpu:0"),
                n => format!(
                    "there is no wgpu:{index}; adapters are wgpu:0 to wgpu:{}",
                    n - 1
                ),
            });
        };
        if let Some(why) = misfit(adapter) {
            return Err(format!("wgpu:{index}: {why}"));
        }
        let gpu = now(Gpu::open(adapter, most));
        let gpu = gpu.map_err(|e| format!("wgpu:{index}: {}", one_line(&e)))?;
        Ok(Self::of(Arc::new(gpu)))
    }

    fn of(gpu: Arc<Gpu>) -> Self {
        WgpuDevice {
            abilities: gpu.abilities,
            wrong: Vec::new(),
            slow: Vec::new(),
            choices: Choices::default(),
            gpu,
        }
    }

    /// Tries every class of kernels on a small layer; those that compute it wrongly are named and no longer used.
    ///
    /// # Errors
    /// One line, where the device cannot be used at all.
    pub fn check(&mut self) -> Result<Vec<String>, String> {
        let wrong = check::check(self)?;
        self.wrong = wrong.iter().map(|&w| w.to_owned()).collect();
        Ok(self.wrong.clone())
    }

    /// Whether rows of prompts meet weights as halves, by cooperative matrices.
    #[must_use]
    pub fn halves_prompts(&self) -> bool {
        self.abilities.matrices && self.abilities.tiles
    }

    /// Whether rows of replies meet codes of weights as integers of 16 bits, by dots of bytes.
    #[must_use]
    pub fn has_dots(&self) -> bool {
        self.abilities.dots && self.abilities.products
    }

    /// Classes that are not used, since they compute wrongly.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Does not use classes that an earlier check named.
    pub fn leave_out(&mut self, classes: Vec<String>) {
        check::restrict(self, &classes);
        self.wrong = classes;
    }

    /// Whether kernels, as they are chosen now, compute a small layer rightly.
    #[must_use]
    pub fn is_right(&self) -> bool {
        check::is_right(self)
    }

    /// What was chosen otherwise than it is by default, as [`WgpuDevice::choose`] takes it.
    #[must_use]
    pub fn chosen(&self) -> Vec<String> {
        let slow = self.slow.iter().map(|class| format!("{WITHOUT}{class}"));
        self.choices.said().into_iter().chain(slow).collect()
    }

    /// What may be chosen instead, one by one, as [`WgpuDevice::choose`] takes it: what is fastest depends on the adapter.
    #[must_use]
    pub fn alternatives(&self) -> Vec<String> {
        let classes = check::names(self.abilities);
        let without = classes.map(|class| format!("{WITHOUT}{class}"));
        self.choices.others().into_iter().chain(without).collect()
    }

    /// Chooses one thing for programs that are loaded from now on; whether anything is called so.
    pub fn choose(&mut self, what: &str) -> bool {
        let class = what.strip_prefix(WITHOUT);
        let known = match class {
            Some(class) => check::restrict(self, &[class]) == 1,
            None => self.choices.take(what),
        };
        self.slow.extend(class.filter(|_| known).map(str::to_owned));
        known
    }

    /// The adapter and its driver: what a check holds for.
    #[must_use]
    pub fn identity(&self) -> String {
        let info = self.gpu.device.adapter_info();
        let driver = format!("{} {}", info.driver, info.driver_info);
        one_line(&format!("{} {} {driver}", info.backend, info.name))
    }

    /// Divides keys so, or as steps ask for it.
    #[cfg(test)]
    pub(crate) fn divide(&self, split: Option<crate::launch::Split>) {
        self.gpu.tell(split);
    }

    /// Makes kernels wrong: a text in them becomes another.
    #[cfg(test)]
    pub(crate) fn break_kernels(&self, text: &'static str, other: &'static str) {
        self.gpu.break_kernels(text, other);
    }

    /// Makes tall tiles of cooperative matrices wrong, and no others.
    #[cfg(test)]
    pub(crate) fn break_tall_tiles(&self) {
        self.break_kernels(
            "let out = wg.x * OUTPUTS + o;",
            "let out = wg.x * OUTPUTS + o * (ACROSS / 2u);",
        );
    }

    /// A device that takes everything and computes nothing, to count what it is asked.
    #[cfg(test)]
    pub(crate) fn noop() -> Self {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
        let gpu = Gpu::of(device, queue, Abilities::BASE);
        Self::of(Arc::new(gpu))
    }
}

impl Device for WgpuDevice {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn notes(&self) -> Vec<String> {
        if self.wrong.is_empty() {
            return Vec::new();
        }
        let classes = self.wrong.join(", ");
        let who = self.identity();
        vec![format!(
            "{who} computes wrongly by {classes}; plain kernels run in their place"
        )]
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let resident = Resident::new(
            (&self.gpu, self.abilities, self.choices),
            &program,
            weights,
            !options.no_fuse,
        )?;
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
    pub(crate) plans: Vec<Ways<(Lowered, ValuePlaces)>>,
    pub(crate) adapters: Adapters,
    pub(crate) step: StepLayout,
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) program: Arc<Program>,
    pub(crate) constants: Constants,
    /// Whether steps may be recorded once.
    pub(crate) replays: bool,
    pub(crate) gpu: Arc<Gpu>,
}

/// Parameters of dispatches that a submission makes up.
pub(crate) const ROOM: usize = 512;

/// A plan, what is dispatched for it, and places of its values.
struct Placed {
    plan: Plan,
    items: Vec<select::Item>,
    places: ValuePlaces,
}

/// A plan for steps without adapters, and for others where it has them.
fn placed(
    plan: &Plan,
    program: &Program,
    weights: &Weights,
    most: Option<Abilities>,
) -> Ways<Placed> {
    let form = |id: WeightId| {
        most.filter(|a| a.products)?;
        let columns = program.weights[id.index()].cols();
        match &weights.place(id).segments[..] {
            [one] if columns.is_multiple_of(32) => Some((one.dtype, one.arena)),
            _ => None,
        }
    };
    let turns = most.is_some_and(|a| a.turning && a.attend);
    let ways = Ways::new(plan);
    let mut items = select::items(&ways.bare, most.map(|_| turns), &form);
    let adapted = ways.adapted.map(|plan| {
        let items = select::adapted(&plan, &items);
        place(program, plan, items)
    });
    let adds = |n: usize| matches!(plan.nodes[n].op, Op::Adapt { .. });
    items.retain(|item| !matches!(item, select::Item::Node(n) if adds(*n)));
    let mut bare = place(program, ways.bare, items);
    for (out, of) in additions(plan) {
        bare.places.values[out.index()] = bare.places.values[of.index()];
    }
    Ways { bare, adapted }
}

/// Places of a plan's values, of which items are dispatched.
fn place(program: &Program, plan: Plan, items: Vec<select::Item>) -> Placed {
    let traffic: Vec<_> = items.iter().map(|i| i.traffic(&plan)).collect();
    let places = layout::values(&plan, &traffic, &program.limits);
    Placed {
        plan,
        items,
        places,
    }
}

impl Resident {
    fn new(
        (gpu, abilities, choices): (&Arc<Gpu>, Abilities, Choices),
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
        let mut constants = layout::part_names();
        constants.extend(places.iter().map(|t| (t.0.to_owned(), t.1)));
        constants.push(("SUBGROUPS".to_owned(), abilities.subgroups.into()));
        let weights = Weights::load(gpu, program, source, tables)?;
        let adapters = Adapters::new(gpu, program)?;
        let ground = Ground {
            program,
            weights: &weights,
            adapters: &adapters,
            groups: &groups,
            step: &step,
            constants: &constants,
            abilities,
            choices,
            matrices: gpu.matrices.filter(|_| abilities.matrices),
        };
        let cut = program.plans.iter();
        let most = fuse.then_some(abilities);
        let cut: Vec<_> = cut.map(|p| placed(p, program, &weights, most)).collect();
        let ends = cut.iter().flat_map(Ways::iter).map(|p| p.places.end);
        let mut grown = Grown::behind(ends.max().unwrap_or(0));
        let mut plans = Vec::new();
        for ways in cut {
            plans.push(ways.try_map(|p, _| {
                let lowered = lower(&ground, (&p.plan, &p.items), &p.places, &mut grown)?;
                Ok::<_, BackendError>((lowered, p.places))
            })?);
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
            adapters,
            plans,
            step,
            groups,
            program: Arc::clone(program),
            constants,
            replays: abilities.replays,
            gpu: Arc::clone(gpu),
        };
        gpu.healthy()?;
        Ok(resident)
    }

    /// Where a value of a plan lies in steps that go through adapters, or that do not.
    pub(crate) fn value_at(&self, (plan, adapts): (usize, bool), value: ValueId) -> u32 {
        self.plans[plan].of(adapts).1.values[value.index()] as u32
    }

    pub(crate) fn bytes(&self) -> u64 {
        let others = [&self.vectors, &self.work, &self.state, &self.params];
        let buffers = self.arenas.iter().chain(others);
        buffers.map(wgpu::Buffer::size).sum::<u64>() + self.adapters.bytes()
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
