//! Cache writes, attention and chosen keys.

use tokkata_core::DType;
use tokkata_ir::op::BucketBias;
use tokkata_ir::{
    AttentionOp, BackendError, CompressOp, KvSource, Lead, Mask, Node, SelectOp, SlotId, ValueId,
};

use super::{Lowering, too_large};
use crate::driver::Mode;
use crate::error::lost;
use crate::launch::{Extent, RowKind};
use crate::params::Params;

/// Threads of attention; each sums at most eight columns of the values.
const THREADS: u32 = 128;
const MOST_VALUES: u32 = 8 * THREADS;

/// Rows and keys that a block of `whole.cu` takes at a time, and numbers from one of its columns to the next.
const WHOLE_TILE: u32 = 64;
const WHOLE_PITCH: u32 = WHOLE_TILE + 4;

/// Blocks that choose units, each with room for the scores of one row.
const CHOOSERS: u32 = 264;

/// How a sequence's rows attend among themselves.
pub(super) struct WholeShape {
    /// Columns of queries, keys and values.
    widths: [u32; 3],
    /// Rows before and after a row that it sees.
    reach: u32,
    /// Whether tensor cores multiply, and whether those of 9.0 do.
    tensor: bool,
    pub(super) wide: bool,
}

/// Whether scores are nothing but scaled dots, of all keys that the mask lets a row see.
pub(super) fn is_plain(op: &AttentionOp) -> bool {
    op.cap.is_none()
        && op.alibi.is_none()
        && op.bucket.is_none()
        && op.entries.is_none()
        && op.selection.is_none()
}

impl Lowering<'_, '_> {
    pub(super) fn cache_write(
        &mut self,
        planes: &[ValueId],
        slot: SlotId,
    ) -> Result<(), BackendError> {
        for (plane, &value) in (0..).zip(planes) {
            let params = self.cache(slot, self.step()).u32(plane).u64(self.at(value));
            let runs = self.width(value).div_ceil(32);
            let warps = runs.min(8);
            let grid = [
                Extent::fixed(runs.div_ceil(warps)),
                Extent::rows(Lead::Rows),
                Extent::ONE,
            ];
            self.launch(("attention", "cache_write"), grid, (warps * 32, 0), &params)?;
        }
        Ok(())
    }

    pub(super) fn attention(&mut self, node: &Node, op: &AttentionOp) -> Result<(), BackendError> {
        if self.flash(node, op)? || self.whole(node, op)? {
            return Ok(());
        }
        too_large("attention", "columns of a value", op.dim_v, MOST_VALUES)?;
        let (mask, mask_n) = match op.mask {
            Mask::Causal => (0, 0),
            Mask::Full => (1, 0),
            Mask::Window(n) => (2, n),
            Mask::Chunk(n) => (3, n),
            Mask::Symmetric(n) => (4, n),
        };
        let (source, slot) = match op.source {
            KvSource::Cache(slot) => (0, Some(slot)),
            KvSource::Rows => (1, None),
            KvSource::Cross(slot) => (2, Some(slot)),
        };
        let chosen = op.selection.map(|_| node.ins[node.ins.len() - 1]);
        // The step's own rows: keys, then values, which are the keys where there are no others.
        let own = &node.ins[1..node.ins.len() - usize::from(chosen.is_some())];
        let keys_only = match source {
            1 => own.len() == 1,
            _ => self.keys_only(op.source),
        };
        let stride_v = if keys_only { op.dim_k } else { op.dim_v };
        let cached = |params: Params, slot: Option<SlotId>| match slot {
            Some(slot) => self.cache(slot, params),
            None => Self::no_cache(params),
        };
        let params = cached(cached(self.step(), slot), op.entries);
        let of = |id: Option<&ValueId>| id.map_or((0, 0), |&id| (self.at(id), self.width(id)));
        let ((k, k_width), (v, v_width)) = (of(own.first()), of(own.last()));
        let params = params.u64s(&[self.at(node.ins[0]), k, v]);
        let params = params.u64(self.maybe(op.sinks));
        let slopes = op.alibi.map(|c| self.constant(c)).transpose()?;
        let (buckets, distances) = match &op.bucket {
            Some(bias) => self.buckets(bias)?,
            None => (0, 1),
        };
        let params = params.u64(slopes.unwrap_or(0));
        let params = params.u64(op.bucket.map_or(0, |b| self.floats(b.table)));
        let params = params.u64s(&[buckets, chosen.map_or(0, |v| self.at(v))]);
        let params = params.u64(self.at(node.outs[0])).u32(distances);
        let params = params.u32s(&[op.n_heads, op.n_kv_heads, op.dim_k, op.dim_v, stride_v]);
        let params = params.u32s(&[k_width, v_width]).f32(op.scale);
        let params = params
            .f32(op.cap.unwrap_or(0.0))
            .u32s(&[mask, mask_n, source]);
        let params = params.u32(op.entries.is_some().into());
        let selection = op.selection.map_or([0, 1, 1, 0], |s| {
            let width = chosen.map_or(0, |v| self.width(v));
            [width, s.choices, s.unit, s.tail.into()]
        });
        let params = params.u32s(&selection).align(8);
        let grid = [
            Extent::fixed(op.n_heads),
            Extent::rows(Lead::Rows),
            Extent::ONE,
        ];
        let shape = (THREADS, op.dim_k * 4);
        self.launch(("attention", "attention"), grid, shape, &params)
    }

