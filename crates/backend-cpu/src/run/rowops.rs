//! Row ops: from places to kernels.

use std::ops::Range;

use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind};

use super::cx::Cx;
use super::rope::Rotation;
use super::sweep::RowOp;
use crate::arena::Place;
use crate::kernels::act::{act_run, gate_run, softcap_run};
use crate::kernels::elementwise::{add_scaled_run, affine_run, binary_run, clamp_run, scalar_run};
use crate::kernels::norm::{
    NormSpec, balance, gaussian_top_k_row, norm_run, rms_run, softmax_run, sum_run,
};

/// A norm of each run of columns.
pub(crate) struct Norm {
    pub(crate) x: Place,
    pub(crate) spec: NormSpec,
    pub(crate) width: usize,
    pub(crate) weight: Option<Vec<f32>>,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Norm {
    /// The part of a weight that belongs to the run at `column`.
    fn part<'a>(&self, vector: Option<&'a Vec<f32>>, column: usize) -> Option<&'a [f32]> {
        vector.map(|v| &v[column % v.len()..][..self.width])
    }
}

impl RowOp for Norm {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let x = cx.cols(self.x, row, cols.clone());
        let runs = x
            .chunks_exact(self.width)
            .zip(out.chunks_exact_mut(self.width));
        for (i, (x, out)) in runs.enumerate() {
            let column = cols.start + i * self.width;
            let scaling = (
                self.part(self.weight.as_ref(), column),
                self.part(self.bias.as_ref(), column),
            );
            norm_run(cx.kernel, self.spec, x, scaling, out);
        }
    }
}

/// Ops on one input, column by column.
pub(crate) enum Map {
    Unary(Act),
    Affine { scale: f32, offset: f32 },
    Softcap(f32),
    Clamp { lo: f32, hi: f32 },
    Suppress(Range<usize>),
    Copy,
}

/// A map over a value.
pub(crate) struct Mapped {
    pub(crate) x: Place,
    pub(crate) map: Map,
}

impl RowOp for Mapped {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let x = cx.cols(self.x, row, cols.clone());
        match &self.map {
            Map::Unary(act) => {
                out.copy_from_slice(x);
                act_run(cx.kernel, *act, out);
            }
            Map::Affine { scale, offset } => affine_run(cx.kernel, *scale, *offset, x, out),
            Map::Softcap(cap) => softcap_run(cx.kernel, *cap, x, out),
            Map::Clamp { lo, hi } => clamp_run(cx.kernel, *lo, *hi, x, out),
            Map::Copy => out.copy_from_slice(x),
            Map::Suppress(range) => {
                out.copy_from_slice(x);
                let first = range.start.max(cols.start);
                let last = range.end.min(cols.end).max(first);
                out[first - cols.start..last - cols.start].fill(f32::MIN);
            }
        }
    }
}

/// `act(gate) · up`.
pub(crate) struct Gate {
    pub(crate) gate: Place,
    pub(crate) up: Place,
    pub(crate) act: Act,
    pub(crate) clamp: GateClamp,
}

impl RowOp for Gate {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let (g, u) = (
            cx.cols(self.gate, row, cols.clone()),
            cx.cols(self.up, row, cols),
        );
        gate_run(cx.kernel, (self.act, self.clamp), g, u, out);
    }
}

/// The second operand of a binary op.
pub(crate) enum Operand {
    Value(Place),
    Weight(Vec<f32>),
}

/// `sa·a ∘ sb·b`, b repeating along the row.
pub(crate) struct Binary {
    pub(crate) kind: BinaryKind,
    pub(crate) scales: (f32, f32),
    pub(crate) a: Place,
    pub(crate) b: Operand,
}

