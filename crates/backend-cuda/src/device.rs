//! The GPU as a device of the contract.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use tokkata_core::DType;
use tokkata_ir::adapter::{Ways, additions};
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, Device, Executor, LoadOptions, Loaded, Op, Plan,
    Program, ValueId, WeightId, WeightSource,
};

use crate::adapters::Adapters;
use crate::driver::{self, Buffer, Context};
use crate::error::{lost, out_of_memory, unsupported};
use crate::exec::CudaExecutor;
use crate::images::Kernels;
use crate::layout::{self, GroupLayout, SLOT_BYTES, StepLayout, ValuePlaces};
use crate::lower::{Ground, Lowered, Scratch, Watch, Watches, lower};
use crate::select::{self, Item};
use crate::weights::{Makers, Weights};

/// Left free for the driver and for other programs.
const RESERVE: u64 = 512 << 20;

/// A GPU.
pub struct CudaDevice {
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    captures: bool,
    tapes: bool,
    words: bool,
    /// Whether tapes attend as behind long caches, whatever is cached.
    deep: bool,
    watches: Option<Arc<Watches>>,
}

/// What can be said of a GPU before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of memory that are free.
    pub free_bytes: u64,
    /// Bytes of memory in all.
    pub total_bytes: u64,
    /// The architecture that the kernels in use were compiled for.
    pub kernels: String,
}

/// Times of a tape's last step, in cycles of the processor that a block runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Blocks.
    pub blocks: usize,
    /// Instructions.
    pub names: Vec<String>,
    /// Block by block, of each instruction: when it began, when what it reads was there, when sums could begin (of attention:
    /// when its splits were done), and when it ended. Parts that a block has no share in keep older times.
    pub times: Vec<[u64; 4]>,
}

impl CudaDevice {
    /// How many GPUs there are.
    ///
    /// # Errors
    /// One line that says why none can be used: there is no driver, or an old one.
    pub fn count() -> Result<usize, String> {
        driver::devices()
    }

    /// The GPU with this number.
    ///
    /// # Errors
    /// One line that says why it cannot be used.
    pub fn open(index: usize) -> Result<Self, String> {
        Self::with_kernels(index, None)
    }

    /// As [`CudaDevice::open`], with the kernels of one architecture (`sm_80`, `compute_75`…) where it can run them.
    ///
    /// # Errors
    /// As there.
    pub fn with_kernels(index: usize, architecture: Option<&str>) -> Result<Self, String> {
        let count = Self::count()?;
        if index >= count {
            return Err(format!("there is no cuda:{index}; {count} were found"));
        }
        let open = || -> driver::Result<Option<Self>> {
            let context = Context::new(index)?;
            context.bind()?;
            let kernels = Kernels::new(&context, architecture)?;
            Ok(kernels.map(|kernels| CudaDevice {
                context,
                kernels: Arc::new(kernels),
                captures: true,
                tapes: true,
                words: true,
                deep: false,
                watches: None,
            }))
        };
        let opened = open().map_err(|e| format!("cuda:{index}: {e}"))?;
        opened.ok_or_else(|| format!("cuda:{index}: it needs compute capability 7.5 or more"))
    }

    /// As [`CudaDevice::open`], with kernels from a file of images rather than with those of the program: for work on
    /// kernels.
    ///
    /// # Errors
    /// As there, and a file of another kind.
    pub fn with_images(index: usize, images: &[u8]) -> Result<Self, String> {
        let mut device = Self::open(index)?;
        let own = Arc::get_mut(&mut device.kernels).expect("nobody has them yet");
        own.replace(images).ok_or("it holds no images of kernels")?;
        Ok(device)
    }

    /// Whether rows of prompts are made halves, and what they are multiplied by.
    #[must_use]
    pub fn halves_prompts(&self) -> bool {
        self.kernels.has_words()
    }

    /// Launches kernels one by one rather than as graphs.
    #[must_use]
    pub fn without_graphs(self) -> Self {
        CudaDevice {
            captures: false,
            ..self
        }
    }

    /// Launches a kernel for each op where one launch could do a whole step of one row.
    #[must_use]
    pub fn without_tapes(self) -> Self {
        CudaDevice {
            tapes: false,
            ..self
        }
    }

