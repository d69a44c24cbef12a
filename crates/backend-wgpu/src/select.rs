//! Which kernels run a plan: nodes one by one, and products with what comes right before and after them.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_core::DType;
use tokkata_ir::adapter::{Addends, addition};
use tokkata_ir::{BinaryKind, KvSource, Lead, Node, NormKind, Op, Plan, ValueId, WeightId};

use crate::lower::attention::is_plain;

/// Most weights of a dispatch.
const PARTS: usize = 4;

/// Columns of a head that kernels have room for.
const MOST_HEAD: u32 = 256;

/// Columns of a head that attention may turn itself.
const MOST_TAKEN: u32 = 128;

/// Queries and keys between their products and attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) norm_q: Option<usize>,
    pub(crate) rope_q: usize,
    pub(crate) norm_k: Option<usize>,
    pub(crate) rope_k: usize,
    pub(crate) write: usize,
    /// The attention that comes next, where it may take them itself.
    pub(crate) attention: Option<usize>,
    /// Queries and keys as their products leave them.
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
}

/// Products of one value, and what is done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Products {
    /// The norm of the value, where only products read it.
    pub(crate) norm: Option<usize>,
    /// Other products come before, which make the norm of prompts' rows.
    pub(crate) again: bool,
    pub(crate) nodes: Vec<usize>,
    /// The first product goes through an activation and multiplies the second.
    pub(crate) gate: Option<usize>,
    /// What a sum adds to the product.
    pub(crate) add: Option<(usize, ValueId)>,
}

/// A run of a plan's nodes that is dispatched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A node alone.
    Node(usize),
    /// Norms, rotations and the cache write of heads.
    Heads(Heads),
    Products(Products),
    /// What adapters add to products or look-ups that were dispatched together.
    Adapts(Vec<usize>),
}

/// What products of one dispatch have in common: the format, and the arena.
pub(crate) type Form = (DType, usize);

/// What an item reads and writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) ins: Vec<ValueId>,
    pub(crate) outs: Vec<ValueId>,
    /// Values that may be made in the place of what they are made of.
    pub(crate) same: Vec<(ValueId, ValueId)>,
}

/// A plan seen from its values.
struct Uses<'a> {
    plan: &'a Plan,
    readers: BTreeMap<ValueId, Vec<usize>>,
    producers: BTreeMap<ValueId, usize>,
    form: &'a dyn Fn(WeightId) -> Option<Form>,
}

