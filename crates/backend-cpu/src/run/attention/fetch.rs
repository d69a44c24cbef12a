//! Keys and values of a tile: where they lie, or a copy in the form the kernel reads.
#![allow(unsafe_code)]

use std::array::from_fn;
use std::ops::Range;
use std::ptr::null;

use tokkata_ir::SlotId;
use tokkata_ir::step::NO_BLOCK;

use super::super::cache::{BlockAt, Kind, Kv, Plane, Q8_BLOCK};
use super::super::cx::Cx;
use super::keys::{From, Keys};
use super::{Attention, Item};
use crate::kernels::attention::{GROUPS, Row, TILE, Tile, panel_of_rows, row_floats, widen_panel};
use crate::kernels::lanes::N;
use crate::tuning::Near;

/// Copies of a tile's keys `[groups][dim_k][16]` and values `[positions][dim_v]`.
type Copies<'a> = (&'a mut Vec<f32>, &'a mut Vec<f32>);

impl Attention {
    /// The tile at `first`; only keys in `span` are looked at, and tiles before `end` will follow.
    pub(super) fn fetch(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        (first, end): (usize, usize),
        span: &Range<usize>,
        (held, copies): (&Held, Copies<'_>),
    ) -> Tile {
        let (From::Positions(slot) | From::Entries(slot, _)) = keys.from else {
            return match held.of {
                Some(_) => held.tile(first, (self.form.dim_k, self.form.dim_v)),
                None => self.own_rows(cx, (item, keys), (first, span), copies),
            };
        };
        for &plane in &self.cached {
            cx.watch.note(plane, (0, 0..0), None, false);
        }
        let from = Paged::new(cx, slot, item.seq, item.kv_head);
        match keys.list {
            None => self.paged(&from, (first, end), span, copies),
            Some(_) => self.picked(&from, keys, (first, span), copies),
        }
    }

    /// Keys and values that follow each other.
    fn paged(
        &self,
        from: &Paged<'_>,
        (first, end): (usize, usize),
        span: &Range<usize>,
        (keys, values): Copies<'_>,
    ) -> Tile {
        let mut tile = copied_tile(first, (self.form.dim_k, self.form.dim_v), keys, values);
        from.keys((first, end), span, (&mut tile, keys));
        let plane = from.kv.values.unwrap_or(from.kv.keys);
        let direct = plane.grouped && plane.is_float() && !plane.panels;
        if direct {
            tile.half_values = plane.kind == Kind::F16;
            tile.near = from.cx.kernel.near;
            tile.value_stride = plane.padded;
        }
        for g in groups(first, span) {
            let start = first + g * N;
            if direct {
                let later = (start + TILE < end).then_some(start + TILE);
                tile.values[g] = from.group(&plane, start);
                tile.next_values[g] = later.map_or(null(), |p| from.group(&plane, p));
            } else {
                let run = start.max(span.start)..(start + N).min(span.end);
                let to = &mut values[g * N * self.form.dim_v..];
                from.copy_rows(
                    &plane,
                    run.map(|p| (p, p - start)),
                    (to, self.form.dim_v, self.dim_v),
                );
            }
        }
        tile
    }

    /// Keys and values that a list names, copied.
    fn picked(
        &self,
        from: &Paged<'_>,
        keys: &Keys<'_>,
        (first, span): (usize, &Range<usize>),
        (key_copy, value_copy): Copies<'_>,
    ) -> Tile {
        let plane = from.kv.values.unwrap_or(from.kv.keys);
        for g in groups(first, span) {
            let start = first + g * N;
            let run = start.max(span.start)..(start + N).min(span.end);
            let to = &mut key_copy[g * N * self.form.dim_k..];
            from.copy_panel(run.clone().map(|n| (keys.at(n), n - start)), to);
            let to = &mut value_copy[g * N * self.form.dim_v..];
            let run = run.map(|n| (keys.at(n), n - start));
            from.copy_rows(&plane, run, (to, self.form.dim_v, self.dim_v));
        }
        copied_tile(
            first,
            (self.form.dim_k, self.form.dim_v),
            key_copy,
            value_copy,
        )
    }

    /// Keys and values of the step's own rows, copied.
    fn own_rows(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        (first, span): (usize, &Range<usize>),
        (key_copy, value_copy): Copies<'_>,
    ) -> Tile {
        let (dim_k, dim_v) = (self.form.dim_k, self.form.dim_v);
        for g in groups(first, span) {
            let start = first + g * N;
            let run = start.max(span.start)..(start + N).min(span.end);
            let run = run.map(|n| (keys.at(n), n - start));
            let to = (
                &mut key_copy[g * N * dim_k..],
                &mut value_copy[g * N * dim_v..],
            );
            self.own_group(cx, item, run, to);
        }
        copied_tile(first, (dim_k, dim_v), key_copy, value_copy)
    }

    /// Up to sixteen positions of the step's own rows, each with its lane.
    fn own_group(
        &self,
        cx: &Cx<'_>,
        item: &Item,
        positions: impl Iterator<Item = (usize, usize)> + Clone,
        (keys, values): (&mut [f32], &mut [f32]),
    ) {
        let (dim_k, dim_v) = (self.form.dim_k, self.form.dim_v);
        let (k, v) = self.own.expect("own rows come with keys");
        let stride_v = if v.is_some() { self.dim_v } else { dim_k };
        let row_of = |p: usize| cx.step.first_row(item.seq) + p - cx.step.past_len(item.seq);
        let key = |p: usize| &cx.row(k, row_of(p))[item.kv_head * dim_k..][..dim_k];
        let Some((first, _)) = positions.clone().next() else {
            return;
        };
        // Rows are read sixteen columns at a time.
        if dim_k.is_multiple_of(N) {
            let mut rows = [Row::Floats(key(first).as_ptr()); N];
            for (p, lane) in positions.clone() {
                rows[lane] = Row::Floats(key(p).as_ptr());
            }
            // SAFETY: the rows above; no one writes them before the next barrier.
            unsafe { panel_of_rows(cx.kernel, &rows, dim_k, keys) };
        } else {
            for (p, lane) in positions.clone() {
                for (d, &x) in key(p).iter().enumerate() {
                    keys[d * N + lane] = x;
                }
            }
        }
        for (p, lane) in positions {
            let value = &cx.row(v.unwrap_or(k), row_of(p))[item.kv_head * stride_v..];
            values[lane * dim_v..][..self.dim_v].copy_from_slice(&value[..self.dim_v]);
        }
    }

    /// Copies all keys and values of an item's head, unless they are there from an item before.
    pub(super) fn hold(&self, cx: &Cx<'_>, item: &Item, held: &mut Held) {
        let of = Some((item.seq, item.kv_head));
        if held.of == of {
            return;
        }
        let (dim_k, dim_v) = (self.form.dim_k, self.form.dim_v);
        let past = cx.step.past_len(item.seq);
        let end = past + cx.step.row_count(item.seq);
        (held.of, held.first) = (of, past / TILE * TILE);
        let rows = (end - held.first).next_multiple_of(N);
        held.keys.resize(rows * dim_k, 0.0);
        held.values.resize(rows * dim_v, 0.0);
        for start in (held.first..end).step_by(N) {
            let run = start.max(past)..(start + N).min(end);
            let at = start - held.first;
            let to = (&mut held.keys[at * dim_k..], &mut held.values[at * dim_v..]);
            self.own_group(cx, item, run.map(|p| (p, p - start)), to);
        }
    }
}

/// All keys and values of one head of a sequence, which rows of several items read.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The sequence and the key head.
    pub(super) of: Option<(usize, usize)>,
    /// The position of the first.
    first: usize,
    /// Panels `[positions / 16][dim_k][16]`.
    keys: Vec<f32>,
    /// `[positions, dim_v]`.
    values: Vec<f32>,
}

