//! Attention of a step: which rows, heads and chunks of keys a worker takes.
//!
//! An item is a tile of rows of one sequence and the query heads of one key head. Items are dealt out one by one;
//! when there are few of them, pieces of their keys are items of their own and are merged, in order, after a
//! barrier ([`cut`]). All ways give the same bits.
//!
//! What rows read comes in one or two [`Keys`], whose numbers are cut into chunks at absolute places: positions, then
//! entries that stand for several. Where a row reads chosen ones, they are numbered by their place in its own list, so
//! that only its own choice decides how they are cut; a row that is to read all that it sees reads them by position,
//! beside others.
#![allow(unsafe_code)]

mod cut;
pub(crate) mod fetch;
mod keys;

use std::ops::Range;

use tokkata_ir::tape::ResourceId;
use tokkata_ir::{KvSource, Mask, Selection, SlotId};

use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::kernels::attention::{
    CHUNK, Form, Gathered, MAX_ROWS, Rest, Rows, TILE, attend_tile, finish_row, place_queries,
    query_floats,
};
use crate::memory::Aligned;
use crate::pool::Worker;
use cut::{Cut, Pieces, SPAN, pieces, within};
use fetch::Held;
use keys::Keys;

/// T5's bias by distance.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// `[buckets, H]`.
    pub(crate) table: Vec<f32>,
    pub(crate) buckets: usize,
    pub(crate) max_distance: usize,
    pub(crate) bidirectional: bool,
}

/// A prepared attention op.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) q: Place,
    /// Keys and values when they are the step's own rows; values may be a prefix of the keys.
    pub(crate) own: Option<(Place, Option<Place>)>,
    pub(crate) out: Place,
    /// On the tape: the memory between the two halves, and the keys and values of the cache.
    pub(crate) partials: ResourceId,
    pub(crate) cached: Vec<ResourceId>,
    pub(crate) source: KvSource,
    /// Entries that are read behind the positions.
    pub(crate) entries: Option<SlotId>,
    /// What is read of the entries, or of the positions where there are none.
    pub(crate) chosen: Option<(Place, Selection)>,
    pub(crate) mask: Mask,
    pub(crate) form: Form,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Value columns of a head, unpadded.
    pub(crate) dim_v: usize,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) slopes: Option<Vec<f32>>,
    pub(crate) bucket: Option<Bucket>,
    /// Which counter deals out the items.
    pub(crate) tickets: usize,
}

/// Working memory of one worker.
#[derive(Debug)]
pub(crate) struct Scratch {
    queries: Aligned<f32>,
    bias: Vec<f32>,
    scores: Aligned<f32>,
    sees: Vec<(usize, usize)>,
    chunk: Gathered,
    span: Gathered,
    whole: Gathered,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    held: Held,
}

impl Scratch {
    /// Room for heads of up to `dim_k` and `dim_v` columns.
    pub(crate) fn new(dim_k: usize, dim_v: usize) -> Self {
        Scratch {
            queries: Aligned::zeroed(query_floats(dim_k)),
            bias: vec![0.0; MAX_ROWS * TILE],
            scores: Aligned::zeroed(MAX_ROWS * TILE),
            sees: Vec::with_capacity(MAX_ROWS),
            chunk: Gathered::new(dim_v),
            span: Gathered::new(dim_v),
            whole: Gathered::new(dim_v),
            keys: vec![0.0; TILE * dim_k],
            values: vec![0.0; TILE * dim_v],
            held: Held::default(),
        }
    }
}

/// Rows of one sequence and query heads of one key head.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) seq: usize,
    /// Rows of the step.
    rows: Range<usize>,
    pub(crate) kv_head: usize,
    heads: Range<usize>,
}

impl Item {
    fn len(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// Row of the step and head of query `i`.
    fn query(&self, i: usize) -> (usize, usize) {
        (
            self.rows.start + i / self.heads.len(),
            self.heads.start + i % self.heads.len(),
        )
    }
}

impl Attention {
    /// Queries into the scratch.
    fn begin(&self, cx: &Cx<'_>, item: &Item, scratch: &mut Scratch) {
        let dim_k = self.form.dim_k;
        for (i, row) in item.rows.clone().enumerate() {
            let q = &cx.row(self.q, row)[item.heads.start * dim_k..item.heads.end * dim_k];
            place_queries(
                cx.kernel,
                q,
                dim_k,
                i * item.heads.len(),
                &mut scratch.queries,
            );
        }
    }

