//! What a step costs: bytes moved and arithmetic done, op by op.

use std::collections::BTreeMap;
use std::fmt;

use tokkata_core::DType;
use tokkata_ir::{
    Conv1dOp, KvSource, Lead, Limits, Mask, Node, Op, Plan, Program, Selection, SlotDef, SlotId,
    ValueId, WeightId, WeightSource,
};

use crate::measure::Rates;
use crate::memory::{weight_bytes, weight_formats};

/// A kind of step: so many rows of one sequence after so many cached positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepClass {
    /// Rows.
    pub rows: u64,
    /// Rows whose logits are wanted.
    pub logit_rows: u64,
    /// Positions cached before.
    pub past: u64,
}

impl StepClass {
    /// One row after `past` positions.
    #[must_use]
    pub fn decode(past: u64) -> Self {
        StepClass {
            rows: 1,
            logit_rows: 1,
            past,
        }
    }

    /// A whole prompt, of which the last row's logits are wanted.
    #[must_use]
    pub fn prefill(rows: u64) -> Self {
        StepClass {
            rows,
            logit_rows: 1,
            past: 0,
        }
    }
}

/// Bytes and arithmetic of an op or a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of caches read and written.
    pub cache_bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
    /// Those of them that are products with weights, by the format of the weights.
    pub products: BTreeMap<DType, u64>,
}

/// What keeps a step from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading from memory.
    Memory,
    /// Reading what lies in a processor's cache.
    Cache,
    /// Products with weights of a format.
    Products(DType),
    /// Arithmetic in f32.
    Floats,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Memory => f.write_str("memory"),
            Bound::Cache => f.write_str("cache"),
            Bound::Products(dtype) => f.write_str(dtype.name()),
            Bound::Floats => f.write_str("floats"),
        }
    }
}

/// The least time of a step, and the roof that says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Seconds, the slower of moving and computing.
    pub seconds: f64,
    /// What binds.
    pub bound: Bound,
}

impl Cost {
    /// The least time at the given rates, where all that a step reads are `set_bytes`: a small model stays in cache.
    #[must_use]
    pub fn least(&self, rates: &Rates, set_bytes: u64) -> Least {
        let read = rates.read(set_bytes);
        let moved = (self.weight_bytes + self.cache_bytes) as f64 / read;
        let mut roofs: Vec<(f64, Bound)> = self
            .products
            .iter()
            .map(|(&dtype, &ops)| (ops as f64 / rates.product(dtype), Bound::Products(dtype)))
            .collect();
        let floats = self.flops - self.products.values().sum::<u64>();
        roofs.push((floats as f64 / rates.flops_per_s, Bound::Floats));
        let computed: f64 = roofs.iter().map(|r| r.0).sum();
        let bound = if moved >= computed && rates.caches(set_bytes) {
            Bound::Cache
        } else if moved >= computed {
            Bound::Memory
        } else {
            let most = roofs.iter().max_by(|a, b| a.0.total_cmp(&b.0));
            most.map_or(Bound::Floats, |r| r.1)
        };
        Least {
            seconds: moved.max(computed),
            bound,
        }
    }
}

impl std::ops::AddAssign<&Cost> for Cost {
    fn add_assign(&mut self, other: &Cost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.flops += other.flops;
        for (&dtype, ops) in &other.products {
            *self.products.entry(dtype).or_default() += ops;
        }
    }
}

/// Costs of a program's ops.
pub struct Costs<'a> {
    program: &'a Program,
    bytes: Vec<u64>,
    /// By weight: how many elements it has in each format.
    formats: Vec<Vec<(DType, u64)>>,
}

impl<'a> Costs<'a> {
    /// Prepares the costs of `program`, its weights taken from `source`.
    #[must_use]
    pub fn new(program: &'a Program, source: &dyn WeightSource) -> Self {
        let recipes = || program.weights.iter().map(|w| &w.recipe);
        Costs {
            program,
            bytes: recipes().map(|r| weight_bytes(source, r)).collect(),
            formats: recipes().map(|r| weight_formats(source, r)).collect(),
        }
    }