impl RowOp for Binary {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let a = cx.cols(self.a, row, cols.clone());
        let (b, first) = match &self.b {
            // Its other columns may be a neighbour's.
            Operand::Value(place) if place.width == self.a.width => (cx.cols(*place, row, cols), 0),
            Operand::Value(place) => (cx.row(*place, row), cols.start),
            Operand::Weight(weight) => (&weight[..], cols.start),
        };
        if b.len() == 1 && self.scales == (1.0, 1.0) {
            return scalar_run(cx.kernel, self.kind, a, b[0], out);
        }
        let mut done = 0;
        while done < out.len() {
            let at = (first + done) % b.len();
            let n = (b.len() - at).min(out.len() - done);
            let out = &mut out[done..done + n];
            binary_run(
                cx.kernel,
                self.kind,
                self.scales,
                &a[done..done + n],
                &b[at..at + n],
                out,
            );
            done += n;
        }
    }
}

/// Each run with one column of the second input.
pub(crate) struct PerRun {
    pub(crate) kind: BinaryKind,
    pub(crate) width: usize,
    pub(crate) x: Place,
    pub(crate) y: Place,
}

impl RowOp for PerRun {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let (x, y) = (cx.cols(self.x, row, cols.clone()), cx.row(self.y, row));
        let runs = x
            .chunks_exact(self.width)
            .zip(out.chunks_exact_mut(self.width));
        for ((x, out), &y) in runs.zip(&y[cols.start / self.width..]) {
            scalar_run(cx.kernel, self.kind, x, y, out);
        }
    }
}

/// Statistics that keep the row's width or shrink each run to one column.
pub(crate) enum Statistic {
    Softmax,
    Sum,
    Rms { eps: f32 },
}

/// A statistic of each run.
pub(crate) struct Runs {
    pub(crate) x: Place,
    pub(crate) width: usize,
    pub(crate) statistic: Statistic,
}

impl RowOp for Runs {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let per_out = if matches!(self.statistic, Statistic::Softmax) {
            self.width
        } else {
            1
        };
        let runs = cols.start / per_out * self.width..cols.end / per_out * self.width;
        let runs = cx.cols(self.x, row, runs).chunks_exact(self.width);
        for (x, out) in runs.zip(out.chunks_exact_mut(per_out)) {
            match self.statistic {
                Statistic::Softmax => softmax_run(cx.kernel, x, out),
                Statistic::Sum => out[0] = sum_run(cx.kernel, x),
                Statistic::Rms { eps } => out[0] = rms_run(cx.kernel, x, eps),
            }
        }
    }
}

/// The Gaussian top-k of a row.
pub(crate) struct GaussianTopK {
    pub(crate) x: Place,
    pub(crate) z: f32,
}

impl RowOp for GaussianTopK {
    fn row(&self, cx: &Cx<'_>, row: usize, _: Range<usize>, out: &mut [f32]) {
        gaussian_top_k_row(cx.kernel, cx.row(self.x, row), self.z, out);
    }
}

/// Each row as a square matrix, made nearly doubly stochastic.
pub(crate) struct Sinkhorn {
    pub(crate) x: Place,
    pub(crate) n: usize,
    pub(crate) iterations: usize,
    pub(crate) eps: f32,
}

impl RowOp for Sinkhorn {
    fn row(&self, cx: &Cx<'_>, row: usize, _: Range<usize>, out: &mut [f32]) {
        let rows = cx.row(self.x, row).chunks_exact(self.n);
        for (x, out) in rows.zip(out.chunks_exact_mut(self.n)) {
            softmax_run(cx.kernel, x, out);
        }
        balance(out, self.n, (self.iterations, self.eps));
    }
}

/// Rotary positions of each head.
pub(crate) struct Rope {
    pub(crate) x: Place,
    pub(crate) rotation: Rotation,
}

impl RowOp for Rope {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(cx.cols(self.x, row, cols));
        self.rotation.rotate(cx, cx.step_row(self.x.lead, row), out);
    }
}

/// `x · (1 + coef · ln(floor((pos + offset) / length) + 1))`.
pub(crate) struct PosScale {
    pub(crate) x: Place,
    pub(crate) coef: f32,
    pub(crate) length: f32,
    pub(crate) offset: f32,
}

