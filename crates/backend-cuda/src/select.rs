//! Which kernels run a plan: nodes one by one, and products with what comes right before and after them.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_core::DType;
use tokkata_ir::adapter::{Addends, addition};
use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind, KvSource, Lead, Node, Op, Plan, ValueId, WeightId};

/// Most weights of a launch.
const PARTS: usize = 4;

/// Queries and keys between their products and attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) norm_q: Option<usize>,
    pub(crate) rope_q: usize,
    pub(crate) norm_k: Option<usize>,
    pub(crate) rope_k: usize,
    pub(crate) write: usize,
    /// Queries and keys as their products leave them.
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
}

/// A run of a plan's nodes that is launched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A node alone.
    Node(usize),
    /// Rows for products, normalised first where there is a norm: as floats, as bytes, or both.
    Prepare {
        norm: Option<usize>,
        x: ValueId,
        floats: bool,
        bytes: bool,
    },
    /// Norms, rotations and the cache write of heads.
    Heads(Heads),
    /// Products of one value.
    Products {
        nodes: Vec<usize>,
        /// The first product goes through an activation and multiplies the second.
        gate: Option<usize>,
        /// What a sum adds to the product.
        add: Option<(usize, ValueId)>,
        /// The two go through a gate, but not here: they have the bits that they would have here.
        paired: bool,
    },
    /// What adapters add to products or look-ups that were launched together.
    Adapts(Vec<usize>),
}

/// Formats that have kernels of their own, and those whose activations are bytes.
pub(crate) fn is_fast(dtype: DType, columns: usize) -> bool {
    match dtype {
        DType::F16 | DType::BF16 => columns.is_multiple_of(8),
        _ => in_bytes(dtype),
    }
}

/// Whether products with this format read their activations as bytes.
pub(crate) fn in_bytes(dtype: DType) -> bool {
    use DType::{IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    matches!(dtype, Q4_0 | Q8_0 | Q4_K | Q5_K | Q6_K | MXFP4 | IQ4_NL)
}

/// How products of one row read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// Bytes, with a scale and a sum for every 32.
    Bytes,
    /// Two parts of sixteen bits, with a power of two for every 32: halves.
    Halves,
    /// The same of bfloats.
    Bfloats,
}

impl Form {
    /// What products with weights of this format read.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::Halves,
            DType::BF16 => Self::Bfloats,
            _ => Self::Bytes,
        }
    }

    /// As kernels number it.
    pub(crate) fn code(self) -> u32 {
        1 + self as u32
    }

    /// Shared memory of a row of so many columns.
    pub(crate) fn space(self, columns: u32) -> u32 {
        let runs = columns.div_ceil(32);
        match self {
            Self::Bytes => (runs + runs / 8).next_multiple_of(2) * 32 + runs * 8,
            Self::Halves | Self::Bfloats => (runs * (32 * 4 + 4)).next_multiple_of(16),
        }
    }
}

/// The matrix of a product that a kernel of its own may run.
pub(crate) fn matrix(op: &Op) -> Option<WeightId> {
    match op {
        Op::Matmul { weight, .. } | Op::Experts { weight, .. } => Some(*weight),
        _ => None,
    }
}

/// A plan seen from its values.
struct Uses<'a> {
    plan: &'a Plan,
    readers: BTreeMap<ValueId, Vec<usize>>,
    fast: &'a dyn Fn(WeightId) -> Option<DType>,
    fuse: bool,
}

