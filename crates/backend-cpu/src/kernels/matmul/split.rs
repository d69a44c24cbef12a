//! Weights of sixteen bits, on a set with tiles.
//!
//! Tiles multiply pairs of bfloat16 and add in `f32`. An activation is the sum of two bfloat16 (`quantize::split`); a
//! half is that too, exactly, and a bfloat16 is itself. Per [`STEP`] positions a result gets, in this order,
//! `high · weight.high`, `low · weight.high` and, of halves, `high · weight.low`. A row of a tile does not depend on the
//! others, so that one row has the bits that it has among many.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use tokkata_core::DType;

use super::avx512::Avx512;
use super::epilogue::deliver;
use super::simd::ROWS;
use super::tile::ahead;
use super::{Job, amx};
use crate::kernels::quantize::split::{SPLIT_ROWS, STEP, tile_height};
use crate::layout::PanelAt;
use crate::memory::Aligned;
use crate::tuning::Fetch;

/// Bytes of two K positions of a panel.
const PAIR: usize = 4 * ROWS;
/// Pairs of a step.
const PAIRS: usize = STEP / 2;
/// Bytes of a step of a panel.
const PLANE: usize = PAIRS * PAIR;
/// Steps of which ranges are multiples.
const RANGE_STEPS: usize = 4;
/// Bytes of activations that stay in the second-level cache while panels pass over them.
const COLUMN_BYTES: usize = 1 << 20;
/// Bytes of results that stay there too.
const RESULT_BYTES: usize = 512 << 10;
/// Rows that one pass over a panel serves.
const ONE_BLOCK: usize = 2 * SPLIT_ROWS;

/// Whether weights have sixteen bits.
pub(crate) const fn splits(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Working memory of one worker.
#[derive(Debug, Default)]
pub(super) struct SplitScratch {
    /// Two panels, unpacked.
    loose: Aligned<u8>,
    /// `[panel][row][ROWS]`.
    results: Aligned<f32>,
}

/// Four sums, one for each of two tiles of rows (`t`) and two panels (`n`).
pub(super) trait Multiply {
    /// # Safety
    /// The processor has what multiplies; `from` holds the rows' results.
    unsafe fn load(&mut self, t: usize, n: usize, from: *const f32);
    /// Takes a step of one part of a tile of activations.
    ///
    /// # Safety
    /// As above, `rows` holds the step.
    unsafe fn rows(&mut self, rows: *const u16);
    /// Takes a step of a panel.
    ///
    /// # Safety
    /// As above, `panel` holds the step.
    unsafe fn panel(&mut self, n: usize, panel: *const u8);
    /// Adds the products of both.
    ///
    /// # Safety
    /// As above.
    unsafe fn add(&mut self, t: usize, n: usize);
    /// # Safety
    /// As above, `to` has room for the rows' results.
    unsafe fn store(&mut self, t: usize, n: usize, to: *mut f32);
}

/// How weights become bfloat16.
trait Weights {
    /// Parts of a weight.
    const PARTS: usize;
    /// Writes the parts of two K positions of sixteen rows, [`PLANE`] apart.
    ///
    /// # Safety
    /// The processor has AVX-512, `from` holds the weights, and `to` has room for the parts.
    unsafe fn unpack(from: *const u8, to: *mut u8);
}

struct Bfloat;
struct Half;

impl Weights for Bfloat {
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn unpack(from: *const u8, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
    }
}

impl Weights for Half {
    const PARTS: usize = 2;
    #[inline(always)]
    unsafe fn unpack(from: *const u8, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            let halves = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
            let (even, odd) = (halves(from), halves(from.add(PAIR / 2)));
            _mm512_storeu_si512(to.cast(), couple(even, odd));
            let rest = couple(rest(even), rest(odd));
            _mm512_storeu_si512(to.add(PLANE).cast(), rest);
        }
    }
}

/// The upper halves of two numbers of each row.
#[inline(always)]
unsafe fn couple(even: __m512, odd: __m512) -> __m512i {
    // SAFETY: touches no memory.
    unsafe {
        let even = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
        // Bits of the second where the first has ones, of the third elsewhere.
        let upper = _mm512_set1_epi32(-0x1_0000);
        _mm512_ternarylogic_epi32::<0xca>(upper, _mm512_castps_si512(odd), even)
    }
}

