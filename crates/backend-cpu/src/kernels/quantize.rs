//! Activations in the forms the matmul kernels read.
//!
//! Rows are interleaved in even tiles of up to `TILE_COLS` rows, so that the columns of one tile lie
//! next to each other. The integer form has one byte per element, one `f32` scale per 32 (largest
//! magnitude over 127) and the sums of the codes of each 16; the float form keeps the values. The bytes of a 32-block lie
//! quad by quad, with the tile's rows interleaved; of many rows AVX2 reads them as words of sixteen bits too. Sets with
//! tiles have two more forms: bytes with a scale per 128 (`folded`), and two bfloat16 for each value (`split`).
//! A row's numbers depend on that row alone. A block with a value that is not finite gets the scale
//! NaN, so that the row's outputs are NaN.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod folded;
#[cfg(target_arch = "x86_64")]
pub(crate) mod split;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Kernel;
use super::matmul::simd::Task;
use super::matmul::tile::{TILE_COLS, tile_of, tile_rows};
#[cfg(target_arch = "x86_64")]
use crate::caps::Level;
#[cfg(target_arch = "x86_64")]
use crate::caps::Vectors;
use crate::layout::BLOCK;
use crate::memory::Aligned;
#[cfg(target_arch = "x86_64")]
use folded::{Folded, FoldedWriter};
#[cfg(target_arch = "x86_64")]
use split::{Split, SplitWriter};

/// The forms that matrices may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Bytes with a scale per 32, for quantised weights.
    pub integer: bool,
    /// The same bytes as words of sixteen bits too, for codes of eight bits, on sets that multiply words.
    pub words: bool,
    /// Bytes with a scale per 128, for weights whose own scales are integers, on sets with tiles.
    pub folded: bool,
    /// `f32`, for float weights.
    pub float: bool,
    /// Two bfloat16, for weights of sixteen bits, on sets with tiles.
    pub split: bool,
}

impl Forms {
    /// What either reads.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            integer: self.integer || other.integer,
            words: self.words || other.words,
            folded: self.folded || other.folded,
            float: self.float || other.float,
            split: self.split || other.split,
        }
    }
}

/// K is padded with zeros to a multiple of this.
pub(crate) const K_STEP: usize = 256;

/// Rows of activations, ready for [`Kernel::matmul`].
#[derive(Debug, Default)]
pub struct Activations {
    k: usize,
    padded_k: usize,
    rows: usize,
    forms: Forms,
    /// Another number whenever rows may have changed; no two activations have the same.
    stamp: AtomicU64,
    codes: Aligned<i8>,
    words: Aligned<i16>,
    scales: Aligned<f32>,
    sums: Aligned<i32>,
    floats: Aligned<f32>,
    #[cfg(target_arch = "x86_64")]
    folded: Folded,
    #[cfg(target_arch = "x86_64")]
    split: Split,
}

/// Stamps given out.
static STAMPS: AtomicU64 = AtomicU64::new(1);

impl Activations {
    /// Memory for up to `rows` rows of `k` elements. Later calls of [`Activations::begin`] with as
    /// much or less allocate nothing.
    #[must_use]
    pub fn new(rows: usize, k: usize, forms: Forms) -> Self {
        let mut new = Self::default();
        let _ = new.begin(rows, k, forms);
        new.rows = 0;
        new
    }