impl Uses<'_> {
    fn readers(&self, value: ValueId) -> &[usize] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    fn is_output(&self, value: ValueId) -> bool {
        self.plan.outputs.iter().any(|p| p.value == value)
    }

    /// The form of a product that may run with others.
    fn form(&self, node: usize) -> Option<Form> {
        match self.plan.nodes[node].op {
            Op::Matmul { weight, .. } => (self.form)(weight),
            _ => None,
        }
    }

    /// The only reader of a value that nobody else sees.
    fn only_reader(&self, value: ValueId) -> Option<usize> {
        match self.readers(value) {
            &[reader] if !self.is_output(value) => Some(reader),
            _ => None,
        }
    }

    fn producer(&self, value: ValueId) -> Option<usize> {
        self.producers.get(&value).copied()
    }

    fn lead(&self, value: ValueId) -> Lead {
        self.plan.value(value).shape.lead
    }

    /// Whether a value is there before a node.
    fn is_there(&self, value: ValueId, node: usize) -> bool {
        self.producer(value).is_none_or(|n| n < node)
    }

    /// The product that is gated by this one, and the gate.
    fn gate(&self, node: usize) -> Option<(usize, usize)> {
        let gate = self.only_reader(self.plan.nodes[node].outs[0])?;
        let Op::Gate { .. } = &self.plan.nodes[gate].op else {
            return None;
        };
        let [a, b] = self.plan.nodes[gate].ins[..] else {
            return None;
        };
        let up = self.producer(b)?;
        let own = self.plan.nodes[node].outs[0] == a && self.only_reader(b) == Some(gate);
        let alike = up > node
            && self.form(up).is_some()
            && self.form(up) == self.form(node)
            && self.plan.nodes[up].ins[0] == self.plan.nodes[node].ins[0];
        (own && alike && a != b).then_some((up, gate))
    }

    /// Whether a product is what another one gates.
    fn is_gated(&self, node: usize) -> bool {
        let gate = self.only_reader(self.plan.nodes[node].outs[0]);
        let gate = gate.filter(|&g| matches!(self.plan.nodes[g].op, Op::Gate { .. }));
        let first = gate.and_then(|g| self.producer(self.plan.nodes[g].ins[0]));
        let gates = first.and_then(|p| self.form(p).and_then(|_| self.gate(p)));
        gates.is_some_and(|(up, _)| up == node)
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
        let alike = self.plan.value(other) == self.plan.value(out);
        (other != out && alike && self.is_there(other, node)).then_some((add, other))
    }

    /// The norm that makes a value, where only products read it: each makes it anew.
    fn norm(&self, value: ValueId) -> Option<usize> {
        let norm = self.producer(value)?;
        let node = &self.plan.nodes[norm];
        let Op::Norm {
            kind: NormKind::Rms,
            width,
            weight: Some(_),
            bias: None,
            ..
        } = node.op
        else {
            return None;
        };
        let whole = self.plan.value(value).shape.width() == width as usize;
        let own =
            !self.is_output(value) && self.readers(value).iter().all(|&n| self.form(n).is_some());
        (whole && own).then_some(norm)
    }

    /// What a rotation of heads of so many columns reads: through a norm of single heads, where there is one.
    fn behind(&self, rope: usize, head_dim: u32) -> (Option<usize>, ValueId) {
        let x = self.plan.nodes[rope].ins[0];
        let is_norm = |n: &usize| {
            let Op::Norm {
                kind: NormKind::Rms,
                width,
                weight: Some(_),
                bias: None,
                ..
            } = self.plan.nodes[*n].op
            else {
                return false;
            };
            width == head_dim && self.only_reader(x) == Some(rope)
        };
        let norm = self.producer(x).filter(is_norm);
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
        let fits = whole && rope.head_dim == op.dim_k && op.dim_k.max(op.dim_v) <= MOST_HEAD;
        let later = self.readers(q).iter().all(|&n| n > write);
        let rows = self.lead(q) == Lead::Rows && self.lead(k) == Lead::Rows;
        let ((norm_q, raw_q), (norm_k, raw_k)) = (
            self.behind(rope_q, rope.head_dim),
            self.behind(rope_k, rope.head_dim),
        );
        let there = [raw_q, raw_k, v]
            .into_iter()
            .all(|x| self.is_there(x, write));
        (alike && fits && later && rows && there && !self.is_output(q)).then_some(Heads {
            norm_q,
            rope_q,
            norm_k,
            rope_k,
            write,
            attention: self.taker(write, reader, q),
            q: raw_q,
            k: raw_k,
        })
    }

    /// The attention right behind a cache write, where it alone reads the queries and knows how to turn heads.
    fn taker(&self, write: usize, reader: usize, q: ValueId) -> Option<usize> {
        let Op::Attention(op) = &self.plan.nodes[reader].op else {
            return None;
        };
        let alone = reader == write + 1 && self.only_reader(q) == Some(reader);
        let fits = op.dim_k == op.dim_v && op.dim_k <= MOST_TAKEN;
        let ins = &self.plan.nodes[write].ins;
        let width = |value: ValueId| self.plan.value(value).shape.width() as u32;
        let whole = width(q) == op.n_heads * op.dim_k
            && ins.iter().all(|&x| width(x) == op.n_kv_heads * op.dim_k);
        (alone && fits && whole && is_plain(op)).then_some(reader)
    }

    /// Products that begin with this one.
    fn products(&self, i: usize, done: &BTreeSet<usize>) -> Products {
        let x = self.plan.nodes[i].ins[0];
        let mut found = Products {
            norm: self.norm(x),
            again: self.readers(x).iter().any(|n| done.contains(n)),
            nodes: vec![i],
            gate: None,
            add: None,
        };
        if let Some((up, gate)) = self.gate(i) {
            found.nodes.push(up);
            found.gate = Some(gate);
        } else if let Some(add) = self.add(i) {
            found.add = Some(add);
        } else {
            let lead = |n: usize| self.lead(self.plan.nodes[n].outs[0]);
            let beside = |&n: &usize| {
                n > i
                    && !done.contains(&n)
                    && self.form(n) == self.form(i)
                    && self.plan.nodes[n].ins[0] == x
                    && lead(n) == lead(i)
                    && self.gate(n).is_none()
                    && self.add(n).is_none()
                    && !self.is_gated(n)
            };
            let readers = self.readers(x).iter().copied();
            found.nodes.extend(readers.filter(beside).take(PARTS - 1));
        }
        found
    }
}