impl Uses<'_> {
    fn readers(&self, value: ValueId) -> &[usize] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    fn is_output(&self, value: ValueId) -> bool {
        self.plan.outputs.iter().any(|p| p.value == value)
    }

    fn fast(&self, node: usize) -> Option<DType> {
        (self.fast)(matrix(&self.plan.nodes[node].op)?)
    }

    /// Whether a node reads a value as bytes: its first input, in a product that takes them.
    fn reads_bytes(&self, node: usize, value: ValueId) -> bool {
        self.plan.nodes[node].ins[0] == value && self.fast(node).is_some_and(in_bytes)
    }

    /// The only reader of a value that nobody else sees.
    fn only_reader(&self, value: ValueId) -> Option<usize> {
        match self.readers(value) {
            &[reader] if !self.is_output(value) => Some(reader),
            _ => None,
        }
    }

    fn prepare(&self, norm: Option<usize>, x: ValueId) -> Item {
        let readers = self.readers(x);
        let bytes = |&n: &usize| self.reads_bytes(n, x);
        let others = |&n: &usize| {
            let again = self.plan.nodes[n].ins.iter().skip(1).any(|&v| v == x);
            !bytes(&n) || again
        };
        Item::Prepare {
            norm,
            x,
            floats: norm.is_some() && (self.is_output(x) || readers.iter().any(others)),
            bytes: readers.iter().any(bytes),
        }
    }

    /// Whether a norm can be done while rows are prepared.
    fn is_whole_norm(&self, node: &Node) -> bool {
        let Op::Norm { width, .. } = node.op else {
            return false;
        };
        let columns = self.plan.value(node.outs[0]).shape.width();
        columns == width as usize && columns.is_multiple_of(32)
    }

    /// The product that is gated by this one, and the gate.
    fn gate(&self, node: usize) -> Option<(usize, usize)> {
        let gate = self.only_reader(self.plan.nodes[node].outs[0])?;
        let Op::Gate { act, clamp } = &self.plan.nodes[gate].op else {
            return None;
        };
        let known = matches!(act, Act::Silu | Act::Gelu) && *clamp == GateClamp::None;
        let [a, b] = self.plan.nodes[gate].ins[..] else {
            return None;
        };
        let up = (0..self.plan.nodes.len()).find(|&n| self.plan.nodes[n].outs.contains(&b))?;
        let own = self.plan.nodes[node].outs[0] == a && self.only_reader(b) == Some(gate);
        let alike = matches!(self.plan.nodes[up].op, Op::Matmul { .. })
            && self.plan.nodes[up].ins[0] == self.plan.nodes[node].ins[0]
            && self.fast(up).is_some();
        (known && own && alike && a != b).then_some((up, gate))
    }

    /// The sum that a product goes into alone, and what it is added to, where that is there by then.
    fn add(&self, node: usize) -> Option<(usize, ValueId)> {
        let out = self.plan.nodes[node].outs[0];
        let add = self.only_reader(out)?;
        let Op::Binary {
            kind: BinaryKind::Add,
            a_scale: 1.0,
            b_scale: 1.0,
        } = self.plan.nodes[add].op
        else {
            return None;
        };
        let ins = &self.plan.nodes[add].ins;
        let other = if ins[0] == out { ins[1] } else { ins[0] };
        let there = self.is_there(other, node) || self.chosen(other, node).is_some();
        let alike = self.plan.value(other) == self.plan.value(out);
        (other != out && alike && there).then_some((add, other))
    }
}

