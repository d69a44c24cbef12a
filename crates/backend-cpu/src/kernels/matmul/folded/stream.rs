//! Few rows on the stored panels: the same integers as with tiles, from the codes as they lie.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::avx512::Avx512;
use super::super::simd::{ROWS, Simd, Task};
use super::super::tile::ahead;
use super::formats::Fold;
use super::{GROUPS, Out, finish, heads};
use crate::kernels::quantize::folded::{FOLD, FOLD_SUMS, FoldedRows};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// Blocks of a group.
const BLOCKS: usize = FOLD / 32;

/// One panel times `width` interleaved rows.
///
/// # Safety
/// The processor has AVX-512; the panel holds as many chunks as the rows, and `out` a row of results for each.
pub(super) unsafe fn panel<P: Fold>(
    (panel, chunks, fetch): (*const u8, usize, Fetch),
    rows: FoldedRows,
    width: usize,
    out: &mut Out,
) {
    let mut c = 0;
    while c < width {
        let rows = FoldedRows {
            codes: rows.codes.wrapping_add(4 * c),
            scales: rows.scales.wrapping_add(c),
            sums: rows.sums.wrapping_add(FOLD_SUMS * c),
        };
        let out = out.0[c..].as_mut_ptr();
        macro_rules! go {
            ($rows:literal) => {{
                let few = Few::<P, $rows> {
                    panel,
                    chunks,
                    fetch,
                    rows,
                    width,
                    out,
                    format: PhantomData,
                };
                // SAFETY: passed on.
                unsafe { Avx512::vectorize(few) };
                c += $rows;
            }};
        }
        match width - c {
            1 => go!(1),
            2 => go!(2),
            3 => go!(3),
            _ => go!(4),
        }
    }
}

/// `C` rows of `width`.
struct Few<P, const C: usize> {
    panel: *const u8,
    chunks: usize,
    fetch: Fetch,
    rows: FoldedRows,
    width: usize,
    out: *mut [f32; ROWS],
    format: PhantomData<P>,
}

impl<P: Fold, const C: usize> Task for Few<P, C> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: as `panel` promises.
        unsafe {
            let mut y = [_mm512_setzero_ps(); C];
            for chunk in 0..self.chunks {
                let at = self.panel.add(chunk * P::BYTES);
                for group in 0..GROUPS {
                    self.group((at, chunk, group), &mut y);
                }
            }
            for (c, &y) in y.iter().enumerate() {
                _mm512_storeu_ps(self.out.add(c).cast(), y);
            }
        }
    }
}

impl<P: Fold, const C: usize> Few<P, C> {
    #[inline(always)]
    unsafe fn group(&self, (at, chunk, group): (*const u8, usize, usize), y: &mut [__m512; C]) {
        let g = chunk * GROUPS + group;
        let sums = self.rows.sums.wrapping_add(g * self.width * FOLD_SUMS);
        // SAFETY: as `panel` promises.
        unsafe {
            let mut total = [_mm512_setzero_si512(); C];
            let mut less = [_mm512_setzero_si512(); C];
            for b in 0..BLOCKS {
                let i = group * BLOCKS + b;
                let bytes = P::BYTES / P::BLOCKS;
                ahead::<Avx512>(self.fetch, at.wrapping_add(i * bytes), bytes / LINE_BYTES);
                let ints = P::ints(at, i);
                let codes = self.rows.codes.add((g * FOLD + 32 * b) * self.width);
                for sub in 0..P::SUBS {
                    let which = if P::SUBS == 2 {
                        2 * b + sub
                    } else {
                        FOLD / 16 + b
                    };
                    let sum = |c: usize| i32::from(*sums.add(c * FOLD_SUMS + which));
                    let dots = self.dots((at, i, sub), codes, |c| -P::BIAS * sum(c));
                    for c in 0..C {
                        let product = _mm512_mullo_epi32(dots[c], ints.scale[sub]);
                        total[c] = _mm512_add_epi32(total[c], product);
                        if P::MINS {
                            let product =
                                _mm512_mullo_epi32(ints.min[sub], _mm512_set1_epi32(sum(c)));
                            less[c] = _mm512_add_epi32(less[c], product);
                        }
                    }
                }
            }
            let heads = heads::<P>(at);
            let scales = self.rows.scales.add(g * self.width);
            for c in 0..C {
                y[c] = finish::<P>(total[c], less[c], heads, scales.add(c), y[c]);
            }
        }
    }

    /// Products of a sub-block's codes with every row, on top of `start`.
    #[inline(always)]
    unsafe fn dots(
        &self,
        (at, i, sub): (*const u8, usize, usize),
        codes: *const i8,
        start: impl Fn(usize) -> i32,
    ) -> [__m512i; C] {
        // SAFETY: as `panel` promises.
        unsafe {
            let mut dots = [_mm512_setzero_si512(); C];
            if P::BIAS != 0 {
                for (c, dot) in dots.iter_mut().enumerate() {
                    *dot = _mm512_set1_epi32(start(c));
                }
            }
            let pairs = 4 / P::SUBS;
            for j in sub * pairs..(sub + 1) * pairs {
                let (low, high) = P::pair::<Avx512>(at, i, j);
                for (c, dot) in dots.iter_mut().enumerate() {
                    let x = codes.add((2 * j * self.width + c) * 4);
                    *dot = Avx512::narrow_dot(*dot, low, x);
                    *dot = Avx512::narrow_dot(*dot, high, x.add(4 * self.width));
                }
            }
            dots
        }
    }
}