    /// The formats of weights that products read.
    #[must_use]
    pub fn formats(&self) -> Vec<DType> {
        let nodes = self.program.plans.iter().flat_map(|plan| &plan.nodes);
        let read = nodes.filter_map(|node| multiplied(&node.op));
        let mut all: Vec<DType> = read
            .flat_map(|id| self.formats[id.index()].iter().map(|part| part.0))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Bytes that a step of a plan reads and writes: what would have to stay in cache.
    #[must_use]
    pub fn set_bytes(&self, plan: &Plan, class: StepClass) -> u64 {
        let cost = self.plan(plan, class);
        cost.weight_bytes + cost.cache_bytes
    }

    /// The whole plan.
    #[must_use]
    pub fn plan(&self, plan: &Plan, class: StepClass) -> Cost {
        let mut sum = Cost::default();
        for node in &plan.nodes {
            sum += &self.node(plan, node, class);
        }
        sum
    }

    /// One op.
    #[must_use]
    pub fn node(&self, plan: &Plan, node: &Node, class: StepClass) -> Cost {
        let rows = node
            .ins
            .first()
            .or(node.outs.first())
            .map_or(0, |&v| lead(plan, v, class));
        let mut cost = Cost {
            weight_bytes: self.read(&node.op, rows),
            ..Cost::default()
        };
        match &node.op {
            Op::Matmul { weight, .. } => cost.flops = 2 * rows * self.elements(*weight),
            Op::HeadMatmul { weight, .. } => cost.flops = 2 * rows * self.elements(*weight),
            Op::Conv1d(c) => {
                let frames = rows * u64::from(c.frames / c.stride);
                cost.flops = 2 * frames * self.elements(c.weight);
            }
            Op::Experts { weight, top_k, .. } => {
                let experts = u64::from(self.program.weights[weight.index()].shape[0]).max(1);
                cost.flops = 2 * rows * u64::from(*top_k) * (self.elements(*weight) / experts);
            }
            Op::CacheWrite { slot } => cost.cache_bytes = rows * self.position_bytes(*slot),
            Op::Attention(a) => {
                let most = a.selection.map_or(u64::MAX, |s| most_read(plan, node, s));
                let keys = seen(a.mask, class).min(rows.saturating_mul(most));
                let width = u64::from(a.n_heads) * u64::from(a.dim_k + a.dim_v);
                cost.flops = 2 * keys * width;
                if let KvSource::Cache(slot) | KvSource::Cross(slot) = a.source {
                    let keys = span(a.mask, class).min(rows.saturating_mul(most));
                    cost.cache_bytes = keys * self.position_bytes(slot);
                }
            }
            Op::Select(s) => {
                let width = u64::from(s.n_heads) * u64::from(s.dim);
                cost.flops = 2 * seen(Mask::Causal, class) * width;
                cost.cache_bytes = span(Mask::Causal, class) * self.position_bytes(s.slot);
            }
            Op::Scan { slot, .. }
            | Op::Shift { slot }
            | Op::Conv {
                slot: Some(slot), ..
            } => {
                let state = self.state_elements(*slot);
                cost.cache_bytes = 8 * state;
                cost.flops = 6 * rows * state;
            }
            _ => cost.flops = node.outs.iter().map(|&v| elements(plan, v, class)).sum(),
        }
        if let Some(weight) = multiplied(&node.op) {
            cost.products = self.shared_out(weight, cost.flops);
        }
        cost
    }

    /// Operations with a weight, by the formats of its parts.
    fn shared_out(&self, weight: WeightId, ops: u64) -> BTreeMap<DType, u64> {
        let parts = &self.formats[weight.index()];
        let all: u64 = parts.iter().map(|p| p.1).sum();
        let mut left = ops;
        let mut found = BTreeMap::new();
        for (i, &(dtype, elements)) in parts.iter().enumerate() {
            let share = (u128::from(ops) * u128::from(elements) / u128::from(all.max(1))) as u64;
            let share = if i + 1 == parts.len() { left } else { share };
            *found.entry(dtype).or_default() += share;
            left -= share;
        }
        found
    }

    /// Bytes of weights that an op reads for so many rows.
    fn read(&self, op: &Op, rows: u64) -> u64 {
        let whole = |id: WeightId| self.bytes[id.index()];
        match op {
            Op::Gather { table, .. } => {
                let n = self.program.weights[table.index()].rows().max(1) as u64;
                whole(*table) / n * rows.min(n)
            }
            Op::Experts { weight, top_k, .. } => {
                let experts = u64::from(self.program.weights[weight.index()].shape[0]).max(1);
                whole(*weight) / experts * experts.min(rows * u64::from(*top_k))
            }
            _ => op.weights().into_iter().map(whole).sum(),
        }
    }

    fn elements(&self, id: WeightId) -> u64 {
        self.program.weights[id.index()]
            .shape
            .iter()
            .map(|&d| u64::from(d))
            .product()
    }

    fn position_bytes(&self, slot: SlotId) -> u64 {
        let group = self.program.group(slot.group);
        let SlotDef::Kv {
            n_kv_heads,
            dim_k,
            dim_v,
        } = group.slots[slot.slot as usize]
        else {
            return 0;
        };
        let elems = u64::from(n_kv_heads) * u64::from(dim_k + dim_v.unwrap_or(0));
        elems * group.dtype.block_bytes() as u64 / group.dtype.block_elems() as u64
    }

    fn state_elements(&self, slot: SlotId) -> u64 {
        match self.program.group(slot.group).slots[slot.slot as usize] {
            SlotDef::State { len } => len.into(),
            SlotDef::Kv { .. } => 0,
        }
    }
}

/// The weight that an op multiplies with.
fn multiplied(op: &Op) -> Option<WeightId> {
    match op {
        Op::Matmul { weight, .. }
        | Op::HeadMatmul { weight, .. }
        | Op::Conv1d(Conv1dOp { weight, .. })
        | Op::Experts { weight, .. } => Some(*weight),
        _ => None,
    }
}

fn lead(plan: &Plan, value: ValueId, class: StepClass) -> u64 {
    match plan.value(value).shape.lead {
        Lead::Rows => class.rows,
        Lead::LogitRows => class.logit_rows,
        Lead::Seqs => 1,
    }
}

fn elements(plan: &Plan, value: ValueId, class: StepClass) -> u64 {
    lead(plan, value, class) * plan.value(value).shape.width() as u64
}

/// Pairs of row and key.
fn seen(mask: Mask, class: StepClass) -> u64 {
    let StepClass { rows, past, .. } = class;
    match mask {
        Mask::Full => rows * (past + rows),
        Mask::Causal => rows * past + rows * (rows + 1) / 2,
        Mask::Window(w) | Mask::Chunk(w) | Mask::Symmetric(w) => (past + 1..=past + rows)
            .map(|keys| keys.min(w.into()))
            .sum(),
    }
}

/// Keys that a row reads at most of those that it sees.
fn most_read(plan: &Plan, node: &Node, selection: Selection) -> u64 {
    let ids = node.ins.last().map_or(0, |&v| plan.value(v).shape.width());
    let tail = if selection.tail { selection.unit } else { 0 };
    ids as u64 / u64::from(selection.choices.max(1)) * u64::from(selection.unit) + u64::from(tail)
}

/// Keys that some row sees.
fn span(mask: Mask, class: StepClass) -> u64 {
    let all = class.past + class.rows;
    match mask {
        Mask::Causal | Mask::Full => all,
        Mask::Window(w) | Mask::Chunk(w) | Mask::Symmetric(w) => all.min(class.rows + u64::from(w)),
    }
}

/// The classes that a dump shows: decoding after a short and a full context, and the largest prefill step.
#[must_use]
pub fn usual_classes(limits: &Limits) -> Vec<(String, StepClass)> {
    let past = u64::from(limits.ctx.saturating_sub(1));
    let rows = u64::from(limits.rows.min(limits.ctx));
    vec![
        ("decode after 0".to_owned(), StepClass::decode(0)),
        (format!("decode after {past}"), StepClass::decode(past)),
        (format!("prefill of {rows}"), StepClass::prefill(rows)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_rows_see_themselves_and_what_came_before() {
        let class = StepClass {
            rows: 3,
            logit_rows: 1,
            past: 10,
        };
        assert_eq!(seen(Mask::Causal, class), 11 + 12 + 13);
        assert_eq!(seen(Mask::Window(4), class), 12);
        assert_eq!(
            (span(Mask::Causal, class), span(Mask::Window(4), class)),
            (13, 7)
        );
    }

    #[test]
    fn the_slower_of_moving_and_computing_binds() {
        let cost = Cost {
            weight_bytes: 100,
            cache_bytes: 100,
            flops: 60,
            products: BTreeMap::from([(DType::Q4_0, 20), (DType::F16, 10)]),
        };
        let least = |memory: f64, floats, q4_0, set_bytes| {
            let rates = Rates {
                reads: vec![(0, 10.0 * memory), (1000, memory)],
                flops_per_s: floats,
                products: BTreeMap::from([(DType::Q4_0, q4_0), (DType::F16, 100.0)]),
            };
            let Least { seconds, bound } = cost.least(&rates, set_bytes);
            ((1000.0 * seconds).round() / 1000.0, bound)
        };
        assert_eq!(least(100.0, 100.0, 100.0, 1000), (2.0, Bound::Memory));
        assert_eq!(least(100.0, 1000.0, 1000.0, 999), (0.2, Bound::Cache));
        assert_eq!(least(1000.0, 10.0, 10.0, 1000), (5.1, Bound::Floats));
        assert_eq!(
            least(1000.0, 100.0, 1.0, 1000),
            (20.4, Bound::Products(DType::Q4_0))
        );
    }
}
