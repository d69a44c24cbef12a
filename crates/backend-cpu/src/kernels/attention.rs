//! Softmax attention of a few query rows over a tile of positions.
//!
//! Positions are cut at absolute places: tiles of [`TILE`] inside chunks of [`CHUNK`]. A chunk starts from nothing
//! and chunks are merged in order, so that a row's numbers are the same whatever rows share its tile, whichever
//! worker takes a chunk and however the prompt was cut into steps: per row and position the operations and their
//! order are fixed, tiles that a row does not see change nothing.
#![allow(unsafe_code)]

mod halves;
mod rows;
mod tile;

use std::ops::Range;

pub(crate) use halves::{halves_panel, halves_run};
pub(crate) use rows::{Row, panel_of_rows, row_floats};

use super::Kernel;
use super::lanes::{Lanes, N, map, simd_fn, with};
use super::math::{exp, exp_to_one, tanh};
use crate::memory::Aligned;
use crate::tuning::Near;

/// Positions of a tile.
pub(crate) const TILE: usize = 64;
/// Positions of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Groups of sixteen positions in a tile.
pub(crate) const GROUPS: usize = TILE / N;
/// Query rows (times heads) that share a tile at most.
pub(crate) const MAX_ROWS: usize = 36;
/// Rows of a block, at most, in whole vectors.
const MAX_BLOCK: usize = 16;

/// Keys and values of a tile's positions. Groups that no row sees may dangle.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Panels `[dim_k][16]`.
    pub(crate) keys: [*const u8; GROUPS],
    /// Sixteen rows `[16][value_stride]`.
    pub(crate) values: [*const u8; GROUPS],
    /// Where the next tile's lie, to be fetched while this one is at work; null where there are none.
    pub(crate) next_keys: [*const u8; GROUPS],
    pub(crate) next_values: [*const u8; GROUPS],
    /// The cache they are fetched into.
    pub(crate) near: Near,
    /// Elements from a position's values to the next one's.
    pub(crate) value_stride: usize,
    /// Keys are halves rather than `f32`.
    pub(crate) half_keys: bool,
    /// Values are halves rather than `f32`.
    pub(crate) half_values: bool,
    /// Absolute position of the first.
    pub(crate) first: usize,
}

/// Sizes and score function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) dim_k: usize,
    /// Value columns, padded to sixteen.
    pub(crate) dim_v: usize,
    pub(crate) scale: f32,
    pub(crate) cap: Option<f32>,
}

/// What the rows of an item have gathered, over a chunk or over all.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// Largest score, `[MAX_ROWS]`.
    pub(crate) top: Vec<f32>,
    /// Sum of weights, `[MAX_ROWS]`.
    pub(crate) sum: Vec<f32>,
    /// Weighted values, `[MAX_ROWS, dim_v]`.
    pub(crate) mix: Aligned<f32>,
    /// Nothing is gathered: `mix` holds what was there before.
    fresh: bool,
}

impl Gathered {
    pub(crate) fn new(dim_v: usize) -> Self {
        Gathered {
            top: vec![f32::NEG_INFINITY; MAX_ROWS],
            sum: vec![0.0; MAX_ROWS],
            mix: Aligned::zeroed(MAX_ROWS * dim_v),
            fresh: true,
        }
    }

