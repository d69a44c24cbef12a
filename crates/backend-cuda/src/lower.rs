//! Plans to launches: one kernel or a few for each op, in the order of the plan.

mod adapt;
mod attention;
mod crowd;
mod cuts;
mod flash;
mod halves;
mod linear;
mod moe;
mod products;
mod recurrent;
mod rows;
mod tape;
mod tiles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokkata_ir::{
    BackendError, ConstData, ConstId, KvSource, Lead, Limits, Node, Op, Plan, Program, SlotId,
    ValueId, WeightId,
};

use crate::adapters::Adapters;
use crate::driver::{Buffer, Context, Mode};
use crate::error::{lost, out_of_memory, unsupported};
use crate::images::Kernels;
use crate::launch::{Extent, Kernel, Launch, RowKind, When};
use crate::layout::{GroupLayout, StepLayout, ValuePlaces, lead_code, most};
use crate::params::Params;
use crate::select::{self, Heads, Item};
use crate::weights::Weights;

/// Most blocks of kernels whose threads go on to further elements.
const MOST_BLOCKS: u32 = 2048;

/// Threads of elementwise kernels.
const THREADS: u32 = 256;

/// Device memory that launches refer to: what each asks for is found again when a program is lowered again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    buffers: Vec<Buffer>,
    next: usize,
}

impl Scratch {
    /// From the first piece again.
    pub(crate) fn rewind(&mut self) {
        self.next = 0;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.iter().map(Buffer::bytes).sum()
    }

    fn next(
        &mut self,
        make: impl FnOnce() -> Result<Buffer, BackendError>,
    ) -> Result<u64, BackendError> {
        if self.next == self.buffers.len() {
            self.buffers.push(make()?);
        }
        self.next += 1;
        Ok(self.last().at())
    }

    /// The piece that was asked for last.
    fn last(&self) -> &Buffer {
        &self.buffers[self.next - 1]
    }
}

/// What lowering knows of a program on its device.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) kernels: &'a Kernels,
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights,
    pub(crate) adapters: &'a Adapters,
    pub(crate) groups: &'a [GroupLayout],
    pub(crate) step: &'a StepLayout,
    /// The step's state and the slots.
    pub(crate) step_at: u64,
    pub(crate) arena_at: u64,
    /// Multiprocessors.
    pub(crate) processors: u32,
    /// Bytes of shared memory of a tape's blocks; 0 where no tapes are made.
    pub(crate) tape_space: u32,
    /// Whether blocks of a tape hand numbers on in words.
    pub(crate) words: bool,
    /// Whether they attend as behind long caches, whatever is cached.
    pub(crate) deep: bool,
    /// Tapes whose times are noted, where they are.
    pub(crate) watches: Option<&'a Watches>,
}

/// Tapes whose blocks note times.
pub(crate) type Watches = std::sync::Mutex<Vec<Watch>>;

/// A tape whose blocks note times: four of each instruction, block by block.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) at: u64,
    pub(crate) blocks: usize,
    /// Of the instructions.
    pub(crate) names: Vec<String>,
}

/// A plan as launches.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) launches: Vec<Launch>,
    /// The nodes that each item does, with their parts of its time.
    pub(crate) items: Vec<Vec<(usize, f64)>>,
    /// Reports of log-probabilities per logit row; 0 where the plan has none.
    pub(crate) reports: u64,
    /// Positions from which on caches are deep for its tapes.
    pub(crate) near: u32,
}