impl RowOp for PosScale {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let pos = f64::from(cx.step.pos(cx.step_row(self.x.lead, row)));
        let steps = (pos + f64::from(self.offset)) / f64::from(self.length);
        let factor = 1.0 + f64::from(self.coef) * (steps.floor() + 1.0).ln();
        affine_run(
            cx.kernel,
            factor as f32,
            0.0,
            cx.cols(self.x, row, cols),
            out,
        );
    }
}

/// Columns `start..start + len` of each run of `group`.
pub(crate) struct Slice {
    pub(crate) x: Place,
    pub(crate) group: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl RowOp for Slice {
    fn row(&self, cx: &Cx<'_>, row: usize, _: Range<usize>, out: &mut [f32]) {
        let runs = cx.row(self.x, row).chunks_exact(self.group);
        for (x, out) in runs.zip(out.chunks_exact_mut(self.len)) {
            out.copy_from_slice(&x[self.start..][..self.len]);
        }
    }
}

/// Inputs joined run by run: each with its columns per run and whether it has a run per group.
pub(crate) struct Concat {
    pub(crate) inputs: Vec<(Place, bool)>,
    pub(crate) groups: usize,
}

impl RowOp for Concat {
    fn row(&self, cx: &Cx<'_>, row: usize, _: Range<usize>, out: &mut [f32]) {
        let mut rest = out;
        for g in 0..self.groups {
            for &(place, split) in &self.inputs {
                let x = cx.row(place, row);
                let run = if split {
                    x.len() / self.groups
                } else {
                    x.len()
                };
                let x = if split { &x[g * run..][..run] } else { x };
                let (to, after) = rest.split_at_mut(run);
                to.copy_from_slice(x);
                rest = after;
            }
        }
    }
}

/// Copies of each run.
pub(crate) struct Repeat {
    pub(crate) x: Place,
    pub(crate) width: usize,
    pub(crate) times: usize,
}

impl RowOp for Repeat {
    fn row(&self, cx: &Cx<'_>, row: usize, _: Range<usize>, out: &mut [f32]) {
        let runs = cx.row(self.x, row).chunks_exact(self.width);
        for (x, copies) in runs.zip(out.chunks_exact_mut(self.width * self.times)) {
            copies
                .chunks_exact_mut(self.width)
                .for_each(|to| to.copy_from_slice(x));
        }
    }
}

/// The rows whose logits the step wants.
pub(crate) struct SelectRows {
    pub(crate) x: Place,
}

impl RowOp for SelectRows {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let from = cx.step.logit_rows()[row] as usize;
        out.copy_from_slice(cx.cols(self.x, from, cols));
    }
}

/// One vector per sequence; zeros for a sequence without rows.
pub(crate) struct Pool {
    pub(crate) x: Place,
    pub(crate) kind: tokkata_ir::PoolKind,
}

impl RowOp for Pool {
    fn row(&self, cx: &Cx<'_>, seq: usize, cols: Range<usize>, out: &mut [f32]) {
        use tokkata_ir::PoolKind::{First, Last, Mean};
        let (first, count) = (cx.step.first_row(seq), cx.step.row_count(seq));
        out.fill(0.0);
        match self.kind {
            _ if count == 0 => {}
            First => out.copy_from_slice(cx.cols(self.x, first, cols)),
            Last => out.copy_from_slice(cx.cols(self.x, first + count - 1, cols)),
            Mean => {
                for row in first..first + count {
                    add_scaled_run(cx.kernel, cx.cols(self.x, row, cols.clone()), 1.0, out);
                }
                out.iter_mut().for_each(|x| *x /= count as f32);
            }
        }
    }
}

/// `Σ_j weights[j] · x[j]`.
pub(crate) struct Combine {
    pub(crate) x: Place,
    pub(crate) weights: Place,
}

impl RowOp for Combine {
    fn row(&self, cx: &Cx<'_>, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let (x, weights) = (cx.row(self.x, row), cx.row(self.weights, row));
        out.fill(0.0);
        for (part, &w) in x.chunks_exact(x.len() / weights.len()).zip(weights) {
            add_scaled_run(cx.kernel, &part[cols.clone()], w, out);
        }
    }
}