    /// Forgets the first `rows` rows; the next tile writes their values.
    pub(crate) fn clear(&mut self, rows: usize) {
        self.top[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
        self.fresh = true;
    }

    /// Adds a part (largest score, sum, values) to all of the first row before it.
    pub(crate) fn add(&mut self, set: Kernel, part: (f32, f32, &[f32])) {
        let mix = &mut self.mix[..part.2.len()];
        merge_chunk(set, part, (&mut self.top[0], &mut self.sum[0], mix));
    }

    /// Adds a chunk of the first `rows` rows to all before it.
    pub(crate) fn merge_into(&self, set: Kernel, all: &mut Self, (rows, dim_v): (usize, usize)) {
        for i in 0..rows {
            let at = i * dim_v..(i + 1) * dim_v;
            let part = (self.top[i], self.sum[i], &self.mix[at.clone()]);
            merge_chunk(
                set,
                part,
                (&mut all.top[i], &mut all.sum[i], &mut all.mix[at]),
            );
        }
    }
}

/// Query rows at work on a tile.
pub(crate) struct Rows<'a> {
    /// `[dim_k / 16][MAX_ROWS][16]`.
    pub(crate) queries: &'a [f32],
    /// Positions each row sees: first and one past the last.
    pub(crate) sees: &'a [(usize, usize)],
    /// Added to scores, `[rows, TILE]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, TILE]`.
    pub(crate) scores: &'a mut [f32],
    pub(crate) gathered: &'a mut Gathered,
}

/// What rows see of a tile, relative to its first position.
#[derive(Clone, Copy)]
struct Span {
    lo: usize,
    hi: usize,
    /// Every row sees all of the tile.
    whole: bool,
}

impl Span {
    // A loop: closures are compiled without the features of the function around them.
    #[inline(always)]
    fn of(tile: &Tile, sees: &[(usize, usize)]) -> Self {
        let (mut lo, mut hi, mut whole) = (TILE, 0, true);
        for &(first, end) in sees {
            let first = first.saturating_sub(tile.first);
            let end = end.saturating_sub(tile.first).min(TILE);
            whole &= first == 0 && end == TILE;
            if first < end {
                lo = lo.min(first);
                hi = hi.max(end);
            }
        }
        Span { lo, hi, whole }
    }

    fn is_empty(self) -> bool {
        self.lo >= self.hi
    }
}

/// Rows are taken in blocks whose sums stay in registers and are enough to hide that each waits for its last addition.
/// A vector of halves takes longer to widen than to multiply, so many rows share each.
#[inline(always)]
fn attend<L: Lanes>(form: Form, tile: &Tile, rows: &mut Rows<'_>) {
    let (n, mut row) = (rows.sees.len(), 0);
    assert!(n <= MAX_ROWS && rows.queries.len() >= query_floats(form.dim_k));
    assert!(rows.scores.len() >= n * TILE && rows.gathered.mix.len() >= n * form.dim_v);
    macro_rules! step {
        ($rows:literal, $vectors:literal) => {{
            block::<L, $rows, $vectors>(form, tile, rows, row);
            row += $rows;
        }};
    }
    if L::MANY {
        while n - row >= 12 {
            step!(12, 2);
        }
        if n - row >= 8 {
            step!(8, 2);
        }
        if n - row >= 4 {
            step!(4, 4);
        }
        if n - row >= 2 {
            step!(2, 4);
        }
    } else {
        while n - row >= 4 {
            step!(4, 1);
        }
        if n - row >= 2 {
            step!(2, 2);
        }
    }
    if n - row == 1 {
        block::<L, 1, 4>(form, tile, rows, row);
    }
    rows.gathered.fresh = false;
}

/// `R` rows from `row` on, over `P` vectors of positions or of columns at a time.
#[inline(always)]
fn block<L: Lanes, const R: usize, const P: usize>(
    form: Form,
    tile: &Tile,
    rows: &mut Rows<'_>,
    row: usize,
) {
    let span = Span::of(tile, &rows.sees[row..row + R]);
    if span.is_empty() {
        if rows.gathered.fresh {
            rows.gathered.mix[row * form.dim_v..][..R * form.dim_v].fill(0.0);
        }
        return;
    }
    let (lo, hi) = (span.lo, span.hi);
    let at = (rows.queries, &mut *rows.scores, row);
    // SAFETY: the groups from `lo` to `hi` are valid, `attend` checked the sizes.
    unsafe { tile::scores::<L, R, P>(form.dim_k, tile, at, lo / N..hi.div_ceil(N)) };
    let keep = if span.whole {
        weigh::<L, true>(form, tile, rows, row..row + R)
    } else {
        weigh::<L, false>(form, tile, rows, row..row + R)
    };
    let sees = &rows.sees[row..row + R];
    // SAFETY: as above.
    if R == 1 || span.whole || unsafe { all_finite::<L>(form.dim_v, tile, span, sees) } {
        // SAFETY: as above.
        unsafe { tile::mix::<L, R, P>(form.dim_v, tile, (rows, row), (lo, hi), &keep) };
    } else {
        mix_apart::<L>(form, tile, rows, (row, &keep[..R]));
    }
}