    /// Has blocks of a tape meet behind each instruction, as on devices before 9.0, rather than hand numbers on in words.
    #[must_use]
    pub fn without_words(self) -> Self {
        CudaDevice {
            words: false,
            ..self
        }
    }

    /// Has tapes attend as they do behind long caches, whatever is cached.
    #[must_use]
    pub fn with_deep_tapes(self) -> Self {
        CudaDevice { deep: true, ..self }
    }

    /// Has tapes note when their instructions begin and end, for [`CudaDevice::timelines`].
    #[must_use]
    pub fn with_watch(self) -> Self {
        CudaDevice {
            watches: Some(Arc::default()),
            ..self
        }
    }

    /// The times of the last step of every tape whose blocks note them, while a program of this device is open.
    ///
    /// # Errors
    /// A lost device.
    pub fn timelines(&self) -> Result<Vec<Timeline>, BackendError> {
        let watches = self.watches.as_ref().map(|w| {
            let all = w.lock().unwrap_or_else(PoisonError::into_inner);
            all.clone()
        });
        let read = |watch: Watch| {
            let mut words = vec![0u64; watch.blocks * watch.names.len() * 4];
            let bytes = bytemuck::cast_slice_mut(&mut words);
            self.context.read(watch.at, bytes).map_err(lost)?;
            Ok(Timeline {
                blocks: watch.blocks,
                names: watch.names,
                times: words.as_chunks::<4>().0.to_vec(),
            })
        };
        watches.unwrap_or_default().into_iter().map(read).collect()
    }

    /// What it is.
    ///
    /// # Errors
    /// A lost device.
    pub fn describe(&self) -> Result<Description, BackendError> {
        let (free_bytes, total_bytes) = self.context.memory().map_err(lost)?;
        Ok(Description {
            name: self.context.name().map_err(lost)?,
            capability: self.context.capability().map_err(lost)?,
            processors: self.context.processors().map_err(lost)?,
            free_bytes,
            total_bytes,
            kernels: self.kernels.architecture().to_owned(),
        })
    }
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDevice({:?})", self.context)
    }
}

fn available(context: &Context) -> Option<u64> {
    let (free, _) = context.memory().ok()?;
    Some(free.saturating_sub(RESERVE))
}

impl Device for CudaDevice {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn available_bytes(&self) -> Option<u64> {
        available(&self.context)
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let mut resident = Resident::new(self, program, weights, !options.no_fuse)?;
        // What cannot be lowered is known before caches are made.
        resident.lower(0)?;
        Ok(Box::new(resident))
    }
}

/// A program's weights and work space on a GPU.
pub(crate) struct Resident {
    weights: Weights,
    scratch: Scratch,
    work_space: Buffer,
    step_state: Buffer,
    plans: Vec<Ways<Placed>>,
    pub(crate) adapters: Adapters,
    pub(crate) step: StepLayout,
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) program: Arc<Program>,
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) captures: bool,
    tapes: bool,
    words: bool,
    deep: bool,
    watches: Option<Arc<Watches>>,
    pub(crate) context: Arc<Context>,
}

/// A plan, what is launched for it, and places of its values.
struct Placed {
    plan: Plan,
    items: Vec<Item>,
    places: ValuePlaces,
}

/// A plan for steps without adapters, and for others where it has them.
fn placed(
    program: &Program,
    plan: &Plan,
    (weights, halves): (&Weights, bool),
    fuse: bool,
) -> Ways<Placed> {
    let columns = |id: WeightId| program.weights[id.index()].cols();
    let fast = |id: WeightId| weights.fast(id, columns(id));
    let ways = Ways::new(plan);
    let mut items = select::items(&ways.bare, fuse, &fast);
    let adapted = ways.adapted.map(|plan| {
        let items = select::adapted(&plan, &items);
        place((program, halves), (plan, items), &fast)
    });
    let adds = |n: usize| matches!(plan.nodes[n].op, Op::Adapt { .. });
    items.retain(|item| !matches!(item, Item::Node(n) if adds(*n)));
    let mut bare = place((program, halves), (ways.bare, items), &fast);
    for (out, of) in additions(plan) {
        bare.places.values[out.index()] = bare.places.values[of.index()];
    }
    Ways { bare, adapted }
}

