//! Weight matrices as interleaved panels: one copy serves products with one row, with many rows,
//! and the gathering of rows.
//!
//! A [`Matrix`] is made of *parts* (file tensors or slices of them) that may differ in format, such
//! as Q, K and V. Parts follow each other, or alternate panel by panel so that a gate and its up
//! projection meet in one epilogue. Panels of [`PANEL_ROWS`] rows are packed in parallel, straight
//! from the file's bytes; the last panel of a part is padded with zeros. A matrix may also stay in the mapped file:
//! its panels are packed anew whenever they are used.
#![allow(unsafe_code)]

mod pack;
pub(crate) mod scheme;

use std::ops::Range;
use std::sync::Mutex;

use tokkata_core::DType;
use tokkata_ir::Mapped;

use crate::memory::{Piece, Slab};
use crate::pool::{Pool, PoolError};
pub use scheme::{BLOCK, PANEL_ROWS};

/// Rows of one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The element type in the file.
    pub dtype: DType,
    /// Number of rows (outputs).
    pub rows: usize,
}

/// How the panels of several parts follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All panels of the first part, then of the next.
    #[default]
    Sequential,
    /// One panel of the first of two equal parts, one of the second, and so on.
    Alternating,
}

/// Why a matrix could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Blocks do not divide the rows.
    #[error("a row of {k} elements is not a whole number of {dtype} blocks")]
    PartialBlock {
        /// The element type.
        dtype: DType,
        /// Elements per row.
        k: usize,
    },
    /// The matrix does not fit the address space.
    #[error("a matrix of {rows} rows of {k} elements is too large")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Elements per row.
        k: usize,
    },
    /// The map has other sizes than the parts.
    #[error("the mapped rows are not those of the matrix")]
    MapTooShort,
    /// Alternating parts need to be two alike.
    #[error("only two parts with one element type and equally many rows can alternate")]
    CannotAlternate,
    /// The source of the bytes failed.
    #[error("reading weights: {0}")]
    Read(#[from] std::io::Error),
    /// A worker failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What the panels of a part look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// K-major `f32`, halves, or bfloat16 in pairs along K; K padded to a multiple of 4.
    Float,
    /// Chunks of the format's scheme.
    Chunks,
    /// The file's blocks, unpacked when they are used.
    Blocks,
}

/// A part in its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) panel_bytes: usize,
    /// First output of the part.
    pub(crate) first_row: usize,
    first_panel: usize,
    first_byte: usize,
    /// Bytes and panels from one panel of the part to its next.
    stride_bytes: usize,
    stride: usize,
}

/// One panel of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelAt {
    pub(crate) segment: usize,
    /// Byte of the matrix at which the panel starts.
    pub(crate) byte: usize,
    /// First output.
    pub(crate) row: usize,
    /// Outputs that are not padding.
    pub(crate) rows: usize,
}

/// Where a matrix lies.
#[derive(Debug)]
enum Memory {
    Panels(Piece),
    /// The rows of each segment, in the map of the file.
    Rows(Vec<Mapped>),
}

/// A weight matrix: `rows` outputs of `k` inputs each.
#[derive(Debug)]
pub struct Matrix {
    k: usize,
    rows: usize,
    panels: usize,
    /// Of all panels.
    bytes: usize,
    order: Order,
    segments: Vec<Segment>,
    memory: Memory,
}

/// Gives the bytes of rows `range` of part `part`: fills the buffer, which is exactly as long.
pub type Source<'a> = dyn Fn(usize, Range<usize>, &mut [u8]) -> std::io::Result<()> + Sync + 'a;

impl Matrix {
    /// As [`Matrix::pack_in`], with memory of its own: for a matrix that stands alone.
    ///
    /// # Errors
    /// As [`Matrix::pack_in`].
    pub fn pack(
        pool: &Pool,
        k: usize,
        parts: &[Part],
        order: Order,
        source: &Source<'_>,
    ) -> Result<Self, LayoutError> {
        Self::pack_in(&Slab::default(), pool, k, (parts, order), source)
    }

