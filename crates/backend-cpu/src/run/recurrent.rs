//! Convolutions, shifts and recurrences: sequences in row order, columns or heads dealt out to workers.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::SlotId;
use tokkata_ir::tape::ResourceId;

use super::cache::StateAt;
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

/// Where a step keeps something of every sequence from one replay to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) slot: SlotId,
    /// The slot on the tape.
    pub(crate) id: ResourceId,
}

impl State {
    fn of(self, cx: &Cx<'_>, seq: usize) -> Kept {
        Kept {
            id: self.id,
            seq,
            at: cx.caches.state(cx.step, self.slot, seq),
        }
    }
}

/// What is kept of a sequence.
#[derive(Clone, Copy, Debug)]
struct Kept {
    id: ResourceId,
    seq: usize,
    at: StateAt,
}

impl Kept {
    /// Some of it.
    ///
    /// # Safety
    /// No other worker uses these elements until the next barrier, and this one has no other slice of them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part<'a>(self, cx: &'a Cx<'_>, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise; the caches outlive the replay.
        let part = unsafe { self.at.part(range.clone()) };
        cx.watch
            .note(self.id, (self.seq, range), Some(part.as_ptr()), true);
        part
    }
}

/// Some columns of the rows of a sequence, and of those before them that its state keeps, oldest first. The columns of
/// a state belong to the worker that the same columns of its rows belong to.
struct Line<'a> {
    cx: &'a Cx<'a>,
    x: Place,
    seq: usize,
    state: Option<Kept>,
    /// Rows in the state.
    kept: usize,
    cols: Range<usize>,
}

impl<'a> Line<'a> {
    /// The line of a sequence; a sequence without past starts from zeros.
    fn new(
        cx: &'a Cx<'a>,
        (x, state): (Place, Option<State>),
        seq: usize,
        cols: Range<usize>,
    ) -> Self {
        let state = state.map(|state| state.of(cx, seq));
        let line = Line {
            cx,
            x,
            seq,
            state,
            kept: state.map_or(0, |state| state.at.len() / x.width),
            cols,
        };
        if cx.step.past_len(seq) == 0 {
            // SAFETY: one row after another.
            (0..line.kept).for_each(|row| unsafe { line.old(row) }.fill(0.0));
        }
        line
    }

    /// These columns of a row of the state.
    ///
    /// # Safety
    /// The caller holds no other slice of this row.
    #[allow(clippy::mut_from_ref)]
    unsafe fn old(&self, row: usize) -> &mut [f32] {
        let at = row * self.x.width;
        let state = self.state.expect("only a state keeps rows");
        // SAFETY: columns are dealt out to workers; the rest is the caller's promise.
        unsafe { state.part(self.cx, at + self.cols.start..at + self.cols.end) }
    }

    fn first(&self) -> usize {
        self.cx.step.first_row(self.seq)
    }

    /// Row `at` counted from the oldest kept one.
    fn row(&self, at: usize) -> &[f32] {
        if at < self.kept {
            // SAFETY: whoever reads a row is done with it before it writes one of the same number.
            unsafe { self.old(at) }
        } else {
            let row = self.first() + at - self.kept;
            self.cx.cols(self.x, row, self.cols.clone())
        }
    }

    /// Keeps the last rows of `kept + count`.
    fn keep(&self, count: usize) {
        if count == 0 {
            return;
        }
        for i in 0..self.kept {
            // A later row of the state, or one of the step.
            let from = self.row(i + count);
            // SAFETY: that is another row, as `count` is not zero.
            unsafe { self.old(i) }.copy_from_slice(from);
        }
    }
}

/// A depthwise convolution over time.
pub(crate) struct Conv {
    pub(crate) x: Place,
    pub(crate) out: Place,
    /// `[taps, C]`, oldest first.
    pub(crate) taps: Vec<Vec<f32>>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) state: Option<State>,
}

impl Conv {
    fn row(&self, line: &Line<'_>, at: usize, count: usize, out: &mut [f32]) {
        match &self.bias {
            Some(bias) => out.copy_from_slice(&bias[line.cols.clone()]),
            None => out.fill(0.0),
        }
        let before = if self.state.is_some() {
            0
        } else {
            (self.taps.len() - 1) / 2
        };
        for (t, tap) in self.taps.iter().enumerate() {
            let inside = at + t >= before && (self.state.is_some() || at + t - before < count);
            if inside {
                let x = line.row(at + t - before);
                multiply_add_run(line.cx.kernel, &tap[line.cols.clone()], x, out);
            }
        }
    }
}

impl Kernel for Conv {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cols = columns(self.x.width, N, worker);
        for seq in 0..cx.step.n_seqs() {
            let count = cx.step.row_count(seq);
            let line = Line::new(cx, (self.x, self.state), seq, cols.clone());
            for at in 0..count {
                // SAFETY: columns are dealt out to workers.
                let out = unsafe { cx.cols_mut(self.out, line.first() + at, cols.clone()) };
                self.row(&line, at, count, out);
            }
            line.keep(count);
        }
    }
}

/// The previous row of the sequence.
pub(crate) struct Shift {
    pub(crate) x: Place,
    pub(crate) out: Place,
    pub(crate) state: State,
}

impl Kernel for Shift {
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>) {
        let cols = columns(self.x.width, N, worker);
        for seq in 0..cx.step.n_seqs() {
            let count = cx.step.row_count(seq);
            let line = Line::new(cx, (self.x, Some(self.state)), seq, cols.clone());
            for at in 0..count {
                // SAFETY: columns are dealt out to workers.
                let out = unsafe { cx.cols_mut(self.out, line.first() + at, cols.clone()) };
                out.copy_from_slice(line.row(at));
            }
            line.keep(count);
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
    pub(crate) state: State,
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
            let kept = self.state.of(cx, seq);
            let per_column = kept.at.len() / self.out.width;
            let end = ((unit + 1) * per).min(self.out.width);
            let range = unit * per * per_column..end * per_column;
            // SAFETY: a unit of a state belongs to one worker.
            let state = unsafe { kept.part(cx, range) };
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
