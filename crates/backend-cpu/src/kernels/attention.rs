//! Softmax attention of a few query rows over a tile of positions.
//!
//! Positions are cut at absolute places: tiles of [`TILE`] inside chunks of [`CHUNK`]. A chunk starts from nothing
//! and chunks are merged in order, so that a row's numbers are the same whatever rows share its tile, whichever
//! worker takes a chunk and however the prompt was cut into steps: per row and position the operations and their
//! order are fixed, tiles that a row does not see change nothing.
#![allow(unsafe_code)]

mod tile;

use tokkata_quant::num::f16_to_f32;

use super::lanes::{Lanes, N, map, simd_fn, with};
use super::math::{exp, tanh};

/// Positions of a tile.
pub(crate) const TILE: usize = 64;
/// Positions of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Groups of sixteen positions in a tile.
pub(crate) const GROUPS: usize = TILE / N;
/// Query rows (times heads) that share a tile at most.
pub(crate) const MAX_ROWS: usize = 32;

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
    pub(crate) mix: Vec<f32>,
}

impl Gathered {
    pub(crate) fn new(dim_v: usize) -> Self {
        Gathered {
            top: vec![f32::NEG_INFINITY; MAX_ROWS],
            sum: vec![0.0; MAX_ROWS],
            mix: vec![0.0; MAX_ROWS * dim_v],
        }
    }

    /// Forgets the first `rows` rows.
    pub(crate) fn clear(&mut self, rows: usize, dim_v: usize) {
        self.top[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
        self.mix[..rows * dim_v].fill(0.0);
    }
}

/// Query rows at work on a tile.
pub(crate) struct Rows<'a> {
    /// `[rows, dim_k]`.
    pub(crate) queries: &'a [f32],
    /// Positions each row sees: first and one past the last.
    pub(crate) sees: &'a [(usize, usize)],
    /// Added to scores, `[rows, TILE]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, TILE]`.
    pub(crate) scores: &'a mut [f32],
    pub(crate) gathered: &'a mut Gathered,
}

/// Positions of the tile that any row sees, relative to its first.
fn span(tile: &Tile, rows: &Rows<'_>) -> Option<(usize, usize)> {
    let (first, end) = (tile.first, tile.first + TILE);
    let seen = rows
        .sees
        .iter()
        .filter(|(lo, hi)| lo.max(&first) < hi.min(&end));
    let lo = seen.clone().map(|&(lo, _)| lo.max(first)).min()?;
    let hi = seen.map(|&(_, hi)| hi.min(end)).max()?;
    Some((lo - first, hi - first))
}

#[inline(always)]
fn attend<L: Lanes>(form: Form, tile: &Tile, rows: &mut Rows<'_>) {
    let Some((lo, hi)) = span(tile, rows) else {
        return;
    };
    let n = rows.sees.len();
    assert!(n <= MAX_ROWS && rows.queries.len() >= n * form.dim_k && rows.scores.len() >= n * TILE);
    assert!(rows.gathered.mix.len() >= n * form.dim_v);
    // SAFETY: the groups from `lo` to `hi` are valid, sizes are checked above.
    unsafe { tile::scores::<L>(form.dim_k, tile, rows, lo / N..hi.div_ceil(N)) };
    let mut keep = [1.0; MAX_ROWS];
    for (row, keep) in keep.iter_mut().enumerate().take(n) {
        *keep = weigh::<L>(form, tile, rows, row, (lo / N, hi.div_ceil(N)));
    }
    // SAFETY: as above.
    unsafe { tile::mix::<L>(form.dim_v, tile, rows, (lo, hi), &keep) };
}

