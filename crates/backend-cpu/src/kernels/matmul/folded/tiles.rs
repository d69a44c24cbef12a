//! Groups of unpacked panels times tiles of rows.
//!
//! While the tiles multiply one group, AVX-512 adds the sums of the one before to the results.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::simd::ROWS;
use super::finish;
use super::formats::Fold;
use super::unpack::{FACTORS, PAIRS, PLANE};
use crate::kernels::quantize::folded::{FOLD, FOLD_ROWS, FOLD_SUMS, FoldedRows, STEP};

/// Steps of a group.
const STEPS: usize = FOLD / STEP;
/// Bytes of the sums of high or of low bytes.
pub(in super::super) const SUMS: usize = FOLD_ROWS * ROWS * size_of::<i32>();

/// What multiplies a tile of rows with a group of a panel, in sums of which there are two sets.
pub(in super::super) trait Multiply {
    /// Sets sums to zero.
    ///
    /// # Safety
    /// The processor has what multiplies.
    unsafe fn zero(&mut self, odd: bool);
    /// Adds the products of a step's codes with the high and the low bytes of a panel.
    ///
    /// # Safety
    /// Both hold a step.
    unsafe fn step(&mut self, odd: bool, codes: *const i8, panel: *const u8);
    /// Writes the sums `[row of activations][row of weights]` of high bytes, then of low bytes.
    ///
    /// # Safety
    /// `to` has room for both.
    unsafe fn store(&mut self, odd: bool, to: *mut u8);
}

/// A group of a tile and of a panel.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) rows: FoldedRows,
    pub(super) panel: *const u8,
    pub(super) y: *mut f32,
}

impl FoldedRows {
    /// The tables from group `group` on, for tiles.
    pub(super) fn at(self, group: usize) -> Self {
        Self {
            codes: self.codes.wrapping_add(group * FOLD_ROWS * FOLD),
            scales: self.scales.wrapping_add(group * FOLD_ROWS),
            sums: self.sums.wrapping_add(group * FOLD_ROWS * FOLD_SUMS),
        }
    }
}

/// Sums of two units. Together they are a page: loads wait for stores at the same place of another one.
#[repr(align(64))]
struct Sums([u8; 4 * SUMS]);

/// Three stages at a time: tiles multiply a unit, store the sums of the one before, and AVX-512 adds those of the one
/// before that to its results. So nothing waits for a product that was just begun.
pub(super) struct Pipeline<T> {
    tiles: T,
    sums: Sums,
    /// Begun.
    begun: Option<Unit>,
    /// Its sums are in memory.
    stored: Option<Unit>,
    odd: bool,
}

impl<T: Multiply> Pipeline<T> {
    pub(super) fn new(tiles: T) -> Self {
        Self {
            tiles,
            sums: Sums([0; 4 * SUMS]),
            begun: None,
            stored: None,
            odd: false,
        }
    }

    /// Begins a unit and carries on with those before.
    ///
    /// # Safety
    /// The processor has AVX-512; the unit's memory stays until [`Pipeline::finish`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    pub(super) unsafe fn step<P: Fold>(&mut self, unit: Unit) {
        // SAFETY: passed on.
        unsafe {
            self.tiles.zero(self.odd);
            for s in 0..STEPS {
                let codes = unit.rows.codes.add(s * FOLD_ROWS * STEP);
                let panel = unit.panel.add(s * 2 * PLANE);
                self.tiles.step(self.odd, codes, panel);
            }
            self.advance::<P>();
        }
        self.begun = Some(unit);
    }

    /// Brings all units to their results.
    ///
    /// # Safety
    /// As [`Pipeline::step`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn finish<P: Fold>(&mut self) {
        for _ in 0..2 {
            // SAFETY: passed on.
            unsafe { self.advance::<P>() };
            self.begun = None;
        }
    }

    /// Stores the sums of the unit of the other parity and adds those of this parity.
    #[inline(always)]
    unsafe fn advance<P: Fold>(&mut self) {
        let slot = |odd: bool| usize::from(odd) * 2 * SUMS;
        // SAFETY: there is room for the sums of both parities; the unit's memory is as it was.
        unsafe {
            if self.begun.is_some() {
                let to = self.sums.0[slot(!self.odd)..].as_mut_ptr();
                self.tiles.store(!self.odd, to);
            }
            if let Some(unit) = self.stored {
                add::<P>(&unit, self.sums.0[slot(self.odd)..].as_ptr());
            }
        }
        self.stored = self.begun;
        self.odd = !self.odd;
    }
}

