//! Which steps run a plan, in which order and with which barriers.
//!
//! An op is dealt out to workers by rows or by columns. Two ops that follow each other need no barrier when the
//! second reads only what the same worker wrote: so a product, the norm, rotation and cache write of its heads, or
//! the gate and its two products, run through without one. The table [`work_of`] says how an op may be dealt out;
//! [`RULES`] lists the ops that disappear into the preparation of the products that read them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use tokkata_ir::fusion::{self, Group, Rule};
use tokkata_ir::{Node, NormKind, Op, Plan, Program, ValueId};

use crate::layout::PANEL_ROWS;
use crate::run::acts::Key;
use crate::run::sweep::Split;

/// Every fusion.
pub(crate) const RULES: &[Rule] = &[Rule {
    name: "norm_prepare",
    producer: "norm",
    readers: &["matmul"],
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
        Op::SumRuns { .. }
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
        Op::CacheWrite { .. } => Work::Columns {
            run: 1,
            local: (0..node.ins.len()).collect(),
        },
        _ => Work::Own,
    }
}

/// When workers meet before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// They do not.
    None,
    /// When they share the rows of this set of activations.
    IfSplit(usize),
    /// Always.
    Always,
}

/// A step before it has memory.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) what: What,
    pub(crate) sync: Sync,
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
    /// A product with prepared activations; columns stay together in runs of `part`.
    Product {
        node: usize,
        set: usize,
        part: Option<usize>,
    },
    /// A node, its output dealt out so (per input for cache writes).
    Node { node: usize, splits: Vec<Split> },
}

impl What {
    /// The node that the step does; for a preparation its first reader.
    pub(crate) fn node(&self) -> usize {
        match *self {
            What::Prepare { reader, .. } => reader,
            What::Product { node, .. } | What::Node { node, .. } => node,
        }
    }

    /// The values that it reads. A product reads what was prepared for it.
    pub(crate) fn reads<'a>(&'a self, plan: &'a Plan) -> &'a [ValueId] {
        match self {
            What::Prepare { value, .. } => std::slice::from_ref(value),
            What::Product { .. } => &[],
            What::Node { node, .. } => &plan.nodes[*node].ins,
        }
    }

    /// The values that it makes.
    pub(crate) fn writes<'a>(&self, plan: &'a Plan) -> &'a [ValueId] {
        match self {
            What::Prepare { .. } => &[],
            What::Product { node, .. } | What::Node { node, .. } => &plan.nodes[*node].outs,
        }
    }
}

/// Steps of a plan and what they need.
pub(crate) struct Schedule {
    pub(crate) steps: Vec<Planned>,
    /// Epochs in which each value lives; `None` for values that are never made.
    pub(crate) lives: Vec<Option<RangeInclusive<usize>>>,
    /// Values that are made in the place of another, by number.
    pub(crate) over: Vec<Option<usize>>,
}

/// What the scheduler must know of a program's weights.
pub(crate) struct Facts<'a> {
    pub(crate) program: &'a Program,
    /// Whether columns of a product lie in panels of their own, and the set its activations belong to.
    pub(crate) product: &'a dyn Fn(&Node, &Plan) -> (bool, Key),
    pub(crate) fuse: bool,
}

/// Orders the steps of a plan. `keys` gathers the sets of activations over all plans.
pub(crate) fn schedule(plan: &Plan, facts: &Facts<'_>, keys: &mut Vec<Key>) -> Schedule {
    let mut s = Scheduler::new(plan, facts, keys);
    for index in 0..plan.nodes.len() {
        if !s.folded.contains_key(&index) {
            s.add(index);
        }
    }
    s.finish()
}

/// Who wrote a value in this epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Split(Split),
    /// Some worker, whatever the column.
    Anyone,
}

struct Scheduler<'a> {
    plan: &'a Plan,
    facts: &'a Facts<'a>,
    keys: &'a mut Vec<Key>,
    parts: Vec<usize>,
    /// Nodes folded into the preparation of their readers.
    folded: BTreeMap<usize, Group>,
    steps: Vec<Planned>,
    epoch: usize,
    lives: Vec<Option<(usize, usize)>>,
    /// Written in this epoch.
    fresh: BTreeMap<ValueId, Writer>,
    cache_written: bool,
    /// Per set: the value it holds, and whether it was written, or read, in this epoch.
    holds: BTreeMap<usize, ValueId>,
    set_written: BTreeMap<usize, bool>,
    set_read: BTreeMap<usize, bool>,
}

