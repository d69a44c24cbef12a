//! What adapters add to products and look-ups.
//!
//! A row's part of low rank is computed by every worker that has columns of it: it is small, and needs no meeting then.
//! Where no row of a step goes through an adapter, the step costs nothing.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_ir::adapter::Places;
use tokkata_ir::step::ROW_EMBEDS;
use tokkata_ir::tape::Reach;
use tokkata_ir::{AdaptForm, Adapter, LowRank, Program, StepState, WeightId};

use super::cx::{Cx, Kernel, Parts};
use super::rowops::Norm;
use super::sweep::{Deal, RowOp, columns_of, dealt};
use crate::arena::Place;
use crate::kernels::elementwise::add_scaled_run;
use crate::kernels::lowrank::down_run;
use crate::pool::Worker;

/// A pair as kernels read it.
#[derive(Debug)]
struct Pair {
    rank: usize,
    /// `[E, rank, K]`.
    a: Vec<f32>,
    /// `[E, rank, N]`.
    b: Vec<f32>,
}

impl Pair {
    fn new(program: &Program, pair: &LowRank) -> Self {
        Pair {
            rank: pair.rank as usize,
            a: pair.a.clone(),
            b: pair.turned(program),
        }
    }
}

/// The adapters of a program by number, and their pairs by weight.
#[derive(Debug)]
pub(crate) struct Adapters {
    places: Places<Vec<Option<Pair>>>,
    bytes: Vec<u64>,
    /// The largest rank so far.
    rank: usize,
}

impl Adapters {
    pub(crate) fn new(program: &Program) -> Self {
        let most = program.limits.adapters;
        Adapters {
            places: Places::new(most),
            bytes: vec![0; most as usize],
            rank: 0,
        }
    }

    pub(crate) fn set(&mut self, program: &Program, number: u32, adapter: Option<&Adapter>) {
        let pairs = adapter.map(|adapter| {
            let mut pairs: Vec<Option<Pair>> = Vec::new();
            pairs.resize_with(program.weights.len(), || None);
            for pair in adapter.pairs() {
                self.rank = self.rank.max(pair.rank as usize);
                pairs[pair.weight.index()] = Some(Pair::new(program, pair));
            }
            pairs
        });
        self.bytes[number as usize - 1] = adapter.map_or(0, Adapter::bytes);
        self.places.set(number, pairs);
    }

    /// The largest rank that there was.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Whether a row of a step goes through one.
    pub(crate) fn are_named(&self, step: &StepState) -> bool {
        !self.bytes.is_empty() && (0..step.n_rows()).any(|row| step.adapter(row) > 0)
    }

    fn pair(&self, number: u32, weight: WeightId) -> Option<&Pair> {
        self.places.get(number)?[weight.index()].as_ref()
    }
}

/// What went into a product.
pub(crate) enum Input {
    Value(Place),
    /// Normalised on the way.
    Normed(Norm),
}

/// Adds to what was made with a weight.
pub(crate) struct Adapt {
    pub(crate) weight: WeightId,
    pub(crate) form: AdaptForm,
    /// `None` for a look-up.
    pub(crate) x: Option<Input>,
    pub(crate) y: Place,
    /// The matrix of each part.
    pub(crate) ids: Option<Place>,
    pub(crate) out: Place,
    pub(crate) deal: Deal,
    /// Rows and columns of a matrix.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Kernel for Adapt {
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

impl Adapt {
    fn sweep(&self, cx: &Cx<'_>, worker: &Worker<'_>, rows: Range<usize>, cols: Range<usize>) {
        if cols.is_empty() || self.deal.over && !cx.adapts {
            return;
        }
        for row in rows {
            let number = cx.step.adapter(cx.step_row(self.out.lead, row));
            let pair = cx.adapters.pair(number, self.weight);
            if self.deal.over && pair.is_none() {
                continue;
            }
            // SAFETY: these columns of this row belong to this worker alone.
            let out = unsafe { cx.cols_mut(self.out, row, cols.clone()) };
            if !self.deal.over {
                out.copy_from_slice(cx.cols(self.y, row, cols.clone()));
            }
            match pair {
                Some(pair) if self.form == AdaptForm::Tokens => {
                    self.token(cx, pair, row, (cols.clone(), out));
                }
                Some(pair) => self.products(cx, worker, (pair, row), (cols.clone(), out)),
                None => {}
            }
        }
    }

    /// Columns of the table's addition for a row's token.
    fn token(&self, cx: &Cx<'_>, pair: &Pair, row: usize, (cols, out): (Range<usize>, &mut [f32])) {
        let row = cx.step_row(self.out.lead, row);
        let token = cx.step.tokens()[row] as usize;
        if cx.step.flags(row) & ROW_EMBEDS != 0 || token >= self.rows {
            return;
        }
        for j in 0..pair.rank {
            let a = &pair.a[j * self.cols..][cols.clone()];
            add_scaled_run(cx.kernel, a, pair.b[j * self.rows + token], out);
        }
    }

    /// Columns of every part of a row, each with its matrices.
    fn products(
        &self,
        cx: &Cx<'_>,
        worker: &Worker<'_>,
        (pair, row): (&Pair, usize),
        (cols, out): (Range<usize>, &mut [f32]),
    ) {
        // SAFETY: the scratch of this worker, borrowed once.
        let scratch = unsafe { cx.scratch(worker) };
        let x = match self.x.as_ref().expect("a product has an input") {
            Input::Value(place) => cx.row(*place, row),
            Input::Normed(norm) => {
                let to = &mut scratch.row[..norm.x.width];
                norm.row(cx, row, 0..norm.x.width, to);
                to
            }
        };
        let low = &mut scratch.low[..pair.rank];
        for part in cols.start / self.rows..cols.end.div_ceil(self.rows) {
            let matrix = match (self.form, self.ids) {
                (_, Some(ids)) => cx.ints(ids, row)[part] as usize,
                (AdaptForm::Heads, None) => part,
                _ => 0,
            };
            let x = if x.len() == self.cols {
                x
            } else {
                &x[part * self.cols..][..self.cols]
            };
            let a = &pair.a[matrix * pair.rank * self.cols..][..pair.rank * self.cols];
            down_run(cx.kernel, x, a, low);
            let first = part * self.rows;
            let own = cols.start.max(first)..cols.end.min(first + self.rows);
            let out = &mut out[own.start - cols.start..own.end - cols.start];
            let b = &pair.b[matrix * pair.rank * self.rows..][..pair.rank * self.rows];
            for (&low, b) in low.iter().zip(b.chunks_exact(self.rows)) {
                add_scaled_run(cx.kernel, &b[own.start - first..own.end - first], low, out);
            }
        }
    }
}