/// A plan on its way to launches.
pub(crate) struct Lowering<'a, 'g> {
    ground: &'a Ground<'g>,
    plan: &'a Plan,
    places: &'a ValuePlaces,
    scratch: &'a mut Scratch,
    launches: Vec<Launch>,
    /// The item that is lowered.
    item: Option<usize>,
    /// For which buckets the next launches are.
    when: When,
    /// For which kind of rows they are.
    kind: Option<RowKind>,
    /// How they are launched.
    mode: Mode,
    /// What comes before all others.
    first: Vec<Launch>,
    /// Instructions beside the launches.
    tape: tape::Tape,
    /// For steps of which sequences, as in `Launch`.
    singles: Option<(bool, u32)>,
    /// Heads that attention computes for itself in steps of single rows, by its queries.
    heads: BTreeMap<ValueId, Heads>,
    /// What rows in bytes come from, where products may make them for themselves.
    sources: BTreeMap<ValueId, Option<usize>>,
    /// Work space that many launches share, by which of two it is and its size.
    shared: BTreeMap<(bool, u64), u64>,
    /// Items behind the one that is lowered.
    ahead: &'a [Item],
    /// Prompts' rows in parts, that were left so for the next products.
    cuts: BTreeMap<ValueId, cuts::Cut>,
    /// Where products left the heads of prompts' rows for attention, by its queries.
    heads_left: BTreeMap<ValueId, cuts::HeadSpace>,
    /// Outputs of products that do the function behind them for prompts' rows.
    ended: BTreeSet<ValueId>,
    /// Tables of cosines and sines by what they follow from.
    turns: BTreeMap<Vec<u8>, u64>,
    /// What prompts' rows of products are read from.
    forms: halves::PromptForms,
}

/// Lowers a plan whose values lie at these addresses.
pub(crate) fn lower<'a>(
    ground: &'a Ground<'_>,
    (plan, items): (&'a Plan, &'a [Item]),
    places: &'a ValuePlaces,
    scratch: &'a mut Scratch,
) -> Result<Lowered, BackendError> {
    let mut lowering = Lowering {
        ground,
        plan,
        places,
        scratch,
        launches: Vec::new(),
        item: None,
        when: When::Always,
        kind: None,
        mode: Mode::Plain,
        first: Vec::new(),
        tape: tape::Tape::default(),
        singles: None,
        heads: BTreeMap::new(),
        sources: select::sources(plan, items),
        shared: BTreeMap::new(),
        ahead: &[],
        cuts: BTreeMap::new(),
        heads_left: BTreeMap::new(),
        ended: BTreeSet::new(),
        turns: BTreeMap::new(),
        forms: halves::PromptForms::default(),
    };
    lowering.note_prompts(items);
    lowering.keep_own_sources(items);
    lowering.tape_sources(items);
    for (i, item) in items.iter().enumerate() {
        let before = lowering.launches.len();
        lowering.ahead = &items[i + 1..];
        lowering.item = Some(i);
        match item {
            Item::Node(i) => lowering.node(&plan.nodes[*i])?,
            Item::Prepare {
                norm,
                x,
                floats,
                bytes,
            } => lowering.prepare_rows((*norm, *x), *floats, *bytes)?,
            Item::Heads(heads) => lowering.heads(heads, items.get(i + 1))?,
            Item::Products {
                nodes,
                gate,
                add,
                paired,
            } => lowering.products(nodes, *gate, *add, *paired)?,
            Item::Adapts(nodes) => lowering.adapts(nodes)?,
        }
        lowering.tape_item(item, before);
    }
    lowering.item = None;
    lowering.wind_tapes()?;
    let reports = lowering.report()?;
    lowering.first.append(&mut lowering.launches);
    Ok(Lowered {
        launches: lowering.first,
        items: items.iter().map(|item| parts_of(plan, item)).collect(),
        reports,
        near: lowering.tape.near(),
    })
}

impl Lowering<'_, '_> {
    fn limits(&self) -> &Limits {
        &self.ground.program.limits
    }

    fn at(&self, id: ValueId) -> u64 {
        self.places.values[id.index()]
    }

    fn width(&self, id: ValueId) -> u32 {
        self.plan.value(id).shape.width() as u32
    }

    fn lead(&self, id: ValueId) -> Lead {
        self.plan.value(id).shape.lead
    }

    fn floats(&self, id: WeightId) -> u64 {
        self.ground.weights.floats(id)
    }

    fn maybe(&self, id: Option<WeightId>) -> u64 {
        id.map_or(0, |id| self.floats(id))
    }

