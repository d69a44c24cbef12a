//! Turns of a step: cosine and sine of every pair, computed once per row and rotation.

use tokkata_ir::Pairing;

use super::cx::Cx;
use crate::kernels::rope::{Turns, rotate_head, turn};

/// A rotation of heads.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub(crate) pairing: Pairing,
    pub(crate) head_dim: usize,
    pub(crate) offset: usize,
    /// Which table of turns.
    pub(crate) table: usize,
}

impl Rotation {
    /// Rotates whole heads of a row of the step.
    pub(crate) fn rotate(&self, cx: &Cx<'_>, row: usize, x: &mut [f32]) {
        let turns = cx.turns[self.table].row(row);
        let width = 2 * turns.cos.len();
        for head in x.chunks_exact_mut(self.head_dim) {
            rotate_head(
                cx.kernel,
                self.pairing,
                &mut head[self.offset..][..width],
                &turns,
            );
        }
    }
}

/// What decides the turns of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnSpec {
    pub(crate) freqs: Vec<f32>,
    pub(crate) channels: Option<Vec<u32>>,
    pub(crate) magnitude: f32,
    pub(crate) inverse: bool,
    /// Positions that rows are turned back.
    pub(crate) back: u32,
}

/// Turns of every row of the step.
#[derive(Debug)]
pub(crate) struct TurnTable {
    spec: TurnSpec,
    data: Vec<f32>,
}

impl TurnTable {
    pub(crate) fn new(spec: TurnSpec, rows: usize) -> Self {
        let data = vec![0.0; rows * 2 * spec.freqs.len()];
        TurnTable { spec, data }
    }

    /// Computes the turns of a row at its positions.
    pub(crate) fn fill(&mut self, row: usize, positions: [u32; 4]) {
        let n = self.spec.freqs.len();
        let (cos, sin) = self.data[row * 2 * n..][..2 * n].split_at_mut(n);
        for (i, &freq) in self.spec.freqs.iter().enumerate() {
            let channel = self.spec.channels.as_ref().map_or(0, |c| c[i] as usize);
            (cos[i], sin[i]) = turn(
                freq,
                positions[channel].saturating_sub(self.spec.back),
                self.spec.magnitude,
                self.spec.inverse,
            );
        }
    }

    fn row(&self, row: usize) -> Turns<'_> {
        let n = self.spec.freqs.len();
        let (cos, sin) = self.data[row * 2 * n..][..2 * n].split_at(n);
        Turns { cos, sin }
    }
}