/// What the upper half leaves.
#[inline(always)]
unsafe fn rest(x: __m512) -> __m512 {
    // SAFETY: touches no memory.
    unsafe {
        let upper = _mm512_set1_epi32(-0x1_0000);
        let high = _mm512_and_si512(_mm512_castps_si512(x), upper);
        _mm512_sub_ps(x, _mm512_castsi512_ps(high))
    }
}

/// # Safety
/// The kernel set has tiles; the panels hold `dtype`; the activations have the matrix's K.
pub(super) unsafe fn run(job: Job<'_>, dtype: DType) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::BF16 => run_format::<Bfloat>(job),
            DType::F16 => run_format::<Half>(job),
            other => unreachable!("{other} does not have sixteen bits"),
        }
    }
}

unsafe fn run_format<W: Weights>(job: Job<'_>) {
    let height = tile_height(job.x.rows());
    // SAFETY: passed on.
    unsafe {
        #[cfg(test)]
        if !amx::available() {
            return multiply::<_, W>(job, emulation::Emulated::new(height));
        }
        multiply::<_, W>(job, amx::Tiles::new(height));
    }
}

/// Whether tiles read what was unpacked rather than the panels themselves.
fn unpacks<W: Weights>(k: usize) -> bool {
    W::PARTS > 1 || !k.is_multiple_of(STEP)
}

/// Panels in groups whose results stay in cache; in a group, ranges of K whose activations do.
unsafe fn multiply<T: Multiply, W: Weights>(mut job: Job<'_>, mut tiles: T) {
    let x = job.x;
    let steps = x.k().div_ceil(STEP);
    let rows = x.rows().next_multiple_of(tile_height(x.rows()));
    let range = COLUMN_BYTES / (rows * STEP * 4) / RANGE_STEPS * RANGE_STEPS;
    let range = range.clamp(RANGE_STEPS, steps.next_multiple_of(RANGE_STEPS));
    let group = (RESULT_BYTES / (rows * ROWS * size_of::<f32>()) / 2 * 2).max(2);
    let group = group.min(job.panels.len());
    // Few rows leave time enough, and one run of memory is read faster than two.
    let at_once = if rows > SPLIT_ROWS { 2 } else { 1 };
    let kept = match (unpacks::<W>(x.k()), rows <= ONE_BLOCK) {
        (false, _) => 0,
        (true, true) => 2,
        (true, false) => range,
    };
    let scratch = &mut job.scratch.split;
    scratch.loose.resize(2 * kept * W::PARTS * PLANE);
    scratch.results.resize(group * rows * ROWS);
    for panels in job.panels.chunks(group) {
        job.scratch.split.results[..panels.len() * rows * ROWS].fill(0.0);
        for first in (0..steps).step_by(range) {
            let steps = first..steps.min(first + range);
            for (i, pair) in panels.chunks(at_once).enumerate() {
                let place = (at_once * i, rows);
                let pass = Pass::<W>::new(&mut job, pair, place, steps.clone());
                // SAFETY: passed on.
                unsafe { pass.run(&mut tiles) };
            }
        }
        let results = job.scratch.split.results.as_chunks().0;
        for (pair, results) in panels.chunks(2).zip(results.chunks(2 * rows)) {
            deliver(job.epilogue, pair, 0..x.rows(), (results, rows));
        }
    }
}

/// One or two panels over all tiles of rows, for a range of steps.
struct Pass<W> {
    /// First tile's first step.
    rows: *const u16,
    /// Elements from tile to tile.
    tile_stride: usize,
    height: usize,
    tiles: usize,
    panels: [*const u8; 2],
    count: usize,
    steps: usize,
    /// Pairs of positions that the panels have from the first step on.
    pairs: usize,
    loose: *mut u8,
    fetch: Fetch,
    unpacks: bool,
    results: *mut f32,
    /// Results from panel to panel.
    panel_stride: usize,
    format: PhantomData<W>,
}