    fn weight_len(&self, id: WeightId) -> u32 {
        let shape = &self.ground.program.weights[id.index()].shape;
        shape.iter().product()
    }

    /// The step, which every kernel gets first.
    fn step(&self) -> Params {
        self.ground.step.params(self.ground.step_at)
    }

    /// The step and a lead.
    fn step_of(&self, lead: Lead) -> Params {
        self.step().u32(lead_code(lead))
    }

    /// Zeros, found again when the program is lowered again.
    fn scratch(&mut self, bytes: u64) -> Result<u64, BackendError> {
        let context = self.ground.context;
        self.scratch.next(|| {
            let buffer = context
                .alloc(bytes.next_multiple_of(4))
                .map_err(|e| out_of_memory(context, "work space", bytes, &e))?;
            buffer.fill(0).map_err(lost)?;
            Ok(buffer)
        })
    }

    /// Work space that is only used until the next launch that asks for as much.
    fn shared_scratch(&mut self, bytes: u64) -> Result<u64, BackendError> {
        self.space((false, bytes))
    }

    /// As [`Lowering::shared_scratch`]: one of two, so that a launch may read from one and write to the other.
    fn space(&mut self, which: (bool, u64)) -> Result<u64, BackendError> {
        if let Some(&at) = self.shared.get(&which) {
            return Ok(at);
        }
        let at = self.scratch(which.1)?;
        self.shared.insert(which, at);
        Ok(at)
    }

    fn upload<T: bytemuck::NoUninit>(&mut self, data: &[T]) -> Result<u64, BackendError> {
        let context = self.ground.context;
        self.scratch.next(|| context.upload(data).map_err(lost))
    }

    /// As [`Lowering::upload`], for what depends on where caches lie: written each time.
    fn upload_anew(&mut self, data: &[u8]) -> Result<u64, BackendError> {
        let at = self.upload(data)?;
        self.scratch.last().write(0, data).map_err(lost)?;
        Ok(at)
    }

    /// Remembers a tape whose times are noted.
    fn note_watch(&self, at: u64, blocks: usize, names: Vec<String>) {
        if let Some(watches) = self.ground.watches {
            let mut all = watches
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            all.retain(|w| w.at != at);
            all.push(Watch { at, blocks, names });
        }
    }

    fn constant(&mut self, id: ConstId) -> Result<u64, BackendError> {
        let program = self.ground.program;
        match program.constant(id) {
            ConstData::F32(x) => self.upload(x),
            ConstData::U32(x) => self.upload(x),
        }
    }