    /// What the queries of an item see of its keys into the scratch; gives the numbers that any of them sees.
    fn look(
        &self,
        cx: &Cx<'_>,
        item: &Item,
        keys: &Keys<'_>,
        scratch: &mut Scratch,
    ) -> Range<usize> {
        scratch.sees.clear();
        for row in item.rows.clone() {
            let sees = self.sees(cx, item, keys, row);
            scratch.sees.extend(item.heads.clone().map(|_| sees));
        }
        self.seen(cx, item, keys)
    }

    /// Gathers what is seen of a span of keys, or of a part of it, into `scratch.span`, chunk after chunk; this worker
    /// goes on up to `until`.
    fn gather(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        (seen, until): (&Range<usize>, usize),
        scratch: &mut Scratch,
    ) {
        for chunk in pieces(seen, CHUNK) {
            let within = within(seen, CHUNK, chunk);
            self.chunk(cx, (item, keys), (&within, until), scratch);
            let Scratch { chunk, span, .. } = scratch;
            if within.start == seen.start {
                std::mem::swap(chunk, span);
            } else {
                chunk.merge_into(cx.kernel, span, (item.len(), self.form.dim_v));
            }
        }
    }

    /// Gathers one chunk of keys, of which so many are seen, into `scratch.chunk`.
    fn chunk(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        (seen, until): (&Range<usize>, usize),
        scratch: &mut Scratch,
    ) {
        scratch.chunk.clear(item.len());
        for first in (seen.start / TILE * TILE..seen.end).step_by(TILE) {
            let span = seen.start.max(first)..seen.end.min(first + TILE);
            let tile = self.fetch(
                cx,
                (item, keys),
                (first, until),
                &span,
                (&scratch.held, (&mut scratch.keys, &mut scratch.values)),
            );
            let biased = self.fill_bias(cx, (item, keys), &span, (first, &mut scratch.bias));
            let mut rows = Rows {
                queries: &scratch.queries,
                sees: &scratch.sees,
                bias: biased.then_some(&scratch.bias),
                scores: &mut scratch.scores,
                gathered: &mut scratch.chunk,
            };
            attend_tile(cx.kernel, self.form, &tile, &mut rows);
        }
    }

    /// Fills `[queries, TILE]` and says whether there is any bias.
    fn fill_bias(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        span: &Range<usize>,
        (first, bias): (usize, &mut [f32]),
    ) -> bool {
        if self.slopes.is_none() && self.bucket.is_none() {
            return false;
        }
        for i in 0..item.len() {
            let (row, head) = item.query(i);
            let p = cx.step.index_in_sequence(row);
            let bias = &mut bias[i * TILE..][..TILE];
            for number in span.clone() {
                let key = keys.position(number);
                let slope = self.slopes.as_ref().map_or(0.0, |s| s[head]);
                let to = &mut bias[number - first];
                *to = -(slope * p.abs_diff(key) as f32);
                if let Some(b) = &self.bucket {
                    *to += b.table[b.index(p, key) * self.heads + head];
                }
            }
        }
        true
    }

    fn finish(&self, cx: &Cx<'_>, item: &Item, i: usize, gathered: (f32, f32, &[f32])) {
        let (row, head) = item.query(i);
        // SAFETY: a head of a row belongs to one item, an item to one worker.
        let out = unsafe { cx.cols_mut(self.out, row, head * self.dim_v..(head + 1) * self.dim_v) };
        let rest = Rest {
            sink: self.sinks.as_ref().map(|s| s[head]),
            blind: gathered.1 == 0.0 && self.is_blind(cx, item, row),
        };
        finish_row(cx.kernel, gathered, rest, out);
    }

    /// A whole item: rows that read alike, their chunks in order.
    fn run_item(&self, cx: &Cx<'_>, item: &Item, scratch: &mut Scratch) {
        let mut first = item.rows.start;
        while first < item.rows.end {
            let rows = first..self.alike(cx, item, first);
            first = rows.end;
            let item = Item {
                rows,
                ..item.clone()
            };
            self.run_alike(cx, &item, scratch);
        }
    }

    fn run_alike(&self, cx: &Cx<'_>, item: &Item, scratch: &mut Scratch) {
        let dim_v = self.form.dim_v;
        self.begin(cx, item, scratch);
        scratch.whole.clear(item.len());
        let mut any = false;
        for keys in self.keys(cx, item).iter().flatten() {
            let seen = self.look(cx, item, keys, scratch);
            for piece in pieces(&seen, SPAN) {
                let within = within(&seen, SPAN, piece);
                self.gather(cx, (item, keys), (&within, seen.end), scratch);
                let Scratch { span, whole, .. } = scratch;
                if any {
                    span.merge_into(cx.kernel, whole, (item.len(), dim_v));
                } else {
                    std::mem::swap(span, whole);
                }
                any = true;
            }
        }
        for i in 0..item.len() {
            let whole = &scratch.whole;
            let mix = &whole.mix[i * dim_v..][..dim_v];
            self.finish(cx, item, i, (whole.top[i], whole.sum[i], mix));
        }
    }