/// Adds a unit's sums to its results.
#[inline(always)]
unsafe fn add<P: Fold>(unit: &Unit, sums: *const u8) {
    // SAFETY: the sums were written, and the unit's tables hold sixteen rows.
    unsafe {
        let factors = unit.panel.add(FACTORS);
        let heads = [
            _mm512_loadu_ps(factors.cast()),
            _mm512_loadu_ps(factors.add(64).cast()),
        ];
        let pair = |n: usize| _mm512_loadu_si512(factors.add(128 + 64 * n).cast());
        let mut mins = [pair(0); PAIRS];
        for (n, min) in mins.iter_mut().enumerate() {
            *min = pair(n);
        }
        for r in 0..FOLD_ROWS {
            let high = _mm512_loadu_si512(sums.add(64 * r).cast());
            let low = _mm512_loadu_si512(sums.add(SUMS + 64 * r).cast());
            let total = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
            let less = less::<P>(&mins, unit.rows.sums.add(FOLD_SUMS * r));
            let y = unit.y.add(ROWS * r);
            let scale = unit.rows.scales.add(r);
            let sum = _mm512_loadu_ps(y);
            _mm512_storeu_ps(y, finish::<P>(total, less, heads, scale, sum));
        }
    }
}

/// Minima times the sums of codes of one row.
#[inline(always)]
unsafe fn less<P: Fold>(mins: &[__m512i; PAIRS], sums: *const i16) -> __m512i {
    // SAFETY: the row has its sums.
    unsafe {
        if !P::MINS {
            return _mm512_setzero_si512();
        }
        let (pairs, first) = if P::SUBS == 2 {
            (PAIRS, 0)
        } else {
            (PAIRS / 2, FOLD / 16)
        };
        let two =
            |n: usize| _mm512_set1_epi32(sums.add(first + 2 * n).cast::<i32>().read_unaligned());
        let mut less = _mm512_madd_epi16(mins[0], two(0));
        let mut n = 1;
        while n < pairs {
            less = _mm512_dpwssd_epi32(less, mins[n], two(n));
            n += 1;
        }
        less
    }
}

/// What tiles compute, for processors without them.
#[cfg(test)]
mod emulation {
    use super::super::unpack::PLANE;
    use super::{FOLD_ROWS, Multiply, Pipeline, ROWS, STEP, SUMS};

    pub(in super::super) struct Emulated([[i32; 2 * FOLD_ROWS * ROWS]; 2]);

    impl Pipeline<Emulated> {
        pub(in super::super) fn emulated() -> Self {
            Pipeline::new(Emulated([[0; 2 * FOLD_ROWS * ROWS]; 2]))
        }
    }

    impl Multiply for Emulated {
        unsafe fn zero(&mut self, odd: bool) {
            self.0[usize::from(odd)].fill(0);
        }

        unsafe fn step(&mut self, odd: bool, codes: *const i8, panel: *const u8) {
            for (i, sum) in self.0[usize::from(odd)].iter_mut().enumerate() {
                let (low, row, n) = (i / (FOLD_ROWS * ROWS), i / ROWS % FOLD_ROWS, i % ROWS);
                for k in 0..STEP {
                    // SAFETY: both hold a step.
                    let (x, w) = unsafe {
                        let w = *panel.add(low * PLANE + k / 4 * 64 + 4 * n + k % 4);
                        (*codes.add(row * STEP + k), w)
                    };
                    let w = if low == 1 {
                        i32::from(w)
                    } else {
                        i32::from(w as i8)
                    };
                    *sum += i32::from(x) * w;
                }
            }
        }

        unsafe fn store(&mut self, odd: bool, to: *mut u8) {
            // SAFETY: the caller made room.
            unsafe {
                let from = self.0[usize::from(odd)].as_ptr().cast();
                std::ptr::copy_nonoverlapping(from, to, 2 * SUMS);
            }
        }
    }
}
