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
use crate::tuning::Near;

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

/// Sixteen columns of the values of a position of the tile.
///
/// # Safety
/// The group of the position is valid.
#[inline(always)]
pub(super) unsafe fn value<L: Lanes>(tile: &Tile, position: usize, column: usize) -> L {
    let (group, element) = (position / N, position % N * tile.value_stride + column);
    // SAFETY: the caller's promise.
    unsafe {
        match tile.half_values {
            true => read::<L, true>(tile.values[group], element),
            false => read::<L, false>(tile.values[group], element),
        }
    }
}

/// Asks for the line with an element.
#[inline(always)]
fn fetch<const HALF: bool>(near: Near, p: *const u8, element: usize) {
    let at = p.wrapping_add(element * if HALF { 2 } else { 4 });
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which no address makes fail.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match near {
            Near::First => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            Near::Second => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (near, at);
}

/// Scores of `R` rows from `row` on and the given groups, `P` groups at a time while there are as many.
///
/// # Safety
/// The groups of the tile are valid and the rows have `dim_k` columns each.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, const R: usize, const P: usize>(
    dim_k: usize,
    tile: &Tile,
    (queries, scores, row): (&[f32], &mut [f32], usize),
    groups: Range<usize>,
) {
    let keys = Keys {
        here: &tile.keys[groups.clone()],
        next: &tile.next_keys[groups.clone()],
        near: tile.near,
        dim_k,
        ahead: row == 0,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let q = queries.as_ptr().add(row * N);
        let to = scores.as_mut_ptr().add(row * TILE + groups.start * N);
        if tile.half_keys {
            sweep::<L, true, R, P>(q, keys, to);
        } else {
            sweep::<L, false, R, P>(q, keys, to);
        }
    }
}

/// Panels of a tile, and those that will be wanted after them.
#[derive(Clone, Copy)]
struct Keys<'a> {
    here: &'a [*const u8],
    next: &'a [*const u8],
    near: Near,
    dim_k: usize,
    /// Those after them are asked for: once by all rows of a tile, which may be done with it before memory brings them.
    ahead: bool,
}

#[inline(always)]
unsafe fn sweep<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    q: *const f32,
    keys: Keys<'_>,
    to: *mut f32,
) {
    let (mut g, groups) = (0, keys.here.len());
    // SAFETY: the caller's promise.
    unsafe {
        while groups - g >= P {
            dots::<L, HALF, R, P>(q, keys, g, to.add(g * N));
            g += P;
        }
        while P > 2 && groups - g >= 2 {
            dots::<L, HALF, R, 2>(q, keys, g, to.add(g * N));
            g += 2;
        }
        while P > 1 && g < groups {
            dots::<L, HALF, R, 1>(q, keys, g, to.add(g * N));
            g += 1;
        }
    }
}

/// Adds to sums `[rows][vectors]` what each row's factor times each vector is. A vector is read where it is used if
/// registers are few: with all of them at hand, sums would pass through memory.
macro_rules! products {
    ($acc:ident, [$rows:ident, $vectors:ident], |$r:ident| $factor:expr, |$p:ident| $vector:expr) => {
        if L::MANY || $vectors == 1 {
            let mut vectors = [L::zero(); $vectors];
            for $p in 0..$vectors {
                vectors[$p] = $vector;
            }
            for $r in 0..$rows {
                let factor = $factor;
                for p in 0..$vectors {
                    $acc[$r][p] = factor.fma(vectors[p], $acc[$r][p]);
                }
            }
        } else {
            let mut factors = [L::zero(); $rows];
            for $r in 0..$rows {
                factors[$r] = $factor;
            }
            for $p in 0..$vectors {
                let vector = $vector;
                for r in 0..$rows {
                    $acc[r][$p] = $acc[r][$p].plus(factors[r], vector);
                }
            }
        }
    };
}