/// Places of a plan's values, of which items are launched.
fn place(
    (program, halves): (&Program, bool),
    (plan, items): (Plan, Vec<Item>),
    fast: &dyn Fn(WeightId) -> Option<DType>,
) -> Placed {
    let bytes = |node: usize| match plan.nodes[node].op {
        Op::Matmul { weight, .. } | Op::Experts { weight, .. } => {
            fast(weight).is_some_and(select::in_bytes)
        }
        _ => false,
    };
    let mut traffic: Vec<_> = items.iter().map(|i| i.traffic(&plan, &bytes)).collect();
    // Products of one row go back to what their bytes come from.
    let sources = select::sources(&plan, &items);
    for t in &mut traffic {
        let source = t.bytes_in.and_then(|x| Some((x, sources.get(&x)?)));
        if let Some((x, norm)) = source {
            t.ins.push(norm.map_or(x, |n| plan.nodes[n].ins[0]));
        }
    }
    // Those that read floats may go back to what their norm reads.
    let norms: BTreeMap<ValueId, ValueId> = items
        .iter()
        .filter_map(|item| match item {
            Item::Node(n) if matches!(plan.nodes[*n].op, Op::Norm { .. }) => {
                Some((plan.nodes[*n].outs[0], plan.nodes[*n].ins[0]))
            }
            _ => None,
        })
        .collect();
    for (item, t) in items.iter().zip(&mut traffic) {
        if let Item::Products { nodes, .. } = item {
            t.ins.extend(norms.get(&plan.nodes[nodes[0]].ins[0]));
        }
    }
    // So does attention of single rows, to what heads are made of.
    for i in 1..items.len() {
        if let Item::Heads(heads) = &items[i - 1]
            && select::reader(&plan, heads, items.get(i)).is_some()
        {
            let v = plan.nodes[heads.write].ins[1];
            traffic[i].ins.extend([heads.q, heads.k, v]);
        }
    }
    let places = layout::values(&plan, &traffic, (&program.limits, halves));
    Placed {
        plan,
        items,
        places,
    }
}

impl Resident {
    fn new(
        device: &CudaDevice,
        program: Arc<Program>,
        source: &dyn WeightSource,
        fuse: bool,
    ) -> Result<Self, BackendError> {
        let context = Arc::clone(&device.context);
        context.bind().map_err(lost)?;
        let layout = |group: &CacheGroup| {
            let layout = GroupLayout::new(group);
            layout.ok_or_else(|| unsupported(format!("a cache of {}", group.dtype)))
        };
        let groups = program
            .caches
            .iter()
            .map(layout)
            .collect::<Result<_, _>>()?;
        let words = fuse && device.kernels.has_words();
        let maker = |there: bool, source, name| {
            let found = there.then(|| device.kernels.function(source, name));
            found.transpose().map_err(lost)
        };
        let makers = Makers {
            split: maker(fuse, "matvec", "split_blocks")?,
            to_halves: maker(words, "gemm16", "to_halves")?,
            most: maker(words, "gemm90", "most_of_weights")?,
        };
        let weights = Weights::load(&context, &program, source, makers)?;
        let halves = device.kernels.has_words();
        let mut plans: Vec<Ways<Placed>> = program
            .plans
            .iter()
            .map(|plan| placed(&program, plan, (&weights, halves), fuse))
            .collect();
        let ends = plans.iter().flat_map(Ways::iter).map(|p| p.places.end);
        let bytes = ends.max().unwrap_or(0);
        let alloc = |what: &str, bytes: u64| {
            let buffer = context.alloc(bytes);
            buffer.map_err(|e| out_of_memory(&context, what, bytes, &e))
        };
        let work_space = alloc("work space", bytes)?;
        work_space.fill(0).map_err(lost)?;
        for placed in plans.iter_mut().flat_map(Ways::iter_mut) {
            placed.places.move_by(work_space.at());
        }
        let step = StepLayout::new(&program);
        let step_state = alloc("the step's state", step.bytes)?;
        Ok(Resident {
            weights,
            scratch: Scratch::default(),
            work_space,
            step_state,
            plans,
            adapters: Adapters::new(&context, &program)?,
            step,
            groups,
            program,
            kernels: Arc::clone(&device.kernels),
            captures: device.captures,
            tapes: device.tapes,
            words: device.words,
            deep: device.deep,
            watches: device.watches.clone(),
            context,
        })
    }

