//! Convolutions, shifts and recurrences: sequences in row order, columns or heads dealt out to workers.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::SlotId;

use super::cx::{Cx, Kernel};
use super::sweep::columns;
use crate::arena::Place;
use crate::kernels::act::softplus;
use crate::kernels::elementwise::multiply_add_run;
use crate::kernels::lanes::N;
use crate::kernels::scan::{
    DeltaRow, LinearRow, Mamba1Row, Mamba2Row, Wkv7Row, delta_row, linear_row, mamba1_row,
    mamba2_row, wkv7_row,
};
use crate::pool::Worker;

/// The rows of a sequence, and those before them from its slot.
struct Line<'a> {
    x: Place,
    first: usize,
    /// Rows kept in the slot, oldest first; empty without one.
    state: &'a mut [f32],
    cols: Range<usize>,
}

impl Line<'_> {
    /// Rows in the slot.
    fn kept(&self) -> usize {
        self.state.len() / self.x.width
    }

    /// Row `at` counted from the oldest kept one.
    fn row<'b>(&'b self, cx: &'b Cx<'_>, at: usize) -> &'b [f32] {
        let kept = self.kept();
        if at < kept {
            &self.state[at * self.x.width..][self.cols.clone()]
        } else {
            &cx.row(self.x, self.first + at - kept)[self.cols.clone()]
        }
    }

    /// Keeps the last rows of `kept + count`.
    fn keep(&mut self, cx: &Cx<'_>, count: usize) {
        let (kept, width) = (self.kept(), self.x.width);
        for i in 0..kept {
            let from = i + count;
            let to = i * width + self.cols.start..i * width + self.cols.end;
            if from < kept {
                self.state.copy_within(
                    from * width + self.cols.start..from * width + self.cols.end,
                    to.start,
                );
            } else {
                let row = cx.row(self.x, self.first + from - kept);
                self.state[to].copy_from_slice(&row[self.cols.clone()]);
            }
        }
    }
}

/// The line of a sequence; a sequence without past starts from zeros.
///
/// # Safety
/// These columns of the slot belong to the worker.
unsafe fn line<'a>(
    cx: &'a Cx<'_>,
    (x, slot): (Place, Option<SlotId>),
    seq: usize,
    cols: Range<usize>,
) -> Line<'a> {
    let state: &mut [f32] = match slot {
        // SAFETY: the caller's promise.
        Some(slot) => unsafe { cx.caches.state(cx.step, slot, seq) },
        None => &mut [],
    };
    if cx.step.past_len(seq) == 0 {
        for row in state.chunks_exact_mut(x.width) {
            row[cols.clone()].fill(0.0);
        }
    }
    Line {
        x,
        first: cx.step.first_row(seq),
        state,
        cols,
    }
}

/// A depthwise convolution over time.
pub(crate) struct Conv {
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// `[taps, C]`, oldest first.
    pub(crate) taps: Vec<Vec<f32>>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) slot: Option<SlotId>,
}

impl Conv {
    fn row(&self, cx: &Cx<'_>, line: &Line<'_>, at: usize, count: usize, out: &mut [f32]) {
        match &self.bias {
            Some(bias) => out.copy_from_slice(&bias[line.cols.clone()]),
            None => out.fill(0.0),
        }
        let before = if self.slot.is_some() {
            0
        } else {
            (self.taps.len() - 1) / 2
        };
        for (t, tap) in self.taps.iter().enumerate() {
            let inside = at + t >= before && (self.slot.is_some() || at + t - before < count);
            if inside {
                let x = line.row(cx, at + t - before);
                multiply_add_run(cx.kernel, &tap[line.cols.clone()], x, out);
            }
        }
    }
}

impl Kernel for Conv {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cols = columns(self.x.width, N, worker);
        for seq in 0..cx.step.n_seqs() {
            let count = cx.step.row_count(seq);
            // SAFETY: columns are dealt out to workers.
            let mut line = unsafe { line(cx, (self.x, self.slot), seq, cols.clone()) };
            for at in 0..count {
                // SAFETY: as above.
                let out = unsafe { cx.cols_mut(self.out, line.first + at, cols.clone()) };
                self.row(cx, &line, at, count, out);
            }
            line.keep(cx, count);
        }
    }
}

