//! Scores of an indexer's keys and the choice among them.
//!
//! Rows are taken as many at a time as there is room for all of their scores: workers score chunks of entries for each,
//! meet, and choose.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::tape::ResourceId;
use tokkata_ir::{Op, Program, SelectOp};

use super::attention::fetch::Paged;
use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::kernels::attention::{
    CHUNK, MAX_ROWS, TILE, place_queries, query_floats, tile_products,
};
use crate::kernels::indexer::{Choose, add_heads, choose, choose_all};
use crate::kernels::lanes::N;
use crate::memory::Aligned;
use crate::pool::Worker;

/// A prepared choice.
pub(crate) struct Select {
    pub(crate) op: SelectOp,
    pub(crate) q: Place,
    /// Weights of the heads where they are summed.
    pub(crate) weights: Option<Place>,
    pub(crate) ids: Place,
    /// On the tape: the keys, and the memory of the scores.
    pub(crate) keys: ResourceId,
    pub(crate) partials: ResourceId,
    /// Which counter deals out chunks.
    pub(crate) tickets: usize,
}

/// Working memory of one worker.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Of so many heads at a time.
    queries: Vec<Aligned<f32>>,
    products: Aligned<f32>,
    keys: Vec<f32>,
    ranks: Vec<u32>,
}

/// What choices of a program need at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    heads: usize,
    dim: usize,
    units: usize,
    /// Floats of the scores of a row.
    pub(crate) scores: usize,
}

impl Sizes {
    pub(crate) fn of(program: &Program) -> Self {
        let nodes = program.plans.iter().flat_map(|p| &p.nodes);
        let mut sizes = Sizes::default();
        for node in nodes {
            let Op::Select(op) = &node.op else { continue };
            let entries = program.limits.ctx as usize;
            sizes.heads = sizes.heads.max(op.n_heads as usize);
            sizes.dim = sizes.dim.max(op.dim as usize);
            sizes.units = sizes.units.max(entries.div_ceil(op.unit as usize));
            let scores = entries.next_multiple_of(TILE) * op.choices() as usize;
            sizes.scores = sizes.scores.max(scores);
        }
        sizes
    }
}

impl Scratch {
    pub(crate) fn new(sizes: &Sizes) -> Self {
        let batch = || Aligned::zeroed(query_floats(sizes.dim));
        Scratch {
            queries: (0..sizes.heads.div_ceil(MAX_ROWS))
                .map(|_| batch())
                .collect(),
            products: Aligned::zeroed(if sizes.heads > 0 { MAX_ROWS * TILE } else { 0 }),
            keys: vec![0.0; TILE * sizes.dim],
            ranks: Vec::with_capacity(sizes.units),
        }
    }
}

/// Rows whose scores fit the memory, and where they lie in it.
struct Batch {
    rows: Range<usize>,
    /// Scores of a choice, those of a row.
    stride: usize,
    row: usize,
    chunks: usize,
}

impl Batch {
    fn scores(&self, row: usize, choice: usize, entries: Range<usize>) -> Range<usize> {
        let first = (row - self.rows.start) * self.row + choice * self.stride;
        first + entries.start..first + entries.end
    }
}

impl Select {
    /// Entries that a row sees.
    fn seen(&self, cx: &Cx<'_>, row: usize) -> usize {
        let positions = cx.caches.entry_positions(self.op.slot.group);
        (cx.step.index_in_sequence(row) + 1) / positions
    }

    /// Whether a row takes all that it sees.
    fn takes_all(&self, cx: &Cx<'_>, row: usize) -> bool {
        self.seen(cx, row).div_ceil(self.op.unit as usize) <= self.op.top_k as usize
    }

    /// Scores of a row and a chunk of entries.
    fn score(
        &self,
        cx: &Cx<'_>,
        batch: &Batch,
        (row, chunk): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let seen = self.seen(cx, row).min((chunk + 1) * CHUNK);
        if chunk * CHUNK >= seen || self.takes_all(cx, row) {
            return;
        }
        let (dim, heads) = (self.op.dim as usize, self.op.n_heads as usize);
        let q = cx.row(self.q, row);
        for (q, to) in q.chunks(MAX_ROWS * dim).zip(&mut scratch.queries) {
            place_queries(cx.kernel, q, dim, 0, to);
        }
        cx.watch.note(self.keys, (0, 0..0), None, false);
        let from = Paged::new(cx, self.op.slot, cx.step.seqs()[row] as usize, 0);
        for first in (chunk * CHUNK..seen).step_by(TILE) {
            let span = first..seen.min(first + TILE);
            let tile = from.tile_of_keys((first, seen), &span, &mut scratch.keys);
            let groups = span.len().div_ceil(N);
            for (batch_of, queries) in scratch.queries.iter().enumerate() {
                let head = batch_of * MAX_ROWS;
                let own = head..heads.min(head + MAX_ROWS);
                if own.is_empty() {
                    continue;
                }
                let products = &mut scratch.products;
                tile_products(
                    cx.kernel,
                    (dim, own.len()),
                    &tile,
                    groups,
                    queries,
                    products,
                );
                self.keep(cx, batch, (row, first), own, products);
            }
        }
    }

