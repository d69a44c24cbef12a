//! Which steps run a plan, in which order, and what each touches.
//!
//! An op is dealt out to workers by rows or by columns. The table [`work_of`] says how it may be; from that follows what
//! a share of it reads and writes, and the [`Tape`] finds out where workers must meet: a product, the norm, rotation and
//! cache write of its heads, or the gate and its two products, run through without a meeting, since each worker reads
//! only what it wrote. [`RULES`] lists the ops that disappear into the preparation of the products that read them.

use std::collections::BTreeMap;

use tokkata_ir::fusion::{self, Group, Rule};
use tokkata_ir::tape::{Access, Instr, Reach, Resource, ResourceId, Sync, Tape, Tiles};
use tokkata_ir::{
    KvSource, Lead, Node, NormKind, Op, Plan, Program, SlotDef, SlotId, ValueDef, ValueId,
};

use crate::layout::PANEL_ROWS;
use crate::run::acts::{Key, OWN_ROWS};

/// Every fusion.
pub(crate) const RULES: &[Rule] = &[Rule {
    name: "norm_prepare",
    producer: "norm",
    readers: &["matmul", "adapt"],
    when: spans_the_row,
}];

fn spans_the_row(node: &Node, plan: &Plan) -> bool {
    match node.op {
        Op::Norm { kind, width, .. } => {
            kind != NormKind::L2Max && width as usize == plan.value(node.ins[0]).shape.width()
        }
        _ => false,
    }
}

/// How an op may be dealt out.
enum Work {
    /// By rows only.
    Rows,
    /// By rows, or by columns in multiples of `run` of the inputs `local`.
    Columns { run: usize, local: Vec<usize> },
    /// A product with a weight: columns of the output.
    Product,
    /// The kernel shares its work out itself.
    Own,
}

fn work_of(node: &Node, plan: &Plan) -> Work {
    let width = |i: usize| plan.value(node.ins[i]).shape.width();
    let runs = |run: u32| match run as usize {
        run if run < width(0) => Work::Columns {
            run,
            local: vec![0],
        },
        _ => Work::Rows,
    };
    let all = || Work::Columns {
        run: 1,
        local: (0..node.ins.len()).collect(),
    };
    match &node.op {
        Op::Norm { width, .. } | Op::Softmax { width } => runs(*width),
        Op::Rope(rope) => Work::Columns {
            run: rope.head_dim as usize,
            local: vec![0],
        },
        Op::Unary(_)
        | Op::Gate { .. }
        | Op::Affine { .. }
        | Op::Softcap { .. }
        | Op::Clamp { .. }
        | Op::Suppress { .. }
        | Op::PosScale { .. }
        | Op::Weighted { .. }
        | Op::Copy => all(),
        Op::Binary { .. } if width(0) == width(1) => all(),
        Op::Binary { .. } => Work::Columns {
            run: 1,
            local: vec![0],
        },
        Op::PerRun { width, .. } => Work::Columns {
            run: *width as usize,
            local: vec![0],
        },
        Op::Sinkhorn { .. }
        | Op::SumRuns { .. }
        | Op::RmsRuns { .. }
        | Op::GaussianTopK { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Repeat { .. }
        | Op::SelectRows
        | Op::Pool(_)
        | Op::Combine
        | Op::Route(_)
        | Op::Gather { .. } => Work::Rows,
        Op::Matmul { .. } => Work::Product,
        Op::Adapt { .. } => Work::Columns {
            run: 1,
            local: vec![node.ins.len().min(2) - 1],
        },
        Op::CacheWrite { .. } => Work::Columns {
            run: 1,
            local: (0..node.ins.len()).collect(),
        },
        _ => Work::Own,
    }
}

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Prepares a value for products, through the norm node if there is one.
    Prepare {
        value: ValueId,
        norm: Option<usize>,
        set: usize,
        reader: usize,
    },
    /// A product with prepared activations.
    Product { node: usize, set: usize },
    /// An addition to a product whose input comes through the norm node.
    Adapt { node: usize, norm: usize },
    /// A node.
    Node(usize),
}

impl What {
    /// The node that the step does; for a preparation its first reader.
    pub(crate) fn node(&self) -> usize {
        match *self {
            What::Prepare { reader, .. } => reader,
            What::Product { node, .. } | What::Adapt { node, .. } | What::Node(node) => node,
        }
    }
}