impl<W: Weights> Pass<W> {
    /// `place` is the number of the first panel among those with results, and the rows that each has.
    fn new(
        job: &mut Job<'_>,
        pair: &[PanelAt],
        (number, rows): (usize, usize),
        steps: Range<usize>,
    ) -> Self {
        let height = tile_height(job.x.rows());
        let k = job.x.k();
        let at = |panel: &PanelAt| {
            let byte = panel.byte + steps.start * PLANE;
            job.start.wrapping_add(byte)
        };
        let scratch = &mut job.scratch.split;
        Self {
            rows: job
                .x
                .split()
                .tiles()
                .wrapping_add(steps.start * 2 * height * STEP),
            tile_stride: 2 * height * job.x.padded_k(),
            height,
            tiles: rows / height,
            panels: [at(&pair[0]), at(pair.last().unwrap_or(&pair[0]))],
            count: pair.len(),
            pairs: k.div_ceil(2) - steps.start * PAIRS,
            steps: steps.len(),
            loose: scratch.loose.as_mut_ptr(),
            fetch: job.kernel.fetch,
            unpacks: unpacks::<W>(k),
            results: scratch.results[number * rows * ROWS..].as_mut_ptr(),
            panel_stride: rows * ROWS,
            format: PhantomData,
        }
    }

    /// # Safety
    /// The processor has AVX-512; the fields' addresses hold what they say.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn run<T: Multiply>(&self, tiles: &mut T) {
        // SAFETY: passed on.
        unsafe {
            match (self.tiles, self.count) {
                (1, _) => self.block::<T, 1, 1, true>(tiles, 0),
                (_, 1) => self.panels::<T, 1>(tiles),
                (_, _) => self.panels::<T, 2>(tiles),
            }
        }
    }

    /// Several tiles times `N` panels.
    #[inline(always)]
    unsafe fn panels<T: Multiply, const N: usize>(&self, tiles: &mut T) {
        // SAFETY: passed on; the tiles exist.
        unsafe {
            self.block::<T, 2, N, true>(tiles, 0);
            for first in (2..self.tiles).step_by(2) {
                if first + 1 == self.tiles {
                    self.block::<T, 1, N, false>(tiles, first);
                } else {
                    self.block::<T, 2, N, false>(tiles, first);
                }
            }
        }
    }

    /// `M` tiles from `first` on times `N` panels, which the first block prepares for those after it.
    #[inline(always)]
    unsafe fn block<T: Multiply, const M: usize, const N: usize, const FIRST: bool>(
        &self,
        tiles: &mut T,
        first: usize,
    ) {
        // SAFETY: passed on.
        unsafe {
            for t in 0..M {
                for n in 0..N {
                    tiles.load(t, n, self.result(first + t, n));
                }
            }
            if FIRST {
                self.prepare::<N>(0, 0..PAIRS);
            }
            for s in 0..self.steps {
                self.step::<T, M, N, FIRST>(tiles, first, s);
            }
            for t in 0..M {
                for n in 0..N {
                    tiles.store(t, n, self.result(first + t, n));
                }
            }
        }
    }

    fn result(&self, t: usize, n: usize) -> *mut f32 {
        self.results
            .wrapping_add(n * self.panel_stride + t * self.height * ROWS)
    }

    /// Step `s` of panel `n`, unpacked.
    #[inline(always)]
    fn unpacked(&self, n: usize, s: usize) -> *mut u8 {
        // What one block reads is not read again.
        let s = if self.tiles * self.height <= ONE_BLOCK {
            s % 2
        } else {
            s
        };
        self.loose.wrapping_add((2 * s + n) * W::PARTS * PLANE)
    }

    /// Fetches some pairs of positions of a step ahead, and unpacks them.
    #[inline(always)]
    unsafe fn prepare<const N: usize>(&self, s: usize, pairs: Range<usize>) {
        for n in 0..N {
            let from = self.panels[n].wrapping_add(s * PLANE);
            let to = self.unpacked(n, s);
            for pair in pairs.clone() {
                let from = from.wrapping_add(pair * PAIR);
                // SAFETY: the pairs exist where the panel has not ended, and there is room for a whole step.
                unsafe {
                    ahead::<Avx512>(self.fetch, from, 1);
                    if !self.unpacks {
                        continue;
                    }
                    let to = to.add(pair * PAIR);
                    if s * PAIRS + pair < self.pairs {
                        W::unpack(from, to);
                    } else {
                        for part in 0..W::PARTS {
                            to.add(part * PLANE).write_bytes(0, PAIR);
                        }
                    }
                }
            }
        }
    }

    /// Step `s`, and in the first block the preparation of the next one, bit by bit: tiles and vectors take turns.
    #[inline(always)]
    unsafe fn step<T: Multiply, const M: usize, const N: usize, const FIRST: bool>(
        &self,
        tiles: &mut T,
        first: usize,
        s: usize,
    ) {
        let part = self.height * STEP;
        let turns = M * (1 + W::PARTS);
        let mut turn = 0;
        // Parts of activations with parts of weights.
        for (low, weight) in [(0, 0), (1, 0), (0, 1)] {
            if weight == W::PARTS {
                break;
            }
            for t in 0..M {
                // SAFETY: the step of these tiles and panels; the next one has room.
                unsafe {
                    if (low, t) == (0, 0) {
                        for n in 0..N {
                            tiles.panel(n, self.weights(n, s, weight));
                        }
                    }
                    let rows = (first + t) * self.tile_stride + (2 * s + low) * part;
                    tiles.rows(self.rows.wrapping_add(rows));
                    for n in 0..N {
                        tiles.add(t, n);
                    }
                    if FIRST && s + 1 < self.steps {
                        let pairs = turn * PAIRS / turns..(turn + 1) * PAIRS / turns;
                        self.prepare::<N>(s + 1, pairs);
                    }
                }
                turn += 1;
            }
        }
    }

    /// A part of step `s` of panel `n`, as tiles read it.
    #[inline(always)]
    fn weights(&self, n: usize, s: usize, part: usize) -> *const u8 {
        if self.unpacks {
            self.unpacked(n, s).wrapping_add(part * PLANE)
        } else {
            self.panels[n].wrapping_add(s * PLANE)
        }
    }
}