    /// Starts over with `rows` rows of `k` elements, all of which must be written before use.
    pub fn begin(&mut self, rows: usize, k: usize, forms: Forms) -> RowWriter<'_> {
        let padded_k = k.next_multiple_of(K_STEP);
        (self.k, self.padded_k, self.rows, self.forms) = (k, padded_k, rows, forms);
        self.renew();
        let (integer, float) = (
            rows * usize::from(forms.integer),
            rows * usize::from(forms.float),
        );
        self.codes.resize(integer * padded_k);
        self.words
            .resize(rows * usize::from(forms.words) * padded_k);
        self.scales.resize(integer * padded_k / BLOCK);
        self.sums.resize(integer * padded_k / (BLOCK / 2));
        self.floats.resize(float * padded_k);
        #[cfg(target_arch = "x86_64")]
        let folded = self
            .folded
            .begin(rows * usize::from(forms.folded), padded_k);
        #[cfg(target_arch = "x86_64")]
        let split = self.split.begin(rows * usize::from(forms.split), padded_k);
        RowWriter {
            k,
            padded_k,
            rows,
            forms,
            #[cfg(target_arch = "x86_64")]
            folded,
            #[cfg(target_arch = "x86_64")]
            split,
            codes: self.codes.as_mut_ptr(),
            words: self.words.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            floats: self.floats.as_mut_ptr(),
            owner: PhantomData,
        }
    }

    /// Says that rows are about to be written: what was derived from the old ones is forgotten. [`Activations::begin`]
    /// does so itself; a writer that is used again later needs it before each use.
    pub fn renew(&self) {
        let stamp = STAMPS.fetch_add(1, Ordering::Relaxed);
        self.stamp.store(stamp, Ordering::Relaxed);
    }

    /// Changes with the rows.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The forms that were written.
    #[must_use]
    pub fn forms(&self) -> Forms {
        self.forms
    }

    /// Tiles of rows.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_COLS)
    }

    /// Rows of tile `t`.
    pub(crate) fn tile(&self, t: usize) -> Range<usize> {
        tile_rows(self.rows, t)
    }

    pub(crate) fn codes(&self, t: usize) -> &[i8] {
        of_tile(&self.codes, self.tile(t), self.padded_k)
    }

    /// The codes as words, of more rows than are streamed.
    pub(crate) fn words(&self, t: usize) -> &[i16] {
        of_tile(&self.words, self.tile(t), self.padded_k)
    }

    pub(crate) fn scales(&self, t: usize) -> &[f32] {
        of_tile(&self.scales, self.tile(t), self.padded_k / BLOCK)
    }

    /// Sums of 16 codes: per 32-block the first halves of the tile's rows, then the second halves.
    pub(crate) fn sums(&self, t: usize) -> &[i32] {
        of_tile(&self.sums, self.tile(t), self.padded_k / (BLOCK / 2))
    }

    /// Four runs, one per K position modulo 4; each holds the tile's rows interleaved.
    pub(crate) fn floats(&self, t: usize) -> &[f32] {
        of_tile(&self.floats, self.tile(t), self.padded_k)
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn folded(&self) -> &Folded {
        &self.folded
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn split(&self) -> &Split {
        &self.split
    }

    pub(crate) fn padded_k(&self) -> usize {
        self.padded_k
    }
}

/// The part of `table` that holds `rows`, each of which has `per_row` entries.
fn of_tile<T>(table: &[T], rows: Range<usize>, per_row: usize) -> &[T] {
    &table[rows.start * per_row..rows.end * per_row]
}

/// Writes rows of [`Activations`], from several threads if need be.
#[derive(Clone, Copy, Debug)]
pub struct RowWriter<'a> {
    k: usize,
    padded_k: usize,
    rows: usize,
    forms: Forms,
    codes: *mut i8,
    words: *mut i16,
    scales: *mut f32,
    sums: *mut i32,
    floats: *mut f32,
    #[cfg(target_arch = "x86_64")]
    folded: FoldedWriter,
    #[cfg(target_arch = "x86_64")]
    split: SplitWriter,
    owner: PhantomData<&'a mut Activations>,
}

// SAFETY: the writer borrows the activations exclusively and `write` demands distinct rows.
unsafe impl Send for RowWriter<'_> {}
// SAFETY: as above.
unsafe impl Sync for RowWriter<'_> {}

impl RowWriter<'_> {
    /// Writes row `row` in every form that was asked for.
    ///
    /// # Safety
    /// No two threads write one row at the same time, and none reads the activations meanwhile.
    ///
    /// # Panics
    /// When `row` or the length of `values` does not fit.
    pub unsafe fn write(&self, kernel: &Kernel, row: usize, values: &[f32]) {
        assert!(
            row < self.rows && values.len() == self.k,
            "row {row} of {} or its length",
            self.rows
        );
        let tile = tile_rows(self.rows, tile_of(self.rows, row));
        let (first, width, c) = (tile.start, tile.len(), row - tile.start);
        if self.forms.integer {
            let words = self.forms.words && !kernel.streams(self.rows);
            // SAFETY: the tile's parts lie inside the tables, whose sizes `begin` made.
            let task = unsafe {
                let blocks = self.padded_k / BLOCK;
                Quantize {
                    values,
                    blocks,
                    width,
                    column: c,
                    codes: self.codes.add(first * self.padded_k),
                    words: words.then(|| self.words.add(first * self.padded_k)),
                    scales: self.scales.add(first * blocks + c),
                    sums: self.sums.add(2 * first * blocks + c),
                }
            };
            task.run_on(kernel);
        }
        #[cfg(target_arch = "x86_64")]
        if self.forms.folded {
            assert!(kernel.level() == Level::Amx, "a form of sets with tiles");
            let among = (!kernel.tiles(self.rows)).then_some(self.rows);
            let groups = self.padded_k / folded::FOLD;
            // SAFETY: the set has AVX-512; `begin` made room for the row, which is the caller's.
            unsafe { self.folded.write(row, among, groups, values) };
        }
        #[cfg(target_arch = "x86_64")]
        if self.forms.split {
            assert!(kernel.level() == Level::Amx, "a form of sets with tiles");
            // SAFETY: as above.
            unsafe { self.split.write(row, self.rows, self.padded_k, values) };
        }
        if self.forms.float {
            // SAFETY: as above.
            let to = unsafe { self.floats.add(first * self.padded_k + c) };
            self.spread(values, to, width);
        }
    }

    fn spread(&self, values: &[f32], to: *mut f32, width: usize) {
        let run = self.padded_k / 4;
        for g in 0..run {
            let four = values
                .get(4 * g..4 * g + 4)
                .and_then(|v| v.first_chunk::<4>());
            let four = four.copied().unwrap_or_else(|| {
                std::array::from_fn(|j| values.get(4 * g + j).copied().unwrap_or(0.0))
            });
            for (j, value) in four.into_iter().enumerate() {
                // SAFETY: four runs of `run * width` floats from the start of the tile.
                unsafe { *to.add((j * run + g) * width) = value };
            }
        }
    }
}