/// Whether values that only some rows see are finite: those that a row does not see are multiplied by zero.
///
/// # Safety
/// The groups of the span are valid.
#[inline(always)]
unsafe fn all_finite<L: Lanes>(
    dim_v: usize,
    tile: &Tile,
    span: Span,
    sees: &[(usize, usize)],
) -> bool {
    let (mut first, mut end) = (span.lo, span.hi);
    for sees in sees {
        first = first.max(sees.0.saturating_sub(tile.first));
        end = end.min(sees.1.saturating_sub(tile.first));
    }
    let (first, mut sum) = (first.min(span.hi), L::zero());
    for j in (span.lo..first).chain(end.max(first)..span.hi) {
        for column in (0..dim_v).step_by(N) {
            // SAFETY: the caller's promise.
            let x = unsafe { tile::value::<L>(tile, j, column) };
            sum = x.fma(L::zero(), sum);
        }
    }
    sum.sum() == 0.0
}

/// Adds to each row of a block the values that it sees and no others.
#[inline(always)]
fn mix_apart<L: Lanes>(
    form: Form,
    tile: &Tile,
    rows: &mut Rows<'_>,
    (first, keep): (usize, &[f32]),
) {
    for (row, keep) in (first..).zip(keep.chunks_exact(1)) {
        let span = Span::of(tile, &rows.sees[row..=row]);
        if !span.is_empty() {
            let (lo, hi) = (span.lo, span.hi);
            // SAFETY: the groups of the span are valid, `attend` checked the sizes.
            unsafe { tile::mix::<L, 1, 1>(form.dim_v, tile, (rows, row), (lo, hi), keep) };
        } else if rows.gathered.fresh {
            rows.gathered.mix[row * form.dim_v..][..form.dim_v].fill(0.0);
        }
    }
}

/// Products of `n` queries with the keys of a tile from group 0 up to `groups`, `[n, TILE]`.
#[inline(always)]
fn products<L: Lanes>(
    (dim, n): (usize, usize),
    tile: &Tile,
    groups: usize,
    queries: &[f32],
    scores: &mut [f32],
) {
    assert!(n <= MAX_ROWS && queries.len() >= query_floats(dim));
    assert!(scores.len() >= n * TILE && groups <= GROUPS);
    let mut row = 0;
    macro_rules! step {
        ($rows:literal, $vectors:literal) => {{
            let at = (queries, &mut *scores, row);
            // SAFETY: the caller's groups are valid, the sizes were checked.
            unsafe { tile::scores::<L, $rows, $vectors>(dim, tile, at, 0..groups) };
            row += $rows;
        }};
    }
    while L::MANY && n - row >= 12 {
        step!(12, 2);
    }
    while n - row >= 4 {
        if L::MANY {
            step!(4, 4);
        } else {
            step!(4, 1);
        }
    }
    while n - row >= 1 {
        step!(1, 4);
    }
}

simd_fn! {
    /// Products of some queries, `(columns, how many)`, with the keys of a tile up to a group, `[queries, TILE]`.
    pub(crate) fn tile_products(
        size: (usize, usize),
        tile: &Tile,
        groups: usize,
        queries: &[f32],
        scores: &mut [f32],
    ) = products;
}

