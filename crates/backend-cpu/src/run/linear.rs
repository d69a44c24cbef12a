//! Products with weights: preparing activations, then panels.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::cx::{Cx, Kernel, Parts};
use super::rowops::Norm;
use super::sweep::{RowOp, columns, columns_of};
use crate::arena::Place;
use crate::kernels::Epilogue;
use crate::layout::{Matrix, PANEL_ROWS};
use crate::pool::Worker;

/// Puts the rows of a value, normalised on the way if need be, into the form a matmul reads.
pub(crate) struct Prepare {
    pub(crate) x: Place,
    /// The norm folded into this step; its `x` is this `x`.
    pub(crate) norm: Option<Norm>,
    pub(crate) set: usize,
}

impl Kernel for Prepare {
    fn name(&self) -> Option<&'static str> {
        Some(if self.norm.is_some() {
            "norm_prepare"
        } else {
            "prepare"
        })
    }

    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let count = cx.count(self.x.lead);
        let rows = if cx.acts.is_split(self.set) {
            worker.share(count)
        } else {
            0..count
        };
        let writer = cx.acts.writer(self.set, worker);
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { cx.scratch(worker) };
        for row in rows {
            let x = match &self.norm {
                None => cx.row(self.x, row),
                Some(norm) => {
                    let out = &mut scratch.row[..self.x.width];
                    norm.row(cx, row, 0..self.x.width, out);
                    out
                }
            };
            // SAFETY: shared rows are dealt out to workers, own copies belong to the worker.
            unsafe { writer.write(&cx.kernel, row, x) };
        }
    }
}

/// What is done to a result before it is stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finish {
    /// `[1]` or `[N]`.
    pub(crate) scale: Option<Vec<f32>>,
    /// `[N]`.
    pub(crate) bias: Option<Vec<f32>>,
}

impl Finish {
    fn is_some(&self) -> bool {
        self.scale.is_some() || self.bias.is_some()
    }

    fn apply(&self, cols: Range<usize>, to: &mut [f32]) {
        if let Some(scale) = &self.scale {
            for (x, col) in to.iter_mut().zip(cols.clone()) {
                *x *= scale[col % scale.len()];
            }
        }
        if let Some(bias) = &self.bias {
            to.iter_mut().zip(&bias[cols]).for_each(|(x, b)| *x += b);
        }
    }
}

/// Stores tiles in a value.
struct Put<'a, 'b> {
    cx: &'a Cx<'b>,
    out: Place,
    finish: &'a Finish,
}

impl Epilogue for Put<'_, '_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; PANEL_ROWS]]) {
        for (i, row) in rows.enumerate() {
            // SAFETY: columns belong to the worker that computes their panel.
            let to = unsafe { self.cx.cols_mut(self.out, row, cols.clone()) };
            match to.first_chunk_mut() {
                // Of a length that the compiler knows: tiles are many.
                Some(whole) => *whole = values[i],
                None => to.copy_from_slice(&values[i][..cols.len()]),
            }
            if self.finish.is_some() {
                self.finish.apply(cols.clone(), to);
            }
        }
    }
}

/// The panels of columns that start at a panel, or of none.
fn panels(cols: Range<usize>) -> Range<usize> {
    if cols.is_empty() {
        return 0..0;
    }
    cols.start / PANEL_ROWS..cols.end.div_ceil(PANEL_ROWS)
}

/// `out = (x · weightᵀ) ⊙ scale + bias`.
pub(crate) struct Product {
    pub(crate) matrix: Arc<Matrix>,
    pub(crate) set: usize,
    pub(crate) out: Place,
    pub(crate) finish: Finish,
    /// Columns that stay together, a multiple of a panel's; `None` when panels are not aligned to columns.
    pub(crate) part: Option<usize>,
}

impl Kernel for Product {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let panels = match self.part {
            Some(part) => panels(columns(self.out.width, part, worker)),
            None => self.matrix.share(worker.index(), worker.count()),
        };
        self.multiply(cx, worker, panels);
    }

    fn parts(&self) -> Option<Parts> {
        Some(self.parts_of(self.part?))
    }

    fn run_parts(&self, cx: &Cx<'_>, worker: &Worker<'_>, parts: Range<usize>) {
        if let Some(part) = self.part {
            let cols = columns_of(self.out.width, part, parts);
            self.multiply(cx, worker, panels(cols));
        }
    }

    fn fine_parts(&self) -> Option<Parts> {
        self.part.map(|_| self.parts_of(PANEL_ROWS))
    }

    fn run_fine(&self, cx: &Cx<'_>, worker: &Worker<'_>, parts: Range<usize>) {
        self.multiply(cx, worker, parts);
    }
}

impl Product {
    fn parts_of(&self, columns: usize) -> Parts {
        let parts = Parts::of(self.out.width, columns);
        Parts {
            work: columns * self.matrix.k(),
            bytes: self.matrix.bytes() / parts.count.max(1),
            ..parts
        }
    }

    fn multiply(&self, cx: &Cx<'_>, worker: &Worker<'_>, panels: Range<usize>) {
        if panels.is_empty() || cx.count(self.out.lead) == 0 {
            return;
        }
        // SAFETY: rows are prepared before the barrier that precedes this step, or by this worker.
        let x = unsafe { cx.acts.get(self.set, worker) };
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).matmul };
        let mut put = Put {
            cx,
            out: self.out,
            finish: &self.finish,
        };
        cx.kernel.matmul(&self.matrix, x, panels, scratch, &mut put);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn each_panel_has_one_worker() {
        for workers in 1..5 {
            let pool = Pool::new(workers);
            for width in [1, 8, 16, 24, 40, 64] {
                let taken = Mutex::new(Vec::new());
                pool.run(&|worker| {
                    let panels = panels(columns(width, PANEL_ROWS, worker));
                    taken.lock().expect("no panic").extend(panels);
                })
                .expect("no panic");
                let mut taken = taken.into_inner().expect("no panic");
                taken.sort_unstable();
                let all: Vec<usize> = (0..width.div_ceil(PANEL_ROWS)).collect();
                assert_eq!(taken, all, "{width} columns, {workers} workers");
            }
        }
    }
}