/// One row into its column of a tile.
struct Quantize<'a> {
    values: &'a [f32],
    blocks: usize,
    width: usize,
    column: usize,
    codes: *mut i8,
    words: Option<*mut i16>,
    scales: *mut f32,
    sums: *mut i32,
}

/// Every block of a row by a method; zeros fill the last.
macro_rules! blocks {
    ($row:expr, $block:ident) => {{
        let (whole, rest) = $row.values.as_chunks::<BLOCK>();
        for (b, values) in whole.iter().enumerate() {
            // SAFETY: as `block`.
            unsafe { $row.$block(b, values) };
        }
        for b in whole.len()..$row.blocks {
            let mut values = [0.0; BLOCK];
            if b == whole.len() {
                values[..rest.len()].copy_from_slice(rest);
            }
            // SAFETY: as `block`.
            unsafe { $row.$block(b, &values) };
        }
    }};
}

impl Task for Quantize<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        blocks!(self, block);
    }
}

impl Quantize<'_> {
    fn run_on(self, kernel: &Kernel) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level proves the processor's instructions; the task is as `write` made it.
        unsafe {
            match kernel.level().vectors() {
                Vectors::Avx512 => return self.run_avx512(),
                Vectors::Avx2 => return self.run_avx2(),
                _ => {}
            }
        }
        kernel.vectorize(self);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run_avx512(self) {
        blocks!(self, block_avx512);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn run_avx2(self) {
        blocks!(self, block_avx2);
    }

    /// As [`Quantize::block`]: the conversion to integers rounds ties to even too.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn block_avx512(&self, b: usize, values: &[f32; BLOCK]) {
        use std::arch::x86_64::*;
        // SAFETY: both halves of the block's values.
        let x = unsafe {
            let p = values.as_ptr();
            [_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))]
        };
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        let bits = [
            _mm512_and_si512(_mm512_castps_si512(x[0]), magnitude),
            _mm512_and_si512(_mm512_castps_si512(x[1]), magnitude),
        ];
        let top = _mm512_reduce_max_epu32(_mm512_max_epu32(bits[0], bits[1]));
        let (scale, inverse) = factors(f32::from_bits(top));
        let inverse = _mm512_set1_ps(inverse);
        let ints = [
            _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse)),
            _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse)),
        ];
        let codes = [_mm512_cvtepi32_epi8(ints[0]), _mm512_cvtepi32_epi8(ints[1])];
        // Of the codes: integers of values that are not finite do not fit a sum.
        // Written out: a closure would be compiled without these instructions.
        let sums = [sum_of(codes[0]), sum_of(codes[1])];
        // SAFETY: sixteen bytes each; `put` as `block`.
        unsafe {
            let mut bytes = [0_i8; BLOCK];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), codes[0]);
            _mm_storeu_si128(bytes.as_mut_ptr().add(16).cast(), codes[1]);
            self.put(b, scale, sums, &bytes);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Quantize<'_> {
    /// As [`Quantize::block`]: the conversion to integers rounds ties to even too.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn block_avx2(&self, b: usize, values: &[f32; BLOCK]) {
        use std::arch::x86_64::*;
        // SAFETY: the quarters of the block's values.
        let x = unsafe {
            let p = values.as_ptr();
            [
                _mm256_loadu_ps(p),
                _mm256_loadu_ps(p.add(8)),
                _mm256_loadu_ps(p.add(16)),
                _mm256_loadu_ps(p.add(24)),
            ]
        };
        let magnitude = _mm256_set1_epi32(0x7fff_ffff);
        // Written out, here and below: a closure would be compiled without these instructions.
        let (mut low, mut high) = (
            _mm256_and_si256(_mm256_castps_si256(x[0]), magnitude),
            _mm256_and_si256(_mm256_castps_si256(x[1]), magnitude),
        );
        low = _mm256_max_epu32(low, _mm256_and_si256(_mm256_castps_si256(x[2]), magnitude));
        high = _mm256_max_epu32(high, _mm256_and_si256(_mm256_castps_si256(x[3]), magnitude));
        let top = _mm256_max_epu32(low, high);
        let top = _mm_max_epu32(
            _mm256_castsi256_si128(top),
            _mm256_extracti128_si256::<1>(top),
        );
        let top = _mm_max_epu32(top, _mm_unpackhi_epi64(top, top));
        let top = _mm_max_epu32(top, _mm_shuffle_epi32::<1>(top));
        let (scale, inverse) = factors(f32::from_bits(_mm_cvtsi128_si32(top) as u32));
        let inverse = _mm256_set1_ps(inverse);
        let words = [
            _mm256_packs_epi32(
                _mm256_cvtps_epi32(_mm256_mul_ps(x[0], inverse)),
                _mm256_cvtps_epi32(_mm256_mul_ps(x[1], inverse)),
            ),
            _mm256_packs_epi32(
                _mm256_cvtps_epi32(_mm256_mul_ps(x[2], inverse)),
                _mm256_cvtps_epi32(_mm256_mul_ps(x[3], inverse)),
            ),
        ];
        // Packing goes by halves of a vector, so that quads come out in the order 0, 2, 4, 6, 1, 3, 5, 7.
        let mixed = _mm256_packs_epi16(words[0], words[1]);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let codes = _mm256_permutevar8x32_epi32(mixed, order);
        let sums = [
            sum_of(_mm256_castsi256_si128(codes)),
            sum_of(_mm256_extracti128_si256::<1>(codes)),
        ];
        let mut bytes = [0_i8; BLOCK];
        // SAFETY: thirty-two bytes; `put` as `block`.
        unsafe {
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), codes);
            self.put(b, scale, sums, &bytes);
        }
    }
}

