//! Formats whose own scales are small integers, on a set with tiles.
//!
//! `scale · (code - bias)` of a weight is an integer of at most 14 bits. Taken as two bytes it goes into the tiles, whose
//! sums run over a whole group of [`FOLD`] inputs that share one activation scale:
//! `y = fma(d · total - dmin · less, x_scale, y)` per group, with exact integers `total` and `less`. Few rows compute
//! the same integers from the stored codes in AVX-512, so that they have the same bits.
#![allow(unsafe_code)]

mod formats;
mod stream;
mod tiles;
mod unpack;

use std::arch::x86_64::*;
use std::ops::Range;

use tokkata_core::DType;

use super::epilogue::deliver;
use super::panel;
use super::simd::ROWS;
use super::{Job, Out, amx};
use crate::kernels::MOST_SINGLE;
use crate::kernels::quantize::folded::{FOLD, FOLD_ROWS, FoldedRows};
use crate::layout::PanelAt;
use crate::memory::Aligned;
use formats::Fold;
pub(super) use tiles::{Multiply, SUMS};
use tiles::{Pipeline, Unit};
pub(super) use unpack::PLANE;
use unpack::{GROUP_BYTES, unpack};

/// Columns of a chunk: every format that folds has superblocks of 256.
const CHUNK: usize = 256;
const GROUPS: usize = CHUNK / FOLD;
/// Bytes of activations that stay in the second-level cache while panels pass over them.
const COLUMN_BYTES: usize = 1 << 20;

/// Whether a format's own scales are small integers.
pub(crate) const fn folds(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K | DType::IQ4_XS
    )
}

/// Working memory of one worker.
#[derive(Debug, Default)]
pub(super) struct FoldScratch {
    /// Two panels' chunks, unpacked.
    loose: Aligned<u8>,
    /// Results of two panels, `[panel][row][ROWS]`.
    results: Aligned<f32>,
}

/// Float factors of a chunk: `d`, and `dmin` or zero.
#[inline(always)]
unsafe fn heads<P: Fold>(chunk: *const u8) -> [__m512; 2] {
    // SAFETY: the caller gives a chunk of a format whose head holds sixteen halves, or twice as many with minima.
    unsafe {
        let halves = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
        let dmin = if P::MINS {
            halves(chunk.add(32))
        } else {
            _mm512_setzero_ps()
        };
        [halves(chunk), dmin]
    }
}

/// Adds a group to a result: the one place that says in which order floats are rounded.
#[inline(always)]
unsafe fn finish<P: Fold>(
    total: __m512i,
    less: __m512i,
    [d, dmin]: [__m512; 2],
    scale: *const f32,
    y: __m512,
) -> __m512 {
    // SAFETY: the caller gives a processor with AVX-512 and a readable scale.
    unsafe {
        let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(total), d);
        if P::MINS {
            t = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(less), t);
        }
        _mm512_fmadd_ps(t, _mm512_set1_ps(*scale), y)
    }
}

/// # Safety
/// The kernel set has tiles; the panels hold chunks of a format that folds; the activations have the matrix's K.
pub(super) unsafe fn run(job: Job<'_>, dtype: DType) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::Q2_K => run_format::<panel::Q2_K>(job),
            DType::Q3_K => run_format::<panel::Q3_K>(job),
            DType::Q4_K => run_format::<panel::Q4_K>(job),
            DType::Q5_K => run_format::<panel::Q5_K>(job),
            DType::Q6_K => run_format::<panel::Q6_K>(job),
            DType::IQ4_XS => run_format::<panel::IQ4_XS>(job),
            other => unreachable!("{other} has no integer scales"),
        }
    }
}

unsafe fn run_format<P: Fold>(job: Job<'_>) {
    // SAFETY: passed on.
    unsafe {
        if job.kernel.tiles(job.x.rows()) {
            #[cfg(test)]
            if !amx::available() {
                return tiled::<_, P>(job, Pipeline::emulated());
            }
            tiled::<_, P>(job, Pipeline::new(amx::Tiles::new(FOLD_ROWS)));
        } else {
            streamed::<P>(job);
        }
    }
}

