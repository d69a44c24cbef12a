//! Attention of a step: which rows, heads and chunks of positions a worker takes.
//!
//! An item is a tile of rows of one sequence and the query heads of one key head. Items are dealt out one by one;
//! when there are few of them, each chunk of positions is an item of its own and chunks are merged, in order,
//! after a barrier. Both ways give the same bits.
#![allow(unsafe_code)]

mod fetch;

use std::ops::Range;

use tokkata_ir::tape::ResourceId;
use tokkata_ir::{KvSource, Mask, StepState};

use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::kernels::attention::{
    CHUNK, Form, Gathered, MAX_ROWS, Rows, TILE, attend_tile, finish_row, merge_chunk,
    place_queries, query_floats,
};
use crate::memory::Aligned;
use crate::pool::Worker;

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
    /// Chunks that are items of their own; 1 when items take all their chunks.
    chunks: usize,
    /// Most queries of an item.
    queries: usize,
}

impl Attention {
    fn cut(&self, cx: &Cx<'_>, workers: usize) -> Cut {
        let group = self.heads / self.kv_heads;
        let heads = group.min(MAX_ROWS);
        let subs = group.div_ceil(heads);
        let rows = (MAX_ROWS / heads).max(1);
        let counts = (0..cx.step.n_seqs()).map(|s| cx.step.row_count(s));
        let tiles: usize = counts.clone().map(|n| n.div_ceil(rows)).sum();
        let items = tiles * self.kv_heads * subs;
        let queries = counts.max().unwrap_or(0).min(rows) * heads;
        let longest = (0..cx.step.n_seqs())
            .map(|s| self.len(cx.step, s))
            .max()
            .unwrap_or(0);
        let chunks = longest.div_ceil(CHUNK).max(1);
        let room = items * chunks * queries * (self.form.dim_v + 2) <= cx.partials.len();
        let split = workers > 1 && items < 2 * workers && chunks > 1 && room;
        Cut {
            heads,
            subs,
            rows,
            items,
            chunks: if split { chunks } else { 1 },
            queries,
        }
    }