    /// How attention of a sequence's rows among themselves goes; `None` where it asks for more than the kernels of `whole.cu` do.
    pub(super) fn whole_shape(&self, node: &Node, op: &AttentionOp) -> Option<WholeShape> {
        let plain = is_plain(op) && op.sinks.is_none();
        let reach = match op.mask {
            Mask::Full => Some(u32::MAX),
            Mask::Symmetric(window) => Some(window / 2),
            _ => None,
        };
        let ([q, k, v], Some(reach)) = (&node.ins[..], reach) else {
            return None;
        };
        let tensor = self.ground.kernels.has_tensor_cores();
        let widths = [*q, *k, *v].map(|x| self.width(x));
        let dim = op.dim_k;
        let fits = matches!(dim, 32 | 64) || (dim == 128 && tensor);
        let aligned = widths.iter().all(|w| w.is_multiple_of(8)) && op.dim_v == dim;
        // On 9.0 heads of 64 columns have kernels of their own.
        let wide = dim == 64 && self.ground.kernels.has_words();
        let whole = !wide || widths.iter().all(|w| w.is_multiple_of(dim));
        let own = op.source == KvSource::Rows;
        (plain && own && fits && aligned && whole).then_some(WholeShape {
            widths,
            reach,
            tensor,
            wide,
        })
    }

    /// Space for queries, keys and values in halves, and for their units; zeros where no tensor cores read them.
    fn whole_space(&mut self, shape: &WholeShape) -> Result<(u64, u64), BackendError> {
        let columns = u64::from(shape.widths.iter().sum::<u32>());
        if shape.wide {
            let space = self.space_of_heads(columns, false)?;
            return Ok((space.parts, space.units));
        }
        if !shape.tensor {
            return Ok((0, 0));
        }
        let rows = u64::from(self.most(Lead::Rows));
        let halves = 2 * rows * columns;
        let parts = self.shared_scratch(halves * 2 + rows * 3 * 4)?;
        Ok((parts, parts + halves * 2))
    }

    /// Attention of a sequence's rows among themselves; `false` where it asks for more than the kernels of `whole.cu` do.
    fn whole(&mut self, node: &Node, op: &AttentionOp) -> Result<bool, BackendError> {
        let Some(shape) = self.whole_shape(node, op) else {
            return Ok(false);
        };
        let WholeShape {
            widths,
            reach,
            tensor,
            wide,
        } = shape;
        let (rows, dim) = (self.most(Lead::Rows), op.dim_k);
        let left = self.heads_left.remove(&node.ins[0]);
        let (parts, units) = match left {
            Some(space) => (space.parts, space.units),
            None => self.whole_space(&shape)?,
        };
        let [q, k, v] = [0, 1, 2].map(|i| self.at(node.ins[i]));
        let params = self.step().u64s(&[q, k, v, self.at(node.outs[0])]);
        let params = params.u64s(&[parts, units]);
        let params = params.u32s(&[op.n_heads, op.n_kv_heads, dim, widths[1], widths[2]]);
        let params = params.u32s(&[reach, rows]).f32(op.scale);
        let params = params.u32s(&[left.is_some().into(), 0]);
        let cut = match wide {
            true => self.cut_for_next(node.outs[0], DType::F16)?,
            false => None,
        };
        let params = match cut {
            Some(cut) => cut.params(0, params),
            None => params.u64s(&[0; 5]),
        };
        let params = params.align(8);
        let grid = |rows: u32| {
            [
                Extent::fixed(op.n_heads),
                Extent::elements(Lead::Rows, 1, rows),
                Extent::rows(Lead::Seqs),
            ]
        };
        // Two halves of the keys and values of a tile.
        let bytes = 2 * 2 * 2 * WHOLE_TILE * dim;
        if wide {
            let tiles = Extent::elements(Lead::Rows, 1, WHOLE_TILE);
            let heads = widths.iter().max().map_or(0, |w| w / dim);
            let each = [tiles, Extent::fixed(heads), Extent::fixed(3)];
            self.kind = left.map(|_| RowKind::Reply);
            self.launch_early(("whole", "whole_cut_wide"), each, (256, 0), &params)?;
            // Of two tiles, and of those of queries.
            (self.kind, self.mode) = (None, self.early());
            let attended = self.whole_by(
                "whole16_64",
                grid(2 * WHOLE_TILE),
                (256, 3 * bytes),
                &params,
            );
            self.mode = Mode::Plain;
            return attended.map(|()| true);
        }
        if tensor {
            let each = [Extent::rows(Lead::Rows), Extent::fixed(3), Extent::ONE];
            self.launch(("whole", "whole_cut"), each, (256, 0), &params)?;
            let name = format!("whole16_{dim}");
            self.whole_by(&name, grid(WHOLE_TILE), (128, bytes), &params)?;
        }
        let across = (dim + dim.max(WHOLE_TILE)) * WHOLE_PITCH;
        let bytes = 4 * (across + WHOLE_TILE * dim);
        self.whole_by(
            &format!("whole_{dim}"),
            grid(WHOLE_TILE),
            (256, bytes),
            &params,
        )?;
        Ok(true)
    }