/// A step before it has memory.
pub(crate) type Planned = Instr<What>;

/// What the scheduler must know of a program's weights.
pub(crate) struct Facts<'a> {
    pub(crate) program: &'a Program,
    /// Whether columns of a product lie in panels of their own, and the set its activations belong to.
    pub(crate) product: &'a dyn Fn(&Node, &Plan) -> (bool, Key),
    pub(crate) fuse: bool,
}

/// The tape of a plan; its first resources are the plan's values. `keys` gathers the sets of activations over all plans.
pub(crate) fn schedule(plan: &Plan, facts: &Facts<'_>, keys: &mut Vec<Key>) -> Tape<What> {
    let mut s = Scheduler::new(plan, facts, keys);
    for index in 0..plan.nodes.len() {
        if !s.folded.contains_key(&index) {
            s.add(index);
        }
    }
    s.tape
}

struct Scheduler<'a> {
    plan: &'a Plan,
    facts: &'a Facts<'a>,
    keys: &'a mut Vec<Key>,
    parts: Vec<usize>,
    /// Nodes folded into the preparation of their readers.
    folded: BTreeMap<usize, Group>,
    tape: Tape<What>,
    /// Per set: what it is on the tape, and the value it holds.
    sets: BTreeMap<usize, (ResourceId, ValueId)>,
    /// Per slot: its keys and values, or its state.
    slots: BTreeMap<SlotId, Vec<ResourceId>>,
    /// What attention and indexers keep between their two halves.
    partials: Option<ResourceId>,
}

impl<'a> Scheduler<'a> {
    fn new(plan: &'a Plan, facts: &'a Facts<'a>, keys: &'a mut Vec<Key>) -> Self {
        let value = |v: &ValueDef| resource(v.shape.lead, v.shape.width());
        Scheduler {
            plan,
            facts,
            keys,
            parts: column_parts(plan, facts.program),
            folded: fusion::groups(plan, if facts.fuse { RULES } else { &[] }),
            tape: Tape::new(plan.values.iter().map(value).collect()),
            sets: BTreeMap::new(),
            slots: BTreeMap::new(),
            partials: None,
        }
    }

    /// Adds a step that is done in one of some ways; without fusion in the first, after a meeting.
    fn push(&mut self, ways: Vec<Planned>) {
        if self.facts.fuse {
            self.tape.push_any(ways);
        } else {
            let first = ways.into_iter().next();
            self.tape.push_after(
                Sync::Always,
                first.expect("a step is done in one way at least"),
            );
        }
    }

    fn add(&mut self, index: usize) {
        let node = &self.plan.nodes[index];
        let ways = match work_of(node, self.plan) {
            _ if matches!(node.op, Op::Prepare) => return,
            Work::Product => return self.product(index),
            Work::Rows => vec![self.by_rows(index)],
            Work::Columns { local, .. } => {
                let mut ways = vec![self.by_columns(index, &local), self.by_rows(index)];
                let over = self.replaceable(node, &local);
                ways.iter_mut().for_each(|way| way.over.clone_from(&over));
                ways
            }
            Work::Own => vec![self.by_itself(index)],
        };
        self.push(ways);
    }

    fn lead(&self, value: ValueId) -> Lead {
        self.plan.value(value).shape.lead
    }

    /// The slots of a cache that a node reads or writes: keys and values, or the states of all places of a table, one
    /// after the other.
    fn slot(&mut self, slot: SlotId) -> Vec<ResourceId> {
        if let Some(known) = self.slots.get(&slot) {
            return known.clone();
        }
        let def = &self.facts.program.group(slot.group).slots[slot.slot as usize];
        let planes = match *def {
            SlotDef::State { len } => {
                let places = 1 + self.facts.program.limits.draft as usize;
                vec![resource(Lead::Seqs, places * len as usize)]
            }
            SlotDef::Kv { n_kv_heads, .. } => head_dims(self.facts.program, slot)
                .into_iter()
                .map(|dim| resource(Lead::Rows, n_kv_heads as usize * dim))
                .collect(),
        };
        let planes: Vec<ResourceId> = planes.into_iter().map(|p| self.tape.add(p)).collect();
        self.slots.insert(slot, planes.clone());
        planes
    }