impl Held {
    /// The tile at `first`, of which those positions are there that the sequence has.
    fn tile(&self, first: usize, (dim_k, dim_v): (usize, usize)) -> Tile {
        let at = first - self.first;
        let group = |all: &[f32], dim: usize| {
            let of = |g| all.as_ptr().wrapping_add((at + g * N) * dim).cast();
            from_fn(of)
        };
        Tile {
            keys: group(&self.keys, dim_k),
            values: group(&self.values, dim_v),
            ..copied_tile(first, (dim_k, dim_v), &[], &[])
        }
    }
}

/// A tile that reads the copies.
fn copied_tile(first: usize, (dim_k, dim_v): (usize, usize), keys: &[f32], values: &[f32]) -> Tile {
    let group = |x: &[f32], dim: usize| from_fn(|g| x[g * N * dim..].as_ptr().cast());
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
        near: Near::First,
        first,
    }
}

/// Groups of the tile at `first` with a key in `span`.
fn groups(first: usize, span: &Range<usize>) -> Range<usize> {
    (span.start - first) / N..(span.end - first).div_ceil(N)
}

/// One head of a slot as a sequence sees it.
pub(crate) struct Paged<'a> {
    cx: &'a Cx<'a>,
    slot: SlotId,
    kv: &'a Kv,
    table: &'a [u32],
    head: usize,
}