/// Turns the scores of a block into weights; gives the factors for what was gathered before.
#[inline(always)]
fn weigh<L: Lanes, const WHOLE: bool>(
    form: Form,
    tile: &Tile,
    rows: &mut Rows<'_>,
    block: Range<usize>,
) -> [f32; MAX_BLOCK] {
    let (mut keep, mut base) = ([0.0; MAX_BLOCK], [0.0; MAX_BLOCK]);
    let first = block.start;
    // In two loops: a row waits long for its largest score, then for its exponentials, and others fill the time.
    for row in block.clone() {
        let largest = finish_scores::<L, WHOLE>(form, tile, rows, row);
        let before = rows.gathered.top[row];
        let after = if largest > before { largest } else { before };
        let none = after == f32::NEG_INFINITY;
        rows.gathered.top[row] = after;
        base[row - first] = if none { 0.0 } else { after };
        keep[row - first] = before - base[row - first];
    }
    for at in (0..block.len()).step_by(N) {
        exp_to_one(L::load(&keep[at..])).store(&mut keep[at..]);
    }
    for row in block {
        let scores = &mut rows.scores[row * TILE..][..TILE];
        let base = L::splat(base[row - first]);
        let mut sums = [L::zero(); GROUPS];
        for g in 0..GROUPS {
            sums[g] = exp_to_one(L::load(&scores[g * N..]).sub(base));
            sums[g].store(&mut scores[g * N..]);
        }
        let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        let all = &mut rows.gathered.sum[row];
        *all = *all * keep[row - first] + sum;
    }
    keep
}

/// Scales the products of a row, caps, biases and masks them; gives the largest.
#[inline(always)]
fn finish_scores<L: Lanes, const WHOLE: bool>(
    form: Form,
    tile: &Tile,
    rows: &mut Rows<'_>,
    row: usize,
) -> f32 {
    let scores = &mut rows.scores[row * TILE..][..TILE];
    let bias = rows.bias.map(|b| &b[row * TILE..][..TILE]);
    let mut top = L::splat(f32::NEG_INFINITY);
    for g in 0..GROUPS {
        let x = L::load(&scores[g * N..]).mul(L::splat(form.scale));
        let x = match form.cap {
            Some(cap) => L::splat(cap).mul(tanh(x.div(L::splat(cap)))),
            None => x,
        };
        let x = match bias {
            Some(bias) => x.add(L::load(&bias[g * N..])),
            None => x,
        };
        let x = if WHOLE {
            x
        } else {
            visible(x, tile.first + g * N, rows.sees[row])
        };
        x.store(&mut scores[g * N..]);
        top = x.max(top);
    }
    top.largest()
}

#[inline(always)]
fn scalar_exp<L: Lanes>(x: f32) -> f32 {
    if x == 0.0 {
        return 1.0;
    }
    let mut lanes = [0.0; N];
    exp(L::splat(x)).store(&mut lanes);
    lanes[0]
}

/// The number of each lane.
const INDEX: [f32; N] = {
    let (mut index, mut i) = ([0.0; N], 0);
    while i < N {
        index[i] = i as f32;
        i += 1;
    }
    index
};

/// Scores of positions `first..first + 16`, −∞ where the row does not see.
#[inline(always)]
fn visible<L: Lanes>(x: L, first: usize, (lo, hi): (usize, usize)) -> L {
    let (index, none) = (L::load(&INDEX), L::splat(f32::NEG_INFINITY));
    let lo = L::splat(lo.saturating_sub(first).min(N) as f32);
    let hi = L::splat(hi.saturating_sub(first).min(N) as f32);
    index.pick_less(lo, none, index.pick_less(hi, x, none))
}

/// Floats of the queries of an item, [`Rows::queries`].
pub(crate) const fn query_floats(dim_k: usize) -> usize {
    dim_k.next_multiple_of(N) * MAX_ROWS
}

#[inline(always)]
fn place<L: Lanes>(heads: &[f32], dim_k: usize, first: usize, queries: &mut [f32]) {
    assert!(dim_k > 0 && queries.len() >= query_floats(dim_k));
    let (mut i, mut at) = (first, 0);
    while at + dim_k <= heads.len() {
        let head = &heads[at..at + dim_k];
        let mut d = 0;
        while d < dim_k {
            L::load_part(&head[d..], 0.0).store(&mut queries[d * MAX_ROWS + i * N..]);
            d += N;
        }
        (i, at) = (i + 1, at + dim_k);
    }
}