    /// Rows of what has the same rows as the output, all of the rest.
    fn by_rows(&mut self, index: usize) -> Planned {
        let node = &self.plan.nodes[index];
        let rows = node.outs.first().or(node.ins.first());
        let lead = self.lead(*rows.expect("a node reads or writes a value"));
        let reach = |&v: &ValueId| match self.lead(v) == lead {
            true => Access::new(self.source(index, v).0, Reach::Rows),
            false => Access::new(self.source(index, v).0, Reach::All),
        };
        let reads = node.ins.iter().map(reach).collect();
        let mut writes = accesses(node.outs.iter().map(|v| ResourceId(v.0)), Reach::Rows);
        if let Op::CacheWrite { slot } = node.op {
            writes.extend(accesses(self.slot(slot), Reach::Rows));
        }
        planned(self.what(index), reads, writes, Tiles::Rows)
    }

    /// The norm that disappears into a node.
    fn norm_of(&self, reader: usize) -> Option<usize> {
        let mut folded = self.folded.iter();
        folded.find_map(|(&norm, group)| group.readers.contains(&reader).then_some(norm))
    }

    /// What a node reads where it would read `v`: the input of the norm that disappears into it.
    fn source(&self, reader: usize, v: ValueId) -> ValueId {
        let norm = self.norm_of(reader).map(|n| &self.plan.nodes[n]);
        norm.filter(|n| n.outs[0] == v).map_or(v, |n| n.ins[0])
    }

    fn what(&self, node: usize) -> What {
        match self.norm_of(node) {
            Some(norm) => What::Adapt { node, norm },
            None => What::Node(node),
        }
    }

    fn by_columns(&mut self, index: usize, local: &[usize]) -> Planned {
        let node = &self.plan.nodes[index];
        let columns = |v: ValueId| Reach::Columns(self.parts[v.index()]);
        let read = |(i, &v): (usize, &ValueId)| match local.contains(&i) {
            true => Access::new(v.0, columns(v)),
            false => Access::new(self.source(index, v).0, Reach::All),
        };
        let reads: Vec<Access> = node.ins.iter().enumerate().map(read).collect();
        let mut writes: Vec<Access> = node
            .outs
            .iter()
            .map(|&v| Access::new(v.0, columns(v)))
            .collect();
        if let Op::CacheWrite { slot } = node.op {
            let planes = self.slot(slot).into_iter().zip(&reads);
            writes.extend(planes.map(|(resource, x)| Access {
                resource,
                reach: x.reach,
            }));
        }
        let tiles = self.alike(&writes);
        planned(self.what(index), reads, writes, tiles)
    }

    /// Runs of columns, if each of some accesses has as many.
    fn alike(&self, accesses: &[Access]) -> Tiles {
        let mut counts = accesses.iter().map(|access| match access.reach {
            Reach::Columns(run) => {
                let width = self.tape.resources()[access.resource.index()].width;
                Some(width.div_ceil(run))
            }
            _ => None,
        });
        let first = counts.next().flatten();
        match first.filter(|_| counts.all(|count| count == first)) {
            Some(count) => Tiles::Columns(count),
            None => Tiles::Own,
        }
    }

    /// What only the kernel knows how to deal out.
    fn by_itself(&mut self, index: usize) -> Planned {
        let node = &self.plan.nodes[index];
        let values = |ids: &[ValueId]| -> Vec<_> { ids.iter().map(|v| ResourceId(v.0)).collect() };
        let mut reads = accesses(values(&node.ins), Reach::All);
        let mut writes = accesses(values(&node.outs), Reach::Apart);
        match node.op {
            Op::Attention(ref op) => {
                let own = match op.source {
                    KvSource::Cache(slot) | KvSource::Cross(slot) => Some(slot),
                    KvSource::Rows => None,
                };
                for slot in own.into_iter().chain(op.entries) {
                    reads.extend(accesses(self.slot(slot), Reach::All));
                }
                let partials = self.partials();
                writes.push(Access::new(partials.0, Reach::Apart));
            }
            Op::Select(ref op) => {
                reads.extend(accesses(self.slot(op.slot), Reach::All));
                let partials = self.partials();
                writes.push(Access::new(partials.0, Reach::Apart));
            }
            Op::Compress(ref op) => writes.extend(accesses(self.slot(op.slot), Reach::Apart)),
            Op::Conv {
                slot: Some(slot), ..
            }
            | Op::Shift { slot }
            | Op::Scan { slot, .. } => writes.extend(accesses(self.slot(slot), Reach::Apart)),
            _ => {}
        }
        planned(What::Node(index), reads, writes, Tiles::Own)
    }

