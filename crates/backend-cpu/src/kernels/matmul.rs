//! `y[r, n] = sum over k of x[r, k] * w[n, k]` for the panels of one worker.
//!
//! One row, or a few, stream the stored panels once; many rows unpack a group of panels into cache
//! and pass over them tile by tile. Both give the same bits. Reading order: `simd` (operations),
//! `panel` (formats), `tile` (integer inner loops), `float`, then the drivers here.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod epilogue;
mod float;
#[cfg(target_arch = "x86_64")]
mod folded;
mod gather;
mod integer;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod panel;
pub(crate) mod portable;
pub(crate) mod simd;
#[cfg(target_arch = "x86_64")]
mod split;
pub(crate) mod tile;

use std::ops::Range;

use tokkata_core::DType;

use super::{Activations, Forms, Kernel};
#[cfg(target_arch = "x86_64")]
use crate::caps::Level;
use crate::layout::{Format, Matrix, PanelAt, Segment};
use crate::memory::Aligned;
pub use epilogue::{Add, Epilogue, Store};
use simd::{ROWS, Simd};
use tile::TILE_COLS;

/// Rows up to which panels can be streamed: one tile of columns.
pub const MAX_STREAM_ROWS: usize = TILE_COLS;

/// Bytes of panels that are packed out of the map at a time.
const STAGE_BYTES: usize = 256 << 10;

/// Working memory of one worker.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Panels of a mapped matrix.
    stage: Aligned<u8>,
    /// Unpacked panels.
    loose: Aligned<u8>,
    /// Per tile, the starts of integer sums.
    starts: Aligned<i32>,
    /// Per tile, the sums of codes.
    sums: Aligned<f32>,
    /// What `starts` and `sums` were derived from, and how.
    derived: Option<Derived>,
    #[cfg(target_arch = "x86_64")]
    folded: folded::FoldScratch,
    #[cfg(target_arch = "x86_64")]
    split: split::SplitScratch,
}

/// Stamp of the activations, scales per block, what sums start at and what is subtracted from codes, and whether there
/// are minima.
type Derived = (u64, usize, (i32, i32), bool);

/// What a driver needs besides the format.
pub(crate) struct Job<'a> {
    pub(crate) matrix: &'a Matrix,
    /// Address from which the panels' bytes count.
    pub(crate) start: *const u8,
    pub(crate) x: &'a Activations,
    pub(crate) kernel: Kernel,
    /// Panels of one segment, by their number inside it; `None` means all of the range's.
    pub(crate) panels: &'a [PanelAt],
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) epilogue: &'a mut dyn Epilogue,
}

/// Where a tile's results go: per column, one value per row of the panel. Behind them lies room for what columns have of
/// half a block.
#[repr(align(64))]
pub(crate) struct Out(pub(crate) [[f32; ROWS]; 2 * TILE_COLS]);

impl Out {
    pub(crate) fn new() -> Self {
        Self([[0.0; ROWS]; 2 * TILE_COLS])
    }
}

impl Kernel {
    /// The forms of activations that the parts of `matrix` read.
    #[must_use]
    pub fn forms(&self, matrix: &Matrix) -> Forms {
        let form = |s: &Segment| Forms {
            integer: s.format != Format::Float && !self.folds(s.dtype),
            words: self.multiplies_words() && integer::is_wide(s),
            folded: self.folds(s.dtype),
            float: s.format == Format::Float && !self.splits(s.dtype),
            split: self.splits(s.dtype),
        };
        let all = matrix.segments().iter().map(form);
        all.fold(Forms::default(), Forms::union)
    }

    /// Whether wide codes of many rows are multiplied as words.
    fn multiplies_words(&self) -> bool {
        macro_rules! go {
            ($set:ty) => {
                <$set>::WORDS
            };
        }
        with_set!(self.level(), go)
    }

    #[cfg(target_arch = "x86_64")]
    fn folds(&self, dtype: DType) -> bool {
        self.level() == Level::Amx && folded::folds(dtype)
    }

