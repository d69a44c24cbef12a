//! The rows of a step that run, beside those whose slots have stopped.

use std::borrow::Cow;

use crate::device::{RowInput, SeqRows, SeqSlot};
use crate::program::{Lead, Shape};

/// All rows of a step and which of them run. What comes in and what is kept has a place for each row, whether it runs
/// or not, so that places are known before it is known who stops.
pub(crate) struct Part<'a> {
    rows: Vec<(&'a SeqRows, bool)>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(rows: &'a [SeqRows], runs: impl Fn(SeqSlot) -> bool) -> Self {
        Part {
            rows: rows.iter().map(|r| (r, runs(r.slot))).collect(),
        }
    }

    /// Every entry and whether it runs.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'a SeqRows, bool)> {
        self.rows.iter().copied()
    }

    /// Those that run.
    pub(crate) fn running(&self) -> Vec<&'a SeqRows> {
        self.all().filter(|r| r.1).map(|r| r.0).collect()
    }

    /// `[rows, width]` from the rows of embeddings alone; zeros in the place of tokens.
    pub(super) fn embeddings(&self, width: usize, data: &[f32]) -> Vec<f32> {
        let (mut out, mut data) = (Vec::new(), data);
        for (rows, runs) in self.all() {
            let count = rows.len() * width;
            let own;
            match rows.input {
                RowInput::Embeds(_) => (own, data) = data.split_at(count),
                _ => own = &[],
            }
            if runs {
                let end = out.len() + count;
                out.extend_from_slice(own);
                out.resize(end, 0.0);
            }
        }
        out
    }

    /// What belongs to the rows that run.
    pub(super) fn of_running(&self, shape: &Shape, data: Vec<f32>) -> Vec<f32> {
        if self.rows.iter().all(|r| r.1) {
            return data;
        }
        let (mut out, mut data) = (Vec::new(), &data[..]);
        for (rows, runs) in self.all() {
            let (own, rest) = data.split_at(count(shape, rows));
            out.extend_from_slice(if runs { own } else { &[] });
            data = rest;
        }
        out
    }

    /// What the rows that run gave, with zeros for the others.
    pub(super) fn with_stopped<'x, T: Copy + Default>(
        &self,
        shape: &Shape,
        data: &'x [T],
    ) -> Cow<'x, [T]> {
        if self.rows.iter().all(|r| r.1) {
            return Cow::Borrowed(data);
        }
        let (mut out, mut data) = (Vec::new(), data);
        for (rows, runs) in self.all() {
            let count = count(shape, rows);
            let (own, rest) = data.split_at(if runs { count } else { 0 });
            let end = out.len() + count;
            out.extend_from_slice(own);
            out.resize(end, T::default());
            data = rest;
        }
        Cow::Owned(out)
    }
}

/// Elements of a value that belong to the rows of a sequence.
fn count(shape: &Shape, rows: &SeqRows) -> usize {
    let leads = match shape.lead {
        Lead::Rows => rows.len(),
        Lead::LogitRows => rows.logits.len(),
        Lead::Seqs => 1,
    };
    leads * shape.width()
}
