//! Ops whose rows, and often columns, do not depend on each other.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::tape::Reach;

use super::cx::{Cx, Kernel, Parts};
use crate::arena::Place;
use crate::pool::Worker;

/// Rows and columns of a value that a worker has of an op that is dealt out by one of them.
///
/// # Panics
/// When it is not.
pub(crate) fn dealt(
    reach: Reach,
    cx: &Cx<'_>,
    place: Place,
    worker: &Worker<'_>,
) -> (Range<usize>, Range<usize>) {
    let rows = cx.count(place.lead);
    match reach {
        Reach::Rows => (worker.share(rows), 0..place.width),
        Reach::Columns(part) => (0..rows, columns(place.width, part, worker)),
        Reach::All | Reach::Apart => unreachable!("rows or columns are dealt out"),
    }
}

/// Columns of a worker when `width` is cut into runs of `part`.
pub(crate) fn columns(width: usize, part: usize, worker: &Worker<'_>) -> Range<usize> {
    columns_of(width, part, worker.share(width.div_ceil(part)))
}

/// Columns of some runs of `part`.
pub(crate) fn columns_of(width: usize, part: usize, parts: Range<usize>) -> Range<usize> {
    (parts.start * part).min(width)..(parts.end * part).min(width)
}

/// An op on some columns of one row.
pub(crate) trait RowOp: Send + Sync {
    /// Computes columns `cols` of row `row` into `out`.
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]);
}

/// Who makes a value, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deal {
    /// Rows or columns.
    pub(crate) reach: Reach,
    /// In the place of an input.
    pub(crate) over: bool,
}

/// A row op over a value.
pub(crate) struct Sweep<O> {
    pub(crate) op: O,
    pub(crate) out: Place,
    pub(crate) deal: Deal,
}

impl<O: RowOp> Kernel for Sweep<O> {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let (rows, cols) = dealt(self.deal.reach, cx, self.out, worker);
        self.sweep(cx, worker, rows, cols);
    }

    fn parts(&self) -> Option<Parts> {
        match self.deal.reach {
            Reach::Columns(part) => Some(Parts::of(self.out.width, part)),
            _ => None,
        }
    }

    fn run_parts(&self, cx: &Cx<'_>, worker: &Worker<'_>, parts: Range<usize>) {
        if let Reach::Columns(part) = self.deal.reach {
            let cols = columns_of(self.out.width, part, parts);
            self.sweep(cx, worker, 0..cx.count(self.out.lead), cols);
        }
    }
}

impl<O: RowOp> Sweep<O> {
    fn sweep(&self, cx: &Cx<'_>, worker: &Worker<'_>, rows: Range<usize>, cols: Range<usize>) {
        if cols.is_empty() {
            return;
        }
        // SAFETY: the scratch of this worker, borrowed once.
        let stage = unsafe { &mut cx.scratch(worker).row[..cols.len()] };
        for row in rows {
            if self.deal.over {
                self.op.row(cx, row, cols.clone(), stage);
            }
            // SAFETY: these columns of this row belong to this worker alone, and the op no longer reads them.
            let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
            if self.deal.over {
                out.copy_from_slice(stage);
            } else {
                self.op.row(cx, row, cols.clone(), out);
            }
        }
    }
}