/// What tiles compute, for processors without them.
#[cfg(test)]
pub(super) mod emulation {
    use super::{Multiply, ROWS, SPLIT_ROWS, STEP};

    pub(in super::super) struct Emulated {
        height: usize,
        sums: [[f32; SPLIT_ROWS * ROWS]; 4],
        rows: [f32; SPLIT_ROWS * STEP],
        panels: [[f32; STEP * ROWS]; 2],
    }

    impl Emulated {
        pub(in super::super) fn new(height: usize) -> Self {
            Self {
                height,
                sums: [[0.0; SPLIT_ROWS * ROWS]; 4],
                rows: [0.0; SPLIT_ROWS * STEP],
                panels: [[0.0; STEP * ROWS]; 2],
            }
        }
    }

    /// Numbers too small for all their digits count as zero, before and after every operation.
    fn flush(x: f32) -> f32 {
        if x.is_subnormal() {
            0.0_f32.copysign(x)
        } else {
            x
        }
    }

    fn widen(x: u16) -> f32 {
        flush(f32::from_bits(u32::from(x) << 16))
    }

    impl Multiply for Emulated {
        unsafe fn load(&mut self, t: usize, n: usize, from: *const f32) {
            let count = self.height * ROWS;
            // SAFETY: as the caller promises.
            let from = unsafe { std::slice::from_raw_parts(from, count) };
            self.sums[2 * t + n][..count].copy_from_slice(from);
        }

        unsafe fn rows(&mut self, rows: *const u16) {
            let count = self.height * STEP;
            // SAFETY: as the caller promises.
            let rows = unsafe { std::slice::from_raw_parts(rows, count) };
            for (to, &x) in self.rows.iter_mut().zip(rows) {
                *to = widen(x);
            }
        }

        unsafe fn panel(&mut self, n: usize, panel: *const u8) {
            for (i, to) in self.panels[n].iter_mut().enumerate() {
                let (k, row) = (i / ROWS, i % ROWS);
                // SAFETY: as the caller promises.
                *to = widen(unsafe {
                    let at = panel.add(k / 2 * 4 * ROWS + 4 * row + k % 2 * 2);
                    at.cast::<u16>().read_unaligned()
                });
            }
        }

        unsafe fn add(&mut self, t: usize, n: usize) {
            let panel = &self.panels[n];
            for (i, sum) in self.sums[2 * t + n][..self.height * ROWS]
                .iter_mut()
                .enumerate()
            {
                let (row, column) = (i / ROWS, i % ROWS);
                let mut parts = [0.0_f32; 2];
                for k in 0..STEP {
                    let (x, w) = (self.rows[row * STEP + k], panel[k * ROWS + column]);
                    parts[k % 2] = flush(x.mul_add(w, parts[k % 2]));
                }
                *sum = flush(flush(*sum) + flush(parts[0] + parts[1]));
            }
        }

        unsafe fn store(&mut self, t: usize, n: usize, to: *mut f32) {
            let sums = &self.sums[2 * t + n][..self.height * ROWS];
            // SAFETY: as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), to, sums.len()) };
        }
    }
}
