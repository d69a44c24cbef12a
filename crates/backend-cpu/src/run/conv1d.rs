//! Dense convolution over the frames of sequences: a product with windows of them.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::Conv1dOp;

use super::cx::{Cx, Kernel};
use super::moe::{PORTION, Scratch as MoeScratch};
use crate::arena::Place;
use crate::kernels::{Epilogue, Scratch as MatmulScratch};
use crate::layout::{Matrix, PANEL_ROWS};
use crate::pool::Worker;

/// A prepared convolution.
pub(crate) struct Conv1d {
    pub(crate) op: Conv1dOp,
    pub(crate) matrix: Arc<Matrix>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// Which counter deals out portions of frames.
    pub(crate) tickets: usize,
}

/// Frames of the output that go through some panels.
struct Portion {
    frames: Range<usize>,
    panels: Range<usize>,
}

/// Stores tiles of a portion.
struct Put<'a, 'b> {
    cx: &'a Cx<'b>,
    of: &'a Conv1d,
    first: usize,
}

impl Epilogue for Put<'_, '_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; PANEL_ROWS]]) {
        for (row, values) in rows.zip(values) {
            let (row, at) = self.of.place(self.of.out, self.of.made(), self.first + row);
            // SAFETY: a panel of a portion belongs to one worker.
            let to = unsafe {
                self.cx
                    .cols_mut(self.of.out, row, at + cols.start..at + cols.end)
            };
            to.copy_from_slice(&values[..cols.len()]);
            if let Some(bias) = &self.of.bias {
                to.iter_mut()
                    .zip(&bias[cols.clone()])
                    .for_each(|(x, b)| *x += b);
            }
        }
    }
}

impl Conv1d {
    /// Frames of a row of the output.
    fn made(&self) -> usize {
        (self.op.frames / self.op.stride) as usize
    }

    /// Row and first column of a frame of a value with so many in a row.
    fn place(&self, of: Place, frames: usize, frame: usize) -> (usize, usize) {
        (frame / frames, frame % frames * (of.width / frames))
    }

    /// The taps of a frame of the output.
    fn window(&self, cx: &Cx<'_>, frame: usize, to: &mut [f32]) {
        let (frames, made) = (self.op.frames as usize, self.made());
        let channels = self.x.width / frames;
        let seq = cx.step.seqs()[frame / made] as usize;
        let rows = cx.step.first_row(seq)..cx.step.first_row(seq) + cx.step.row_count(seq);
        let own = rows.start * frames..rows.end * frames;
        // Frames before the first are counted too.
        let first = frame * self.op.stride as usize;
        for (tap, to) in to.chunks_exact_mut(channels).enumerate() {
            let at = (first + tap).checked_sub(self.op.padding as usize);
            match at.filter(|at| own.contains(at)) {
                Some(at) => {
                    let (row, column) = self.place(self.x, frames, at);
                    to.copy_from_slice(cx.cols(self.x, row, column..column + channels));
                }
                None => to.fill(0.0),
            }
        }
    }

    fn multiply(
        &self,
        cx: &Cx<'_>,
        portion: &Portion,
        (moe, matmul): (&mut MoeScratch, &mut MatmulScratch),
        window: &mut [f32],
    ) {
        if portion.panels.is_empty() {
            return;
        }
        let (frames, k) = (portion.frames.clone(), self.matrix.k());
        let writer = moe
            .acts
            .begin(frames.len(), k, cx.kernel.forms(&self.matrix));
        for (i, frame) in frames.clone().enumerate() {
            self.window(cx, frame, &mut window[..k]);
            // SAFETY: the activations belong to this worker.
            unsafe { writer.write(&cx.kernel, i, &window[..k]) };
        }
        let mut put = Put {
            cx,
            of: self,
            first: frames.start,
        };
        let panels = portion.panels.clone();
        (cx.kernel).matmul(&self.matrix, &moe.acts, panels, matmul, &mut put);
    }
}

impl Kernel for Conv1d {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { cx.scratch(worker) };
        let frames = cx.count(self.out.lead) * self.made();
        let portions = frames.div_ceil(PORTION);
        let shares = worker.count().div_ceil(portions.max(1));
        loop {
            let ticket = cx.ticket(self.tickets);
            if ticket >= portions * shares {
                break;
            }
            let first = ticket / shares * PORTION;
            let portion = Portion {
                frames: first..frames.min(first + PORTION),
                panels: self.matrix.share(ticket % shares, shares),
            };
            let through = (&mut scratch.moe, &mut scratch.matmul);
            self.multiply(cx, &portion, through, &mut scratch.row);
        }
    }
}