    #[cfg(target_arch = "x86_64")]
    fn splits(&self, dtype: DType) -> bool {
        self.level() == Level::Amx && split::splits(dtype)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn folds(&self, _: DType) -> bool {
        false
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn splits(&self, _: DType) -> bool {
        false
    }

    /// Multiplies every row of `x` with the panels `panels` of `matrix` and hands each tile of
    /// results to `epilogue`.
    ///
    /// `x` was written for this kernel set. Results do not depend on the other rows or on the split into panels.
    ///
    /// # Panics
    /// When `x` has another length than the matrix's rows or lacks a form that it reads.
    pub fn matmul(
        &self,
        matrix: &Matrix,
        x: &Activations,
        panels: Range<usize>,
        scratch: &mut Scratch,
        epilogue: &mut dyn Epilogue,
    ) {
        assert_eq!(matrix.k(), x.k(), "activations of another length");
        assert_eq!(
            self.forms(matrix).union(x.forms()),
            x.forms(),
            "a form of activations is missing"
        );
        if x.rows() == 0 {
            return;
        }
        let mut all: Vec<PanelAt> = panels.map(|p| matrix.panel(p)).collect();
        let mut stage = std::mem::take(&mut scratch.stage);
        for run in runs(matrix, &mut all) {
            let at_once = match matrix.start() {
                Some(_) => run.len(),
                None => (STAGE_BYTES / matrix.segment(run[0].segment).panel_bytes).max(1),
            };
            for panels in run.chunks_mut(at_once) {
                let start = matrix
                    .start()
                    .unwrap_or_else(|| fill(&mut stage, matrix, panels));
                self.dispatch(Job {
                    matrix,
                    start,
                    x,
                    kernel: *self,
                    panels,
                    scratch,
                    epilogue,
                });
            }
        }
        scratch.stage = stage;
    }

    fn dispatch(&self, job: Job<'_>) {
        #[cfg(target_arch = "x86_64")]
        {
            let dtype = job.matrix.segment(job.panels[0].segment).dtype;
            if self.folds(dtype) {
                // SAFETY: the kernel proves its set, the matrix holds whole panels of the format, and `matmul` has
                // checked the activations.
                return unsafe { folded::run(job, dtype) };
            }
            if self.splits(dtype) {
                // SAFETY: as above.
                return unsafe { split::run(job, dtype) };
            }
        }
        macro_rules! go {
            ($set:ty) => {
                dispatch::<$set>(job)
            };
        }
        with_set!(self.level_for(job.x.rows()), go);
    }

    /// Writes row `row` of `matrix` to `out`, in the bits of exact dequantisation.
    ///
    /// # Panics
    /// When `row` or the length of `out` does not fit.
    pub fn gather(&self, matrix: &Matrix, row: usize, scratch: &mut Scratch, out: &mut [f32]) {
        assert_eq!(matrix.k(), out.len(), "a row of another length");
        if let Some((dtype, bytes)) = matrix.mapped_row(row) {
            return tokkata_quant::dequantize(dtype, bytes, out).expect("a whole row");
        }
        macro_rules! go {
            ($set:ty) => {
                gather::row::<$set>(matrix, (row, self.fetch), scratch, out)
            };
        }
        with_set!(self.level(), go);
    }
}

/// Runs of panels with the same kernel.
fn runs<'a>(
    matrix: &'a Matrix,
    panels: &'a mut [PanelAt],
) -> impl Iterator<Item = &'a mut [PanelAt]> {
    panels.chunk_by_mut(|a, b| matrix.segment(a.segment).dtype == matrix.segment(b.segment).dtype)
}

/// Packs panels out of the map and gives the address from which their bytes count.
fn fill(stage: &mut Aligned<u8>, matrix: &Matrix, panels: &mut [PanelAt]) -> *const u8 {
    let bytes = matrix.segment(panels[0].segment).panel_bytes;
    stage.resize(panels.len() * bytes);
    stage.fill(0);
    for (i, (panel, to)) in panels
        .iter_mut()
        .zip(stage.chunks_exact_mut(bytes))
        .enumerate()
    {
        matrix.pack_mapped(*panel, to);
        panel.byte = i * bytes;
    }
    stage.as_ptr()
}

/// Runs `$go!(Set)` with the type of a level's set.
macro_rules! with_set {
    ($level:expr, $go:ident) => {{
        use $crate::caps::Level;
        use $crate::kernels::matmul;
        match $level {
            Level::Portable => $go!(matmul::portable::Portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $go!(matmul::avx2::Avx2),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => $go!(matmul::avx2::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bw => $go!(matmul::avx512::Avx512Bw),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => $go!(matmul::avx512::Avx512),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => $go!(matmul::neon::Neon),
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => $go!(matmul::neon::Dotprod),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => $go!(matmul::neon::I8mm),
            _ => unreachable!("a kernel's set is one that this processor has"),
        }
    }};
}
pub(crate) use with_set;

/// Runs `$go!(Panel)` with the panel type of a format that is stored in chunks.
macro_rules! with_panel {
    ($dtype:expr, $go:ident) => {
        match $dtype {
            DType::Q4_0 => $go!(panel::Q4_0),
            DType::Q4_1 => $go!(panel::Q4_1),
            DType::Q5_0 => $go!(panel::Q5_0),
            DType::Q5_1 => $go!(panel::Q5_1),
            DType::Q8_0 => $go!(panel::Q8_0),
            DType::IQ4_NL => $go!(panel::IQ4_NL),
            DType::MXFP4 => $go!(panel::MXFP4),
            DType::Q2_K => $go!(panel::Q2_K),
            DType::Q3_K => $go!(panel::Q3_K),
            DType::Q4_K => $go!(panel::Q4_K),
            DType::Q5_K => $go!(panel::Q5_K),
            DType::Q6_K => $go!(panel::Q6_K),
            DType::IQ4_XS => $go!(panel::IQ4_XS),
            other => unreachable!("{other} has no chunks"),
        }
    };
}
use with_panel;

fn dispatch<S: Simd>(job: Job<'_>) {
    let segment = *job.matrix.segment(job.panels[0].segment);
    macro_rules! chunks {
        ($panel:ty) => {
            integer::run::<S, $panel>(job)
        };
    }
    // SAFETY: `matmul` is reached through a kernel whose set is `S`; the matrix holds whole panels
    // of the segment's format and the activations have its K.
    unsafe {
        match segment.format {
            Format::Float => float::run::<S>(job, segment.dtype),
            Format::Blocks => integer::run_blocks::<S>(job, segment.dtype),
            Format::Chunks => with_panel!(segment.dtype, chunks),
        }
    }
}

#[cfg(test)]
mod tests;