    fn partials(&mut self) -> ResourceId {
        let tape = &mut self.tape;
        *self
            .partials
            .get_or_insert_with(|| tape.add(resource(Lead::Rows, 1)))
    }

    /// Inputs in whose place an op that works column by column may make its output.
    fn replaceable(&self, node: &Node, local: &[usize]) -> Vec<ResourceId> {
        let ports = self.plan.inputs.iter().chain(&self.plan.outputs);
        let outer: Vec<ValueId> = ports.map(|port| port.value).collect();
        let [out] = node.outs[..] else { return vec![] };
        let fits = |x: &ValueId| {
            let (from, to) = (self.plan.value(*x), self.plan.value(out));
            from == to && !outer.contains(x) && !outer.contains(&out) && self.facts.fuse
        };
        let inputs = local.iter().map(|&i| node.ins[i]);
        inputs.filter(fits).map(|v| ResourceId(v.0)).collect()
    }

    fn product(&mut self, index: usize) {
        let node = &self.plan.nodes[index];
        let (aligned, key) = (self.facts.product)(node, self.plan);
        let (set, value) = (self.set(key), node.ins[0]);
        let held = self.sets.get(&set).map(|&(_, held)| held);
        if held != Some(value) || !self.facts.fuse {
            self.prepare(value, (set, key), index);
        }
        let out = node.outs[0];
        let reach = match aligned {
            true => Reach::Columns(self.parts[out.index()]),
            false => Reach::Apart,
        };
        let writes = vec![Access::new(out.0, reach)];
        self.push(vec![Instr {
            kernel: What::Product { node: index, set },
            reads: accesses([self.sets[&set].0], Reach::All),
            tiles: self.alike(&writes),
            writes,
            over: vec![],
        }]);
    }

    fn set(&mut self, key: Key) -> usize {
        let found = self.keys.iter().position(|k| *k == key);
        found.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// Prepares `value`, or the input of the norm that makes it. With few rows each worker does all of them.
    fn prepare(&mut self, value: ValueId, (set, key): (usize, Key), reader: usize) {
        let norm = self.norm_of(reader);
        let source = norm.map_or(value, |n| self.plan.nodes[n].ins[0]);
        let copied = Resource {
            copies: Some(OWN_ROWS),
            ..resource(key.lead, key.k)
        };
        let known = self.sets.get(&set).map(|&(id, _)| id);
        let id = known.unwrap_or_else(|| self.tape.add(copied));
        self.sets.insert(set, (id, value));
        self.push(vec![Instr {
            kernel: What::Prepare {
                value: source,
                norm,
                set,
                reader,
            },
            reads: accesses([ResourceId(source.0)], Reach::All),
            writes: accesses([id], Reach::Rows),
            tiles: Tiles::Own,
            over: vec![],
        }]);
    }
}

fn resource(lead: Lead, width: usize) -> Resource {
    Resource {
        lead,
        width,
        copies: None,
    }
}

fn accesses(resources: impl IntoIterator<Item = ResourceId>, reach: Reach) -> Vec<Access> {
    let access = |resource| Access { resource, reach };
    resources.into_iter().map(access).collect()
}

fn planned(kernel: What, reads: Vec<Access>, writes: Vec<Access>, tiles: Tiles) -> Planned {
    Instr {
        kernel,
        reads,
        writes,
        tiles,
        over: vec![],
    }
}

/// Columns of each value that one worker keeps together: whole panels, and whole runs of every op that it flows
/// through by columns.
fn column_parts(plan: &Plan, program: &Program) -> Vec<usize> {
    let mut parts = Parts {
        parent: (0..plan.values.len()).collect(),
        part: vec![PANEL_ROWS; plan.values.len()],
    };
    for node in &plan.nodes {
        if let Op::CacheWrite { slot } = node.op {
            for (&value, dim) in node.ins.iter().zip(head_dims(program, slot)) {
                parts.widen(value, dim);
                // Blocks of a quantised cache run across heads.
                parts.widen(value, program.group(slot.group).dtype.block_elems());
            }
        } else if let Work::Columns { run, local } = work_of(node, plan) {
            local
                .iter()
                .for_each(|&i| parts.join(node.ins[i], node.outs[0]));
            parts.widen(node.outs[0], run);
        }
    }
    (0..plan.values.len())
        .map(|i| parts.part[parts.root(i)])
        .collect()
}

/// Columns of a head of keys and of values.
pub(crate) fn head_dims(program: &Program, slot: SlotId) -> Vec<usize> {
    match program.group(slot.group).slots[slot.slot as usize] {
        SlotDef::Kv { dim_k, dim_v, .. } => [Some(dim_k), dim_v]
            .into_iter()
            .flatten()
            .filter(|&d| d > 0)
            .map(|d| d as usize)
            .collect(),
        SlotDef::State { len } => vec![len as usize],
    }
}

/// Values that share their columns.
struct Parts {
    parent: Vec<usize>,
    part: Vec<usize>,
}

impl Parts {
    fn root(&self, mut i: usize) -> usize {
        while self.parent[i] != i {
            i = self.parent[i];
        }
        i
    }