    /// Packs a matrix of `k` columns on the workers of `pool`, in memory of `slab`: matrices of a
    /// model should share one, since small matrices do not fill huge pages. Each worker writes the
    /// panels that [`Matrix::share`] gives it later, so that pages lie near it.
    ///
    /// # Errors
    /// When shapes do not fit, `source` fails or a worker panics.
    pub fn pack_in(
        slab: &Slab,
        pool: &Pool,
        k: usize,
        (parts, order): (&[Part], Order),
        source: &Source<'_>,
    ) -> Result<Self, LayoutError> {
        let mut matrix = Self::plan(k, parts, order)?;
        let mut piece = slab.take(matrix.bytes);
        let start = Shared(piece.as_mut_ptr());
        let failure = Mutex::new(None);
        // On a busy machine, those that have a core share the panels.
        pool.run_some(Some(pool.count()), &|worker| {
            let panels = matrix.share(worker.index(), worker.count());
            // SAFETY: the memory is not read before `run_some` returns, and shares do not overlap.
            if let Err(error) = unsafe { pack::panels(&matrix, panels, source, &start) } {
                failure
                    .lock()
                    .expect("no panic under this lock")
                    .get_or_insert(error);
            }
        })?;
        let failure = failure.into_inner().expect("no panic under this lock");
        matrix.memory = Memory::Panels(piece);
        failure.map_or(Ok(matrix), |error| Err(error.into()))
    }

    /// A matrix that stays where its rows lie, one run of bytes per part.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn map(k: usize, parts: &[Part], rows: Vec<Mapped>) -> Result<Self, LayoutError> {
        let mut matrix = Self::plan(k, parts, Order::Sequential)?;
        let bytes = |s: &Segment| s.dtype.row_bytes(k).and_then(|r| r.checked_mul(s.rows));
        let fits = rows.len() == parts.len()
            && rows
                .iter()
                .zip(&matrix.segments)
                .all(|(r, s)| Some(r.bytes().len()) == bytes(s));
        if !fits {
            return Err(LayoutError::MapTooShort);
        }
        matrix.memory = Memory::Rows(rows);
        Ok(matrix)
    }

    fn plan(k: usize, parts: &[Part], order: Order) -> Result<Self, LayoutError> {
        let alternate = order == Order::Alternating;
        if alternate && !matches!(parts, [a, b] if a == b) {
            return Err(LayoutError::CannotAlternate);
        }
        let mut segments = Vec::with_capacity(parts.len());
        let (mut row, mut panel, mut byte) = (0_usize, 0_usize, 0_usize);
        let both: usize = match (alternate, parts) {
            (true, [a, b]) => panel_bytes(a.dtype, k)? + panel_bytes(b.dtype, k)?,
            _ => 0,
        };
        for part in parts {
            let too_large = LayoutError::TooLarge { rows: part.rows, k };
            let panel_bytes = panel_bytes(part.dtype, k)?;
            let panels = part.rows.div_ceil(PANEL_ROWS);
            let (stride, stride_bytes) = if alternate {
                (2, both)
            } else {
                (1, panel_bytes)
            };
            segments.push(Segment {
                dtype: part.dtype,
                format: Format::of(part.dtype),
                rows: part.rows,
                panel_bytes,
                first_row: row,
                first_panel: panel,
                first_byte: byte,
                stride_bytes,
                stride,
            });
            row += part.rows;
            panel += if alternate { 1 } else { panels };
            let bytes = if alternate {
                Some(panel_bytes)
            } else {
                panels.checked_mul(panel_bytes)
            };
            byte = bytes.and_then(|b| b.checked_add(byte)).ok_or(too_large)?;
        }
        let panels = segments.iter().map(|s| s.rows.div_ceil(PANEL_ROWS)).sum();
        let bytes = segments.iter().try_fold(0_usize, |sum, s| {
            s.rows
                .div_ceil(PANEL_ROWS)
                .checked_mul(s.panel_bytes)?
                .checked_add(sum)
        });
        let bytes = bytes.filter(|&b| b < isize::MAX as usize / 2);
        let bytes = bytes.ok_or(LayoutError::TooLarge { rows: row, k })?;
        Ok(Self {
            k,
            rows: row,
            panels,
            bytes,
            order,
            segments,
            memory: Memory::Rows(Vec::new()),
        })
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Outputs of all parts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Panels of all parts.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.panels
    }

    /// How the parts' panels follow each other.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether panel `p` holds outputs `16·p` and on: no part but the last ends inside a panel.
    pub(crate) fn is_aligned(&self) -> bool {
        let Some((_, rest)) = self.segments.split_last() else {
            return true;
        };
        self.order == Order::Sequential && rest.iter().all(|s| s.rows.is_multiple_of(PANEL_ROWS))
    }

    /// Bytes of all panels.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that it holds itself.
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.memory {
            Memory::Panels(piece) => piece.len(),
            Memory::Rows(_) => 0,
        }
    }

    /// The panels of worker `index` of `count`: contiguous, about equally many bytes, and whole
    /// pairs when parts alternate.
    #[must_use]
    pub fn share(&self, index: usize, count: usize) -> Range<usize> {
        self.panel_of_share(index, count)..self.panel_of_share(index + 1, count)
    }

    fn panel_of_share(&self, index: usize, count: usize) -> usize {
        if self.order == Order::Alternating {
            return 2 * ((self.panels / 2) * index / count);
        }
        let mut target = (self.bytes() as u128 * index as u128 / count as u128) as usize;
        for segment in &self.segments {
            let panels = segment.rows.div_ceil(PANEL_ROWS);
            let bytes = panels * segment.panel_bytes;
            if target < bytes {
                return segment.first_panel + target.div_ceil(segment.panel_bytes);
            }
            target -= bytes;
        }
        self.panels
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(crate) fn segment(&self, index: usize) -> &Segment {
        &self.segments[index]
    }

    pub(crate) fn panel(&self, panel: usize) -> PanelAt {
        let index = match self.order {
            Order::Sequential => self.segments.partition_point(|s| s.first_panel <= panel) - 1,
            Order::Alternating => panel % 2,
        };
        self.panel_of(
            index,
            (panel - self.segments[index].first_panel) / self.segments[index].stride,
        )
    }

    /// Panel `local` of segment `index`.
    pub(crate) fn panel_of(&self, index: usize, local: usize) -> PanelAt {
        let s = &self.segments[index];
        PanelAt {
            segment: index,
            byte: s.first_byte + local * s.stride_bytes,
            row: s.first_row + local * PANEL_ROWS,
            rows: (s.rows - local * PANEL_ROWS).min(PANEL_ROWS),
        }
    }

    /// Address of the first panel; `None` for a matrix in the map.
    pub(crate) fn start(&self) -> Option<*const u8> {
        match &self.memory {
            Memory::Panels(piece) => Some(piece.bytes().as_ptr()),
            Memory::Rows(_) => None,
        }
    }

    /// Packs a panel out of the map into zeros.
    pub(crate) fn pack_mapped(&self, panel: PanelAt, to: &mut [u8]) {
        let Memory::Rows(maps) = &self.memory else {
            unreachable!("panels in memory are used where they lie")
        };
        let segment = &self.segments[panel.segment];
        let first = panel.row - segment.first_row;
        pack::panel(
            segment,
            self.k,
            (maps[panel.segment].bytes(), first, panel.rows),
            to,
        );
    }

    /// Element type and bytes of row `row` in the map; `None` for a matrix in panels.
    pub(crate) fn mapped_row(&self, row: usize) -> Option<(DType, &[u8])> {
        let Memory::Rows(maps) = &self.memory else {
            return None;
        };
        let (index, row) = self.locate(row);
        let dtype = self.segments[index].dtype;
        let bytes = dtype.row_bytes(self.k)?;
        maps[index]
            .bytes()
            .get(row * bytes..(row + 1) * bytes)
            .map(|b| (dtype, b))
    }

    /// The segment and the row inside it of output `row`.
    pub(crate) fn locate(&self, row: usize) -> (usize, usize) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let index = self.segments.partition_point(|s| s.first_row <= row) - 1;
        (index, row - self.segments[index].first_row)
    }
}