/// Cuts a plan, node by node or with what can be done together. `turning` says whether attention may turn heads itself, `None` that
/// nothing is done together; `form` which weights have kernels for more than a product.
pub(crate) fn items(
    plan: &Plan,
    turning: Option<bool>,
    form: &dyn Fn(WeightId) -> Option<Form>,
) -> Vec<Item> {
    let Some(turning) = turning else {
        return (0..plan.nodes.len()).map(Item::Node).collect();
    };
    let (mut readers, mut producers) = (BTreeMap::<ValueId, Vec<usize>>::new(), BTreeMap::new());
    for (i, node) in plan.nodes.iter().enumerate() {
        for &value in &node.ins {
            let list = readers.entry(value).or_default();
            if list.last() != Some(&i) {
                list.push(i);
            }
        }
        producers.extend(node.outs.iter().map(|&out| (out, i)));
    }
    let uses = Uses {
        plan,
        readers,
        producers,
        form,
    };
    let mut done = BTreeSet::new();
    let mut heads: BTreeMap<usize, Heads> = BTreeMap::new();
    for write in 0..plan.nodes.len() {
        if let Some(mut found) = uses.heads(write).filter(|h| !done.contains(&h.rope_q)) {
            found.attention = found.attention.filter(|_| turning);
            let norms = [found.norm_q, found.norm_k];
            done.extend([found.rope_q, found.rope_k]);
            done.extend(found.attention);
            done.extend(norms.into_iter().flatten());
            heads.insert(write, found);
        }
    }
    let mut items = Vec::new();
    for i in 0..plan.nodes.len() {
        if done.contains(&i) {
            continue;
        }
        if let Some(heads) = heads.remove(&i) {
            items.push(Item::Heads(heads));
            continue;
        }
        if uses.form(i).is_none() {
            items.push(Item::Node(i));
            continue;
        }
        let found = uses.products(i, &done);
        if let Some(norm) = found.norm {
            items.retain(|item| *item != Item::Node(norm));
        }
        done.extend(found.nodes.iter().copied().chain(found.gate));
        done.extend(found.add.map(|a| a.0));
        items.push(Item::Products(found));
    }
    items
}

/// Items of a plan in which adapters add to products and look-ups, from those of the plan in which none does: products are
/// dispatched together as there, so that they have the same bits, with the norm that they make, which adapters read, before them;
/// what came behind them in the same dispatch comes behind what adapters add.
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
            Item::Products(p) => (p.nodes.clone(), p.gate.or(p.add.map(|a| a.0))),
            _ => (Vec::new(), None),
        };
        if let Item::Products(p) = item {
            all.extend(p.norm.filter(|_| !p.again).map(Item::Node));
        }
        all.push(match item.clone() {
            Item::Heads(heads) => Item::Heads(Heads {
                q: addends.name(heads.q),
                k: addends.name(heads.k),
                ..heads
            }),
            Item::Products(products) => Item::Products(Products {
                again: products.norm.is_some(),
                gate: None,
                add: None,
                ..products
            }),
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

impl Products {
    /// Whether others, right before these, make something else of the same value.
    pub(crate) fn reads_as(&self, other: &Products, plan: &Plan) -> bool {
        let x = |p: &Products| plan.nodes[p.nodes[0]].ins[0];
        x(self) == x(other) && self.add.is_none() && other.add.is_none()
    }

    /// The values that it leaves.
    pub(crate) fn results(&self, plan: &Plan) -> Vec<ValueId> {
        let end = self.gate.or(self.add.map(|a| a.0));
        let nodes = end.map_or(self.nodes.clone(), |end| vec![end]);
        nodes.iter().map(|&n| plan.nodes[n].outs[0]).collect()
    }
}

impl Item {
    pub(crate) fn as_products(&self) -> Option<&Products> {
        match self {
            Item::Products(found) => Some(found),
            _ => None,
        }
    }

    pub(crate) fn traffic(&self, plan: &Plan) -> Traffic {
        let node = |n: usize| &plan.nodes[n];
        match self {
            Item::Node(n) => Traffic {
                ins: node(*n).ins.clone(),
                outs: node(*n).outs.clone(),
                ..Traffic::default()
            },
            Item::Adapts(nodes) => Traffic {
                ins: nodes.iter().flat_map(|&n| node(n).ins.clone()).collect(),
                outs: nodes.iter().flat_map(|&n| node(n).outs.clone()).collect(),
                same: nodes.iter().map(|&n| addition(node(n))).collect(),
            },
            Item::Heads(h) => Traffic {
                ins: vec![h.q, h.k, node(h.write).ins[1]],
                outs: std::iter::once(h.rope_q)
                    .chain(h.attention)
                    .flat_map(|n| node(n).outs.clone())
                    .collect(),
                ..Traffic::default()
            },
            // Rows of prompts go through every value between.
            Item::Products(found) => {
                let x = found.norm.unwrap_or(found.nodes[0]);
                let mut ins = vec![node(x).ins[0]];
                ins.extend(found.add.map(|a| a.1));
                let made = found.norm.filter(|_| found.again);
                ins.extend(made.map(|n| node(n).outs[0]));
                let ends = found.gate.into_iter().chain(found.add.map(|a| a.0));
                let norm = found.norm.filter(|_| !found.again);
                let nodes = norm.into_iter().chain(found.nodes.iter().copied());
                let outs = nodes.chain(ends).map(|n| node(n).outs[0]);
                Traffic {
                    ins,
                    outs: outs.collect(),
                    ..Traffic::default()
                }
            }
        }
    }
}
