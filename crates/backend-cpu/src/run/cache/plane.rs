//! Keys or values of a head inside a block: where each column of each position lies, and how it is stored.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_core::DType;
use tokkata_quant::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::kernels::Kernel as Set;
use crate::kernels::attention::{Row, halves_run};
use crate::kernels::lanes::N;

/// Element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Q8,
}

/// Halves converted at a time.
const HALVES: usize = 64;
/// Columns that share a Q8_0 scale.
pub(crate) const Q8_BLOCK: usize = 32;

impl Kind {
    pub(super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Kind::F32),
            DType::F16 => Some(Kind::F16),
            DType::BF16 => Some(Kind::Bf16),
            DType::Q8_0 => Some(Kind::Q8),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::Q8 => 1,
        }
    }
}

/// Keys or values of one head inside a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    pub(crate) kind: Kind,
    /// Byte of the block at which head 0 starts, and bytes per head.
    pub(super) at: usize,
    pub(super) head_bytes: usize,
    /// Columns of a head, and as stored.
    pub(crate) dim: usize,
    pub(crate) padded: usize,
    /// Positions lie side by side in panels.
    pub(crate) panels: bool,
    /// Sixteen positions from a multiple of sixteen on lie in one block.
    pub(crate) grouped: bool,
    /// Columns of a stored scale: those of a head that share a block of the row for certain.
    pub(crate) granule: usize,
    positions: usize,
}

impl Plane {
    pub(super) fn new(kind: Kind, at: usize, dim: usize, panels: bool, positions: usize) -> Self {
        let padded = if panels { dim } else { dim.next_multiple_of(N) };
        let granule = 1 << dim.trailing_zeros().min(Q8_BLOCK.trailing_zeros());
        let scales = if kind == Kind::Q8 {
            padded / granule * 2
        } else {
            0
        };
        let head_bytes = (positions * (padded * kind.bytes() + scales)).next_multiple_of(64);
        Plane {
            kind,
            at,
            head_bytes,
            dim,
            padded,
            panels,
            grouped: positions.is_multiple_of(N),
            granule,
            positions,
        }
    }

    /// Whether kernels read its elements where they lie.
    pub(crate) fn is_float(&self) -> bool {
        matches!(self.kind, Kind::F32 | Kind::F16)
    }

    /// Element index of a column of a position.
    pub(crate) fn element(&self, position: usize, column: usize) -> usize {
        if self.panels {
            (position / N * self.padded + column) * N + position % N
        } else {
            position * self.padded + column
        }
    }

    /// Index among the halves behind the codes.
    pub(crate) fn scale(&self, position: usize, block: usize) -> usize {
        let blocks = self.padded / self.granule;
        if self.panels {
            (position / N * blocks + block) * N + position % N
        } else {
            position * blocks + block
        }
    }

    /// Bytes before the scales of a head.
    pub(crate) fn code_bytes(&self) -> usize {
        self.positions * self.padded
    }

    /// Stores one head of one position; `row` holds this and other whole heads, and all of the blocks of its columns
    /// where the cache has blocks.
    ///
    /// # Safety
    /// `to` points to this plane's head in a block and no one else uses the position.
    pub(super) unsafe fn store(
        &self,
        set: Set,
        to: *mut u8,
        position: usize,
        (row, head): (&[f32], usize),
    ) {
        let x = &row[head * self.dim..][..self.dim];
        let (first, step) = (self.element(position, 0), if self.panels { N } else { 1 });
        // SAFETY: elements and scales of a position lie inside the head.
        unsafe {
            match self.kind {
                Kind::F32 => spread(to.cast::<f32>().add(first), step, x, |x| x),
                Kind::F16 if step == 1 => {
                    let to = to.cast::<u16>().add(first);
                    halves_run(set, x, std::slice::from_raw_parts_mut(to, x.len()));
                }
                Kind::F16 => {
                    let mut halves = [0; HALVES];
                    for (i, x) in x.chunks(HALVES).enumerate() {
                        halves_run(set, x, &mut halves[..x.len()]);
                        spread(
                            to.cast::<u16>().add(first + i * HALVES * step),
                            step,
                            &halves[..x.len()],
                            |x| x,
                        );
                    }
                }
                Kind::Bf16 => spread(to.cast::<u16>().add(first), step, x, f32_to_bf16),
                Kind::Q8 => self.store_q8(to, position, (row, head), 0..self.dim),
            }
        }
    }