/// Sum of sixteen codes: bytes are summed by eights, shifted up so that they are unsigned.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn sum_of(codes: std::arch::x86_64::__m128i) -> i32 {
    use std::arch::x86_64::*;
    let shifted = _mm_xor_si128(codes, _mm_set1_epi8(-128));
    let eights = _mm_sad_epu8(shifted, _mm_setzero_si128());
    let sum = _mm_add_epi64(eights, _mm_unpackhi_epi64(eights, eights));
    _mm_cvtsi128_si32(sum) - 16 * 128
}

/// Scale of a block whose largest magnitude is `top`, and what its values are multiplied with.
#[inline(always)]
fn factors(top: f32) -> (f32, f32) {
    let (scale, inverse) = if top < TINY {
        (0.0, 0.0)
    } else {
        (top / 127.0, 127.0 / top)
    };
    (if top.is_finite() { scale } else { f32::NAN }, inverse)
}

/// Adding it rounds floats below 2^22 to integers, ties to even; the low bits hold the integer.
const ROUND: f32 = 12_582_912.0;
/// Blocks whose largest magnitude is smaller become zero: its reciprocal could overflow.
const TINY: f32 = 1e-30;

impl Quantize<'_> {
    #[inline(always)]
    unsafe fn block(&self, b: usize, values: &[f32; BLOCK]) {
        let mut top = 0;
        for x in values {
            top = top.max(x.to_bits() & 0x7fff_ffff);
        }
        let (scale, inverse) = factors(f32::from_bits(top));
        let mut codes = [0_i8; BLOCK];
        let mut sums = [0; 2];
        for (i, (code, x)) in codes.iter_mut().zip(values).enumerate() {
            *code = (x * inverse + ROUND).to_bits() as i8;
            sums[i / 16] += i32::from(*code);
        }
        // SAFETY: passed on.
        unsafe { self.put(b, scale, sums, &codes) };
    }

    #[inline(always)]
    unsafe fn put(&self, b: usize, scale: f32, sums: [i32; 2], codes: &[i8; BLOCK]) {
        // SAFETY: block `b` of this column; `begin` made room for every block of every column.
        unsafe {
            *self.scales.add(b * self.width) = scale;
            *self.sums.add(2 * b * self.width) = sums[0];
            *self.sums.add((2 * b + 1) * self.width) = sums[1];
            let first = b * BLOCK * self.width + 4 * self.column;
            for (q, quad) in codes.as_chunks::<4>().0.iter().enumerate() {
                let at = first + 4 * q * self.width;
                self.codes.add(at).cast::<[i8; 4]>().write(*quad);
                if let Some(words) = self.words {
                    let quad = quad.map(i16::from);
                    words.add(at).cast::<[i16; 4]>().write(quad);
                }
            }
        }
    }
}
