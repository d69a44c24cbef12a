//! Ops whose rows, and often columns, do not depend on each other.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cx::{Cx, Kernel};
use crate::arena::Place;
use crate::pool::Worker;

/// How the rows of a value are dealt out to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Each worker takes some rows, all their columns.
    Rows,
    /// Each worker takes some columns, a multiple of this many, of all rows.
    Columns(usize),
}

impl Split {
    /// Rows and columns of a worker.
    pub(crate) fn share(
        self,
        cx: &Cx<'_>,
        place: Place,
        worker: &Worker<'_>,
    ) -> (Range<usize>, Range<usize>) {
        let rows = cx.count(place.lead);
        match self {
            Split::Rows => (worker.share(rows), 0..place.width),
            Split::Columns(part) => (0..rows, columns(place.width, part, worker)),
        }
    }
}

/// Columns of a worker when `width` is cut into runs of `part`.
pub(crate) fn columns(width: usize, part: usize, worker: &Worker<'_>) -> Range<usize> {
    let parts = worker.share(width.div_ceil(part));
    (parts.start * part).min(width)..(parts.end * part).min(width)
}

/// An op on some columns of one row.
pub(crate) trait RowOp: Send + Sync {
    /// Computes columns `cols` of row `row` into `out`.
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]);
}

/// A row op over a value.
pub(crate) struct Sweep<O> {
    pub(crate) op: O,
    pub(crate) out: Place,
    pub(crate) split: Split,
}

impl<O: RowOp> Kernel for Sweep<O> {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let (rows, cols) = self.split.share(cx, self.out, worker);
        if cols.is_empty() {
            return;
        }
        for row in rows {
            // SAFETY: the split gives these columns of this row to this worker alone.
            let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
            self.op.row(cx, row, cols.clone(), out);
        }
    }
}
