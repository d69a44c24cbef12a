//! Attention of a step: which rows, heads and chunks of keys a worker takes.
//!
//! An item is a tile of rows of one sequence and the query heads of one key head. Items are dealt out one by one;
//! when there are few of them, each chunk of keys is an item of its own and chunks are merged, in order,
//! after a barrier. Both ways give the same bits.
//!
//! What rows read comes in one or two [`Keys`], whose numbers are cut into chunks at absolute places: positions, then
//! entries that stand for several. Where a row reads chosen ones, they are numbered by their place in its own list, so
//! that only its own choice decides how they are cut; a row that is to read all that it sees reads them by position,
//! beside others.
#![allow(unsafe_code)]

pub(crate) mod fetch;
mod keys;

use std::ops::Range;

use tokkata_ir::tape::ResourceId;
use tokkata_ir::{KvSource, Mask, Selection, SlotId};

use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::kernels::attention::{
    CHUNK, Form, Gathered, MAX_ROWS, Rest, Rows, TILE, attend_tile, finish_row, merge_chunk,
    place_queries, query_floats,
};
use crate::memory::Aligned;
use crate::pool::Worker;
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
    whole: Gathered,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
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
            whole: Gathered::new(dim_v),
            keys: vec![0.0; TILE * dim_k],
            values: vec![0.0; TILE * dim_v],
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

/// How the work of a step is cut.
struct Cut {
    heads: usize,
    subs: usize,
    rows: usize,
    items: usize,
    /// Most queries of an item.
    queries: usize,
    /// Chunks of positions and of entries when each is an item of its own.
    chunks: Option<[usize; 2]>,
}

impl Attention {
    fn cut(&self, cx: &Cx<'_>, workers: usize) -> Cut {
        let group = self.heads / self.kv_heads;
        let heads = group.min(MAX_ROWS);
        let most = (MAX_ROWS / heads).max(1);
        // Rows that choose share nothing; a chunk that is an item of its own belongs to one of them.
        let alone = self.chosen.map(|_| self.cut_by(cx, workers, (heads, 1)));
        let cut = alone.filter(|cut| cut.chunks.is_some());
        cut.unwrap_or_else(|| {
            let cut = self.cut_by(cx, workers, (heads, most));
            let chunks = cut
                .chunks
                .filter(|_| self.chosen.is_none() || cut.rows == 1);
            Cut { chunks, ..cut }
        })
    }

    fn cut_by(&self, cx: &Cx<'_>, workers: usize, (heads, rows): (usize, usize)) -> Cut {
        let subs = (self.heads / self.kv_heads).div_ceil(heads);
        let counts = (0..cx.step.n_seqs()).map(|s| cx.step.row_count(s));
        let tiles: usize = counts.clone().map(|n| n.div_ceil(rows)).sum();
        let items = tiles * self.kv_heads * subs;
        let queries = counts.max().unwrap_or(0).min(rows) * heads;
        let chunks = self.most_chunks(cx);
        let all: usize = chunks.iter().sum();
        let room = items * all * queries * (self.form.dim_v + 2) <= cx.partials.len();
        let split = workers > 1 && items < 2 * workers && all > 1 && room;
        Cut {
            heads,
            subs,
            rows,
            items,
            queries,
            chunks: split.then_some(chunks),
        }
    }

    fn item(&self, cx: &Cx<'_>, cut: &Cut, index: usize) -> Item {
        let (mut tile, head) = (
            index / (self.kv_heads * cut.subs),
            index % (self.kv_heads * cut.subs),
        );
        let (kv_head, sub) = (head / cut.subs, head % cut.subs);
        let group = self.heads / self.kv_heads;
        let first = kv_head * group + sub * cut.heads;
        let heads = first..(first + cut.heads).min((kv_head + 1) * group);
        for seq in 0..cx.step.n_seqs() {
            let (start, count) = (cx.step.first_row(seq), cx.step.row_count(seq));
            let tiles = count.div_ceil(cut.rows);
            if tile < tiles {
                // Last rows first: they see most.
                let at = (tiles - 1 - tile) * cut.rows;
                let rows = start + at..start + (at + cut.rows).min(count);
                return Item {
                    seq,
                    rows,
                    kv_head,
                    heads,
                };
            }
            tile -= tiles;
        }
        unreachable!("items are counted over the same sequences")
    }

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