simd_fn! {
    /// Puts heads among the queries of an item, the first as query `first`.
    pub(crate) fn place_queries(heads: &[f32], dim_k: usize, first: usize, queries: &mut [f32]) = place;
}

simd_fn! {
    /// Adds a tile to what the rows have gathered of its chunk.
    pub(crate) fn attend_tile(form: Form, tile: &Tile, rows: &mut Rows<'_>) = attend;
}

#[inline(always)]
fn merge<L: Lanes>(part: (f32, f32, &[f32]), whole: (&mut f32, &mut f32, &mut [f32])) {
    let ((top, sum, mix), (all_top, all_sum, all_mix)) = (part, whole);
    // What saw nothing has no weights; a score that is not a number makes their sum one that is not either.
    if sum == 0.0 {
        return;
    }
    if *all_sum == 0.0 {
        (*all_top, *all_sum) = (top, sum);
        all_mix.copy_from_slice(mix);
        return;
    }
    let after = if top > *all_top { top } else { *all_top };
    let (old, new) = (
        scalar_exp::<L>(*all_top - after),
        scalar_exp::<L>(top - after),
    );
    *all_top = after;
    *all_sum = *all_sum * old + sum * new;
    let (old, new) = (L::splat(old), L::splat(new));
    with!(L, all_mix, mix, |to, x| to.mul(old).add(x.mul(new)));
}

simd_fn! {
    /// Adds a chunk of one row (largest score, sum, values) to all before it.
    fn merge_chunk(part: (f32, f32, &[f32]), whole: (&mut f32, &mut f32, &mut [f32])) = merge;
}

/// What else decides the output of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// A logit without a value.
    pub(crate) sink: Option<f32>,
    /// The row sees no position.
    pub(crate) blind: bool,
}

#[inline(always)]
fn finish<L: Lanes>(gathered: (f32, f32, &[f32]), rest: Rest, out: &mut [f32]) {
    let (top, mut sum, mix) = gathered;
    if sum == 0.0 {
        // Nothing is seen, or nothing beside the sink has a weight, or no score is a number above −∞.
        let none = if rest.blind || rest.sink.is_some() {
            0.0
        } else {
            f32::NAN
        };
        return out.fill(none);
    }
    let mut factor = 1.0;
    if let Some(sink) = rest.sink {
        let after = if sink > top { sink } else { top };
        factor = scalar_exp::<L>(top - after);
        sum = sum * factor + scalar_exp::<L>(sink - after);
    }
    let factor = L::splat(factor / sum);
    map!(L, mix, out, |x| x.mul(factor));
}

simd_fn! {
    /// The output of a row from all that it gathered.
    pub(crate) fn finish_row(gathered: (f32, f32, &[f32]), rest: Rest, out: &mut [f32]) = finish;
}

#[inline(always)]
fn widen_positions<L: Lanes>(codes: &[i8], scales: &[u16], out: &mut [f32]) {
    let blocks = codes.chunks_exact(32 * N).zip(out.chunks_exact_mut(32 * N));
    for ((codes, out), scales) in blocks.zip(scales.chunks_exact(N)) {
        // SAFETY: sixteen halves; below, sixteen codes.
        let scale = unsafe { L::read_half(scales.as_ptr()) };
        for (codes, out) in codes.chunks_exact(N).zip(out.chunks_exact_mut(N)) {
            // SAFETY: as above.
            unsafe { L::read_i8(codes.as_ptr()) }.mul(scale).store(out);
        }
    }
}

simd_fn! {
    /// Codes of sixteen positions, `[columns][16]`, times the scale of each position and 32 columns.
    pub(crate) fn widen_panel(codes: &[i8], scales: &[u16], out: &mut [f32]) = widen_positions;
}
