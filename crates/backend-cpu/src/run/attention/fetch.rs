//! Keys and values of a tile: where they lie, or a copy in the form the kernel reads.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::null;

use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{KvSource, SlotId};

use super::super::cache::{BlockAt, Kind, Kv, Plane, Q8_BLOCK};
use super::super::cx::Cx;
use super::{Attention, Item};
use crate::kernels::Kernel as Set;
use crate::kernels::attention::{GROUPS, TILE, Tile, widen_codes, widen_panel};
use crate::kernels::lanes::N;

/// Copies of a tile's keys `[groups][dim_k][16]` and values `[positions][dim_v]`.
type Copies<'a> = (&'a mut Vec<f32>, &'a mut Vec<f32>);

impl Attention {
    /// The tile at `first`; only positions in `span` are looked at, and tiles before `end` will follow.
    pub(super) fn fetch(
        &self,
        cx: &Cx<'_>,
        item: &Item,
        (first, end): (usize, usize),
        span: &Range<usize>,
        copies: Copies<'_>,
    ) -> Tile {
        match self.source {
            KvSource::Rows => self.own_rows(cx, item, first, span, copies),
            KvSource::Cache(slot) | KvSource::Cross(slot) => {
                let kv = cx.caches.kv(slot);
                for &plane in &self.cached {
                    cx.watch.note(plane, (0, 0..0), None, false);
                }
                let from = Paged {
                    cx,
                    slot,
                    kv,
                    table: cx.step.table(slot.group, item.seq),
                    head: item.kv_head,
                };
                self.paged(&from, (first, end), span, copies)
            }
        }
    }

    fn paged(
        &self,
        from: &Paged<'_>,
        (first, end): (usize, usize),
        span: &Range<usize>,
        copies: Copies<'_>,
    ) -> Tile {
        let (keys, values) = copies;
        let whole = from.kv.keys.panels;
        let direct = |plane: &Plane| whole && matches!(plane.kind, Kind::F32 | Kind::F16);
        let direct_keys = direct(&from.kv.keys);
        let direct_values = from.kv.values.as_ref().is_some_and(direct);
        let mut tile = copied_tile(first, self.form.dim_k, self.form.dim_v, keys, values);
        if direct_keys {
            tile.half_keys = from.kv.keys.kind == Kind::F16;
        }
        if let Some(plane) = from.kv.values.filter(|_| direct_values) {
            tile.half_values = plane.kind == Kind::F16;
            tile.value_stride = plane.padded;
        }
        for g in groups(first, span) {
            let start = first + g * N;
            let later = (start + TILE < end).then_some(start + TILE);
            if direct_keys {
                tile.keys[g] = from.panel(&from.kv.keys, start);
                tile.next_keys[g] = later.map_or(null(), |p| from.panel(&from.kv.keys, p));
            } else {
                from.copy_keys(start, span, &mut keys[g * N * self.form.dim_k..]);
            }
            match from.kv.values.filter(|_| direct_values) {
                Some(plane) => {
                    tile.values[g] = from.panel(&plane, start);
                    tile.next_values[g] = later.map_or(null(), |p| from.panel(&plane, p));
                }
                None => self.copy_values(from, start, span, &mut values[g * N * self.form.dim_v..]),
            }
        }
        tile
    }

    fn copy_values(&self, from: &Paged<'_>, start: usize, span: &Range<usize>, to: &mut [f32]) {
        let plane = from.kv.values.unwrap_or(from.kv.keys);
        for p in start.max(span.start)..(start + N).min(span.end) {
            let (head, at) = from.at(&plane, p);
            let to = &mut to[(p - start) * self.form.dim_v..][..self.dim_v];
            // SAFETY: the head lies in the pool; no one writes this slot before the next barrier.
            unsafe { copy_row(from.cx.kernel, &plane, head, at, to) };
        }
    }

    fn own_rows(
        &self,
        cx: &Cx<'_>,
        item: &Item,
        first: usize,
        span: &Range<usize>,
        copies: Copies<'_>,
    ) -> Tile {
        let (keys, values) = copies;
        let (dim_k, dim_v) = (self.form.dim_k, self.form.dim_v);
        let (k, v) = self.own.expect("own rows come with keys");
        let stride_v = if v.is_some() { self.dim_v } else { dim_k };
        let row_of = |p: usize| cx.step.first_row(item.seq) + p - cx.step.past_len(item.seq);
        for p in span.clone() {
            let (g, lane) = ((p - first) / N, (p - first) % N);
            let key = &cx.row(k, row_of(p))[item.kv_head * dim_k..][..dim_k];
            for (d, &x) in key.iter().enumerate() {
                keys[(g * dim_k + d) * N + lane] = x;
            }
            let value = &cx.row(v.unwrap_or(k), row_of(p))[item.kv_head * stride_v..][..self.dim_v];
            values[(p - first) * dim_v..][..self.dim_v].copy_from_slice(value);
        }
        copied_tile(first, dim_k, dim_v, keys, values)
    }
}

