//! Plans to dispatches: one kernel or a few for each op, in the order of the plan.

mod adapt;
pub(crate) mod attention;
pub(crate) mod fused;
pub(crate) mod linear;
mod moe;
mod recurrent;
mod rows;
pub(crate) mod several;

use std::collections::BTreeMap;
use std::ops::Range;

use tokkata_ir::{
    BackendError, ConstData, ConstId, KvSource, Lead, Limits, Node, Op, Plan, Program, SlotId,
    ValueId, WeightId,
};

use crate::adapters::Adapters;
use crate::choices::Choices;
use crate::error::unsupported;
use crate::gpu::{Abilities, Matrices};
use crate::launch::{Division, Extent, Kernel, Launch, Pipeline, RowKind, Split};
use crate::layout::{GroupLayout, StepLayout, ValuePlaces, lead_code, most};
use crate::params::{NONE, PARAM_BYTES, Params};
use crate::preprocess::Constants;
use crate::select::Item;
use crate::weights::Weights;

/// Most workgroups of kernels whose threads go on to further elements.
const MOST_GROUPS: u32 = 2048;

/// Threads of elementwise kernels.
const THREADS: u32 = 256;

/// What lowering knows of a program on its device.
pub(crate) struct Ground<'a> {
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights,
    pub(crate) adapters: &'a Adapters,
    pub(crate) groups: &'a [GroupLayout],
    pub(crate) step: &'a StepLayout,
    /// Constants of every module.
    pub(crate) constants: &'a Constants,
    pub(crate) abilities: Abilities,
    pub(crate) choices: Choices,
    /// Cooperative matrices for rows of prompts.
    pub(crate) matrices: Option<Matrices>,
}

/// What lowering adds to: shared by the plans of a program.
#[derive(Debug, Default)]
pub(crate) struct Grown {
    /// Words of the work space.
    pub(crate) work: u64,
    /// Words behind the vectors of weights.
    pub(crate) vectors: Vec<u32>,
    /// Parameters of all dispatches.
    pub(crate) params: Vec<u32>,
    constants: BTreeMap<u32, u32>,
    shared: BTreeMap<u64, u32>,
    halves: BTreeMap<u64, u32>,
    integers: BTreeMap<u64, u32>,
}

impl Grown {
    /// Work space in which so many words are taken.
    pub(crate) fn behind(work: u64) -> Self {
        Grown {
            work,
            ..Grown::default()
        }
    }

    /// Words of zeros that nothing else uses.
    fn scratch(&mut self, words: u64) -> Result<u32, BackendError> {
        let at = self.work.next_multiple_of(64);
        self.work = at + words;
        u32::try_from(at).map_err(|_| unsupported("a work space of more than 16 GiB"))
    }

    /// Words that every dispatch that asks for as many uses anew.
    fn shared(&mut self, words: u64) -> Result<u32, BackendError> {
        self.once(|grown| &mut grown.shared, words)
    }

    /// Words for rows of halves, which all values of as many have in turn.
    fn halves(&mut self, words: u64) -> Result<u32, BackendError> {
        self.once(|grown| &mut grown.halves, words)
    }

    /// The same for rows of integers.
    fn integers(&mut self, words: u64) -> Result<u32, BackendError> {
        self.once(|grown| &mut grown.integers, words)
    }

    /// Scratch that is made for the first who asks for as many words.
    fn once(
        &mut self,
        places: fn(&mut Self) -> &mut BTreeMap<u64, u32>,
        words: u64,
    ) -> Result<u32, BackendError> {
        if let Some(&at) = places(self).get(&words) {
            return Ok(at);
        }
        let at = self.scratch(words)?;
        places(self).insert(words, at);
        Ok(at)
    }

    fn vector(&mut self, before: usize, words: impl IntoIterator<Item = u32>) -> u32 {
        let at = (before + self.vectors.len()).next_multiple_of(4);
        self.vectors.resize(at - before, 0);
        self.vectors.extend(words);
        at as u32
    }
}

/// A plan as dispatches.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) launches: Vec<Launch>,
    /// Reports of log-probabilities per logit row, in the work space.
    pub(crate) reports: Option<u32>,
}

/// A plan on its way to dispatches.
pub(crate) struct Lowering<'a, 'g> {
    ground: &'a Ground<'g>,
    plan: &'a Plan,
    places: &'a ValuePlaces,
    grown: &'a mut Grown,
    launches: Vec<Launch>,
    /// For which kind of rows the next dispatches are.
    kind: Option<RowKind>,
    /// For which steps the next dispatches are: of one row of each sequence, or others.
    singles: Option<bool>,
    /// How the next dispatches divide keys.
    split: Option<(Division, Split)>,
    /// The next dispatch needs nothing of the one before it.
    beside: bool,
    /// Rows of replies are left to another dispatch.
    prompts_only: bool,
    /// What comes before all others.
    first: Vec<Launch>,
    /// Which value lies as halves at a place of the work space.
    halves: BTreeMap<u32, ValueId>,
    /// Which value lies as integers at a place, and the norm that it went through.
    integers: BTreeMap<u32, (ValueId, Option<usize>)>,
    /// For which steps the next dispatches are, by how many there are of a lead.
    count: Option<(Lead, Range<u32>)>,
    /// Tables of cosines and sines by what they follow from.
    turns: BTreeMap<Params, u32>,
}