    fn whole_by(
        &mut self,
        name: &str,
        grid: [Extent; 3],
        shape: (u32, u32),
        params: &Params,
    ) -> Result<(), BackendError> {
        let function = self.ground.kernels.function("whole", name);
        function
            .and_then(|f| f.allow_shared(shape.1))
            .map_err(lost)?;
        self.launch(("whole", name), grid, shape, params)
    }

    /// The bucket of every distance, of keys up to the row and then of those after it.
    fn buckets(&mut self, bias: &BucketBias) -> Result<(u64, u32), BackendError> {
        let limits = self.limits();
        let distances = limits.ctx.max(limits.enc_rows).max(limits.rows) + 1;
        let behind = (0..distances).map(|d| bucket(bias, d, false));
        let ahead = (0..distances).map(|d| bucket(bias, d, true));
        let all: Vec<i32> = behind.chain(ahead).collect();
        Ok((self.upload(&all)?, distances))
    }

    pub(super) fn select(&mut self, node: &Node, op: &SelectOp) -> Result<(), BackendError> {
        let def = self.ground.program.group(op.slot.group);
        let entry = self.ground.groups[op.slot.group.index()].entry;
        let positions = self.limits().ctx.next_multiple_of(def.block_size);
        let units = (positions / entry).div_ceil(op.unit) + 1;
        let scores = self.scratch(u64::from(units) * u64::from(CHOOSERS) * 4)?;
        let weights = node.ins.get(1).map_or(0, |&v| self.at(v));
        let params = self.cache(op.slot, self.step());
        let params = params.u64s(&[self.at(node.ins[0]), weights, scores]);
        let params = params.u64(self.at(node.outs[0]));
        let params = params.u32s(&[units, op.n_heads, op.dim, op.summed.into()]);
        let params = params.u32s(&[op.top_k, op.unit, op.local]).f32(op.scale);
        let jobs = Extent::elements(Lead::Rows, op.choices().into(), 1).at_most(CHOOSERS);
        let grid = [jobs, Extent::ONE, Extent::ONE];
        self.launch(
            ("attention", "select_units"),
            grid,
            (256, 0),
            &params.align(8),
        )
    }

    pub(super) fn compress(&mut self, node: &Node, op: &CompressOp) -> Result<(), BackendError> {
        self.cache_write(&node.ins, op.slot)?;
        let (width, wide) = (self.width(node.outs[0]), self.width(node.ins[0]));
        let params = self.cache(op.slot, self.step());
        let params = params.u64s(&[self.floats(op.ape), self.at(node.outs[0])]);
        let params = params.u32s(&[op.ratio, op.overlap.into(), width, wide]);
        let grid = [Extent::rows(Lead::Rows), Extent::ONE, Extent::ONE];
        self.launch(("attention", "compress"), grid, (128, 0), &params)
    }
}

/// T5's bucket of a distance: exact for near keys, then logarithmic up to the farthest (Raffel et al., 2019). In f32, as
/// every implementation has it: bucket borders depend on the rounding.
fn bucket(bias: &BucketBias, distance: u32, after: bool) -> i32 {
    let buckets = if bias.bidirectional {
        bias.buckets / 2
    } else {
        bias.buckets
    };
    let distance = if after && !bias.bidirectional {
        0
    } else {
        distance
    };
    let exact = buckets / 2;
    let near = if distance < exact {
        distance
    } else {
        let ratio = (distance as f32 / exact as f32).ln();
        let range = (f64::from(bias.max_distance) / f64::from(exact)).ln();
        let far = f64::from(ratio * (buckets - exact) as f32) / range;
        (f64::from(exact) + far).floor().min(f64::from(buckets - 1)) as u32
    };
    let ahead = bias.bidirectional && after;
    (near + if ahead { buckets } else { 0 }) as i32
}

#[cfg(test)]
mod tests {
    use tokkata_ir::WeightId;

    use super::*;

    #[test]
    fn buckets_are_exact_then_logarithmic() {
        let bias = BucketBias {
            table: WeightId(0),
            buckets: 8,
            max_distance: 16,
            bidirectional: false,
        };
        let found: Vec<i32> = [0, 3, 4, 6, 8, 12, 16, 99]
            .map(|d| bucket(&bias, d, false))
            .into();
        assert_eq!(found, [0, 3, 4, 5, 6, 7, 7, 7]);
        assert_eq!(bucket(&bias, 5, true), 0);
        let both = BucketBias {
            bidirectional: true,
            ..bias
        };
        assert_eq!([bucket(&both, 1, false), bucket(&both, 1, true)], [1, 5]);
    }
}
