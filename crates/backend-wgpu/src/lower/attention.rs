//! Cache writes, attention and chosen keys.

use tokkata_ir::op::BucketBias;
use tokkata_ir::{
    AttentionOp, BackendError, CompressOp, KvSource, Lead, Mask, Node, SelectOp, SlotId, ValueId,
};

use super::{Lowering, too_large};
use crate::launch::{Division, Extent, RowKind, SPAN, Split, UNIT};
use crate::params::{NONE, Params};
use crate::select::Heads;

/// Columns of the values that attention sums at most, and columns of a key.
const MOST_VALUES: u32 = 1024;
const MOST_KEYS: u32 = 1024;

/// Columns of keys and values that `attend.wgsl` has room for.
const MOST_COLUMNS: u32 = 256;
/// Queries of a workgroup of `attend_prompts.wgsl`.
const PROMPT_QUERIES: u32 = 32;
/// Most words for what workgroups leave among which keys are divided.
const MOST_PARTIAL: u64 = 4 << 20;

/// Workgroups that choose units, each with room for the scores of one row.
const CHOOSERS: u32 = 264;

impl Lowering<'_, '_> {
    pub(super) fn cache_write(
        &mut self,
        planes: &[ValueId],
        slot: SlotId,
    ) -> Result<(), BackendError> {
        for (plane, &value) in (0..).zip(planes) {
            let params = self.cache(slot, Params::new());
            let params = params.u32s(&[plane, self.at(value)]);
            let runs = self.width(value).div_ceil(32);
            let grid = [
                Extent::fixed(runs.div_ceil(32)),
                Extent::rows(Lead::Rows),
                Extent::ONE,
            ];
            self.launch(("attention.wgsl", "cache_write"), OWN, grid, &params)?;
        }
        Ok(())
    }

    /// Attention; of queries, keys and values as their products leave them where their heads are told.
    pub(super) fn attention(
        &mut self,
        node: &Node,
        op: &AttentionOp,
        heads: Option<&Heads>,
    ) -> Result<(), BackendError> {
        too_large("attention", "columns of a value", op.dim_v, MOST_VALUES)?;
        too_large("attention", "columns of a key", op.dim_k, MOST_KEYS)?;
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
        let turn = heads.map(|h| self.turn_words(h)).transpose()?;
        let cached = |params: Params, slot: Option<SlotId>| match slot {
            Some(slot) => self.cache(slot, params),
            None => Self::no_cache(params),
        };
        let params = match turn {
            Some(turn) => cached(Params::new(), slot).u32s(&turn).u32s(&[0; 2]),
            None => cached(cached(Params::new(), slot), op.entries),
        };
        let raw = heads.map(|h| [h.k, self.plan.nodes[h.write].ins[1]]);
        let own = raw.as_ref().map_or(own, |raw| &raw[..]);
        let of = |id: Option<&ValueId>| id.map_or((0, 0), |&id| (self.at(id), self.width(id)));
        let ((k, k_width), (v, v_width)) = (of(own.first()), of(own.last()));
        let q = heads.map_or(node.ins[0], |h| h.q);
        let params = params.u32s(&[self.at(q), k, v]);
        let params = params.u32(self.maybe(op.sinks));
        let slopes = op.alibi.map(|c| self.constant(c));
        let (buckets, distances) = match &op.bucket {
            Some(bias) => self.buckets(bias),
            None => (NONE, 1),
        };
        let params = params.u32(slopes.unwrap_or(NONE));
        let params = params.u32(op.bucket.map_or(NONE, |b| self.floats(b.table)));
        let params = params.u32s(&[buckets, chosen.map_or(NONE, |v| self.at(v))]);
        let params = params.u32s(&[self.at(node.outs[0]), distances]);
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
        let params = params.u32s(&selection);
        if self.ground.abilities.attend && is_plain(op) {
            return self.attend(op, heads.is_some(), &params);
        }
        let grid = [
            Extent::fixed(op.n_heads),
            Extent::rows(Lead::Rows),
            Extent::ONE,
        ];
        let own = [
            ("THREADS", 128),
            ("DIM_K", op.dim_k),
            ("FOURS", op.dim_k.is_multiple_of(4).into()),
        ];
        self.launch(("attention.wgsl", "attention"), &own, grid, &params)
    }