    /// Gathers one chunk of keys into `scratch.chunk`; this worker goes on up to `until`.
    fn chunk(
        &self,
        cx: &Cx<'_>,
        (item, keys): (&Item, &Keys<'_>),
        (seen, until): (&Range<usize>, usize),
        chunk: usize,
        scratch: &mut Scratch,
    ) {
        scratch.chunk.clear(item.len());
        let (start, end) = (
            seen.start.max(chunk * CHUNK),
            seen.end.min((chunk + 1) * CHUNK),
        );
        for first in (start / TILE * TILE..end).step_by(TILE) {
            let span = start.max(first)..end.min(first + TILE);
            let tile = self.fetch(
                cx,
                (item, keys),
                (first, until),
                &span,
                (&mut scratch.keys, &mut scratch.values),
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
            for chunk in chunks(&seen) {
                self.chunk(cx, (item, keys), (&seen, seen.end), chunk, scratch);
                let Scratch { chunk, whole, .. } = scratch;
                if any {
                    chunk.merge_into(cx.kernel, whole, (item.len(), dim_v));
                } else {
                    std::mem::swap(chunk, whole);
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

    /// One chunk of an item, kept for the merge.
    fn run_chunk(
        &self,
        cx: &Cx<'_>,
        cut: &Cut,
        (index, part): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let dim_v = self.form.dim_v;
        let item = self.item(cx, cut, index);
        let (which, chunk) = cut.chunk(part);
        let all = self.keys(cx, &item);
        let Some(keys) = &all[which] else { return };
        if !chunks(&self.seen(cx, &item, keys)).contains(&chunk) {
            return;
        }
        self.begin(cx, &item, scratch);
        let seen = self.look(cx, &item, keys, scratch);
        let until = seen.end.min((chunk + 1) * CHUNK);
        self.chunk(cx, (&item, keys), (&seen, until), chunk, scratch);
        for i in 0..item.len() {
            // SAFETY: the part of this chunk and query belongs to this worker until the barrier.
            let to = unsafe { cx.partial_mut(cut.part((index, part), i, dim_v), dim_v + 2) };
            cx.watch
                .note(self.partials, (0, 0..1), Some(to.as_ptr()), true);
            (to[0], to[1]) = (scratch.chunk.top[i], scratch.chunk.sum[i]);
            to[2..].copy_from_slice(&scratch.chunk.mix[i * dim_v..][..dim_v]);
        }
    }

    /// Merges the chunks of query `i` of an item.
    fn merge(&self, cx: &Cx<'_>, cut: &Cut, (index, i): (usize, usize), scratch: &mut Scratch) {
        let dim_v = self.form.dim_v;
        let item = self.item(cx, cut, index);
        if i >= item.len() {
            return;
        }
        scratch.whole.clear(1);
        let Gathered { top, sum, mix, .. } = &mut scratch.whole;
        for (which, keys) in self.keys(cx, &item).iter().enumerate() {
            let Some(keys) = keys else { continue };
            for chunk in chunks(&self.seen(cx, &item, keys)) {
                let at = cut.part((index, cut.number(which, chunk)), i, dim_v);
                // SAFETY: written before the barrier.
                let part = unsafe { cx.partial(at, dim_v + 2) };
                let part = (part[0], part[1], &part[2..]);
                merge_chunk(
                    cx.kernel,
                    part,
                    (&mut top[0], &mut sum[0], &mut mix[..dim_v]),
                );
            }
        }
        self.finish(cx, &item, i, (top[0], sum[0], &mix[..dim_v]));
    }
}

fn chunks(seen: &Range<usize>) -> Range<usize> {
    if seen.is_empty() {
        0..0
    } else {
        seen.start / CHUNK..seen.end.div_ceil(CHUNK)
    }
}

impl Cut {
    /// Chunks of an item that are items of their own.
    fn parts(&self) -> usize {
        self.chunks.map_or(1, |chunks| chunks.iter().sum())
    }

    /// Which keys a part of an item is of, and which chunk of them.
    fn chunk(&self, part: usize) -> (usize, usize) {
        match self.chunks {
            Some([positions, _]) if part >= positions => (1, part - positions),
            _ => (0, part),
        }
    }

    /// The part that a chunk of keys is.
    fn number(&self, which: usize, chunk: usize) -> usize {
        let before = self.chunks.filter(|_| which == 1);
        before.map_or(0, |[positions, _]| positions) + chunk
    }

    /// Where a query of a part of an item is kept.
    fn part(&self, (index, part): (usize, usize), i: usize, dim_v: usize) -> usize {
        ((index * self.parts() + part) * self.queries + i) * (dim_v + 2)
    }
}

impl Kernel for Attention {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cut = self.cut(cx, worker.count());
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).attention };
        let parts = cut.parts();
        loop {
            let ticket = cx.ticket(self.tickets);
            if ticket >= cut.items * parts {
                break;
            }
            match cut.chunks {
                None => self.run_item(cx, &self.item(cx, &cut, ticket), scratch),
                Some(_) => self.run_chunk(cx, &cut, (ticket / parts, ticket % parts), scratch),
            }
        }
        if cut.chunks.is_some() {
            cx.meet(worker);
            for at in worker.share(cut.items * cut.queries) {
                self.merge(cx, &cut, (at / cut.queries, at % cut.queries), scratch);
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
