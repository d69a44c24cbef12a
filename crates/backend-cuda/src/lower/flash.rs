//! Attention over cached halves, and heads on their way into it.

use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, BackendError, KvSource, Lead, Mask, Node, NormKind, Op, Pairing, SlotId, ValueId,
    WeightId,
};

use super::{Lowering, unsupported};
use crate::error::lost;
use crate::launch::{Extent, RowKind, When};
use crate::params::Params;
use crate::select::Heads;

/// Positions of a split.
const SPLIT: u32 = 128;
/// Rows of a block of attention for prompts, and keys that it takes at a time.
const TILE: u32 = 64;
/// Most rows whose splits are computed side by side, and most bytes for what they leave.
const SPLIT_ROWS: u64 = 64;
const SPLIT_BYTES: u64 = 256 << 20;

/// The norm in front of a rotation: its kind (4 for none), epsilon and weight.
struct HeadNorm {
    kind: u32,
    eps: f32,
    weight: Option<WeightId>,
}

impl Lowering<'_, '_> {
    fn head_norm(&self, node: Option<usize>) -> HeadNorm {
        match node.map(|n| &self.plan.nodes[n].op) {
            Some(Op::Norm {
                kind, eps, weight, ..
            }) => HeadNorm {
                kind: match kind {
                    NormKind::Rms => 0,
                    NormKind::Layer => 1,
                    NormKind::L2 => 2,
                    NormKind::L2Max => 3,
                },
                eps: *eps,
                weight: *weight,
            },
            _ => HeadNorm {
                kind: 4,
                eps: 0.0,
                weight: None,
            },
        }
    }

    /// Queries and keys are normalised and rotated, keys and values written to the cache.
    pub(super) fn heads(&mut self, heads: &Heads) -> Result<(), BackendError> {
        let plan = self.plan;
        let (Op::Rope(rope), Op::CacheWrite { slot }) =
            (&plan.nodes[heads.rope_q].op, &plan.nodes[heads.write].op)
        else {
            return Err(unsupported("heads of another kind"));
        };
        let (turns, pairs) = self.turns(rope)?;
        let (norm_q, norm_k) = (self.head_norm(heads.norm_q), self.head_norm(heads.norm_k));
        let v = plan.nodes[heads.write].ins[1];
        let q_out = plan.nodes[heads.rope_q].outs[0];
        let dim = rope.head_dim;
        let (dim_v, v_heads) = self.value_heads(*slot, v);
        let counts = [
            self.width(heads.q) / dim,
            self.width(heads.k) / dim,
            v_heads,
        ];
        let len = |id: Option<WeightId>| id.map_or(1, |id| self.weight_len(id));
        let params = self.cache(*slot, self.step());
        let params = params.u64s(&[heads.q, heads.k, v, q_out].map(|x| self.at(x)));
        let params = params.u64s(&[self.maybe(norm_q.weight), self.maybe(norm_k.weight), turns]);
        let halves = u32::from(rope.pairing == Pairing::Halves);
        let params = params
            .u32s(&counts)
            .u32s(&[dim, dim_v, rope.offset, pairs, halves]);
        let params = params.u32s(&[
            norm_q.kind,
            norm_k.kind,
            len(norm_q.weight),
            len(norm_k.weight),
        ]);
        let params = params.f32(norm_q.eps).f32(norm_k.eps).align(8);
        let warps: u32 = counts.iter().sum();
        let grid = [
            Extent::fixed(warps.div_ceil(4)),
            Extent::rows(Lead::Rows),
            Extent::ONE,
        ];
        self.launch(("flash", "heads"), grid, (128, 0), &params)
    }

    /// Columns of a value head and their number.
    fn value_heads(&self, slot: SlotId, v: ValueId) -> (u32, u32) {
        let def = &self.ground.program.group(slot.group).slots[slot.slot as usize];
        let width = self.width(v);
        match *def {
            tokkata_ir::SlotDef::Kv { n_kv_heads, .. } => (width / n_kv_heads, n_kv_heads),
            tokkata_ir::SlotDef::State { .. } => (width, 1),
        }
    }