    /// One more than the type of all planes of a slot; 0 where they differ.
    fn cached_as(&self, source: KvSource) -> u32 {
        let (KvSource::Cache(slot) | KvSource::Cross(slot)) = source else {
            return 0;
        };
        let planes = &self.ground.groups[slot.group.index()].slots[slot.slot as usize];
        let first = planes[0].words()[3];
        let alike = planes.iter().all(|p| p.words()[3] == first);
        if alike { first + 1 } else { 0 }
    }

    /// Attention whose keys may be divided among workgroups, in three ways of which a step takes one; of rows of prompts by tiles.
    fn attend(
        &mut self,
        op: &AttentionOp,
        heads: bool,
        params: &Params,
    ) -> Result<(), BackendError> {
        let limits = self.limits();
        let positions = match op.source {
            KvSource::Cross(_) => Some(limits.enc_rows),
            _ => None,
        };
        let most = u64::from(positions.unwrap_or(limits.ctx).div_ceil(UNIT));
        let per_key = op.n_heads / op.n_kv_heads;
        let group = if per_key > 2 { 4 } else { per_key };
        let words = u64::from(op.n_heads * (op.dim_v + 4));
        let room = MOST_PARTIAL.min(words * most * u64::from(limits.rows));
        let division = Division {
            positions,
            groups: op.n_kv_heads * per_key.div_ceil(group),
            enough: self.ground.choices.keys,
            words,
            room,
        };
        let partial = self.shared_scratch(room)?;
        let cache = self.cached_as(op.source);
        // Steps in which attention turns heads have no rows of prompts.
        let apart = self.ground.abilities.attend_prompts && !heads;
        let extras = op.cap.is_some() || op.alibi.is_some() || op.bucket.is_some();
        if apart {
            let tiles = Extent::elements(Lead::Rows, 1, PROMPT_QUERIES / group);
            let grid = [Extent::fixed(division.groups), tiles, Extent::ONE];
            let own = own_of_prompts(cache, (op.dim_k, op.dim_v), group, extras);
            self.kind = Some(RowKind::Prompt);
            let kernel = ("attend_prompts.wgsl", "attend_prompts");
            self.launch(kernel, &own, grid, params)?;
            self.kind = Some(RowKind::Reply);
        }
        let own = own_of_replies(cache, (op.dim_k, op.dim_v), group, extras, heads);
        let own = [&own[..], &[("REPLIES", apart.into())]].concat();
        let rows = Extent::rows(Lead::Rows);
        for (code, split) in (0..).zip([Split::Whole, Split::Units, Split::Spans]) {
            let (per, parts) = match split {
                Split::Whole => (0, Extent::ONE),
                Split::Units => (UNIT, Extent::positions(UNIT)),
                Split::Spans => (SPAN, Extent::positions(SPAN)),
            };
            let fixed = positions.filter(|_| per > 0).map(|n| n.div_ceil(per));
            let parts = fixed.map_or(parts, Extent::fixed);
            let params = params.clone();
            let params = params.u32s(&[partial, code, fixed.unwrap_or(0)]);
            self.split = Some((division, split));
            let grid = [Extent::fixed(division.groups), rows, parts];
            self.launch(("attend.wgsl", "attend"), &own, grid, &params)?;
            if split != Split::Whole {
                let grid = [Extent::fixed(op.n_heads), rows, Extent::ONE];
                self.launch(("attend.wgsl", "merge"), &own, grid, &params)?;
            }
            self.split = None;
        }
        self.kind = None;
        Ok(())
    }

    /// The bucket of every distance, of keys up to the row and then of those after it.
    fn buckets(&mut self, bias: &BucketBias) -> (u32, u32) {
        let limits = self.limits();
        let distances = limits.ctx.max(limits.enc_rows).max(limits.rows) + 1;
        let behind = (0..distances).map(|d| bucket(bias, d, false));
        let ahead = (0..distances).map(|d| bucket(bias, d, true));
        let all: Vec<u32> = behind.chain(ahead).map(|b| b as u32).collect();
        (self.upload(all), distances)
    }