    /// Blocks of 32 run through the row, across heads; `row` starts at one.
    unsafe fn store_q8(
        &self,
        to: *mut u8,
        position: usize,
        (row, head): (&[f32], usize),
        cols: Range<usize>,
    ) {
        let scales = to.wrapping_add(self.code_bytes()).cast::<u16>();
        let first = cols.start / self.granule;
        let x = &row[head * self.dim..][cols];
        for (i, x) in (first..).zip(x.chunks(self.granule)) {
            let column = (head * self.dim + i * self.granule) / Q8_BLOCK * Q8_BLOCK;
            let block = &row[column..(column + Q8_BLOCK).min(row.len())];
            let step = match block.iter().any(|x| x.is_nan()) {
                // Codes hold numbers only.
                true => f32::NAN,
                false => block.iter().map(|x| x.abs()).fold(0.0, f32::max) / 127.0,
            };
            let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
            // SAFETY: as `store`.
            unsafe {
                scales.add(self.scale(position, i)).write(f32_to_f16(step));
                let first = to
                    .cast::<i8>()
                    .add(self.element(position, i * self.granule));
                spread(first, if self.panels { N } else { 1 }, x, |x| {
                    (x * inverse).round() as i8
                });
            }
        }
    }

    /// Stores some columns of a row of one head, rounded as [`Plane::store`] does.
    ///
    /// # Safety
    /// `to` points to this plane's head in a block and no one else uses these columns of the position, nor, where
    /// elements come in blocks, the rest of their blocks.
    pub(super) unsafe fn store_columns(
        &self,
        to: *mut u8,
        position: usize,
        row: &[f32],
        cols: Range<usize>,
    ) {
        let x = &row[cols.clone()];
        let (first, step) = (
            self.element(position, cols.start),
            if self.panels { N } else { 1 },
        );
        // SAFETY: elements and scales of a position lie inside the head.
        unsafe {
            match self.kind {
                Kind::F32 => spread(to.cast::<f32>().add(first), step, x, |x| x),
                Kind::F16 => spread(to.cast::<u16>().add(first), step, x, f32_to_f16),
                Kind::Bf16 => spread(to.cast::<u16>().add(first), step, x, f32_to_bf16),
                Kind::Q8 => self.store_q8(to, position, (row, 0), cols),
            }
        }
    }

    /// The columns of a position where they lie side by side in a form that kernels read.
    pub(crate) fn row(&self, head: *const u8, position: usize) -> Option<Row> {
        let at = |bytes: usize| head.wrapping_add(self.element(position, 0) * bytes);
        match self.kind {
            _ if self.panels => None,
            Kind::F32 => Some(Row::Floats(at(4).cast())),
            Kind::F16 => Some(Row::Halves(at(2).cast())),
            Kind::Q8 if self.granule == Q8_BLOCK => {
                let scales = head.wrapping_add(self.code_bytes()).cast::<u16>();
                let scales = scales.wrapping_add(self.scale(position, 0));
                Some(Row::Codes(at(1).cast(), scales))
            }
            Kind::Q8 | Kind::Bf16 => None,
        }
    }

    /// One element.
    ///
    /// # Safety
    /// `head` points to this plane's head in a block that no one writes.
    pub(crate) unsafe fn load(&self, head: *const u8, position: usize, column: usize) -> f32 {
        let i = self.element(position, column);
        // SAFETY: as `store`.
        unsafe {
            match self.kind {
                Kind::F32 => head.cast::<f32>().add(i).read(),
                Kind::F16 => f16_to_f32(head.cast::<u16>().add(i).read()),
                Kind::Bf16 => bf16_to_f32(head.cast::<u16>().add(i).read()),
                Kind::Q8 => {
                    let scales = head.add(self.code_bytes()).cast::<u16>();
                    let scale = scales
                        .add(self.scale(position, column / self.granule))
                        .read();
                    f32::from(head.cast::<i8>().add(i).read()) * f16_to_f32(scale)
                }
            }
        }
    }
}

/// Writes converted elements `step` apart.
#[inline(always)]
unsafe fn spread<X: Copy, T>(to: *mut T, step: usize, x: &[X], convert: impl Fn(X) -> T) {
    for (i, &x) in x.iter().enumerate() {
        // SAFETY: the caller gives room for all.
        unsafe { to.add(i * step).write(convert(x)) };
    }
}