    /// Attention by the kernels for halves; `false` where it asks for more than they do.
    pub(super) fn flash(&mut self, node: &Node, op: &AttentionOp) -> Result<bool, BackendError> {
        let KvSource::Cache(slot) = op.source else {
            return Ok(false);
        };
        let group = self.ground.program.group(slot.group);
        let window = match op.mask {
            Mask::Causal => 0,
            Mask::Window(n) => n,
            _ => return Ok(false),
        };
        let plain = op.cap.is_none()
            && op.alibi.is_none()
            && op.bucket.is_none()
            && op.entries.is_none()
            && op.selection.is_none();
        let fits = matches!(op.dim_k, 64 | 128)
            && op.dim_v == op.dim_k
            && group.dtype == DType::F16
            && group.block_size.is_multiple_of(32)
            && self.ground.groups[slot.group.index()].entry == 1
            && !self.keys_only(op.source);
        if !plain || !fits {
            return Ok(false);
        }
        let per_kv = op.n_heads / op.n_kv_heads;
        let together = [8, 4, 2, 1].into_iter().find(|&g| per_kv.is_multiple_of(g));
        let together = together.unwrap_or(1);
        let splits = self.limits().ctx.div_ceil(SPLIT);
        let per_row = u64::from(op.n_heads * splits) * u64::from(op.dim_k + 2) * 4;
        let most_rows = u64::from(self.most(Lead::Rows));
        let split_rows = (SPLIT_BYTES / per_row).clamp(1, SPLIT_ROWS).min(most_rows);
        let partial = self.shared_scratch(split_rows * per_row)?;
        let kernel = format!("flash_{}_{together}", op.dim_k);
        let heads = Extent::fixed(op.n_heads / together);
        let rows = Extent::rows(Lead::Rows);
        let tensor = self.ground.kernels.has_tensor_cores();
        if tensor {
            let name = format!("prompt_{}", op.dim_k);
            let function = self.ground.kernels.function("prompts", &name);
            let function = function.map_err(lost)?;
            let tiles = 3 * TILE * op.dim_k * 2;
            let bytes = match op.dim_k {
                128 => 2 * tiles,
                _ => 2 * (tiles + TILE * TILE * 4),
            };
            function.allow_shared(bytes).map_err(lost)?;
            let params = self.cache(slot, self.step());
            let params = params.u64s(&[self.at(node.ins[0]), self.maybe(op.sinks)]);
            let params = params.u64s(&[self.at(node.outs[0]), 0]);
            let params = params.u32s(&[op.n_heads, op.n_kv_heads, window, 0]);
            let params = params.f32(op.scale).u32s(&[0, 1]).align(8);
            let tiles = Extent::elements(Lead::Rows, 1, TILE);
            let grid = [Extent::fixed(op.n_heads), tiles, Extent::rows(Lead::Seqs)];
            self.kind = Some(RowKind::Prompt);
            self.launch(("prompts", &name), grid, (256, bytes), &params)?;
            self.kind = Some(RowKind::Reply);
        }
        for looped in [false, true] {
            let params: Params = self.cache(slot, self.step());
            let params = params.u64s(&[self.at(node.ins[0]), self.maybe(op.sinks)]);
            let params = params.u64s(&[self.at(node.outs[0]), partial]);
            let params = params.u32s(&[op.n_heads, op.n_kv_heads, window, splits]);
            let params = params
                .f32(op.scale)
                .u32s(&[looped.into(), tensor.into()])
                .align(8);
            let few = split_rows as u32;
            self.when = if looped {
                When::Many(few)
            } else {
                When::Few(few)
            };
            let blocks = if looped { 1 } else { splits };
            let grid = [heads, rows, Extent::fixed(blocks)];
            self.launch(("flash", &kernel), grid, (128, 0), &params)?;
            if !looped && splits > 1 {
                let grid = [Extent::fixed(op.n_heads), rows, Extent::ONE];
                self.launch(("flash", "flash_join"), grid, (op.dim_k, 0), &params)?;
            }
        }
        (self.when, self.kind) = (When::Always, None);
        Ok(true)
    }
}