/// A tile that reads the copies.
fn copied_tile(first: usize, dim_k: usize, dim_v: usize, keys: &[f32], values: &[f32]) -> Tile {
    let group = |x: &[f32], dim: usize| std::array::from_fn(|g| x[g * N * dim..].as_ptr().cast());
    Tile {
        keys: if keys.len() < TILE * dim_k {
            [null(); GROUPS]
        } else {
            group(keys, dim_k)
        },
        values: if values.len() < TILE * dim_v {
            [null(); GROUPS]
        } else {
            group(values, dim_v)
        },
        value_stride: dim_v,
        half_keys: false,
        half_values: false,
        next_keys: [null(); GROUPS],
        next_values: [null(); GROUPS],
        first,
    }
}

/// Groups of the tile at `first` with a position in `span`.
fn groups(first: usize, span: &Range<usize>) -> Range<usize> {
    (span.start - first) / N..(span.end - first).div_ceil(N)
}

/// One head of a slot as a sequence sees it.
struct Paged<'a> {
    cx: &'a Cx<'a>,
    slot: SlotId,
    kv: &'a Kv,
    table: &'a [u32],
    head: usize,
}

impl Paged<'_> {
    fn block(&self, position: usize) -> (BlockAt, usize) {
        let size = self.cx.caches.block_size(self.slot.group);
        let block = self.table[position / size];
        assert_ne!(block, NO_BLOCK, "a visible position has a block");
        (
            self.cx.caches.block(self.slot, self.kv, block),
            position % size,
        )
    }

    /// Head and place inside its block of a position.
    fn at(&self, plane: &Plane, position: usize) -> (*const u8, usize) {
        let (block, at) = self.block(position);
        (block.head(plane, self.head), at)
    }

    /// Sixteen positions that share a block.
    fn panel(&self, plane: &Plane, position: usize) -> *const u8 {
        let (head, at) = self.at(plane, position);
        let bytes = if plane.kind == Kind::F32 { 4 } else { 2 };
        head.wrapping_add(plane.element(at, 0) * bytes)
    }

    fn copy_keys(&self, start: usize, span: &Range<usize>, to: &mut [f32]) {
        let plane = &self.kv.keys;
        if plane.panels && plane.kind == Kind::Q8 && plane.granule == Q8_BLOCK {
            let (head, at) = self.at(plane, start);
            // SAFETY: a panel of sixteen positions lies inside its head, its scales behind the codes.
            unsafe {
                let codes = std::slice::from_raw_parts(
                    head.cast::<i8>().add(plane.element(at, 0)),
                    plane.dim * N,
                );
                let scales = head
                    .add(plane.code_bytes())
                    .cast::<u16>()
                    .add(plane.scale(at, 0));
                let scales = std::slice::from_raw_parts(scales, plane.dim / Q8_BLOCK * N);
                widen_panel(self.cx.kernel, codes, scales, to);
            }
            return;
        }
        for p in start.max(span.start)..(start + N).min(span.end) {
            let (head, at) = self.at(plane, p);
            for d in 0..plane.dim {
                // SAFETY: as in `copy_values`.
                to[d * N + p - start] = unsafe { plane.load(head, at, d) };
            }
        }
    }
}

/// Columns of one position.
///
/// # Safety
/// `head` is this plane's head in a block that no one writes.
unsafe fn copy_row(set: Set, plane: &Plane, head: *const u8, at: usize, to: &mut [f32]) {
    if plane.kind == Kind::Q8 && !plane.panels && plane.granule == Q8_BLOCK && to.len() == plane.dim
    {
        // SAFETY: the row's codes and scales lie inside the head.
        unsafe {
            let codes =
                std::slice::from_raw_parts(head.cast::<i8>().add(plane.element(at, 0)), plane.dim);
            let scales = head
                .add(plane.code_bytes())
                .cast::<u16>()
                .add(plane.scale(at, 0));
            let scales = std::slice::from_raw_parts(scales, plane.dim / Q8_BLOCK);
            widen_codes(set, codes, scales, to);
        }
        return;
    }
    for (d, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *to = unsafe { plane.load(head, at, d) };
    }
}