    fn launch(
        &mut self,
        (source, kernel): (&'static str, &str),
        grid: [Extent; 3],
        (block, shared): (u32, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        let function = self.ground.kernels.function(source, kernel).map_err(lost)?;
        self.push(Kernel::One(function), grid, (block, shared), params);
        Ok(())
    }

    /// A kernel that waits itself for what is before it.
    fn launch_early(
        &mut self,
        kernel: (&'static str, &str),
        grid: [Extent; 3],
        shape: (u32, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        self.mode = self.early();
        let launched = self.launch(kernel, grid, shape, params);
        self.mode = Mode::Plain;
        launched
    }

    fn push(
        &mut self,
        kernel: Kernel,
        grid: [Extent; 3],
        (block, shared): (u32, u32),
        params: &Params,
    ) {
        self.launches.push(Launch {
            item: self.item,
            when: self.when,
            kind: self.kind,
            mode: self.mode,
            singles: self.singles,
            taped: None,
            deep: None,
            kernel,
            grid,
            block,
            shared,
            params: params.bytes().to_vec(),
        });
    }

    /// How kernels are launched that wait themselves for what is before them.
    fn early(&self) -> Mode {
        match self.ground.kernels.begins_early() {
            true => Mode::Early,
            false => Mode::Plain,
        }
    }

    /// A kernel of `rows.cu` over the elements of a value.
    fn each(
        &mut self,
        kernel: &str,
        (lead, per_row): (Lead, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        let blocks = Extent::elements(lead, per_row.into(), THREADS).at_most(MOST_BLOCKS);
        let grid = [blocks, Extent::ONE, Extent::ONE];
        self.launch(("rows", kernel), grid, (THREADS, 0), params)
    }

    /// The same of one that waits itself for what is before it.
    fn each_early(
        &mut self,
        kernel: &str,
        elements: (Lead, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        self.mode = self.early();
        let launched = self.each(kernel, elements, params);
        self.mode = Mode::Plain;
        launched
    }

    /// A cache slot as kernels see it.
    fn cache(&self, slot: SlotId, params: Params) -> Params {
        let group = &self.ground.groups[slot.group.index()];
        let def = self.ground.program.group(slot.group);
        let [first, len] = self.ground.step.groups[slot.group.index()];
        let planes = &group.slots[slot.slot as usize];
        let tables = self.ground.step_at + self.ground.step.tables + u64::from(first) * 4;
        let params = params.u64(self.ground.arena_at).u64(tables).u32s(&[
            len,
            def.block_size,
            group.entry,
            0,
        ]);
        let params = planes[0].params(params);
        planes[planes.len() - 1].params(params).align(8)
    }

    /// In the place of a cache where there is none.
    fn no_cache(params: Params) -> Params {
        params.u64s(&[0; 8])
    }

    fn node(&mut self, node: &Node) -> Result<(), BackendError> {
        match &node.op {
            Op::Prepare => Ok(()),
            Op::Gather { .. } | Op::Matmul { .. } | Op::HeadMatmul { .. } | Op::Experts { .. } => {
                self.linear(node)
            }
            Op::CacheWrite { slot } => self.cache_write(&node.ins, *slot),
            Op::Attention(op) => self.attention(node, op),
            Op::Select(op) => self.select(node, op),
            Op::Compress(op) => self.compress(node, op),
            Op::Conv { .. } | Op::Conv1d(_) | Op::Shift { .. } | Op::Scan { .. } => {
                self.recurrent(node)
            }
            Op::Route(op) => self.route(node, op),
            Op::Group { .. } => self.group(node),
            Op::Combine => self.combine(node),
            Op::Sample => self.sample(node),
            _ => self.row_op(node),
        }
    }

    /// Whether the values of a slot are its keys.
    fn keys_only(&self, source: KvSource) -> bool {
        match source {
            KvSource::Cache(slot) | KvSource::Cross(slot) => {
                self.ground.groups[slot.group.index()].slots[slot.slot as usize].len() == 1
            }
            KvSource::Rows => false,
        }
    }

    fn most(&self, lead: Lead) -> u32 {
        most(self.limits(), lead)
    }
}

/// The nodes that an item does with their parts of its time: products share it by their outputs.
fn parts_of(plan: &Plan, item: &Item) -> Vec<(usize, f64)> {
    match item {
        Item::Node(n) => vec![(*n, 1.0)],
        Item::Heads(heads) => vec![(heads.rope_q, 1.0)],
        Item::Prepare { norm, x, .. } => {
            let reads = |node: &Node| node.ins.contains(x);
            let node = norm.or_else(|| plan.nodes.iter().position(reads));
            node.map(|n| (n, 1.0)).into_iter().collect()
        }
        Item::Products { nodes, .. } | Item::Adapts(nodes) => {
            let width = |n: usize| plan.value(plan.nodes[n].outs[0]).shape.width() as f64;
            let all: f64 = nodes.iter().map(|&n| width(n)).sum();
            nodes.iter().map(|&n| (n, width(n) / all)).collect()
        }
    }
}

/// Threads for sums over so many columns.
fn threads_for(columns: u32) -> u32 {
    columns.div_ceil(4).next_multiple_of(32).clamp(32, 256)
}

/// What a program asks that no kernel does.
fn too_large(op: &str, what: &str, n: u32, most: u32) -> Result<(), BackendError> {
    if n <= most {
        return Ok(());
    }
    Err(unsupported(format!("{op} with {n} {what}: at most {most}")))
}