impl Uses<'_> {
    fn is_there(&self, value: ValueId, node: usize) -> bool {
        let made = |n: &Node| n.outs.contains(&value);
        self.plan.nodes[..node].iter().any(made)
            || self.plan.inputs.iter().any(|p| p.value == value)
    }

    /// The later node that chooses rows for this value, where what it chooses from is there by then.
    fn chosen(&self, value: ValueId, node: usize) -> Option<usize> {
        let found = self.producer(value).filter(|&n| n > node)?;
        let later = &self.plan.nodes[found];
        (later.op == Op::SelectRows && self.is_there(later.ins[0], node)).then_some(found)
    }

    fn producer(&self, value: ValueId) -> Option<usize> {
        self.plan.nodes.iter().position(|n| n.outs.contains(&value))
    }

    /// What a rotation of heads of so many columns reads: through a norm of single heads, where there is one.
    fn behind(&self, rope: usize, head_dim: u32) -> (Option<usize>, ValueId) {
        let x = self.plan.nodes[rope].ins[0];
        let norm = self.producer(x).filter(|&n| {
            let own = matches!(self.plan.nodes[n].op, Op::Norm { width, bias: None, .. } if width == head_dim);
            own && self.only_reader(x) == Some(rope)
        });
        (norm, norm.map_or(x, |n| self.plan.nodes[n].ins[0]))
    }

    /// The heads that a cache write ends, where rotations alone lead to it.
    fn heads(&self, write: usize) -> Option<Heads> {
        let nodes = &self.plan.nodes;
        let Op::CacheWrite { slot } = nodes[write].op else {
            return None;
        };
        let [k, v] = nodes[write].ins[..] else {
            return None;
        };
        let rope_k = self
            .producer(k)
            .filter(|_| self.only_reader(k) == Some(write))?;
        let Op::Rope(rope) = &nodes[rope_k].op else {
            return None;
        };
        let attention =
            |n: &Node| matches!(&n.op, Op::Attention(a) if a.source == KvSource::Cache(slot));
        let reader = nodes.iter().position(attention)?;
        let q = nodes[reader].ins[0];
        let rope_q = self.producer(q)?;
        let alike = matches!(&nodes[rope_q].op, Op::Rope(other) if other == rope);
        let Op::Attention(op) = &nodes[reader].op else {
            return None;
        };
        let whole = rope.head_dim.is_multiple_of(32) && op.dim_v.is_multiple_of(32);
        let fits = whole && rope.head_dim == op.dim_k && rope.head_dim <= 256;
        let later = self.readers(q).iter().all(|&n| n > write);
        let rows = self.plan.value(q).shape.lead == Lead::Rows
            && self.plan.value(k).shape.lead == Lead::Rows;
        let ((norm_q, raw_q), (norm_k, raw_k)) = (
            self.behind(rope_q, rope.head_dim),
            self.behind(rope_k, rope.head_dim),
        );
        let there = [raw_q, raw_k, v]
            .into_iter()
            .all(|x| self.producer(x).is_none_or(|n| n < write));
        (alike && fits && later && rows && there && !self.is_output(q)).then_some(Heads {
            norm_q,
            rope_q,
            norm_k,
            rope_k,
            write,
            q: raw_q,
            k: raw_k,
        })
    }
}

/// Cuts a plan. `fast` says which weights have kernels of their own, and their formats.
pub(crate) fn items(
    plan: &Plan,
    fuse: bool,
    fast: &dyn Fn(WeightId) -> Option<DType>,
) -> Vec<Item> {
    let mut readers: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
    for (i, node) in plan.nodes.iter().enumerate() {
        for &value in &node.ins {
            let list = readers.entry(value).or_default();
            if list.last() != Some(&i) {
                list.push(i);
            }
        }
    }
    let uses = Uses {
        plan,
        readers,
        fast,
        fuse,
    };
    let (mut done, mut prepared) = (BTreeSet::new(), BTreeSet::new());
    let mut heads: BTreeMap<usize, Heads> = BTreeMap::new();
    for write in (0..plan.nodes.len()).filter(|_| fuse) {
        if let Some(found) = uses.heads(write).filter(|h| !done.contains(&h.rope_q)) {
            let nodes = [
                Some(found.rope_q),
                Some(found.rope_k),
                found.norm_q,
                found.norm_k,
            ];
            done.extend(nodes.into_iter().flatten());
            heads.insert(write, found);
        }
    }
    let mut items = Vec::new();
    for (i, node) in plan.nodes.iter().enumerate() {
        if done.contains(&i) {
            continue;
        }
        if let Some(heads) = heads.remove(&i) {
            items.push(Item::Heads(heads));
            continue;
        }
        if fuse && uses.is_whole_norm(node) {
            let item = uses.prepare(Some(i), node.outs[0]);
            if matches!(item, Item::Prepare { bytes: true, .. }) {
                prepared.insert(node.outs[0]);
                items.push(item);
                continue;
            }
        }
        if uses.fast(i).is_none() {
            items.push(Item::Node(i));
            continue;
        }
        if uses.reads_bytes(i, node.ins[0]) && prepared.insert(node.ins[0]) {
            items.push(uses.prepare(None, node.ins[0]));
        }
        let item = products(&uses, i, &mut done, &prepared);
        if let Item::Products { add, .. } = &item
            && let Some(choice) = add.and_then(|(_, other)| uses.chosen(other, i))
            && done.insert(choice)
        {
            items.push(Item::Node(choice));
        }
        items.push(item);
    }
    items
}