impl<'a> Scheduler<'a> {
    fn new(plan: &'a Plan, facts: &'a Facts<'a>, keys: &'a mut Vec<Key>) -> Self {
        let mut lives = vec![None; plan.values.len()];
        for port in &plan.inputs {
            lives[port.value.index()] = Some((0, 0));
        }
        Scheduler {
            plan,
            facts,
            keys,
            parts: column_parts(plan, facts.program),
            folded: fusion::groups(plan, if facts.fuse { RULES } else { &[] }),
            steps: Vec::new(),
            epoch: 0,
            lives,
            fresh: BTreeMap::new(),
            cache_written: false,
            holds: BTreeMap::new(),
            set_written: BTreeMap::new(),
            set_read: BTreeMap::new(),
        }
    }

    fn barrier(&mut self) -> Sync {
        self.epoch += 1;
        self.fresh.clear();
        self.cache_written = false;
        self.set_written.clear();
        self.set_read.clear();
        Sync::Always
    }

    fn push(&mut self, what: What, sync: Sync) {
        self.steps.push(Planned { what, sync });
    }

    fn reads(&mut self, value: ValueId) {
        let epoch = self.epoch;
        let life = self.lives[value.index()].get_or_insert((epoch, epoch));
        life.1 = epoch;
    }

    fn writes(&mut self, value: ValueId, writer: Writer) {
        self.reads(value);
        self.fresh.insert(value, writer);
    }

    /// A barrier if `needed`, or always when nothing is fused.
    fn sync_if(&mut self, needed: bool) -> Sync {
        if needed || !self.facts.fuse {
            self.barrier()
        } else {
            Sync::None
        }
    }

    fn add(&mut self, index: usize) {
        let node = &self.plan.nodes[index];
        match work_of(node, self.plan) {
            _ if matches!(node.op, Op::Prepare) => {}
            Work::Product => self.product(index),
            Work::Rows => self.by_rows(index),
            Work::Columns { local, .. } => self.by_columns(index, &local),
            Work::Own => {
                let read = node.ins.iter().any(|v| self.fresh.contains_key(v));
                let sync = self.sync_if(read || self.cache_written);
                self.place(index, vec![], sync, Writer::Anyone);
                self.cache_written |= node.op.writes_state();
            }
        }
    }

    fn place(&mut self, index: usize, splits: Vec<Split>, sync: Sync, writer: Writer) {
        let node = &self.plan.nodes[index];
        node.ins.iter().for_each(|&v| self.reads(v));
        node.outs.iter().for_each(|&v| self.writes(v, writer));
        self.push(
            What::Node {
                node: index,
                splits,
            },
            sync,
        );
    }

    fn lead(&self, value: ValueId) -> tokkata_ir::Lead {
        self.plan.value(value).shape.lead
    }

    fn by_rows(&mut self, index: usize) {
        let node = &self.plan.nodes[index];
        let lead = self.lead(node.outs[0]);
        let foreign = |s: &Self, v: &ValueId| {
            let by_rows = s
                .fresh
                .get(v)
                .is_none_or(|&w| w == Writer::Split(Split::Rows));
            s.fresh.contains_key(v) && (!by_rows || s.lead(*v) != lead)
        };
        let needed = node.ins.iter().any(|v| foreign(self, v));
        let sync = self.sync_if(needed);
        self.place(index, vec![Split::Rows], sync, Writer::Split(Split::Rows));
    }

    /// The split of a column op: as its fresh inputs, by columns when there are none.
    fn column_split(&self, node: &Node, local: &[usize]) -> Option<Vec<Split>> {
        let by_columns = |v: &ValueId| Split::Columns(self.parts[v.index()]);
        let fresh: Vec<Writer> = node
            .ins
            .iter()
            .filter_map(|v| self.fresh.get(v).copied())
            .collect();
        if fresh.iter().all(|&w| w == Writer::Split(Split::Rows)) && !fresh.is_empty() {
            return Some(vec![Split::Rows; node.ins.len().max(1)]);
        }
        let agrees = |(i, v): (usize, &ValueId)| match self.fresh.get(v) {
            None => true,
            Some(&w) => local.contains(&i) && w == Writer::Split(by_columns(v)),
        };
        let all = node.ins.iter().enumerate().all(agrees);
        all.then(|| node.ins.iter().map(by_columns).collect())
    }

    fn by_columns(&mut self, index: usize, local: &[usize]) {
        let node = &self.plan.nodes[index];
        let found = self.column_split(node, local).filter(|_| self.facts.fuse);
        let sync = if found.is_some() {
            Sync::None
        } else {
            self.barrier()
        };
        let splits = found
            .or_else(|| self.column_split(node, local))
            .expect("after a barrier nothing is fresh");
        let writer = Writer::Split(splits[0]);
        self.cache_written |= matches!(node.op, Op::CacheWrite { .. });
        self.place(index, splits, sync, writer);
    }

