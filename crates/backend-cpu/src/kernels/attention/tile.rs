//! The two products of a tile: scores (positions in lanes) and weighted values (columns in lanes).
//!
//! Blocks of rows and vectors only change how much work is in flight: each score sums its columns in order, each
//! mixed value its positions in order.
#![allow(unsafe_code)]
// Counted loops over constants unroll into registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::super::lanes::{Lanes, N};
use super::{MAX_ROWS, Rows, TILE, Tile};

#[inline(always)]
unsafe fn read<L: Lanes, const HALF: bool>(p: *const u8, element: usize) -> L {
    // SAFETY: the caller gives sixteen elements of the type.
    unsafe {
        if HALF {
            L::read_half(p.cast::<u16>().add(element))
        } else {
            L::read(p.cast::<f32>().add(element))
        }
    }
}

/// Scores of all rows and the given groups.
///
/// # Safety
/// The groups of the tile are valid and the rows have `dim_k` columns each.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes>(
    dim_k: usize,
    tile: &Tile,
    rows: &mut Rows<'_>,
    groups: Range<usize>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if tile.half_keys {
            scores_of::<L, true>(dim_k, tile, rows, groups);
        } else {
            scores_of::<L, false>(dim_k, tile, rows, groups);
        }
    }
}

#[inline(always)]
unsafe fn scores_of<L: Lanes, const HALF: bool>(
    dim_k: usize,
    tile: &Tile,
    rows: &mut Rows<'_>,
    groups: Range<usize>,
) {
    let n = rows.sees.len();
    let keys = &tile.keys[groups.clone()];
    let mut row = 0;
    // SAFETY: rows and groups stay inside what the caller promised.
    unsafe {
        let mut step = |count: usize| {
            let q = rows.queries.as_ptr().add(row * dim_k);
            let to = rows.scores.as_mut_ptr().add(row * TILE + groups.start * N);
            row += count;
            (q, to)
        };
        for _ in 0..n / 4 {
            let (q, to) = step(4);
            sweep::<L, HALF, 4, 2>(dim_k, q, keys, to);
        }
        if n % 4 >= 2 {
            let (q, to) = step(2);
            sweep::<L, HALF, 2, 2>(dim_k, q, keys, to);
        }
        if n % 2 == 1 {
            let (q, to) = step(1);
            sweep::<L, HALF, 1, 4>(dim_k, q, keys, to);
        }
    }
}

/// `R` rows over all groups, `P` at a time where the registers allow.
#[inline(always)]
unsafe fn sweep<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    dim_k: usize,
    q: *const f32,
    keys: &[*const u8],
    to: *mut f32,
) {
    let mut g = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while P > 1 && (R < 4 || L::MANY) && keys.len() - g >= P {
            dots::<L, HALF, R, P>(dim_k, q, &keys[g..], to.add(g * N));
            g += P;
        }
        while g < keys.len() {
            dots::<L, HALF, R, 1>(dim_k, q, &keys[g..], to.add(g * N));
            g += 1;
        }
    }
}

#[inline(always)]
unsafe fn dots<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    dim_k: usize,
    q: *const f32,
    keys: &[*const u8],
    to: *mut f32,
) {
    let mut acc = [[L::zero(); P]; R];
    // SAFETY: the caller's promise.
    unsafe {
        let keys = &keys[..P];
        for d in 0..dim_k {
            let mut k = [L::zero(); P];
            for p in 0..P {
                k[p] = read::<L, HALF>(*keys.get_unchecked(p), d * N);
            }
            for r in 0..R {
                let q = L::splat(*q.add(r * dim_k + d));
                for p in 0..P {
                    acc[r][p] = q.fma(k[p], acc[r][p]);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, x) in acc.iter().enumerate() {
                x.write(to.add(r * TILE + p * N));
            }
        }
    }
}

/// Adds the weighted values of positions `lo..hi` to what the rows have gathered, kept by `keep`.
///
/// # Safety
/// The groups of these positions are valid and the rows have gathered `dim_v` columns each.
#[inline(always)]
pub(super) unsafe fn mix<L: Lanes>(
    dim_v: usize,
    tile: &Tile,
    rows: &mut Rows<'_>,
    span: (usize, usize),
    keep: &[f32; MAX_ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        if tile.half_values {
            mix_of::<L, true>(dim_v, tile, rows, span, keep);
        } else {
            mix_of::<L, false>(dim_v, tile, rows, span, keep);
        }
    }
}

#[inline(always)]
unsafe fn mix_of<L: Lanes, const HALF: bool>(
    dim_v: usize,
    tile: &Tile,
    rows: &mut Rows<'_>,
    span: (usize, usize),
    keep: &[f32; MAX_ROWS],
) {
    let n = rows.sees.len();
    let mut row = 0;
    // SAFETY: rows stay inside what the caller promised.
    unsafe {
        let mut step = |count: usize| {
            let at = Mix {
                weights: rows.scores.as_ptr().add(row * TILE),
                keep: keep.as_ptr().add(row),
                mix: rows.gathered.mix.as_mut_ptr().add(row * dim_v),
                dim_v,
            };
            row += count;
            at
        };
        for _ in 0..n / 4 {
            columns::<L, HALF, 4, 2>(step(4), tile, span);
        }
        if n % 4 >= 2 {
            columns::<L, HALF, 2, 2>(step(2), tile, span);
        }
        if n % 2 == 1 {
            columns::<L, HALF, 1, 4>(step(1), tile, span);
        }
    }
}

/// Rows of weights and where their mixes lie.
#[derive(Clone, Copy)]
struct Mix {
    weights: *const f32,
    keep: *const f32,
    mix: *mut f32,
    dim_v: usize,
}

#[inline(always)]
unsafe fn columns<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    at: Mix,
    tile: &Tile,
    span: (usize, usize),
) {
    let mut c = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while P > 1 && (R < 4 || L::MANY) && at.dim_v - c >= P * N {
            gather::<L, HALF, R, P>(at, tile, span, c);
            c += P * N;
        }
        while c < at.dim_v {
            gather::<L, HALF, R, 1>(at, tile, span, c);
            c += N;
        }
    }
}

#[inline(always)]
unsafe fn gather<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    at: Mix,
    tile: &Tile,
    (lo, hi): (usize, usize),
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[L::zero(); P]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            let keep = L::splat(*at.keep.add(r));
            for (p, x) in acc.iter_mut().enumerate() {
                *x = L::read(at.mix.add(r * at.dim_v + column + p * N)).mul(keep);
            }
        }
        for g in lo / N..hi.div_ceil(N) {
            let values = tile.values[g];
            for j in lo.max(g * N)..hi.min(g * N + N) {
                let from = (j - g * N) * tile.value_stride + column;
                let mut v = [L::zero(); P];
                for (p, v) in v.iter_mut().enumerate() {
                    *v = read::<L, HALF>(values, from + p * N);
                }
                for r in 0..R {
                    let w = L::splat(*at.weights.add(r * TILE + j));
                    for p in 0..P {
                        acc[r][p] = w.fma(v[p], acc[r][p]);
                    }
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, x) in acc.iter().enumerate() {
                x.write(at.mix.add(r * at.dim_v + column + p * N));
            }
        }
    }
}