/// The start of a matrix's memory, for the workers that fill it.
struct Shared(*mut u8);
// SAFETY: workers write disjoint panels.
unsafe impl Sync for Shared {}

impl Format {
    fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Format::Float,
            // Plain numbers without a fast path become `f32`.
            DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Format::Float,
            _ if pack::scheme_of(dtype).is_some() => Format::Chunks,
            _ => Format::Blocks,
        }
    }
}

/// Bytes of a panel of `k` columns.
fn panel_bytes(dtype: DType, k: usize) -> Result<usize, LayoutError> {
    let too_large = || LayoutError::TooLarge {
        rows: PANEL_ROWS,
        k,
    };
    let row = dtype
        .row_bytes(k)
        .ok_or(LayoutError::PartialBlock { dtype, k })?;
    let bytes = match (Format::of(dtype), pack::scheme_of(dtype)) {
        (Format::Float, _) => {
            let element = if matches!(dtype, DType::F16 | DType::BF16) {
                2
            } else {
                4
            };
            k.checked_next_multiple_of(4)
                .and_then(|k| k.checked_mul(element * PANEL_ROWS))
        }
        (_, Some(s)) => k.div_ceil(BLOCK * s.blocks).checked_mul(s.bytes()),
        _ => row
            .checked_mul(PANEL_ROWS)
            .and_then(|b| b.checked_next_multiple_of(64)),
    };
    bytes.ok_or_else(too_large)
}

#[cfg(test)]
mod tests;