/// The previous row of the sequence.
pub(crate) struct Shift {
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) slot: SlotId,
}

impl Kernel for Shift {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cols = columns(self.x.width, N, worker);
        for seq in 0..cx.step.n_seqs() {
            let count = cx.step.row_count(seq);
            // SAFETY: columns are dealt out to workers.
            let mut line = unsafe { line(cx, (self.x, Some(self.slot)), seq, cols.clone()) };
            for at in 0..count {
                // SAFETY: as above.
                let out = unsafe { cx.cols_mut(self.out, line.first + at, cols.clone()) };
                out.copy_from_slice(line.row(cx, at));
            }
            line.keep(cx, count);
        }
    }
}

/// Which recurrence, with its weights.
pub(crate) enum Recurrence {
    Mamba1 {
        a: Vec<f32>,
        d: Vec<f32>,
    },
    Mamba2 {
        heads: usize,
        groups: usize,
        a: Vec<f32>,
        d: Vec<f32>,
        dt_bias: Option<Vec<f32>>,
    },
    Wkv6 {
        head_dim: usize,
        first: Vec<f32>,
    },
    Gla {
        head_dim: usize,
        scale: f32,
    },
    Wkv7 {
        head_dim: usize,
    },
    Delta {
        k_heads: usize,
        v_heads: usize,
        dim_k: usize,
        dim_v: usize,
        tiled: bool,
        scale: f32,
    },
    /// Decay per row of each head.
    Decay {
        keep: Vec<f32>,
    },
}

/// A recurrence over sequences.
pub(crate) struct Scan {
    pub(crate) recurrence: Recurrence,
    pub(crate) ins: Vec<Place>,
    pub(crate) out: Place,
    pub(crate) slot: SlotId,
}

/// Channels of Mamba-1 that a worker takes at a time.
const CHANNELS: usize = 64;

impl Scan {
    /// Independent parts of a sequence's state, and output columns of each.
    fn units(&self) -> (usize, usize) {
        let width = self.out.width;
        let per = match self.recurrence {
            Recurrence::Mamba1 { .. } => CHANNELS.min(width),
            Recurrence::Mamba2 { heads, .. } => width / heads,
            Recurrence::Wkv6 { head_dim, .. }
            | Recurrence::Gla { head_dim, .. }
            | Recurrence::Wkv7 { head_dim } => head_dim,
            Recurrence::Delta { dim_v, .. } => dim_v,
            Recurrence::Decay { ref keep } => width / keep.len(),
        };
        (width.div_ceil(per), per)
    }

    /// Moves unit `unit` of a sequence through one row.
    fn row(&self, cx: &Cx<'_>, row: usize, unit: usize, state: &mut [f32], work: &mut [f32]) {
        let (_, per) = self.units();
        let cols = unit * per..((unit + 1) * per).min(self.out.width);
        // SAFETY: a unit of a sequence belongs to one worker.
        let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
        let x = |i: usize| cx.row(self.ins[i], row);
        match &self.recurrence {
            Recurrence::Mamba1 { a, d } => {
                let delta = &mut work[..cols.len()];
                for (to, &dt) in delta.iter_mut().zip(&x(1)[cols.clone()]) {
                    *to = softplus(dt);
                }
                let n = self.ins[2].width;
                let a = &a[cols.start * n..cols.end * n];
                let (x0, d) = (&x(0)[cols.clone()], &d[cols.clone()]);
                mamba1_row(
                    cx.kernel,
                    &Mamba1Row {
                        x: x0,
                        delta,
                        b: x(2),
                        c: x(3),
                        a,
                        d,
                    },
                    state,
                    out,
                );
            }
            Recurrence::Mamba2 {
                heads,
                groups,
                a,
                d,
                dt_bias,
            } => {
                let n = self.ins[2].width / groups;
                let at = unit / (heads / groups) * n;
                let delta = softplus(x(1)[unit] + dt_bias.as_ref().map_or(0.0, |b| b[unit]));
                let keep = (delta * a[unit]).exp();
                let (b, c) = (&x(2)[at..at + n], &x(3)[at..at + n]);
                mamba2_row(
                    cx.kernel,
                    &Mamba2Row {
                        x: &x(0)[cols],
                        delta,
                        keep,
                        b,
                        c,
                        d: d[unit],
                    },
                    state,
                    out,
                );
            }
            Recurrence::Wkv7 { .. } => {
                let [r, w, k, v, kappa, rate] = [0, 1, 2, 3, 4, 5].map(|i| &x(i)[cols.clone()]);
                wkv7_row(
                    cx.kernel,
                    &Wkv7Row {
                        r,
                        w,
                        k,
                        v,
                        kappa,
                        rate,
                    },
                    state,
                    out,
                );
            }
            Recurrence::Delta { .. } => self.delta(cx, row, unit, (state, work, out)),
            _ => self.linear(cx, row, unit, state, out),
        }
    }

