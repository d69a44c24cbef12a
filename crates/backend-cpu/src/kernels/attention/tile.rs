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

/// Asks for the line with an element.
#[inline(always)]
fn fetch<const HALF: bool>(p: *const u8, element: usize) {
    let at = p.wrapping_add(element * if HALF { 2 } else { 4 });
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which no address makes fail.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Rows that wait for memory rather than for arithmetic.
const FEW: usize = 4;

/// Runs `$step!(rows, vectors)` for `$n` rows, in blocks whose sums stay in registers and are enough to hide that each
/// waits for its last addition. `$row` counts them.
macro_rules! blocks {
    ($lanes:ident, $n:ident, $row:ident, $step:ident) => {
        if $lanes::MANY {
            while $n - $row >= 8 {
                $step!(8, 2);
                $row += 8;
            }
            if $n - $row >= 4 {
                $step!(4, 4);
                $row += 4;
            }
            if $n - $row >= 2 {
                $step!(2, 4);
                $row += 2;
            }
        } else {
            while $n - $row >= 4 {
                $step!(4, 1);
                $row += 4;
            }
            if $n - $row >= 2 {
                $step!(2, 2);
                $row += 2;
            }
        }
        if $n - $row == 1 {
            $step!(1, 4);
        }
    };
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
    let keys = Keys {
        here: &tile.keys[groups.clone()],
        next: &tile.next_keys[groups.clone()],
        dim_k,
    };
    let mut row = 0;
    // SAFETY: rows and groups stay inside what the caller promised.
    unsafe {
        macro_rules! step {
            ($rows:literal, $groups:literal) => {{
                let q = rows.queries.as_ptr().add(row * dim_k);
                let to = rows.scores.as_mut_ptr().add(row * TILE + groups.start * N);
                sweep::<L, HALF, $rows, $groups>(q, keys, to);
            }};
        }
        blocks!(L, n, row, step);
    }
}

/// Panels of a tile, and those that will be wanted after them.
#[derive(Clone, Copy)]
struct Keys<'a> {
    here: &'a [*const u8],
    next: &'a [*const u8],
    dim_k: usize,
}

/// `R` rows over all groups, `P` at a time while there are as many.
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
        while g < groups {
            dots::<L, HALF, R, 1>(q, keys, g, to.add(g * N));
            g += 1;
        }
    }
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
        // Few rows finish a tile before memory can bring the next.
        let ahead = R <= FEW && next.iter().all(|p| !p.is_null());
        for d in 0..dim_k {
            let mut k = [L::zero(); P];
            for p in 0..P {
                k[p] = read::<L, HALF>(*here.get_unchecked(p), d * N);
            }
            if ahead && (!HALF || d % 2 == 0) {
                for p in 0..P {
                    fetch::<HALF>(*next.get_unchecked(p), d * N);
                }
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
        macro_rules! step {
            ($rows:literal, $vectors:literal) => {{
                let at = Mix {
                    weights: rows.scores.as_ptr().add(row * TILE),
                    keep: keep.as_ptr().add(row),
                    mix: rows.gathered.mix.as_mut_ptr().add(row * dim_v),
                    dim_v,
                };
                columns::<L, HALF, $rows, $vectors>(at, tile, span);
            }};
        }
        blocks!(L, n, row, step);
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
        while at.dim_v - c >= P * N {
            gather::<L, HALF, R, P>(at, tile, span, c);
            c += P * N;
        }
        while P > 2 && at.dim_v - c >= 2 * N {
            gather::<L, HALF, R, 2>(at, tile, span, c);
            c += 2 * N;
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
            let (values, next) = (tile.values[g], tile.next_values[g]);
            let ahead = R <= FEW && !next.is_null();
            for j in lo.max(g * N)..hi.min(g * N + N) {
                let from = (j - g * N) * tile.value_stride + column;
                let mut v = [L::zero(); P];
                for (p, v) in v.iter_mut().enumerate() {
                    *v = read::<L, HALF>(values, from + p * N);
                }
                for p in (0..if ahead { P } else { 0 }).step_by(if HALF { 2 } else { 1 }) {
                    fetch::<HALF>(next, from + p * N);
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