/// Turns the scores of one row into weights; gives the factor for what was gathered before.
#[inline(always)]
fn weigh<L: Lanes>(
    form: Form,
    tile: &Tile,
    rows: &mut Rows<'_>,
    row: usize,
    groups: (usize, usize),
) -> f32 {
    let scores = &mut rows.scores[row * TILE..][..TILE];
    let bias = rows.bias.map(|b| &b[row * TILE..][..TILE]);
    let mut top = L::splat(f32::NEG_INFINITY);
    let mut s = [L::splat(f32::NEG_INFINITY); GROUPS];
    for g in groups.0..groups.1 {
        let x = L::load(&scores[g * N..]).mul(L::splat(form.scale));
        let x = match form.cap {
            Some(cap) => L::splat(cap).mul(tanh(x.div(L::splat(cap)))),
            None => x,
        };
        let x = match bias {
            Some(bias) => x.add(L::load(&bias[g * N..])),
            None => x,
        };
        s[g] = visible(x, tile.first + g * N, rows.sees[row]);
        top = s[g].max(top);
    }
    let before = rows.gathered.top[row];
    let after = if top.largest() > before {
        top.largest()
    } else {
        before
    };
    let base = if after == f32::NEG_INFINITY {
        0.0
    } else {
        after
    };
    let mut sums = [L::zero(); GROUPS];
    for (g, sum) in sums.iter_mut().enumerate() {
        *sum = exp(s[g].sub(L::splat(base)));
        sum.store(&mut scores[g * N..]);
    }
    let keep = scalar_exp::<L>(before - base);
    let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
    rows.gathered.sum[row] = rows.gathered.sum[row] * keep + sum;
    rows.gathered.top[row] = after;
    keep
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
    if lo <= first && first + N <= hi {
        return x;
    }
    let (index, none) = (L::load(&INDEX), L::splat(f32::NEG_INFINITY));
    let lo = L::splat(lo.saturating_sub(first).min(N) as f32);
    let hi = L::splat(hi.saturating_sub(first).min(N) as f32);
    index.pick_less(lo, none, index.pick_less(hi, x, none))
}

simd_fn! {
    /// Adds a tile to what the rows have gathered of its chunk.
    pub(crate) fn attend_tile(form: Form, tile: &Tile, rows: &mut Rows<'_>) = attend;
}

#[inline(always)]
fn merge<L: Lanes>(part: (f32, f32, &[f32]), whole: (&mut f32, &mut f32, &mut [f32])) {
    let ((top, sum, mix), (all_top, all_sum, all_mix)) = (part, whole);
    if top == f32::NEG_INFINITY {
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
    pub(crate) fn merge_chunk(part: (f32, f32, &[f32]), whole: (&mut f32, &mut f32, &mut [f32])) = merge;
}

#[inline(always)]
fn finish<L: Lanes>(gathered: (f32, f32, &[f32]), sink: Option<f32>, out: &mut [f32]) {
    let (top, mut sum, mix) = gathered;
    let mut factor = 1.0;
    if let Some(sink) = sink {
        let after = if sink > top { sink } else { top };
        factor = scalar_exp::<L>(top - after);
        sum = sum * factor + scalar_exp::<L>(sink - after);
    }
    let factor = L::splat(if sum == 0.0 { 0.0 } else { factor / sum });
    map!(L, mix, out, |x| x.mul(factor));
}

simd_fn! {
    /// The output of a row from all that it gathered.
    pub(crate) fn finish_row(gathered: (f32, f32, &[f32]), sink: Option<f32>, out: &mut [f32]) = finish;
}

#[inline(always)]
fn widen<L: Lanes>(codes: &[i8], scales: &[u16], out: &mut [f32]) {
    let blocks = codes.chunks_exact(32).zip(out.chunks_exact_mut(32));
    for ((codes, out), &scale) in blocks.zip(scales) {
        let scale = L::splat(f16_to_f32(scale));
        // SAFETY: both halves of a block of 32.
        let halves = unsafe {
            (
                L::read_i8(codes.as_ptr()),
                L::read_i8(codes.as_ptr().add(N)),
            )
        };
        halves.0.mul(scale).store(out);
        halves.1.mul(scale).store(&mut out[N..]);
    }
}

simd_fn! {
    /// Codes of one position times the scale of each 32 columns.
    pub(crate) fn widen_codes(codes: &[i8], scales: &[u16], out: &mut [f32]) = widen;
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

#[inline(always)]
fn halves<L: Lanes>(x: &[f32], out: &mut [u16]) {
    let (mut at, n) = (0, out.len());
    let x = &x[..n];
    while at + N <= n {
        // SAFETY: sixteen more halves.
        unsafe { L::load(&x[at..]).write_half(out[at..].as_mut_ptr()) };
        at += N;
    }
    let mut lanes = [0; N];
    // SAFETY: sixteen halves.
    unsafe { L::load_part(&x[at..], 0.0).write_half(lanes.as_mut_ptr()) };
    out[at..].copy_from_slice(&lanes[..n - at]);
}

simd_fn! {
    /// The nearest halves.
    pub(crate) fn halves_run(x: &[f32], out: &mut [u16]) = halves;
}