    /// Puts the products of some heads and a tile where the scores of a row are gathered.
    fn keep(
        &self,
        cx: &Cx<'_>,
        batch: &Batch,
        (row, first): (usize, usize),
        heads: Range<usize>,
        products: &[f32],
    ) {
        let memory = |choice: usize| {
            let range = batch.scores(row, choice, first..first + TILE);
            // SAFETY: a tile of the scores of a row belongs to the worker that has its chunk until the next barrier.
            let to = unsafe { cx.partial_mut(range.start, range.len()) };
            cx.watch
                .note(self.partials, (0, 0..1), Some(to.as_ptr()), true);
            to
        };
        if let Some(weights) = self.weights {
            let to = memory(0);
            if heads.start == 0 {
                to.fill(0.0);
            }
            let weights = &cx.row(weights, row)[heads];
            return add_heads(cx.kernel, products, weights, self.op.scale, to);
        }
        for (head, products) in heads.zip(products.chunks_exact(TILE)) {
            let to = memory(head);
            to.iter_mut()
                .zip(products)
                .for_each(|(to, x)| *to = x * self.op.scale);
        }
    }

    /// The units that one choice of a row takes.
    fn choose(
        &self,
        cx: &Cx<'_>,
        batch: &Batch,
        (row, choice): (usize, usize),
        ranks: &mut Vec<u32>,
    ) {
        let top_k = self.op.top_k as usize;
        let columns = choice * top_k..(choice + 1) * top_k;
        // SAFETY: each choice of a row belongs to one worker.
        let ids = unsafe { cx.some_ints_mut(self.ids, row, columns) };
        let (seen, unit) = (self.seen(cx, row), self.op.unit as usize);
        if self.takes_all(cx, row) {
            return choose_all(seen.div_ceil(unit), ids);
        }
        let range = batch.scores(row, choice, 0..seen);
        // SAFETY: written before the barrier.
        let scores = unsafe { cx.partial(range.start, range.len()) };
        cx.watch
            .note(self.partials, (0, 0..1), Some(scores.as_ptr()), false);
        let of = Choose {
            unit,
            local: self.op.local as usize,
        };
        choose(of, scores, ids, ranks);
    }

    fn batch(&self, cx: &Cx<'_>, first: usize) -> Batch {
        let rows = cx.step.n_rows();
        let most = (first..rows).filter(|&row| !self.takes_all(cx, row));
        let entries = most.map(|row| self.seen(cx, row)).max().unwrap_or(0);
        let stride = entries.next_multiple_of(TILE);
        let row = stride * self.op.choices() as usize;
        let room = cx.partials.len().checked_div(row).unwrap_or(rows);
        assert!(room > 0, "the scores of a row fit the memory");
        Batch {
            rows: first..rows.min(first + room),
            stride,
            row,
            chunks: entries.div_ceil(CHUNK),
        }
    }
}

impl Kernel for Select {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).indexer };
        let choices = self.op.choices() as usize;
        let (mut first, mut done) = (0, 0);
        let mut ticket = None;
        while first < cx.step.n_rows() {
            let batch = self.batch(cx, first);
            let rows = batch.rows.len();
            let end = done + batch.chunks * rows;
            // Rows of a chunk one after another, while its keys are in cache.
            loop {
                let next = *ticket.get_or_insert_with(|| cx.ticket(self.tickets));
                if next >= end {
                    break;
                }
                ticket = None;
                let (chunk, row) = ((next - done) / rows, (next - done) % rows);
                self.score(cx, &batch, (first + row, chunk), scratch);
            }
            if batch.chunks > 0 {
                cx.meet(worker);
            }
            for at in worker.share(rows * choices) {
                let of = (first + at / choices, at % choices);
                self.choose(cx, &batch, of, &mut scratch.ranks);
            }
            (first, done) = (batch.rows.end, end);
            if first < cx.step.n_rows() {
                cx.meet(worker);
            }
        }
    }
}
