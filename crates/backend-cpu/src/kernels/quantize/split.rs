//! Each value as the sum of two bfloat16, for weights of sixteen bits on sets with tiles.
//!
//! The higher one is the nearest bfloat16, the lower one the nearest to what is left, so that of a value's 24 bits 16 or
//! more are kept. Rows lie in tiles of [`SPLIT_ROWS`], fewer rows in one tile of as many: per [`STEP`] positions the
//! higher parts, row by row, then the lower ones.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::memory::Aligned;

/// Rows of a tile.
pub(crate) const SPLIT_ROWS: usize = 16;
/// K positions of a step.
pub(crate) const STEP: usize = 32;

/// Rows of each tile of `rows` rows.
pub(crate) fn tile_height(rows: usize) -> usize {
    rows.min(SPLIT_ROWS)
}

/// The tiles of some rows.
#[derive(Debug, Default)]
pub(crate) struct Split(Aligned<u16>);

impl Split {
    /// Makes room for `rows` rows of `padded_k` elements.
    pub(super) fn begin(&mut self, rows: usize, padded_k: usize) -> SplitWriter {
        let rows = rows.next_multiple_of(tile_height(rows).max(1));
        self.0.resize(2 * rows * padded_k);
        SplitWriter(self.0.as_mut_ptr())
    }

    /// Address of the tiles.
    pub(crate) fn tiles(&self) -> *const u16 {
        self.0.as_ptr()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SplitWriter(*mut u16);

impl SplitWriter {
    /// Writes row `row` of `rows` rows of `padded_k` elements.
    ///
    /// # Safety
    /// The processor has AVX-512; `begin` made room for the row, and nobody else reads or writes it.
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn write(&self, row: usize, rows: usize, padded_k: usize, values: &[f32]) {
        let height = tile_height(rows);
        let first = row / height * height * padded_k * 2 + row % height * STEP;
        for s in 0..padded_k / STEP {
            let from = values.get(s * STEP..).unwrap_or(&[]);
            let mut padded = [0.0; STEP];
            let step = from.first_chunk().unwrap_or_else(|| {
                padded[..from.len()].copy_from_slice(from);
                &padded
            });
            // SAFETY: the row's parts of the step.
            unsafe {
                let high = self.0.add(first + 2 * s * height * STEP);
                split(step, high, high.add(height * STEP));
            }
        }
    }
}

/// # Safety
/// Both targets have room for a step.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn split(values: &[f32; STEP], high: *mut u16, low: *mut u16) {
    for (i, half) in values.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: sixteen floats, and sixteen parts at either target.
        unsafe {
            let x = _mm512_loadu_ps(half.as_ptr());
            let h = nearest(x);
            // Nothing is left of infinities and of what became one.
            let infinite = _mm512_fpclass_ps_mask::<0x18>(h);
            let l = nearest(_mm512_maskz_sub_ps(!infinite, x, h));
            put(high.add(16 * i), h);
            put(low.add(16 * i), l);
        }
    }
}

/// The nearest bfloat16, ties to even, as `f32`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nearest(x: __m512) -> __m512 {
    let bits = _mm512_castps_si512(x);
    let one = _mm512_set1_epi32(1);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), one);
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    // The sum would carry out of what is not a number.
    let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
    let rounded = _mm512_mask_add_epi32(quiet, number, bits, half);
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(-0x1_0000)))
}

/// Writes the upper halves.
///
/// # Safety
/// There is room for sixteen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn put(to: *mut u16, x: __m512) {
    let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x)));
    // SAFETY: passed on.
    unsafe { _mm256_storeu_si256(to.cast(), halves) };
}
