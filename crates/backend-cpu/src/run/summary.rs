//! Summaries of runs of positions, whose parts are kept in a window.
//!
//! Columns are dealt out: what a worker keeps of a position is what it reads of it again.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::tape::ResourceId;
use tokkata_ir::{CompressOp, Op, Program};

use super::cx::{Cx, Kernel};
use super::sweep::columns;
use crate::arena::Place;
use crate::kernels::summary::summarise_rows;
use crate::pool::Worker;

/// Columns that are summarised at a time.
const COLUMNS: usize = 64;

/// A prepared summary.
pub(crate) struct Compress {
    pub(crate) op: CompressOp,
    pub(crate) values: Place,
    pub(crate) scores: Place,
    pub(crate) out: Place,
    /// `[ratio, columns]`, added to scores.
    pub(crate) ape: Vec<f32>,
    /// Columns of the output that one worker keeps together.
    pub(crate) part: usize,
    /// The parts on the tape: values, scores.
    pub(crate) kept: Vec<ResourceId>,
}

/// Floats that a worker needs for the summaries of a program.
pub(crate) fn scratch_floats(program: &Program) -> usize {
    let nodes = program.plans.iter().flat_map(|p| &p.nodes);
    let rows = nodes.filter_map(|node| match &node.op {
        Op::Compress(op) => Some(op.ratio as usize * if op.overlap { 2 } else { 1 }),
        _ => None,
    });
    rows.max().unwrap_or(0) * 2 * COLUMNS
}

impl Compress {
    /// Where the columns of the run before, and of the own one, start in the inputs.
    fn halves(&self) -> Vec<usize> {
        (0..self.values.width / self.out.width)
            .map(|i| i * self.out.width)
            .collect()
    }

    /// Stores columns of a row, of both halves of the inputs.
    fn store(&self, cx: &Cx<'_>, row: usize, cols: &Range<usize>) {
        let position = cx.step.index_in_sequence(row);
        let at = (cx.step.seqs()[row] as usize, position);
        let inputs = [self.values, self.scores].into_iter().zip(&self.kept);
        for ((x, &kept), scores) in inputs.zip([false, true]) {
            for half in self.halves() {
                let cols = half + cols.start..half + cols.end;
                cx.watch.note(kept, (row, cols.clone()), None, true);
                let from = (cx.row(x, row), cols);
                cx.caches
                    .write_columns((cx.step, self.op.slot), at, scores, from);
            }
        }
    }

    /// The summary of the run that ends at a row, some columns of it.
    fn summary(
        &self,
        cx: &Cx<'_>,
        row: usize,
        cols: Range<usize>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (ratio, width) = (self.op.ratio as usize, cols.len());
        let (seq, end) = (
            cx.step.seqs()[row] as usize,
            cx.step.index_in_sequence(row) + 1,
        );
        let halves = self.halves();
        let first = end.saturating_sub(halves.len() * ratio);
        let (values, scores) = scratch.split_at_mut(scratch.len() / 2);
        let count = end - first;
        let rows = values
            .chunks_exact_mut(width)
            .zip(scores.chunks_exact_mut(width));
        for (position, (values, scores)) in (first..end).zip(rows) {
            // The run's own positions give their last columns.
            let half = match position + ratio < end {
                true => 0,
                false => halves[halves.len() - 1],
            };
            let at = half + cols.start..half + cols.end;
            let from = (cx.step, self.op.slot);
            cx.caches
                .read_columns(from, (seq, position), false, at.clone(), values);
            cx.caches
                .read_columns(from, (seq, position), true, at.clone(), scores);
            let ape = &self.ape[position % ratio * self.values.width..][at];
            scores.iter_mut().zip(ape).for_each(|(s, a)| *s += a);
        }
        let (values, scores) = (&values[..count * width], &scores[..count * width]);
        summarise_rows(cx.kernel, values, scores, out);
    }
}

impl Kernel for Compress {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cols = columns(self.out.width, self.part, worker);
        if cols.is_empty() {
            return;
        }
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).summary };
        for &kept in &self.kept {
            cx.watch.note(kept, (0, 0..0), None, false);
        }
        for row in 0..cx.step.n_rows() {
            self.store(cx, row, &cols);
        }
        for row in 0..cx.step.n_rows() {
            // SAFETY: columns are dealt out to workers.
            let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
            let next = cx.step.index_in_sequence(row) + 1;
            if !next.is_multiple_of(self.op.ratio as usize) {
                out.fill(0.0);
                continue;
            }
            for (i, out) in out.chunks_mut(COLUMNS).enumerate() {
                let first = cols.start + i * COLUMNS;
                self.summary(cx, row, first..first + out.len(), out, scratch);
            }
        }
    }
}
