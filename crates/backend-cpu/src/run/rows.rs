//! Ops that look rows up, write caches or draw tokens.
#![allow(unsafe_code)]

use std::array::from_fn;
use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::sample::{BadLogits, SampleSide, Scratch, sample};
use tokkata_ir::step::ROW_EMBEDS;
use tokkata_ir::tape::{Reach, ResourceId};
use tokkata_ir::{BackendError, GatherIndex, SlotId};

use super::cache::Write;
use super::cx::{Cx, Kernel, Parts};
use super::sweep::{columns_of, dealt};
use crate::arena::Place;
use crate::kernels::lanes::N;
use crate::layout::Matrix;
use crate::pool::Worker;

/// Rows of a table.
pub(crate) struct Gather {
    pub(crate) table: Arc<Matrix>,
    pub(crate) index: GatherIndex,
    pub(crate) embeds: Option<Place>,
    pub(crate) out: Place,
}

impl Kernel for Gather {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { &mut cx.scratch(worker).matmul };
        for i in worker.share(cx.count(self.out.lead)) {
            let row = cx.step_row(self.out.lead, i);
            // SAFETY: each row belongs to one worker.
            let out = unsafe { cx.cols_mut(self.out, i, 0..self.out.width) };
            match self.embeds {
                Some(x) if cx.step.flags(row) & ROW_EMBEDS != 0 => {
                    out.copy_from_slice(cx.row(x, i));
                }
                _ => self.look_up(cx, row, scratch, out),
            }
        }
    }
}

impl Gather {
    fn look_up(
        &self,
        cx: &Cx<'_>,
        row: usize,
        scratch: &mut crate::kernels::Scratch,
        out: &mut [f32],
    ) {
        let entry = match self.index {
            GatherIndex::Token => cx.step.tokens()[row],
            GatherIndex::Position { offset } => cx.step.pos(row) + offset,
            GatherIndex::Fixed(entry) => entry,
        };
        if entry as usize >= self.table.rows() {
            out.fill(0.0);
            return cx.fail(BackendError::no_row("cpu", entry, self.table.rows()));
        }
        cx.kernel.gather(&self.table, entry as usize, scratch, out);
    }
}

/// Keys or values on their way to a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) x: Place,
    /// Columns of a head.
    pub(crate) dim: usize,
    /// How it is dealt out.
    pub(crate) reach: Reach,
    /// The cache's keys or values on the tape.
    pub(crate) to: ResourceId,
}

/// Stores keys and values of every row.
pub(crate) struct CacheWrite {
    pub(crate) slot: SlotId,
    /// Keys, then values unless the slot keeps none.
    pub(crate) planes: Vec<Written>,
}

impl Kernel for CacheWrite {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        for (plane, &Written { x, reach, .. }) in self.planes.iter().enumerate() {
            let (rows, cols) = dealt(reach, cx, x, worker);
            self.write(cx, plane, rows, cols);
        }
    }

    /// Those of all planes alike.
    fn parts(&self) -> Option<Parts> {
        let parts = |plane: &Written| match plane.reach {
            Reach::Columns(part) => Some(Parts::of(plane.x.width, part)),
            _ => None,
        };
        let first = parts(self.planes.first()?)?;
        let alike = |plane| parts(plane).is_some_and(|p| p.count == first.count);
        self.planes.iter().all(alike).then_some(first)
    }

    fn run_parts(&self, cx: &Cx<'_>, _: &Worker<'_>, parts: Range<usize>) {
        for (plane, &Written { x, reach, .. }) in self.planes.iter().enumerate() {
            if let Reach::Columns(part) = reach {
                let cols = columns_of(x.width, part, parts.clone());
                self.write(cx, plane, 0..cx.step.n_rows(), cols);
            }
        }
    }
}

impl CacheWrite {
    fn write(&self, cx: &Cx<'_>, plane: usize, rows: Range<usize>, cols: Range<usize>) {
        let Written { x, dim, to, .. } = self.planes[plane];
        let panels = plane == 0 && cx.caches.takes_panels(self.slot);
        let mut row = rows.start;
        while row < rows.end {
            let seq = cx.step.seqs()[row] as usize;
            let position = cx.step.past_len(seq) + row - cx.step.first_row(seq);
            let end = rows
                .end
                .min(cx.step.first_row(seq) + cx.step.row_count(seq));
            if !cx.caches.stores(cx.step, self.slot, row) {
                row += 1;
                continue;
            }
            let whole = panels && position.is_multiple_of(N) && row + N <= end;
            for head in cols.start / dim..cols.end / dim {
                let at = Write {
                    seq,
                    position,
                    head,
                    values: plane == 1,
                    row: cx.cols(x, row, cols.clone()),
                    first: cols.start / dim,
                };
                if whole {
                    let rows = from_fn(|i| cx.cols(x, row + i, cols.clone()));
                    let to = (cx.kernel, cx.step, self.slot);
                    cx.caches.write_panel(to, at, &rows);
                } else {
                    cx.caches.write(cx.kernel, cx.step, self.slot, at);
                }
            }
            let count = if whole { N } else { 1 };
            for row in row..row + count {
                cx.watch.note(to, (row, cols.clone()), None, true);
            }
            row += count;
        }
    }
}

/// Draws a token per logit row.
pub(crate) struct Sample {
    pub(crate) logits: Place,
    pub(crate) out: Place,
}

impl Sample {
    /// The token, or the code of why there is none.
    fn draw(&self, cx: &Cx<'_>, i: usize, scratch: &mut Scratch) -> i32 {
        let row = cx.step.logit_rows()[i] as usize;
        let seq = cx.step.seqs()[row] as usize;
        let none = SampleSide::default();
        let side = cx.inputs.sample.get(i).unwrap_or(&none);
        let row = side.row(
            cx.row(self.logits, i),
            cx.step.index_in_sequence(row) as u32,
        );
        let token = sample(&cx.step.sampler(seq), &row, scratch);
        token.map_or_else(BadLogits::code, |token| token as i32)
    }
}

impl Kernel for Sample {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { cx.scratch(worker) };
        for i in worker.share(cx.step.logit_rows().len()) {
            let token = self.draw(cx, i, &mut scratch.draw);
            // SAFETY: each row belongs to one worker.
            unsafe { cx.ints_mut(self.out, i)[0] = token };
        }
    }
}