fn products(
    uses: &Uses<'_>,
    i: usize,
    done: &mut BTreeSet<usize>,
    prepared: &BTreeSet<ValueId>,
) -> Item {
    let mut item = (vec![i], None, None);
    let plain = |n: usize| matches!(uses.plan.nodes[n].op, Op::Matmul { .. });
    if uses.fuse && plain(i) {
        let x = uses.plan.nodes[i].ins[0];
        if let Some((up, gate)) = uses.gate(i).filter(|(up, _)| *up > i) {
            item = (vec![i, up], Some(gate), None);
        } else if let Some(add) = uses.add(i) {
            item.2 = Some(add);
        } else {
            let beside = |&n: &usize| {
                n > i
                    && plain(n)
                    && !done.contains(&n)
                    && uses.plan.nodes[n].ins[0] == x
                    && uses.fast(n).is_some()
                    && (!uses.reads_bytes(n, x) || prepared.contains(&x))
                    && uses.plan.value(uses.plan.nodes[n].outs[0]).shape.lead
                        == uses.plan.value(uses.plan.nodes[i].outs[0]).shape.lead
                    && uses.gate(n).is_none()
                    && uses.add(n).is_none()
                    && !gated(uses, n)
            };
            let readers = uses.readers(x).iter().copied();
            item.0.extend(readers.filter(beside).take(PARTS - 1));
        }
    }
    let (nodes, gate, add) = item;
    done.extend(nodes.iter().copied().chain(gate).chain(add.map(|a| a.0)));
    Item::Products {
        nodes,
        gate,
        add,
        paired: false,
    }
}

/// Whether a product is what an earlier one gates.
fn gated(uses: &Uses<'_>, node: usize) -> bool {
    let out = uses.plan.nodes[node].outs[0];
    let gate = uses
        .only_reader(out)
        .filter(|&g| matches!(uses.plan.nodes[g].op, Op::Gate { .. }));
    gate.is_some_and(|g| {
        let first = uses.plan.nodes[g].ins[0];
        let product = uses.plan.nodes.iter().position(|n| n.outs.contains(&first));
        product.is_some_and(|p| uses.fast(p).is_some() && uses.gate(p).is_some())
    })
}

/// Values in bytes that dense products alone read, and the norm that they come from: who multiplies one row may make them
/// anew.
pub(crate) fn sources(plan: &Plan, items: &[Item]) -> BTreeMap<ValueId, Option<usize>> {
    let mut sources = BTreeMap::new();
    for item in items {
        if let Item::Prepare {
            norm,
            x,
            floats: false,
            bytes: true,
        } = item
        {
            sources.insert(*x, *norm);
        }
    }
    for item in items {
        let Item::Products { nodes, .. } = item else {
            continue;
        };
        let dense = |&n: &usize| matches!(plan.nodes[n].op, Op::Matmul { .. });
        if !nodes.iter().all(dense) {
            sources.remove(&plan.nodes[nodes[0]].ins[0]);
        }
    }
    sources
}

/// The attention right behind heads that alone reads their queries.
pub(crate) fn reader(plan: &Plan, heads: &Heads, next: Option<&Item>) -> Option<usize> {
    let &Item::Node(n) = next? else {
        return None;
    };
    let q = plan.nodes[heads.rope_q].outs[0];
    let readers = plan.nodes.iter().filter(|n| n.ins.contains(&q)).count();
    let own = matches!(plan.nodes[n].op, Op::Attention(_)) && plan.nodes[n].ins[0] == q;
    (own && readers == 1).then_some(n)
}