/// Lowers a plan whose values lie at these places.
pub(crate) fn lower<'a>(
    ground: &'a Ground<'_>,
    (plan, items): (&'a Plan, &[Item]),
    places: &'a ValuePlaces,
    grown: &'a mut Grown,
) -> Result<Lowered, BackendError> {
    let mut lowering = Lowering {
        ground,
        plan,
        places,
        grown,
        launches: Vec::new(),
        kind: None,
        singles: None,
        split: None,
        prompts_only: false,
        beside: false,
        first: Vec::new(),
        halves: BTreeMap::new(),
        integers: BTreeMap::new(),
        count: None,
        turns: BTreeMap::new(),
    };
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Node(i) => lowering.node(&plan.nodes[*i])?,
            Item::Heads(heads) => lowering.heads(heads)?,
            Item::Products(found) => {
                let before = i.checked_sub(1).map(|before| &items[before]);
                let before = before.and_then(Item::as_products);
                let beside = before.is_some_and(|b| b.reads_as(found, plan));
                lowering.products(found, beside)?;
            }
            Item::Adapts(nodes) => lowering.adapts(nodes)?,
        }
    }
    let reports = lowering.report()?;
    lowering.first.append(&mut lowering.launches);
    Ok(Lowered {
        launches: lowering.first,
        reports,
    })
}

/// Elementwise parameters: the lead and the elements of a row.
fn of(lead: Lead, width: u32) -> Params {
    Params::new().u32s(&[lead_code(lead), width])
}

impl Lowering<'_, '_> {
    fn limits(&self) -> &Limits {
        &self.ground.program.limits
    }

    fn at(&self, id: ValueId) -> u32 {
        self.places.values[id.index()] as u32
    }

    fn width(&self, id: ValueId) -> u32 {
        self.plan.value(id).shape.width() as u32
    }

    fn lead(&self, id: ValueId) -> Lead {
        self.plan.value(id).shape.lead
    }

    fn floats(&self, id: WeightId) -> u32 {
        self.ground.weights.floats(id)
    }

    fn maybe(&self, id: Option<WeightId>) -> u32 {
        id.map_or(NONE, |id| self.floats(id))
    }

    fn weight_len(&self, id: WeightId) -> u32 {
        let shape = &self.ground.program.weights[id.index()].shape;
        shape.iter().product()
    }

    /// Zeros that only this op uses.
    fn scratch(&mut self, words: u64) -> Result<u32, BackendError> {
        self.grown.scratch(words)
    }

    /// Work space that is only used until the next op that asks for as much.
    fn shared_scratch(&mut self, words: u64) -> Result<u32, BackendError> {
        self.grown.shared(words)
    }

    /// Words among the vectors.
    fn upload(&mut self, words: impl IntoIterator<Item = u32>) -> u32 {
        let before = self.ground.weights.vectors.len();
        self.grown.vector(before, words)
    }

    fn constant(&mut self, id: ConstId) -> u32 {
        if let Some(&at) = self.grown.constants.get(&id.0) {
            return at;
        }
        let at = match self.ground.program.constant(id) {
            ConstData::F32(x) => self.upload(x.iter().map(|x| x.to_bits())),
            ConstData::U32(x) => self.upload(x.iter().copied()),
        };
        self.grown.constants.insert(id.0, at);
        at
    }

    /// A kernel with constants of its own beside those of all modules.
    fn pipeline(&self, kernel: (&'static str, &'static str), own: &[(&str, u32)]) -> Pipeline {
        let mut constants = self.ground.constants.clone();
        let known = own
            .iter()
            .filter(|c| self.ground.abilities.fours || c.0 != "WORK_VEC4");
        constants.extend(known.map(|c| (c.0.to_owned(), c.1)));
        Pipeline::new(kernel, constants)
    }

    fn launch(
        &mut self,
        kernel: (&'static str, &'static str),
        own: &[(&str, u32)],
        grid: [Extent; 3],
        params: &Params,
    ) -> Result<(), BackendError> {
        let pipeline = self.pipeline(kernel, own);
        self.push(Kernel::One(pipeline), grid, 0, params);
        Ok(())
    }

    fn push(&mut self, kernel: Kernel, grid: [Extent; 3], arena: usize, params: &Params) {
        let place = self.grown.params.len() * 4 / PARAM_BYTES;
        self.grown.params.extend(params.words());
        self.launches.push(Launch {
            kind: self.kind.or(self.prompts_only.then_some(RowKind::Prompt)),
            singles: self.singles,
            count: self.count.clone(),
            split: self.split,
            beside: self.beside,
            kernel,
            grid,
            arena,
            params: place as u32,
        });
    }

    /// A kernel of `rows.wgsl` over the elements of a value.
    fn each(
        &mut self,
        kernel: &'static str,
        (lead, per_row): (Lead, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        let groups = Extent::elements(lead, per_row.into(), THREADS).at_most(MOST_GROUPS);
        let grid = [groups, Extent::ONE, Extent::ONE];
        self.launch(("rows.wgsl", kernel), &[("THREADS", THREADS)], grid, params)
    }

    /// A cache slot as kernels see it.
    fn cache(&self, slot: SlotId, params: Params) -> Params {
        let group = &self.ground.groups[slot.group.index()];
        let def = self.ground.program.group(slot.group);
        let [first, len] = self.ground.step.groups[slot.group.index()];
        let planes = &group.slots[slot.slot as usize];
        let table = self.ground.step.tables as u32 + first;
        let params = params.u32s(&[table, len, def.block_size, group.entry]);
        let params = params.u32s(&planes[0].words());
        params.u32s(&planes[planes.len() - 1].words())
    }

    /// In the place of a cache where there is none.
    fn no_cache(params: Params) -> Params {
        params.u32s(&[0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    fn node(&mut self, node: &Node) -> Result<(), BackendError> {
        match &node.op {
            Op::Prepare => Ok(()),
            Op::Gather { .. } | Op::Matmul { .. } | Op::HeadMatmul { .. } | Op::Experts { .. } => {
                self.linear(node)
            }
            Op::CacheWrite { slot } => self.cache_write(&node.ins, *slot),
            Op::Attention(op) => self.attention(node, op, None),
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
