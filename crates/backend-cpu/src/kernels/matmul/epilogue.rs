//! What happens to the results of a tile.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use super::simd::ROWS;
#[cfg(target_arch = "x86_64")]
use crate::layout::PanelAt;

/// Receives tiles of results. One worker owns one value, so it may keep state between tiles.
///
/// With alternating parts, the tile of a second part follows the tile of the first part for the
/// same panel and rows immediately.
pub trait Epilogue {
    /// `values[i]` holds, for activation row `rows.start + i`, the outputs `cols`; entries past
    /// `cols.len()` are padding.
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; ROWS]]);
}

/// Rows that tiles multiply at a time.
#[cfg(target_arch = "x86_64")]
const TILE_ROWS: usize = 16;

/// Hands over the results of rows `rows` with one or two panels, which start `stride` entries apart: of each tile those of
/// the first panel, then those of the second.
#[cfg(target_arch = "x86_64")]
pub(super) fn deliver(
    epilogue: &mut dyn Epilogue,
    pair: &[PanelAt],
    rows: Range<usize>,
    (results, stride): (&[[f32; ROWS]], usize),
) {
    for first in rows.clone().step_by(TILE_ROWS) {
        let tile = first..rows.end.min(first + TILE_ROWS);
        for (n, panel) in pair.iter().enumerate() {
            let values = &results[n * stride + first - rows.start..][..tile.len()];
            let cols = panel.row..panel.row + panel.rows;
            epilogue.tile(tile.clone(), cols, values);
        }
    }
}

/// Writes results to a row-major matrix.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    to: *mut f32,
    rows: usize,
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the target is borrowed exclusively; clones write disjoint outputs, as `Store::new` says.
unsafe impl Send for Store<'_> {}
// SAFETY: as above.
unsafe impl Sync for Store<'_> {}

impl<'a> Store<'a> {
    /// Output `n` of row `r` goes to `to[r * stride + n]`. Copies may be given to workers.
    ///
    /// # Safety
    /// Copies used at the same time receive disjoint panels, and `stride` is at least the number of
    /// outputs of the matrix.
    #[must_use]
    pub unsafe fn new(to: &'a mut [f32], stride: usize) -> Self {
        let rows = to.len().checked_div(stride).unwrap_or(0);
        Self {
            to: to.as_mut_ptr(),
            rows,
            stride,
            owner: PhantomData,
        }
    }

    fn each(&self, rows: Range<usize>, cols: Range<usize>, mut f: impl FnMut(usize, &mut [f32])) {
        assert!(
            rows.end <= self.rows && cols.end <= self.stride,
            "results beyond the target"
        );
        for (i, row) in rows.enumerate() {
            // SAFETY: in bounds by the check above; disjoint by the contract of `new`.
            let to = unsafe {
                std::slice::from_raw_parts_mut(
                    self.to.add(row * self.stride + cols.start),
                    cols.len(),
                )
            };
            f(i, to);
        }
    }
}

impl Epilogue for Store<'_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; ROWS]]) {
        self.each(rows, cols, |i, to| {
            match to.first_chunk_mut() {
                // Of a length that the compiler knows: tiles are many.
                Some(whole) => *whole = values[i],
                None => to.copy_from_slice(&values[i][..to.len()]),
            }
        });
    }
}

/// Adds results, times a factor, to a row-major matrix: residual streams.
#[derive(Clone, Copy, Debug)]
pub struct Add<'a> {
    to: Store<'a>,
    factor: f32,
}

impl<'a> Add<'a> {
    /// Adds `factor` times the results to what `to` writes to.
    #[must_use]
    pub fn new(to: Store<'a>, factor: f32) -> Self {
        Self { to, factor }
    }
}

impl Epilogue for Add<'_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; ROWS]]) {
        self.to.each(rows, cols, |i, to| {
            for (to, value) in to.iter_mut().zip(&values[i]) {
                *to += self.factor * value;
            }
        });
    }
}