    fn linear(&self, cx: &Cx<'_>, row: usize, unit: usize, state: &mut [f32], out: &mut [f32]) {
        let (_, per) = self.units();
        let x = |i: usize| &cx.row(self.ins[i], row)[unit * per..][..per];
        let (r, k, v) = (x(0), x(1), x(2));
        let plain = LinearRow {
            r,
            k,
            v,
            keep: &[],
            bonus: None,
            scale: 1.0,
        };
        let linear = match &self.recurrence {
            Recurrence::Wkv6 { first, .. } => LinearRow {
                keep: x(3),
                bonus: Some(&first[unit * per..][..per]),
                ..plain
            },
            Recurrence::Gla { scale, .. } => LinearRow {
                keep: x(3),
                scale: *scale,
                ..plain
            },
            Recurrence::Decay { keep } => LinearRow {
                keep: &keep[unit..=unit],
                ..plain
            },
            _ => unreachable!("other recurrences are not linear attention"),
        };
        linear_row(cx.kernel, &linear, state, out);
    }

    fn delta(
        &self,
        cx: &Cx<'_>,
        row: usize,
        head: usize,
        (state, work, out): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let Recurrence::Delta {
            k_heads,
            v_heads,
            dim_k,
            dim_v,
            tiled,
            scale,
        } = self.recurrence
        else {
            unreachable!("called for the delta rule only");
        };
        let key_head = if tiled {
            head % k_heads
        } else {
            head / (v_heads / k_heads)
        };
        let x = |i: usize| cx.row(self.ins[i], row);
        let g = x(3);
        let g = if g.len() == v_heads {
            &g[head..=head]
        } else {
            &g[head * dim_k..][..dim_k]
        };
        let delta = DeltaRow {
            q: &x(0)[key_head * dim_k..][..dim_k],
            k: &x(1)[key_head * dim_k..][..dim_k],
            v: &x(2)[head * dim_v..][..dim_v],
            g,
            beta: x(4)[head],
            scale,
        };
        delta_row(cx.kernel, &delta, state, &mut work[..dim_v], out);
    }
}

impl Kernel for Scan {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let (units, per) = self.units();
        // SAFETY: the scratch of this worker, borrowed once.
        let work = unsafe { &mut cx.scratch(worker).row };
        for item in worker.share(cx.step.n_seqs() * units) {
            let (seq, unit) = (item / units, item % units);
            // SAFETY: a unit of a state belongs to one worker.
            let state = unsafe { cx.caches.state(cx.step, self.slot, seq) };
            let per_column = state.len() / self.out.width;
            let end = ((unit + 1) * per).min(self.out.width);
            let state = &mut state[unit * per * per_column..end * per_column];
            if cx.step.past_len(seq) == 0 {
                state.fill(0.0);
            }
            let first = cx.step.first_row(seq);
            for row in first..first + cx.step.row_count(seq) {
                self.row(cx, row, unit, state, work);
            }
        }
    }
}
