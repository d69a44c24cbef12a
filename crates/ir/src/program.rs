//! Programs, plans and their parts.

use tokkata_core::DType;

use crate::ids::{ConstId, DeviceId, GroupId, Site, ValueId};
use crate::op::Op;
use crate::weight::WeightDef;

/// The leading dimension of a value, sized by the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lead {
    /// Every row of the step.
    Rows,
    /// The rows whose logits are wanted.
    LogitRows,
    /// The sequences of the step.
    Seqs,
}

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValType {
    /// 32-bit float.
    F32,
    /// 32-bit integer: tokens and expert ids.
    I32,
}

/// `[lead, dims…]`, slowest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The dimension the step sizes.
    pub lead: Lead,
    /// Fixed dimensions of one row.
    pub dims: Vec<u32>,
}

impl Shape {
    /// A shape over all rows.
    #[must_use]
    pub fn rows(dims: &[u32]) -> Self {
        Shape {
            lead: Lead::Rows,
            dims: dims.to_vec(),
        }
    }

    /// Elements of one row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.dims.iter().map(|&d| d as usize).product()
    }
}

/// A value of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueDef {
    /// Its shape.
    pub shape: Shape,
    /// Its element type.
    pub dtype: ValType,
}

/// A named input or output of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// `logits`, `tokens`, `hidden`, `embeds`…
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// An op at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Where it belongs.
    pub site: Site,
    /// Values read.
    pub ins: Vec<ValueId>,
    /// Values written; each value is written once.
    pub outs: Vec<ValueId>,
    /// The device that runs it.
    pub device: DeviceId,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanRole {
    /// Tokens to logits, hidden states or pooled vectors.
    Main,
    /// The encoder of an encoder–decoder: writes the cross caches.
    Encoder,
    /// The n-th multi-token-prediction head.
    Draft(u32),
    /// Tokens to vectors or scores of texts, beside a main plan that writes.
    Embed,
}

/// A straight line of ops over single-assignment values.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its purpose.
    pub role: PlanRole,
    /// Values set before a replay.
    pub inputs: Vec<Port>,
    /// Values read after it.
    pub outputs: Vec<Port>,
    /// Every value.
    pub values: Vec<ValueDef>,
    /// The ops in order.
    pub nodes: Vec<Node>,
}

impl Plan {
    /// The output called `name`.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.value)
    }

    /// The input called `name`.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().find(|p| p.name == name).map(|p| p.value)
    }

    /// The definition of a value.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &ValueDef {
        &self.values[id.index()]
    }
}

/// A constant computed once, the same on every backend.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstData {
    /// Floats.
    F32(Vec<f32>),
    /// Indices.
    U32(Vec<u32>),
}

impl ConstData {
    /// The floats; panics on indices, which is a builder's bug.
    #[must_use]
    pub fn f32s(&self) -> &[f32] {
        match self {
            ConstData::F32(v) => v,
            ConstData::U32(_) => panic!("constant holds indices where floats were expected"),
        }
    }

    /// The indices; panics on floats, which is a builder's bug.
    #[must_use]
    pub fn u32s(&self) -> &[u32] {
        match self {
            ConstData::U32(v) => v,
            ConstData::F32(_) => panic!("constant holds floats where indices were expected"),
        }
    }
}

/// What a cache group keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// Keys and values of every position.
    Full,
    /// Keys and values of the last `n` positions (a window or a chunk).
    Window(u32),
    /// Fixed-size state per sequence: slots of f32 values, one snapshot per block. Place 0 of a block table is the state
    /// that rows go on from, the `draft` places behind it are for states after each row, where rows keep them.
    Recurrent,
    /// An encoder's keys and values, written once.
    Cross,
    /// One entry for every `n` positions, written by the last of them: what an indexer compares, or a summary.
    Entries(u32),
}

/// One layer's part of a cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotDef {
    /// Keys `[n_kv_heads, dim_k]` and values `[n_kv_heads, dim_v]` per position; `dim_v` 0 keeps keys only.
    Kv {
        /// Key heads.
        n_kv_heads: u32,
        /// Columns of a key head.
        dim_k: u32,
        /// Columns of a value head; `None` when values are a prefix of the keys.
        dim_v: Option<u32>,
    },
    /// This many f32 values per sequence.
    State {
        /// Values.
        len: u32,
    },
}

/// Layers that share a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// What is kept.
    pub kind: CacheKind,
    /// One entry per layer.
    pub slots: Vec<SlotDef>,
    /// Element type of keys and values: F32, F16 or Q8_0. States are f32.
    pub dtype: DType,
    /// Positions per block; 1 for recurrent groups, a multiple of `n` for entries of `n` positions.
    pub block_size: u32,
}