#[inline(always)]
unsafe fn dots<L: Lanes, const HALF: bool, const R: usize, const P: usize>(
    q: *const f32,
    keys: Keys<'_>,
    group: usize,
    to: *mut f32,
) {
    let dim_k = keys.dim_k;
    let mut acc = [[L::zero(); P]; R];
    // SAFETY: the caller's promise.
    unsafe {
        let (here, next) = (&keys.here[group..][..P], &keys.next[group..][..P]);
        let ahead = keys.ahead && next.iter().all(|p| !p.is_null());
        for first in (0..dim_k).step_by(N) {
            let q = q.add(first * MAX_ROWS);
            for d in first..dim_k.min(first + N) {
                if ahead && (!HALF || d % 2 == 0) {
                    for p in 0..P {
                        fetch::<HALF>(keys.near, *next.get_unchecked(p), d * N);
                    }
                }
                products!(acc, [R, P], |r| L::splat(*q.add(r * N + d - first)), |p| {
                    read::<L, HALF>(*here.get_unchecked(p), d * N)
                });
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, x) in acc.iter().enumerate() {
                x.write(to.add(r * TILE + p * N));
            }
        }
    }
}

/// Adds the weighted values of positions `lo..hi` to what `R` rows from `row` on have gathered, kept by `keep`.
///
/// # Safety
/// The groups of these positions are valid and the rows have gathered `dim_v` columns each.
#[inline(always)]
pub(super) unsafe fn mix<L: Lanes, const R: usize, const P: usize>(
    dim_v: usize,
    tile: &Tile,
    (rows, row): (&mut Rows<'_>, usize),
    span: (usize, usize),
    keep: &[f32],
) {
    debug_assert!(keep.len() >= R);
    // SAFETY: rows stay inside what the caller promised.
    unsafe {
        let at = Mix {
            weights: rows.scores.as_ptr().add(row * TILE),
            keep: (!rows.gathered.fresh).then_some(keep.as_ptr()),
            mix: rows.gathered.mix.as_mut_ptr().add(row * dim_v),
            dim_v,
            ahead: row == 0,
        };
        if tile.half_values {
            columns::<L, true, R, P>(at, tile, span);
        } else {
            columns::<L, false, R, P>(at, tile, span);
        }
    }
}

/// Rows of weights and where their mixes lie.
#[derive(Clone, Copy)]
struct Mix {
    weights: *const f32,
    /// `None` where nothing is gathered yet.
    keep: Option<*const f32>,
    mix: *mut f32,
    dim_v: usize,
    /// As for keys.
    ahead: bool,
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
        while at.dim_v - c >= P * N {
            gather::<L, HALF, R, P>(at, tile, span, c);
            c += P * N;
        }
        while P > 2 && at.dim_v - c >= 2 * N {
            gather::<L, HALF, R, 2>(at, tile, span, c);
            c += 2 * N;
        }
        while P > 1 && c < at.dim_v {
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
        if let Some(keep) = at.keep {
            for r in 0..R {
                let keep = L::splat(*keep.add(r));
                for p in 0..P {
                    acc[r][p] = L::read(at.mix.add(r * at.dim_v + column + p * N)).mul(keep);
                }
            }
        }
        for g in lo / N..hi.div_ceil(N) {
            let (values, next) = (tile.values[g], tile.next_values[g]);
            let ahead = at.ahead && !next.is_null();
            for j in lo.max(g * N)..hi.min(g * N + N) {
                let from = (j - g * N) * tile.value_stride + column;
                for p in (0..if ahead { P } else { 0 }).step_by(if HALF { 2 } else { 1 }) {
                    fetch::<HALF>(tile.near, next, from + p * N);
                }
                products!(
                    acc,
                    [R, P],
                    |r| L::splat(*at.weights.add(r * TILE + j)),
                    |p| read::<L, HALF>(values, from + p * N)
                );
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, x) in acc.iter().enumerate() {
                x.write(at.mix.add(r * at.dim_v + column + p * N));
            }
        }
    }
}