    fn product(&mut self, index: usize) {
        let node = &self.plan.nodes[index];
        let (aligned, key) = (self.facts.product)(node, self.plan);
        let set = self.set(key);
        let value = node.ins[0];
        if self.holds.get(&set) != Some(&value) || !self.facts.fuse {
            self.prepare(value, set, index);
        }
        let written = self.set_written.get(&set) == Some(&true);
        let sync = if !self.facts.fuse {
            self.barrier()
        } else if written {
            Sync::IfSplit(set)
        } else {
            Sync::None
        };
        self.set_written.insert(set, false);
        self.set_read.insert(set, true);
        let out = node.outs[0];
        let part = aligned.then(|| self.parts[out.index()]);
        let writer = part.map_or(Writer::Anyone, |p| Writer::Split(Split::Columns(p)));
        self.writes(out, writer);
        self.push(
            What::Product {
                node: index,
                set,
                part,
            },
            sync,
        );
    }

    fn set(&mut self, key: Key) -> usize {
        let found = self.keys.iter().position(|k| *k == key);
        found.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// Prepares `value`, or the input of the norm that makes it.
    fn prepare(&mut self, value: ValueId, set: usize, reader: usize) {
        let norm = self
            .folded
            .iter()
            .find_map(|(&n, group)| group.readers.contains(&reader).then_some(n));
        let source = norm.map_or(value, |n| self.plan.nodes[n].ins[0]);
        let busy = self.set_read.get(&set) == Some(&true);
        let sync = match self.fresh.contains_key(&source) {
            false if busy && self.facts.fuse => Sync::IfSplit(set),
            needed => self.sync_if(needed),
        };
        self.reads(source);
        self.holds.insert(set, value);
        self.set_written.insert(set, true);
        self.set_read.insert(set, false);
        self.push(
            What::Prepare {
                value: source,
                norm,
                set,
                reader,
            },
            sync,
        );
    }

    fn finish(mut self) -> Schedule {
        for port in &self.plan.outputs {
            if let Some(life) = &mut self.lives[port.value.index()] {
                life.1 = self.epoch;
            }
        }
        let lives = self
            .lives
            .into_iter()
            .map(|l| l.map(|(a, b)| a..=b))
            .collect();
        let over = over(self.plan, &self.steps);
        Schedule {
            steps: self.steps,
            lives,
            over: if self.facts.fuse { over } else { vec![] },
        }
    }
}

/// For each value the one in whose place it is made: an input of an op that works column by column, if no one else
/// reads that in the same epoch or later.
fn over(plan: &Plan, steps: &[Planned]) -> Vec<Option<usize>> {
    // Epoch and step of each reader.
    let mut readers: Vec<Vec<(usize, usize)>> = vec![vec![]; plan.values.len()];
    let mut epoch = 0;
    for (at, step) in steps.iter().enumerate() {
        epoch += usize::from(step.sync == Sync::Always);
        for value in step.what.reads(plan) {
            readers[value.index()].push((epoch, at));
        }
    }
    let ports = plan.inputs.iter().chain(&plan.outputs);
    let outer: Vec<ValueId> = ports.map(|port| port.value).collect();
    let mut over = vec![None; plan.values.len()];
    for (at, step) in steps.iter().enumerate() {
        let What::Node { node, .. } = step.what else {
            continue;
        };
        let node = &plan.nodes[node];
        let (Work::Columns { local, .. }, [out]) = (work_of(node, plan), &node.outs[..]) else {
            continue;
        };
        let ends = |x: &ValueId| {
            let readers = &readers[x.index()];
            let epoch = readers.last().map_or(0, |&(epoch, _)| epoch);
            readers.iter().all(|&(e, r)| e < epoch || r == at)
        };
        let fits = |x: &ValueId| {
            let (from, to) = (plan.value(*x), plan.value(*out));
            from.shape == to.shape && from.dtype == to.dtype && !outer.contains(x)
        };
        let mut inputs = local.iter().map(|&i| node.ins[i]);
        let found = inputs.find(|x| fits(x) && ends(x));
        over[out.index()] = found.map(ValueId::index).filter(|_| !outer.contains(out));
    }
    over
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
pub(crate) fn head_dims(program: &Program, slot: tokkata_ir::SlotId) -> Vec<usize> {
    match program.group(slot.group).slots[slot.slot as usize] {
        tokkata_ir::SlotDef::Kv { dim_k, dim_v, .. } => [Some(dim_k), dim_v]
            .into_iter()
            .flatten()
            .map(|d| d as usize)
            .collect(),
        tokkata_ir::SlotDef::State { len } => vec![len as usize],
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