    pub(crate) fn step_at(&self) -> u64 {
        self.step_state.at()
    }

    /// Where a value of a plan lies in steps that go through adapters, or that do not.
    pub(crate) fn value_at(&self, (plan, adapts): (usize, bool), value: ValueId) -> u64 {
        self.plans[plan].of(adapts).places.values[value.index()]
    }

    pub(crate) fn bytes(&self) -> u64 {
        let space = self.work_space.bytes() + self.step_state.bytes();
        self.weights.bytes() + self.scratch.bytes() + self.adapters.bytes() + space
    }

    /// Every plan as launches, for caches that lie at `arena_at`.
    fn lower(&mut self, arena_at: u64) -> Result<Vec<Ways<Lowered>>, BackendError> {
        self.context.bind().map_err(lost)?;
        let program = Arc::clone(&self.program);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.rewind();
        let ground = Ground {
            context: &self.context,
            kernels: &self.kernels,
            program: &program,
            weights: &self.weights,
            adapters: &self.adapters,
            groups: &self.groups,
            step: &self.step,
            step_at: self.step_state.at(),
            arena_at,
            processors: self.context.processors().map_err(lost)?,
            tape_space: match self.tapes && self.kernels.has_tensor_cores() {
                true => self.context.shared_together().map_err(lost)?,
                false => 0,
            },
            words: self.words && self.kernels.has_words(),
            deep: self.deep,
            watches: self.watches.as_deref(),
        };
        // Between any two products of a tape would stand what adapters add.
        let tapeless = Ground {
            tape_space: 0,
            ..ground
        };
        let plans = self.plans.iter().map(Ways::each_ref);
        let lowered = plans.map(|ways| {
            ways.try_map(|p, adapts| {
                let ground = if adapts { &tapeless } else { &ground };
                lower(ground, (&p.plan, &p.items), &p.places, &mut scratch)
            })
        });
        let lowered = lowered.collect();
        self.scratch = scratch;
        lowered
    }

    /// Slots without sequences.
    fn reset(&self) -> driver::Result<()> {
        self.step_state.fill(0)?;
        let limits = &self.program.limits;
        let mut slots = vec![0u64; limits.seqs as usize * SLOT_BYTES as usize / 8];
        let tokens = self.step_at() + self.step.tokens;
        let per_slot = StepLayout::tokens_of_slot(limits) * 4;
        for (i, slot) in slots.chunks_exact_mut(SLOT_BYTES as usize / 8).enumerate() {
            slot[0] = tokens + i as u64 * per_slot;
        }
        self.step_state
            .write(self.step.slots(), bytemuck::cast_slice(&slots))?;
        let words: u32 = self.step.groups.iter().map(|g| g[1] * limits.seqs).sum();
        let none = vec![u32::MAX; words as usize];
        self.step_state
            .write(self.step.tables, bytemuck::cast_slice(&none))
    }
}

impl Loaded for Resident {
    fn block_bytes(&self) -> Vec<u64> {
        self.groups.iter().map(|g| g.block_bytes).collect()
    }

    fn memory_bytes(&self) -> u64 {
        self.bytes()
    }

    fn available_bytes(&self) -> Option<u64> {
        available(&self.context)
    }

    fn open(mut self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        let bytes = arena.bytes();
        let cache = self
            .context
            .alloc(bytes)
            .map_err(|e| out_of_memory(&self.context, "caches", bytes, &e))?;
        cache.fill(0).map_err(lost)?;
        self.reset().map_err(lost)?;
        let plans = self.lower(cache.at())?;
        let executor = CudaExecutor::new(self, plans, (arena, cache)).map_err(lost)?;
        Ok(Box::new(executor))
    }
}