impl CacheGroup {
    /// Blocks a sequence of `limits.ctx` positions may list.
    #[must_use]
    pub fn table_len(&self, limits: &Limits) -> usize {
        match self.kind {
            CacheKind::Recurrent => 1 + limits.draft as usize,
            CacheKind::Cross => {
                (limits.enc_rows.max(1) as usize).div_ceil(self.block_size as usize)
            }
            _ => (limits.ctx as usize).div_ceil(self.block_size as usize),
        }
    }

    /// Most blocks that a sequence holds at once while it is fed `limits.rows` positions at a time: whole contexts, what
    /// a window can still see plus one step, or a state with those that rows keep and room for three snapshots.
    #[must_use]
    pub fn blocks_of_sequence(&self, limits: &Limits) -> u64 {
        let whole = self.table_len(limits) as u64;
        match self.kind {
            CacheKind::Recurrent => whole + 3,
            CacheKind::Window(n) => {
                let seen = u64::from(n) + u64::from(limits.rows);
                whole.min(seen.div_ceil(u64::from(self.block_size)) + 1)
            }
            CacheKind::Full | CacheKind::Entries(_) | CacheKind::Cross => whole,
        }
    }

    /// Entries of a block: one for each position, or for every few.
    #[must_use]
    pub fn block_entries(&self) -> u32 {
        match self.kind {
            CacheKind::Entries(n) => self.block_size / n,
            _ => self.block_size,
        }
    }

    /// Bytes of one block over all slots.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        let elems = |width: u32| {
            let blocks = u64::from(width).div_ceil(self.dtype.block_elems() as u64);
            blocks * self.dtype.block_bytes() as u64
        };
        let slot = |s: &SlotDef| match *s {
            SlotDef::Kv {
                n_kv_heads,
                dim_k,
                dim_v,
            } => {
                u64::from(self.block_entries())
                    * (elems(n_kv_heads * dim_k) + elems(n_kv_heads * dim_v.unwrap_or(0)))
            }
            SlotDef::State { len } => u64::from(len) * 4,
        };
        self.slots.iter().map(slot).sum()
    }
}

/// Sizes that a program is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of a step.
    pub rows: u32,
    /// Sequences of a step.
    pub seqs: u32,
    /// Logit rows of a step.
    pub logit_rows: u32,
    /// Positions of a sequence.
    pub ctx: u32,
    /// Encoder rows of a sequence.
    pub enc_rows: u32,
    /// Most rows of a sequence in a step that keep the state after each of them.
    pub draft: u32,
    /// Adapters loaded at once.
    pub adapters: u32,
    /// Devices that share a layer.
    pub world: u32,
    /// Element type of the cache.
    pub kv_dtype: DType,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rows: 512,
            seqs: 8,
            logit_rows: 8,
            ctx: 4096,
            enc_rows: 0,
            draft: 0,
            adapters: 0,
            world: 1,
            kv_dtype: DType::F16,
        }
    }
}

/// Everything a backend needs, one per loaded model.
#[derive(Clone, Debug)]
pub struct Program {
    /// The main plan first.
    pub plans: Vec<Plan>,
    /// Weights, shared by all plans.
    pub weights: Vec<WeightDef>,
    /// Cache groups.
    pub caches: Vec<CacheGroup>,
    /// Constants.
    pub consts: Vec<ConstData>,
    /// Sizes.
    pub limits: Limits,
    /// Width of the logits.
    pub n_vocab: u32,
    /// Width of the residual stream.
    pub n_embd: u32,
}

impl Program {
    /// The first plan with this role.
    #[must_use]
    pub fn plan(&self, role: PlanRole) -> Option<(usize, &Plan)> {
        self.plans.iter().enumerate().find(|(_, p)| p.role == role)
    }

    /// A constant's data.
    #[must_use]
    pub fn constant(&self, id: ConstId) -> &ConstData {
        &self.consts[id.index()]
    }

    /// A cache group.
    #[must_use]
    pub fn group(&self, id: GroupId) -> &CacheGroup {
        &self.caches[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_as_wide_as_numbers_go_needs_a_whole_context() {
        let group = |kind| CacheGroup {
            kind,
            slots: vec![],
            dtype: DType::F32,
            block_size: 32,
        };
        let limits = Limits {
            ctx: 4096,
            rows: 512,
            ..Limits::default()
        };
        for width in [u32::MAX, u32::MAX - 511, 5000] {
            let blocks = group(CacheKind::Window(width)).blocks_of_sequence(&limits);
            assert_eq!(blocks, 128, "{width}");
        }
        let small = group(CacheKind::Window(128)).blocks_of_sequence(&limits);
        assert_eq!(small, 640 / 32 + 1);
    }
}