    fn join(&mut self, a: ValueId, b: ValueId) {
        let (a, b) = (self.root(a.index()), self.root(b.index()));
        if a != b {
            self.parent[a] = b;
            self.part[b] = lcm(self.part[a], self.part[b]);
        }
    }

    fn widen(&mut self, value: ValueId, run: usize) {
        let root = self.root(value.index());
        self.part[root] = lcm(self.part[root], run);
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b.max(1));
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b.max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokkata_archs::Registry;
    use tokkata_conformance::generate;
    use tokkata_conformance::golden::Golden;
    use tokkata_conformance::models::{Feeding, Target, load_for};
    use tokkata_ir::{BackendError, Device, LoadOptions, Loaded, WeightSource};

    use super::*;
    use crate::kernels::Forms;

    /// Counts the meetings and the attentions of the first plan that it is given, and gives up.
    struct Count(Mutex<(usize, usize)>);

    impl Device for Count {
        fn name(&self) -> &'static str {
            "count"
        }

        fn available_bytes(&self) -> Option<u64> {
            None
        }

        fn load(
            &self,
            program: Arc<Program>,
            _: &dyn WeightSource,
            _: &LoadOptions,
        ) -> Result<Box<dyn Loaded>, BackendError> {
            let product = |node: &Node, plan: &Plan| {
                let shape = &plan.value(node.ins[0]).shape;
                let key = Key {
                    lead: shape.lead,
                    times: 1,
                    k: shape.width(),
                    forms: Forms::default(),
                };
                (true, key)
            };
            let facts = Facts {
                program: &program,
                product: &product,
                fuse: true,
            };
            let plan = &program.plans[0];
            let tape = schedule(plan, &facts, &mut Vec::new());
            let meetings = tape.syncs().iter().filter(|&&s| s == Sync::Always);
            let attentions = plan.nodes.iter().filter(|n| n.op.name() == "attention");
            *self.0.lock().unwrap() = (meetings.count(), attentions.count());
            Err(BackendError::Lost("counted".to_owned()))
        }
    }

    #[test]
    fn workers_meet_five_times_per_dense_layer() {
        // Adapters cost no meeting.
        for (name, adapters) in [("llama", 0), ("qwen3", 0), ("llama", 1), ("qwen3", 1)] {
            let golden = Golden::read(&Golden::folder(), name).unwrap();
            let count = Count(Mutex::default());
            let target = Target {
                adapters,
                ..Target::new(&count, golden.positions, Feeding::WHOLE)
            };
            let file = generate::model(&golden).unwrap();
            let loaded = load_for(&file, &Registry::builtin(), &target);
            assert!(loaded.is_err(), "{name} is counted only");
            let (meetings, layers) = *count.0.lock().unwrap();
            assert!(layers > 1, "{name}");
            // And where rows are looked up, picked, normalised and drawn from.
            assert_eq!(meetings, 5 * layers + 4, "{name}, {adapters}");
        }
    }
}