/// Few rows: one pass over the stored panels.
unsafe fn streamed<P: Fold>(job: Job<'_>) {
    let Job {
        matrix,
        start,
        x,
        kernel,
        panels,
        epilogue,
        ..
    } = job;
    let (rows, width) = (x.folded().tables(), x.rows());
    let mut out = Out::new();
    for &panel in panels {
        let chunks = matrix.segment(panel.segment).panel_bytes / P::BYTES;
        let fetch = kernel.fetch_for(width, MOST_SINGLE);
        let from = (start.wrapping_add(panel.byte), chunks, fetch);
        // SAFETY: passed on.
        unsafe { stream::panel::<P>(from, rows, width, &mut out) };
        let cols = panel.row..panel.row + panel.rows;
        epilogue.tile(0..width, cols, &out.0[..width]);
    }
}

/// Many rows: chunks of two panels are unpacked and pass over all tiles of a range of rows.
unsafe fn tiled<T: Multiply, P: Fold>(job: Job<'_>, mut pipeline: Pipeline<T>) {
    let k = job.x.padded_k();
    let tiles = job.x.rows().div_ceil(FOLD_ROWS);
    let at_once = (COLUMN_BYTES / (FOLD_ROWS * k)).max(1);
    let at_once = tiles.div_ceil(tiles.div_ceil(at_once));
    let mut job = job;
    job.scratch.folded.loose.resize(2 * GROUPS * GROUP_BYTES);
    job.scratch
        .folded
        .results
        .resize(2 * at_once * FOLD_ROWS * ROWS);
    for first in (0..tiles).step_by(at_once) {
        let tiles = first..tiles.min(first + at_once);
        for pair in job.panels.chunks(2) {
            // SAFETY: passed on.
            unsafe { multiply::<T, P>(&mut job, pair, tiles.clone(), &mut pipeline) };
            let rows = tiles.start * FOLD_ROWS..job.x.rows().min(tiles.end * FOLD_ROWS);
            let results = job.scratch.folded.results.as_chunks().0;
            let results = (results, tiles.len() * FOLD_ROWS);
            deliver(job.epilogue, pair, rows, results);
        }
    }
}

/// One or two panels times tiles of rows.
unsafe fn multiply<T: Multiply, P: Fold>(
    job: &mut Job<'_>,
    pair: &[PanelAt],
    tiles: Range<usize>,
    pipeline: &mut Pipeline<T>,
) {
    let rows = job.x.folded().tables();
    let groups = job.x.padded_k() / FOLD;
    let chunks = job.matrix.segment(pair[0].segment).panel_bytes / P::BYTES;
    let super::Scratch { folded, .. } = &mut *job.scratch;
    let run = tiles.len() * FOLD_ROWS * ROWS;
    folded.results[..pair.len() * run].fill(0.0);
    let (loose, results) = (folded.loose.as_mut_ptr(), folded.results.as_mut_ptr());
    for chunk in 0..chunks {
        for (i, panel) in pair.iter().enumerate() {
            let from = job.start.wrapping_add(panel.byte + chunk * P::BYTES);
            // SAFETY: the chunk exists and there is room for the chunks of two panels.
            unsafe { unpack::<P>(from, loose.add(i * GROUPS * GROUP_BYTES), job.kernel.fetch) };
        }
        let pass = Pass {
            rows: rows.at(tiles.start * groups + chunk * GROUPS),
            tile_groups: groups,
            tiles: tiles.len(),
            loose,
            panels: pair.len(),
            results,
        };
        // SAFETY: the tables hold the tiles' groups, the results a run for each panel.
        unsafe { pass.run::<T, P>(pipeline) };
    }
}

/// Two panels' chunks over tiles of rows.
struct Pass {
    /// The first group of the first tile.
    rows: FoldedRows,
    /// Groups from tile to tile.
    tile_groups: usize,
    tiles: usize,
    loose: *const u8,
    panels: usize,
    results: *mut f32,
}

impl Pass {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn run<T: Multiply, P: Fold>(&self, pipeline: &mut Pipeline<T>) {
        for t in 0..self.tiles {
            for panel in 0..self.panels {
                for g in 0..GROUPS {
                    // SAFETY: as the fields promise.
                    unsafe {
                        pipeline.step::<P>(Unit {
                            rows: self.rows.at(t * self.tile_groups + g),
                            panel: self.loose.add((panel * GROUPS + g) * GROUP_BYTES),
                            y: self
                                .results
                                .add((panel * self.tiles + t) * FOLD_ROWS * ROWS),
                        });
                    }
                }
            }
        }
        // SAFETY: the last unit's memory is what it was.
        unsafe { pipeline.finish::<P>() };
    }
}
