//! What a kernel sees of a node: its inputs, weights and the step.

use std::ops::Range;
use std::sync::Arc;

use tokkata_ir::adapter::Places;
use tokkata_ir::{Adapter, ConstId, Lead, Node, Plan, Program, StepInputs, StepState, WeightId};

/// A value of the running plan.
#[derive(Clone, Debug, Default)]
pub(crate) enum Value<R> {
    /// Not computed yet, or no longer needed.
    #[default]
    Empty,
    Floats(Vec<R>),
    Ints(Vec<i32>),
}

/// Rows of a value: `[rows, width]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, R> {
    pub(crate) data: &'a [R],
    pub(crate) width: usize,
}

impl<'a, R> Mat<'a, R> {
    pub(crate) fn row(&self, i: usize) -> &'a [R] {
        &self.data[i * self.width..][..self.width]
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = &'a [R]> + use<'a, R> {
        self.data.chunks_exact(self.width)
    }
}

/// A node at work.
pub(crate) struct Args<'a, R> {
    pub(crate) program: &'a Program,
    pub(crate) plan: &'a Plan,
    pub(crate) node: &'a Node,
    pub(crate) weights: &'a [Vec<f32>],
    pub(crate) values: &'a [Value<R>],
    pub(crate) adapters: &'a Places<Arc<Adapter>>,
    pub(crate) step: &'a StepState,
    pub(crate) inputs: &'a StepInputs<'a>,
}

impl<'a, R> Args<'a, R> {
    /// Input `i` as rows of floats.
    pub(crate) fn mat(&self, i: usize) -> Mat<'a, R> {
        let id = self.node.ins[i];
        let Value::Floats(data) = &self.values[id.index()] else {
            panic!(
                "{} at {} reads {id}, which holds no floats",
                self.node.op.name(),
                self.node.site
            );
        };
        Mat {
            data,
            width: self.plan.value(id).shape.width(),
        }
    }

    /// Input `i` as integers.
    pub(crate) fn ints(&self, i: usize) -> &'a [i32] {
        let id = self.node.ins[i];
        let Value::Ints(data) = &self.values[id.index()] else {
            panic!(
                "{} at {} reads {id}, which holds no integers",
                self.node.op.name(),
                self.node.site
            );
        };
        data
    }

    /// Columns of input `i`.
    pub(crate) fn width(&self, i: usize) -> usize {
        self.plan.value(self.node.ins[i]).shape.width()
    }

    /// Columns of output `i`.
    pub(crate) fn out_width(&self, i: usize) -> usize {
        self.plan.value(self.node.outs[i]).shape.width()
    }

    pub(crate) fn weight(&self, id: WeightId) -> &'a [f32] {
        &self.weights[id.index()]
    }

    pub(crate) fn maybe(&self, id: Option<WeightId>) -> Option<&'a [f32]> {
        id.map(|id| self.weight(id))
    }

    pub(crate) fn floats(&self, id: ConstId) -> &'a [f32] {
        self.program.constant(id).f32s()
    }

    /// Rows of each sequence of the step.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a, R> {
        let step = self.step;
        (0..step.n_seqs()).map(move |seq| {
            let first = step.first_row(seq);
            (seq, first..first + step.row_count(seq))
        })
    }

    /// The step's row behind each row of output 0.
    pub(crate) fn step_rows(&self) -> Vec<usize> {
        match self.plan.value(self.node.outs[0]).shape.lead {
            Lead::Rows => (0..self.step.n_rows()).collect(),
            Lead::LogitRows => self.step.logit_rows().iter().map(|&r| r as usize).collect(),
            Lead::Seqs => (0..self.step.n_seqs())
                .map(|s| self.step.first_row(s))
                .collect(),
        }
    }
}

/// Rows a leading dimension has in this step.
pub(crate) fn count(step: &StepState, lead: Lead) -> usize {
    match lead {
        Lead::Rows => step.n_rows(),
        Lead::LogitRows => step.logit_rows().len(),
        Lead::Seqs => step.n_seqs(),
    }
}
