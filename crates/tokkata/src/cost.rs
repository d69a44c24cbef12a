//! What a step costs: bytes moved and arithmetic done, op by op.

use tokkata_ir::{
    Conv1dOp, KvSource, Lead, Limits, Mask, Node, Op, Plan, Program, Selection, SlotDef, SlotId,
    ValueId, WeightId, WeightSource,
};

use crate::measure::Rates;
use crate::memory::weight_bytes;

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of caches read and written.
    pub cache_bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
    /// Those of them with codes of quantised weights.
    pub code_ops: u64,
}

impl Cost {
    /// Seconds at the given rates, the slower of moving and computing.
    #[must_use]
    pub fn seconds(&self, rates: &Rates) -> f64 {
        let moved = (self.weight_bytes + self.cache_bytes) as f64 / rates.bytes_per_s;
        let floats = (self.flops - self.code_ops) as f64 / rates.flops_per_s;
        moved.max(floats + self.code_ops as f64 / rates.code_ops_per_s)
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.flops += other.flops;
        self.code_ops += other.code_ops;
    }
}

/// Costs of a program's ops.
pub struct Costs<'a> {
    program: &'a Program,
    bytes: Vec<u64>,
}

impl<'a> Costs<'a> {
    /// Prepares the costs of `program`, its weights taken from `source`.
    #[must_use]
    pub fn new(program: &'a Program, source: &dyn WeightSource) -> Self {
        let bytes = program
            .weights
            .iter()
            .map(|w| weight_bytes(source, &w.recipe))
            .collect();
        Costs { program, bytes }
    }

    /// The whole plan.
    #[must_use]
    pub fn plan(&self, plan: &Plan, class: StepClass) -> Cost {
        let mut sum = Cost::default();
        for node in &plan.nodes {
            sum += self.node(plan, node, class);
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
        if let Op::Matmul { weight, .. }
        | Op::HeadMatmul { weight, .. }
        | Op::Conv1d(Conv1dOp { weight, .. })
        | Op::Experts { weight, .. } = &node.op
            && self.quantised(*weight)
        {
            cost.code_ops = cost.flops;
        }
        cost
    }

    /// Whether a weight has fewer than sixteen bits per element.
    fn quantised(&self, id: WeightId) -> bool {
        self.bytes[id.index()] < 2 * self.elements(id)
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
    fn the_slower_of_moving_and_computing_counts() {
        let cost = Cost {
            weight_bytes: 100,
            cache_bytes: 100,
            flops: 50,
            code_ops: 20,
        };
        let seconds = |bytes_per_s, flops_per_s, code_ops_per_s| {
            cost.seconds(&Rates {
                bytes_per_s,
                flops_per_s,
                code_ops_per_s,
            })
        };
        assert_eq!(seconds(100.0, 100.0, 100.0), 2.0);
        assert_eq!(seconds(1000.0, 10.0, 10.0), 5.0);
        assert_eq!(seconds(1000.0, 10.0, 40.0), 3.5);
    }
}
