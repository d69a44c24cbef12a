//! Attention over cached halves, and heads on their way into it.

use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, BackendError, KvSource, Lead, Mask, Node, NormKind, Op, Pairing, SlotId, ValueId,
    WeightId,
};

use super::attention::is_plain;
use super::{Lowering, tape, unsupported};
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, FEW_ROWS, RowKind, When};
use crate::params::Params;
use crate::select::{Heads, Item};

/// Positions of a split.
pub(super) const SPLIT: u32 = 128;
/// In the place of a window: every row sees all that an encoder wrote.
const ALL_ENCODED: u32 = u32::MAX;
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

    /// Queries and keys are normalised and rotated, keys and values written to the cache: by a launch of their own, or by
    /// that of attention where it comes next and steps have one row of each sequence.
    pub(super) fn heads(&mut self, heads: &Heads, next: Option<&Item>) -> Result<(), BackendError> {
        let (params, warps) = self.heads_params(heads)?;
        if let Some(most) = self.attends(heads, next) {
            let q = self.plan.nodes[heads.rope_q].outs[0];
            self.heads.insert(q, heads.clone());
            self.singles = Some((false, most));
        }
        let grid = [
            Extent::fixed(warps.div_ceil(4)),
            Extent::rows(Lead::Rows),
            Extent::ONE,
        ];
        self.launch_early(("flash", "heads"), grid, (128, 0), &params)?;
        self.singles = None;
        Ok(())
    }

    /// Most rows for which the attention that comes next computes these heads for itself.
    fn attends(&self, heads: &Heads, next: Option<&Item>) -> Option<u32> {
        let node = &self.plan.nodes[crate::select::reader(self.plan, heads, next)?];
        let Op::Attention(op) = &node.op else {
            return None;
        };
        let (Op::Rope(rope), &Op::CacheWrite { slot }) = (
            &self.plan.nodes[heads.rope_q].op,
            &self.plan.nodes[heads.write].op,
        ) else {
            return None;
        };
        let (dim_v, v_heads) = self.value_heads(slot, self.plan.nodes[heads.write].ins[1]);
        let alike = op.source == KvSource::Cache(slot)
            && rope.head_dim == op.dim_k
            && (dim_v, v_heads) == (op.dim_v, op.n_kv_heads)
            && self.width(heads.q) == op.n_heads * op.dim_k
            && self.width(heads.k) == op.n_kv_heads * op.dim_k;
        (alike && self.is_flash(op)).then(|| self.split_rows(op))
    }

    fn heads_params(&mut self, heads: &Heads) -> Result<(Params, u32), BackendError> {
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
        Ok((params, counts.iter().sum()))
    }

    /// What attention with its heads is on a tape.
    fn words_of_attention(
        &mut self,
        heads: &Heads,
        node: &Node,
        (op, slot): (&AttentionOp, SlotId),
        window: u32,
    ) -> Result<tape::Attention, BackendError> {
        let plan = self.plan;
        let Op::Rope(rope) = &plan.nodes[heads.rope_q].op else {
            return Err(unsupported("heads of another kind"));
        };
        let (turns, pairs) = self.turns(rope)?;
        let (norm_q, norm_k) = (self.head_norm(heads.norm_q), self.head_norm(heads.norm_k));
        let len = |id: Option<WeightId>| id.map_or(1, |id| self.weight_len(id));
        let splits = self.limits().ctx.div_ceil(SPLIT);
        let numbers = Params::new().u32s(&[op.n_heads, op.n_kv_heads, window, splits]);
        let numbers = numbers.f32(op.scale).u32s(&[rope.offset, pairs]);
        let numbers = numbers.u32(u32::from(rope.pairing == Pairing::Halves));
        let numbers = numbers.u32s(&[norm_q.kind, norm_k.kind]);
        let numbers = numbers.u32s(&[len(norm_q.weight), len(norm_k.weight)]);
        Ok(tape::Attention {
            cache: self.cache(slot, Params::new()),
            heads: [heads.q, heads.k, plan.nodes[heads.write].ins[1]],
            weights: [self.maybe(norm_q.weight), self.maybe(norm_k.weight)],
            turns,
            sinks: self.maybe(op.sinks),
            to: node.outs[0],
            partial: u64::from(op.n_heads * splits) * u64::from(op.dim_k + 2) * 8,
            numbers: numbers.f32(norm_q.eps).f32(norm_k.eps),
        })
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

    /// Whether the kernels for halves do all that an attention asks for.
    fn is_flash(&self, op: &AttentionOp) -> bool {
        let (slot, sees) = match op.source {
            KvSource::Cache(slot) => (slot, matches!(op.mask, Mask::Causal | Mask::Window(_))),
            KvSource::Cross(slot) => (slot, op.mask == Mask::Full),
            KvSource::Rows => return false,
        };
        let group = self.ground.program.group(slot.group);
        let fits = matches!(op.dim_k, 64 | 128)
            && op.dim_v == op.dim_k
            && group.dtype == DType::F16
            && group.block_size.is_multiple_of(32)
            && self.ground.groups[slot.group.index()].entry == 1
            && !self.keys_only(op.source);
        is_plain(op) && fits && sees
    }

    /// Splits of the longest sequence.
    fn splits(&self, op: &AttentionOp) -> u32 {
        let most = match op.source {
            KvSource::Cross(_) => self.limits().enc_rows,
            _ => self.limits().ctx,
        };
        most.div_ceil(SPLIT).max(1)
    }

    /// Bytes that the splits of a row leave.
    fn split_bytes(&self, op: &AttentionOp) -> u64 {
        let splits = self.splits(op);
        u64::from(op.n_heads * splits) * u64::from(op.dim_k + 2) * 4
    }

    /// Most rows whose splits are computed side by side.
    fn split_rows(&self, op: &AttentionOp) -> u32 {
        let rows = (SPLIT_BYTES / self.split_bytes(op)).clamp(1, SPLIT_ROWS);
        rows.min(u64::from(self.most(Lead::Rows))) as u32
    }

    /// Attention by the kernels for halves; `false` where it asks for more than they do.
    pub(super) fn flash(&mut self, node: &Node, op: &AttentionOp) -> Result<bool, BackendError> {
        let (KvSource::Cache(slot) | KvSource::Cross(slot)) = op.source else {
            return Ok(false);
        };
        if !self.is_flash(op) {
            return Ok(false);
        }
        let window = match op.mask {
            Mask::Window(n) => n,
            Mask::Full => ALL_ENCODED,
            _ => 0,
        };
        let per_kv = op.n_heads / op.n_kv_heads;
        let together = [8, 4, 2, 1].into_iter().find(|&g| per_kv.is_multiple_of(g));
        let together = together.unwrap_or(1);
        let splits = self.splits(op);
        let split_rows = self.split_rows(op);
        let bytes = u64::from(split_rows) * self.split_bytes(op);
        let partial = self.shared_scratch(bytes)?;
        let kernel = format!("flash_{}_{together}", op.dim_k);
        let heads = Extent::fixed(op.n_heads / together);
        let rows = Extent::rows(Lead::Rows);
        // An encoder's keys are the same for prompts and replies.
        let causal = window != ALL_ENCODED;
        let tensor = causal && self.ground.kernels.has_tensor_cores();
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
        if let Some(own) = self.heads.remove(&node.ins[0]) {
            // Of few rows a block has fewer heads, so that it has them sooner.
            let apart = together.min(2);
            let most = self.most(Lead::Rows) * (op.n_heads / apart);
            let arrived = self.scratch(u64::from(most) * 4)?;
            let (params, _) = self.heads_params(&own)?;
            let flash = self.cache(slot, Params::new());
            let flash = flash.u64s(&[0, self.maybe(op.sinks), self.at(node.outs[0]), partial]);
            let flash = flash.u32s(&[op.n_heads, op.n_kv_heads, window, splits]);
            let flash = flash.f32(op.scale).u32s(&[0, 0]).u64(arrived);
            self.mode = self.early();
            self.singles = Some((true, split_rows));
            let params = params.then(&flash);
            let words = self.words_of_attention(&own, node, (op, slot), window)?;
            self.tape_attention(op, together, &params, words)?;
            for (when, heads) in [
                (When::Few(FEW_ROWS), apart),
                (When::Many(FEW_ROWS), together),
            ] {
                let threads = if heads > 1 { 256 } else { 128 };
                self.when = when;
                let name = format!("attend_{}_{heads}", op.dim_k);
                let blocks = Extent::fixed(op.n_heads / heads);
                let grid = [blocks, rows, Extent::fixed(splits)];
                self.launch(("flash", &name), grid, (threads, 0), &params)?;
            }
            self.when = When::Always;
            self.mode = Mode::Plain;
            self.singles = Some((false, split_rows));
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
            let few = split_rows;
            self.when = if looped {
                When::Many(few)
            } else {
                When::Few(few)
            };
            let blocks = if looped { 1 } else { splits };
            let grid = [heads, rows, Extent::fixed(blocks)];
            self.launch_early(("flash", &kernel), grid, (128, 0), &params)?;
            if !looped && splits > 1 {
                let grid = [Extent::fixed(op.n_heads), rows, Extent::ONE];
                self.launch_early(("flash", "flash_join"), grid, (op.dim_k, 0), &params)?;
            }
        }
        (self.when, self.kind, self.singles) = (When::Always, None, None);
        Ok(true)
    }
}