    /// Positions that exist for a sequence.
    fn len(&self, step: &StepState, seq: usize) -> usize {
        match self.source {
            KvSource::Cross(_) => step.enc_len(seq),
            KvSource::Cache(_) | KvSource::Rows => step.past_len(seq) + step.row_count(seq),
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

    /// Positions that a row sees: first and one past the last.
    fn sees(&self, step: &StepState, seq: usize, row: usize) -> (usize, usize) {
        let past = step.past_len(seq);
        let p = past + row - step.first_row(seq);
        let len = self.len(step, seq);
        let (lo, hi) = match self.mask {
            Mask::Full => (0, len),
            Mask::Causal => (0, p + 1),
            Mask::Window(w) => ((p + 1).saturating_sub(w as usize), p + 1),
            Mask::Chunk(c) => (p / c as usize * c as usize, p + 1),
            Mask::Symmetric(w) => (p.saturating_sub(w as usize / 2), p + w as usize / 2 + 1),
        };
        let least = if self.source == KvSource::Rows {
            past
        } else {
            0
        };
        (lo.max(least), hi.min(len))
    }

    /// Queries and what they see, into the scratch; gives the positions that any of them sees.
    fn begin(&self, cx: &Cx<'_>, item: &Item, scratch: &mut Scratch) -> Range<usize> {
        let dim_k = self.form.dim_k;
        scratch.sees.clear();
        for row in item.rows.clone() {
            let sees = self.sees(cx.step, item.seq, row);
            let q = &cx.row(self.q, row)[item.heads.start * dim_k..item.heads.end * dim_k];
            place_queries(
                cx.kernel,
                q,
                dim_k,
                scratch.sees.len(),
                &mut scratch.queries,
            );
            scratch.sees.extend(item.heads.clone().map(|_| sees));
        }
        self.seen(cx, item)
    }

    /// Positions that any row of an item sees.
    fn seen(&self, cx: &Cx<'_>, item: &Item) -> Range<usize> {
        let (mut lo, mut hi) = (usize::MAX, 0);
        for row in item.rows.clone() {
            let sees = self.sees(cx.step, item.seq, row);
            if sees.0 < sees.1 {
                (lo, hi) = (lo.min(sees.0), hi.max(sees.1));
            }
        }
        lo.min(hi)..hi
    }

    /// Gathers one chunk of positions into `scratch.chunk`; this worker goes on up to `until`.
    fn chunk(
        &self,
        cx: &Cx<'_>,
        item: &Item,
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
                item,
                (first, until),
                &span,
                (&mut scratch.keys, &mut scratch.values),
            );
            let biased = self.fill_bias(cx, item, first, &mut scratch.bias);
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
    fn fill_bias(&self, cx: &Cx<'_>, item: &Item, first: usize, bias: &mut [f32]) -> bool {
        if self.slopes.is_none() && self.bucket.is_none() {
            return false;
        }
        for i in 0..item.len() {
            let (row, head) = item.query(i);
            let p = cx.step.past_len(item.seq) + row - cx.step.first_row(item.seq);
            for (j, to) in bias[i * TILE..][..TILE].iter_mut().enumerate() {
                let slope = self.slopes.as_ref().map_or(0.0, |s| s[head]);
                *to = -(slope * p.abs_diff(first + j) as f32);
                if let Some(b) = &self.bucket {
                    *to += b.table[b.index(p, first + j) * self.heads + head];
                }
            }
        }
        true
    }

    fn finish(&self, cx: &Cx<'_>, item: &Item, i: usize, gathered: (f32, f32, &[f32])) {
        let (row, head) = item.query(i);
        // SAFETY: a head of a row belongs to one item, an item to one worker.
        let out = unsafe { cx.cols_mut(self.out, row, head * self.dim_v..(head + 1) * self.dim_v) };
        finish_row(
            cx.kernel,
            gathered,
            self.sinks.as_ref().map(|s| s[head]),
            out,
        );
    }

    /// A whole item: its chunks in order.
    fn run_item(&self, cx: &Cx<'_>, item: &Item, scratch: &mut Scratch) {
        let dim_v = self.form.dim_v;
        let seen = self.begin(cx, item, scratch);
        scratch.whole.clear(item.len());
        for (i, chunk) in chunks(&seen).enumerate() {
            self.chunk(cx, item, (&seen, seen.end), chunk, scratch);
            let Scratch { chunk, whole, .. } = scratch;
            if i == 0 {
                std::mem::swap(chunk, whole);
            } else {
                chunk.merge_into(cx.kernel, whole, (item.len(), dim_v));
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
        (index, chunk): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let dim_v = self.form.dim_v;
        let item = self.item(cx, cut, index);
        let seen = self.begin(cx, &item, scratch);
        if !chunks(&seen).contains(&chunk) {
            return;
        }
        let until = seen.end.min((chunk + 1) * CHUNK);
        self.chunk(cx, &item, (&seen, until), chunk, scratch);
        for i in 0..item.len() {
            // SAFETY: the part of this chunk and query belongs to this worker until the barrier.
            let to = unsafe { cx.partial_mut(cut.part(index, chunk, i, dim_v), dim_v + 2) };
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
        let seen = self.seen(cx, &item);
        scratch.whole.clear(1);
        let Gathered { top, sum, mix, .. } = &mut scratch.whole;
        for chunk in chunks(&seen) {
            // SAFETY: written before the barrier.
            let part = unsafe { cx.partial(cut.part(index, chunk, i, dim_v), dim_v + 2) };
            let part = (part[0], part[1], &part[2..]);
            merge_chunk(
                cx.kernel,
                part,
                (&mut top[0], &mut sum[0], &mut mix[..dim_v]),
            );
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
    fn part(&self, index: usize, chunk: usize, i: usize, dim_v: usize) -> usize {
        ((index * self.chunks + chunk) * self.queries + i) * (dim_v + 2)
    }
}

impl Kernel for Attention {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cut = self.cut(cx, worker.count());
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).attention };
        loop {
            let ticket = cx.ticket(self.tickets);
            if ticket >= cut.items * cut.chunks {
                break;
            }
            if cut.chunks == 1 {
                self.run_item(cx, &self.item(cx, &cut, ticket), scratch);
            } else {
                self.run_chunk(
                    cx,
                    &cut,
                    (ticket / cut.chunks, ticket % cut.chunks),
                    scratch,
                );
            }
        }
        if cut.chunks > 1 {
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