    pub(super) fn select(&mut self, node: &Node, op: &SelectOp) -> Result<(), BackendError> {
        let def = self.ground.program.group(op.slot.group);
        let entry = self.ground.groups[op.slot.group.index()].entry;
        let positions = self.limits().ctx.next_multiple_of(def.block_size);
        let units = (positions / entry).div_ceil(op.unit) + 1;
        let scores = self.shared_scratch(u64::from(units) * u64::from(CHOOSERS))?;
        let weights = node.ins.get(1).map_or(0, |&v| self.at(v));
        let params = self.cache(op.slot, Params::new());
        let params = params.u32s(&[self.at(node.ins[0]), weights, scores]);
        let params = params.u32s(&[self.at(node.outs[0]), units]);
        let params = params.u32s(&[op.n_heads, op.dim, op.summed.into()]);
        let params = params.u32s(&[op.top_k, op.unit, op.local]).f32(op.scale);
        let jobs = Extent::elements(Lead::Rows, op.choices().into(), 1).at_most(CHOOSERS);
        let grid = [jobs, Extent::ONE, Extent::ONE];
        self.launch(("attention.wgsl", "select_units"), OWN, grid, &params)
    }

    pub(super) fn compress(&mut self, node: &Node, op: &CompressOp) -> Result<(), BackendError> {
        self.cache_write(&node.ins, op.slot)?;
        let (width, wide) = (self.width(node.outs[0]), self.width(node.ins[0]));
        let params = self.cache(op.slot, Params::new());
        let params = params.u32s(&[self.floats(op.ape), self.at(node.outs[0])]);
        let params = params.u32s(&[op.ratio, op.overlap.into(), width, wide]);
        let grid = [Extent::rows(Lead::Rows), Extent::ONE, Extent::ONE];
        self.launch(("attention.wgsl", "compress"), OWN, grid, &params)
    }
}

/// Constants of `attend.wgsl`: as those of `attend_prompts.wgsl`, whether it turns heads, and how often its loops turn.
pub(crate) fn own_of_replies(
    cache: u32,
    (dim_k, dim_v): (u32, u32),
    group: u32,
    extras: bool,
    heads: bool,
) -> [(&'static str, u32); 12] {
    let [a, b, c, d, e, f] = own_of_prompts(cache, (dim_k, dim_v), group, extras);
    [
        a,
        b,
        c,
        d,
        e,
        f,
        ("AHEAD", 8),
        ("DOTS", (group / 2).max(1)),
        ("EACH", (group * dim_v / 4).div_ceil(128)),
        ("FETCHES", (dim_k / 4).div_ceil(8)),
        ("THREADS", 128),
        ("HEADS", heads.into()),
    ]
}

/// Constants of `attend_prompts.wgsl`: of the type of a cache, columns of keys and values, heads of a workgroup, and whether scores are
/// more than products.
pub(crate) fn own_of_prompts(
    cache: u32,
    (dim_k, dim_v): (u32, u32),
    group: u32,
    extras: bool,
) -> [(&'static str, u32); 6] {
    [
        ("CACHE", cache),
        ("DIM_K", dim_k),
        ("DIM_V", dim_v),
        ("EXTRAS", extras.into()),
        ("GROUP", group),
        ("WORK_VEC4", 1),
    ]
}

/// Whether `attend.wgsl` does all that an attention asks for.
pub(crate) fn is_plain(op: &AttentionOp) -> bool {
    let cached = matches!(op.source, KvSource::Cache(_) | KvSource::Cross(_));
    let fits = |n: u32| n.is_multiple_of(4) && n <= MOST_COLUMNS;
    cached && op.entries.is_none() && op.selection.is_none() && fits(op.dim_k) && fits(op.dim_v)
}

/// Constants of kernels that have no use for them.
const OWN: &[(&str, u32)] = &[("THREADS", 256), ("DIM_K", 1)];

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