    /// One piece of an item's keys, kept for the merge.
    fn run_piece(
        &self,
        cx: &Cx<'_>,
        (cut, pieces): (&Cut, &Pieces),
        (index, number): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let dim_v = self.form.dim_v;
        let item = self.item(cx, cut, index);
        let piece = pieces.piece(number);
        let all = self.keys(cx, &item);
        let Some(keys) = &all[piece.which] else {
            return;
        };
        if piece.keys.of(&self.seen(cx, &item, keys)).is_empty() {
            return;
        }
        self.begin(cx, &item, scratch);
        let seen = self.look(cx, &item, keys, scratch);
        let seen = piece.keys.of(&seen);
        self.gather(cx, (&item, keys), (&seen, seen.end), scratch);
        for i in 0..item.len() {
            // SAFETY: the part of this piece and query belongs to this worker until the barrier.
            let to = unsafe { cx.partial_mut(cut.part((index, number), i, dim_v), dim_v + 2) };
            cx.watch
                .note(self.partials, (0, 0..1), Some(to.as_ptr()), true);
            (to[0], to[1]) = (scratch.span.top[i], scratch.span.sum[i]);
            to[2..].copy_from_slice(&scratch.span.mix[i * dim_v..][..dim_v]);
        }
    }

    /// Merges the pieces of query `i` of an item.
    fn merge(
        &self,
        cx: &Cx<'_>,
        (cut, all): (&Cut, &Pieces),
        (index, i): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let dim_v = self.form.dim_v;
        let item = self.item(cx, cut, index);
        if i >= item.len() {
            return;
        }
        let Scratch { span, whole, .. } = scratch;
        whole.clear(1);
        for (which, keys) in self.keys(cx, &item).iter().enumerate() {
            let Some(keys) = keys else { continue };
            let seen = self.seen(cx, &item, keys);
            for number in pieces(&seen, SPAN) {
                span.clear(1);
                for number in all.numbers(which, number, &within(&seen, SPAN, number)) {
                    let at = cut.part((index, number), i, dim_v);
                    // SAFETY: written before the barrier.
                    let part = unsafe { cx.partial(at, dim_v + 2) };
                    span.add(cx.kernel, (part[0], part[1], &part[2..]));
                }
                span.merge_into(cx.kernel, whole, (1, dim_v));
            }
        }
        let whole = (whole.top[0], whole.sum[0], &whole.mix[..dim_v]);
        self.finish(cx, &item, i, whole);
    }
}

impl Kernel for Attention {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cut = self.cut(cx, worker.count());
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).attention };
        let parts = cut.parts();
        let holds = self.holds(cx, &cut);
        scratch.held.of = None;
        loop {
            let ticket = cx.ticket(self.tickets);
            if ticket >= cut.items * parts {
                break;
            }
            match &cut.pieces {
                None => {
                    let item = self.item(cx, &cut, ticket);
                    if holds {
                        self.hold(cx, &item, &mut scratch.held);
                    }
                    self.run_item(cx, &item, scratch);
                }
                Some(pieces) => {
                    let piece = pieces.dealt(ticket, cut.items);
                    self.run_piece(cx, (&cut, pieces), piece, scratch);
                }
            }
        }
        if let Some(pieces) = &cut.pieces {
            cx.meet(worker);
            for at in worker.share(cut.items * cut.queries) {
                let query = (at / cut.queries, at % cut.queries);
                self.merge(cx, (&cut, pieces), query, scratch);
            }
        }
    }
}

impl Bucket {
    /// T5's bucket of a distance: exact for near keys, then logarithmic up to the farthest (Raffel et al., 2019).
    /// In f32, as every implementation has it: bucket borders depend on the rounding.
    fn index(&self, row: usize, key: usize) -> usize {
        let ahead = self.bidirectional && key > row;
        let buckets = if self.bidirectional {
            self.buckets / 2
        } else {
            self.buckets
        };
        let distance = if self.bidirectional {
            row.abs_diff(key)
        } else {
            row.saturating_sub(key)
        };
        let exact = buckets / 2;
        let near = if distance < exact {
            distance
        } else {
            let ratio = (distance as f32 / exact as f32).ln();
            let range = (self.max_distance as f64 / exact as f64).ln();
            let far = f64::from(ratio * (buckets - exact) as f32) / range;
            (exact as f64 + far).floor().min((buckets - 1) as f64) as usize
        };
        near + if ahead { buckets } else { 0 }
    }
}
