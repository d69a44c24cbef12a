//! Bytes with a scale per [`FOLD`] elements, for formats whose own scales are integers.
//!
//! A row's elements are divided by one scale where the other form has four, and products with the weights' codes times
//! their scales stay integers over the whole group. With few rows the bytes lie quad by quad, the rows interleaved;
//! with many, in tiles of [`FOLD_ROWS`] rows, each a run of [`STEP`] columns row by row.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::memory::Aligned;

/// K positions that share a scale.
pub(crate) const FOLD: usize = 128;
/// Rows of a tile.
pub(crate) const FOLD_ROWS: usize = 16;
/// K positions of a step.
pub(crate) const STEP: usize = 64;
/// Sums of a group: of each 16 codes, then of each 32.
pub(crate) const FOLD_SUMS: usize = FOLD / 16 + FOLD / 32;

/// The tables of some rows.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    codes: Aligned<i8>,
    /// `[tile][group][row]`.
    scales: Aligned<f32>,
    /// `[tile][group][row][FOLD_SUMS]`.
    sums: Aligned<i16>,
}

impl Folded {
    /// Makes room for `rows` rows of `padded_k` elements; a single row is no tile.
    pub(super) fn begin(&mut self, rows: usize, padded_k: usize) -> FoldedWriter {
        let rows = if rows > 1 {
            rows.next_multiple_of(FOLD_ROWS)
        } else {
            rows
        };
        let groups = padded_k / FOLD;
        self.codes.resize(rows * padded_k);
        self.scales.resize(rows * groups);
        self.sums.resize(rows * groups * FOLD_SUMS);
        FoldedWriter {
            codes: self.codes.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
        }
    }

    /// Addresses of the tables.
    pub(crate) fn tables(&self) -> FoldedRows {
        FoldedRows {
            codes: self.codes.as_ptr(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
        }
    }
}

/// Where quantised rows lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldedRows {
    pub(crate) codes: *const i8,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const i16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FoldedWriter {
    codes: *mut i8,
    scales: *mut f32,
    sums: *mut i16,
}

impl FoldedWriter {
    /// Writes row `row` of rows of `groups` groups: into its tile, or beside the `among` rows that are interleaved.
    ///
    /// # Safety
    /// The processor has AVX-512; `begin` made room for the row, and nobody else reads or writes it.
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn write(
        &self,
        row: usize,
        among: Option<usize>,
        groups: usize,
        values: &[f32],
    ) {
        let (tile, r, width) = match among {
            Some(width) => (0, row, width),
            None => (row / FOLD_ROWS, row % FOLD_ROWS, FOLD_ROWS),
        };
        let first = tile * groups;
        for g in 0..groups {
            let from = values.get(g * FOLD..).unwrap_or(&[]);
            let mut padded = [0.0; FOLD];
            let group = from.first_chunk().unwrap_or_else(|| {
                padded[..from.len()].copy_from_slice(from);
                &padded
            });
            let (mut codes, mut sums) = ([0_i8; FOLD], [0_i16; FOLD_SUMS]);
            // SAFETY: as the caller promises; the entry of this row and group.
            unsafe {
                let entry = (first + g) * width + r;
                *self.scales.add(entry) = quantize(group, &mut codes, &mut sums);
                let to = self.sums.add(entry * FOLD_SUMS);
                to.cast::<[i16; FOLD_SUMS]>().write(sums);
                match among {
                    Some(_) => self.put_quads((g, r, width), &codes),
                    None => self.put_steps((first + g) * width * FOLD + r * STEP, &codes),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put_quads(&self, (g, r, width): (usize, usize, usize), codes: &[i8; FOLD]) {
        for (q, quad) in codes.as_chunks::<4>().0.iter().enumerate() {
            let at = ((g * FOLD / 4 + q) * width + r) * 4;
            // SAFETY: the quad of this row.
            unsafe { self.codes.add(at).cast::<[i8; 4]>().write(*quad) };
        }
    }

    #[inline(always)]
    unsafe fn put_steps(&self, at: usize, codes: &[i8; FOLD]) {
        for (s, step) in codes.as_chunks::<STEP>().0.iter().enumerate() {
            // SAFETY: the row's part of the step.
            unsafe {
                let to = self.codes.add(at + s * FOLD_ROWS * STEP);
                to.cast::<[i8; STEP]>().write(*step);
            }
        }
    }
}

/// Writes the codes of a group and their sums, and gives its scale.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn quantize(values: &[f32; FOLD], codes: &mut [i8; FOLD], sums: &mut [i16; FOLD_SUMS]) -> f32 {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut top = _mm512_setzero_si512();
    for part in values.as_chunks::<16>().0 {
        // SAFETY: sixteen floats.
        let bits = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
        top = _mm512_max_epu32(top, _mm512_and_si512(bits, magnitude));
    }
    let top = f32::from_bits(_mm512_reduce_max_epu32(top));
    let (scale, inverse) = super::factors(top);
    let inverse = _mm512_set1_ps(inverse);
    let parts = values.as_chunks::<16>().0.iter();
    let (sixteens, pairs) = sums.split_at_mut(FOLD / 16);
    let targets = codes.as_chunks_mut::<16>().0.iter_mut().zip(&mut *sixteens);
    for (part, (to, sum)) in parts.zip(targets) {
        // SAFETY: sixteen floats and sixteen bytes.
        unsafe {
            let x = _mm512_mul_ps(_mm512_loadu_ps(part.as_ptr()), inverse);
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
            *sum = super::sum_of(bytes) as i16;
        }
    }
    for (pair, two) in pairs.iter_mut().zip(sixteens.as_chunks::<2>().0) {
        *pair = two[0] + two[1];
    }
    scale
}