impl<'a> Paged<'a> {
    /// A head of a slot, for a sequence of the step.
    pub(crate) fn new(cx: &'a Cx<'a>, slot: SlotId, seq: usize, head: usize) -> Self {
        Paged {
            cx,
            slot,
            kv: cx.caches.kv(slot),
            table: cx.step.table(slot.group, seq),
            head,
        }
    }

    fn block(&self, entry: usize) -> (BlockAt, usize) {
        let size = self.cx.caches.block_entries(self.slot.group);
        let block = self.table[entry / size];
        assert_ne!(block, NO_BLOCK, "a visible entry has a block");
        (
            self.cx.caches.block(self.slot, self.kv, block),
            entry % size,
        )
    }

    /// Head and place inside its block of an entry.
    fn at(&self, plane: &Plane, entry: usize) -> (*const u8, usize) {
        let (block, at) = self.block(entry);
        (block.head(plane, self.head), at)
    }

    /// Sixteen entries that share a block.
    fn group(&self, plane: &Plane, entry: usize) -> *const u8 {
        let (head, at) = self.at(plane, entry);
        let bytes = if plane.kind == Kind::F32 { 4 } else { 2 };
        head.wrapping_add(plane.element(at, 0) * bytes)
    }

    /// Sets the keys of a tile at `first`, where they lie or in `copy`; only those in `span` are looked at, and tiles
    /// before `end` will follow.
    pub(crate) fn keys(
        &self,
        (first, end): (usize, usize),
        span: &Range<usize>,
        (tile, copy): (&mut Tile, &mut [f32]),
    ) {
        let plane = &self.kv.keys;
        let direct = plane.panels && plane.is_float();
        if direct {
            tile.half_keys = plane.kind == Kind::F16;
            tile.near = self.cx.kernel.near;
        }
        for g in groups(first, span) {
            let start = first + g * N;
            if direct {
                let later = (start + TILE < end).then_some(start + TILE);
                tile.keys[g] = self.group(plane, start);
                tile.next_keys[g] = later.map_or(null(), |p| self.group(plane, p));
            } else {
                let run = start.max(span.start)..(start + N).min(span.end);
                self.copy_panel(run.map(|p| (p, p - start)), &mut copy[g * N * plane.dim..]);
            }
        }
    }

    /// A tile of keys alone.
    pub(crate) fn tile_of_keys(
        &self,
        (first, end): (usize, usize),
        span: &Range<usize>,
        copy: &mut [f32],
    ) -> Tile {
        let mut tile = copied_tile(first, (self.kv.keys.dim, 0), copy, &[]);
        self.keys((first, end), span, (&mut tile, copy));
        tile
    }

    /// Keys of up to sixteen entries, each with its lane.
    fn copy_panel(&self, entries: impl Iterator<Item = (usize, usize)> + Clone, to: &mut [f32]) {
        let plane = &self.kv.keys;
        let Some((first, lane)) = entries.clone().next() else {
            return;
        };
        if plane.panels && plane.kind == Kind::Q8 && plane.granule == Q8_BLOCK {
            let (head, at) = self.at(plane, first - lane);
            // SAFETY: a panel of sixteen entries lies inside its head, its scales behind the codes.
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
        if let Some(row) = self.row(plane, first) {
            let mut rows = [row; N];
            for (entry, lane) in entries {
                rows[lane] = self.row(plane, entry).unwrap_or(row);
            }
            // SAFETY: rows lie in the pool; no one writes this slot before the next barrier.
            unsafe { panel_of_rows(self.cx.kernel, &rows, plane.dim, to) };
            return;
        }
        for (entry, lane) in entries {
            let (head, at) = self.at(plane, entry);
            for d in 0..plane.dim {
                // SAFETY: as above.
                to[d * N + lane] = unsafe { plane.load(head, at, d) };
            }
        }
    }

    /// The columns of an entry as a row, where they lie side by side in a form that kernels read.
    fn row(&self, plane: &Plane, entry: usize) -> Option<Row> {
        let (head, at) = self.at(plane, entry);
        plane.row(head, at)
    }

    /// The first `dim` columns of entries, each to its place among rows of `stride`.
    pub(crate) fn copy_rows(
        &self,
        plane: &Plane,
        entries: impl Iterator<Item = (usize, usize)>,
        (to, stride, dim): (&mut [f32], usize, usize),
    ) {
        for (entry, place) in entries {
            let (head, at) = self.at(plane, entry);
            let to = &mut to[place * stride..][..dim];
            match plane.row(head, at) {
                // SAFETY: the row lies in the pool; no one writes this slot before the next barrier.
                Some(row) => unsafe { row_floats(self.cx.kernel, row, to) },
                None => {
                    for (d, to) in to.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *to = unsafe { plane.load(head, at, d) };
                    }
                }
            }
        }
    }
}