/// What an item reads and writes: values, and values in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) ins: Vec<ValueId>,
    pub(crate) outs: Vec<ValueId>,
    pub(crate) bytes_in: Option<ValueId>,
    pub(crate) bytes_out: Option<ValueId>,
    /// Values that may be made in the place of what they are made of.
    pub(crate) same: Vec<(ValueId, ValueId)>,
}

/// Items of a plan in which adapters add to products and look-ups, from those of the plan in which none does: products are
/// launched together as there, so that they have the same bits, and what came behind them in the same launch comes behind
/// what adapters add.
pub(crate) fn adapted(plan: &Plan, items: &[Item]) -> Vec<Item> {
    let adapts = |n: &usize| matches!(plan.nodes[*n].op, Op::Adapt { .. });
    let addends = Addends::new(plan);
    let (mut all, mut done) = (Vec::new(), BTreeSet::new());
    for item in items {
        let (made, behind) = match item {
            Item::Node(n) if adapts(n) => {
                // What it adds to comes from elsewhere.
                all.extend(done.insert(*n).then(|| Item::Adapts(vec![*n])));
                continue;
            }
            Item::Node(n) => (vec![*n], None),
            Item::Products {
                nodes, gate, add, ..
            } => (nodes.clone(), gate.or(add.map(|a| a.0))),
            _ => (Vec::new(), None),
        };
        all.push(match item.clone() {
            Item::Prepare { norm, x, bytes, .. } => Item::Prepare {
                norm,
                x: addends.name(x),
                // Adapters read what products read.
                floats: norm.is_some(),
                bytes,
            },
            Item::Heads(heads) => Item::Heads(Heads {
                q: addends.name(heads.q),
                k: addends.name(heads.k),
                ..heads
            }),
            Item::Products { nodes, gate, .. } => Item::Products {
                nodes,
                gate: None,
                add: None,
                paired: gate.is_some(),
            },
            other => other,
        });
        let additions = addends.behind(&made);
        done.extend(additions.iter().copied());
        if !additions.is_empty() {
            all.push(Item::Adapts(additions));
        }
        all.extend(behind.map(Item::Node));
    }
    all
}

impl Item {
    pub(crate) fn traffic(&self, plan: &Plan, bytes: &dyn Fn(usize) -> bool) -> Traffic {
        let node = |n: usize| &plan.nodes[n];
        match self {
            Item::Node(n) => Traffic {
                ins: node(*n).ins.clone(),
                outs: node(*n).outs.clone(),
                ..Traffic::default()
            },
            Item::Prepare {
                norm,
                x,
                floats,
                bytes,
            } => Traffic {
                ins: norm.map_or(vec![*x], |n| node(n).ins.clone()),
                outs: if *floats { vec![*x] } else { Vec::new() },
                bytes_out: bytes.then_some(*x),
                ..Traffic::default()
            },
            Item::Heads(h) => Traffic {
                ins: vec![h.q, h.k, node(h.write).ins[1]],
                outs: node(h.rope_q).outs.clone(),
                ..Traffic::default()
            },
            Item::Adapts(nodes) => Traffic {
                ins: nodes.iter().flat_map(|&n| node(n).ins.clone()).collect(),
                outs: nodes.iter().flat_map(|&n| node(n).outs.clone()).collect(),
                same: nodes.iter().map(|&n| addition(node(n))).collect(),
                ..Traffic::default()
            },
            Item::Products {
                nodes, gate, add, ..
            } => {
                let mut ins = Vec::new();
                for &n in nodes {
                    ins.extend(node(n).ins.iter().skip(usize::from(bytes(n))));
                }
                ins.extend(add.map(|a| a.1));
                let end = gate.or(add.map(|a| a.0));
                let outs = match end {
                    Some(end) => node(end).outs.clone(),
                    None => nodes.iter().flat_map(|&n| node(n).outs.clone()).collect(),
                };
                let x = node(nodes[0]).ins[0];
                Traffic {
                    ins,
                    outs,
                    bytes_in: nodes.iter().any(|&n| bytes(n)).then_some(x),
                    ..Traffic::default()
                }
            }
        }
    }
}
