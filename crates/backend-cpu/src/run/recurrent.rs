//! Convolutions, shifts and recurrences: sequences in row order, columns or heads dealt out to workers.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::SlotId;
use tokkata_ir::step::Stretch;
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
    /// The state that a place of a sequence's table names.
    fn of(self, cx: &Cx<'_>, (seq, place): (usize, usize)) -> Kept {
        Kept {
            id: self.id,
            seq,
            place,
            at: cx.caches.state(cx.step, self.slot, (seq, place)),
        }
    }

    /// Where the state after some rows of a sequence is to be, some elements of which are made what they are before those
    /// rows.
    ///
    /// # Safety
    /// No other worker uses these elements until the next barrier, and this one has no slice of them.
    unsafe fn begin(
        self,
        cx: &Cx<'_>,
        (seq, stretch): (usize, &Stretch),
        range: Range<usize>,
    ) -> Kept {
        let kept = self.of(cx, (seq, stretch.to));
        // SAFETY: the caller's promise; states of other places lie in other blocks.
        unsafe {
            match stretch.from {
                Some(place) if place == stretch.to => {}
                Some(place) => {
                    let before = self.of(cx, (seq, place)).part(cx, range.clone());
                    kept.part(cx, range).copy_from_slice(before);
                }
                None => kept.part(cx, range).fill(0.0),
            }
        }
        kept
    }
}

/// What is kept of a sequence at a place of its table.
#[derive(Clone, Copy, Debug)]
struct Kept {
    id: ResourceId,
    seq: usize,
    place: usize,
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
        let first = self.place * self.at.len();
        let columns = first + range.start..first + range.end;
        cx.watch
            .note(self.id, (self.seq, columns), Some(part.as_ptr()), true);
        part
    }
}

/// Some columns of a stretch of rows of a sequence, and of those before them that its state keeps, oldest first. The
/// columns of a state belong to the worker that the same columns of its rows belong to.
struct Line<'a> {
    cx: &'a Cx<'a>,
    x: Place,
    rows: Range<usize>,
    state: Option<Kept>,
    /// Rows in the state.
    kept: usize,
    cols: Range<usize>,
}

impl<'a> Line<'a> {
    /// The line of rows without a state.
    fn alone(cx: &'a Cx<'a>, x: Place, seq: usize, cols: Range<usize>) -> Self {
        let first = cx.step.first_row(seq);
        Line {
            cx,
            x,
            rows: first..first + cx.step.row_count(seq),
            state: None,
            kept: 0,
            cols,
        }
    }

    /// The line of rows that a state goes through.
    fn new(
        cx: &'a Cx<'a>,
        (x, state): (Place, State),
        (seq, stretch): (usize, &Stretch),
        cols: Range<usize>,
    ) -> Self {
        let at = state.of(cx, (seq, stretch.to));
        let kept = at.at.len() / x.width;
        for row in 0..kept {
            let range = row * x.width + cols.start..row * x.width + cols.end;
            // SAFETY: columns are dealt out to workers, and there is no line yet.
            unsafe { state.begin(cx, (seq, stretch), range) };
        }
        Line {
            cx,
            x,
            rows: stretch.rows.clone(),
            state: Some(at),
            kept,
            cols,
        }
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

    /// Row `at` counted from the oldest kept one.
    fn row(&self, at: usize) -> &[f32] {
        if at < self.kept {
            // SAFETY: whoever reads a row is done with it before it writes one of the same number.
            unsafe { self.old(at) }
        } else {
            let row = self.rows.start + at - self.kept;
            self.cx.cols(self.x, row, self.cols.clone())
        }
    }

    /// Keeps the last rows of those that were kept and its own.
    fn keep(&self) {
        let count = self.rows.len();
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
    /// Every row of a line.
    fn through(&self, line: &Line<'_>) {
        for (at, row) in line.rows.clone().enumerate() {
            // SAFETY: columns are dealt out to workers.
            let out = unsafe { line.cx.cols_mut(self.out, row, line.cols.clone()) };
            self.row(line, at, out);
        }
    }

    fn row(&self, line: &Line<'_>, at: usize, out: &mut [f32]) {
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
            let inside =
                at + t >= before && (self.state.is_some() || at + t - before < line.rows.len());
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
            let Some(state) = self.state else {
                self.through(&Line::alone(cx, self.x, seq, cols.clone()));
                continue;
            };
            for stretch in cx.step.stretches(seq) {
                let line = Line::new(cx, (self.x, state), (seq, &stretch), cols.clone());
                self.through(&line);
                line.keep();
            }
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
            for stretch in cx.step.stretches(seq) {
                let line = Line::new(cx, (self.x, self.state), (seq, &stretch), cols.clone());
                for (at, row) in stretch.rows.enumerate() {
                    // SAFETY: columns are dealt out to workers.
                    let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
                    out.copy_from_slice(line.row(at));
                }
                line.keep();
            }
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
            for stretch in cx.step.stretches(seq) {
                let len = self.state.of(cx, (seq, stretch.to)).at.len();
                let per_column = len / self.out.width;
                let end = ((unit + 1) * per).min(self.out.width);
                let range = unit * per * per_column..end * per_column;
                // SAFETY: a unit of a state belongs to one worker.
                let state = unsafe {
                    let kept = self.state.begin(cx, (seq, &stretch), range.clone());
                    kept.part(cx, range)
                };
                for row in stretch.rows {
                    self.row(cx, row, unit, state, work);
                }
            }
        }
    }
}
