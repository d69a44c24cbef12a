//! Rows to quantise, and what an error in each element costs.

use std::borrow::Cow;

use super::lanes::{LANES, Lanes, transpose};

/// Whole rows, and the importance of each column where known.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) src: &'a [f32],
    pub(super) width: usize,
    pub(super) importance: Option<&'a [f32]>,
}

/// A run of elements; it may cross row ends.
pub(super) struct Tile<'a> {
    pub(super) src: &'a [f32],
    start: usize,
    input: Input<'a>,
}

impl<'a> Input<'a> {
    /// The elements in runs of `elems`; the last may be shorter.
    pub(super) fn tiles(self, elems: usize) -> impl Iterator<Item = Tile<'a>> {
        let tile = move |(i, src)| Tile {
            src,
            start: i * elems,
            input: self,
        };
        self.src.chunks(elems).enumerate().map(tile)
    }

    /// The rows.
    pub(super) fn rows(self) -> std::slice::ChunksExact<'a, f32> {
        self.src.chunks_exact(self.width)
    }
}

impl<'a> Tile<'a> {
    /// The importance of each element.
    pub(super) fn importance(&self) -> Option<Cow<'a, [f32]>> {
        let columns = self.input.importance?;
        let first = self.start % self.input.width;
        if let Some(run) = columns.get(first..first + self.src.len()) {
            return Some(Cow::Borrowed(run));
        }
        let wrapped = columns.iter().cycle().skip(first).take(self.src.len());
        Some(Cow::Owned(wrapped.copied().collect()))
    }
}

/// Sum of squares, added up from the first to the last.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, &v| sum + v * v)
}

/// Weights of super-blocks: importance times the root of `variance` mean squares plus the square.
#[inline(always)]
pub(super) fn importance_lanes<L: Lanes, const E: usize>(
    src: &[f32],
    importance: &[f32],
    x: &[L; E],
    variance: f32,
) -> [L; E] {
    let mut mean_squares = [0.0; LANES];
    let subs = 256 / E;
    for (block, means) in src
        .chunks_exact(256)
        .zip(mean_squares.chunks_exact_mut(subs))
    {
        means.fill(variance * sum_of_squares(block) / 256.0);
    }
    importance_with(L::load(&mean_squares), importance, x)
}

/// Weights from a mean square per sub-block.
#[inline(always)]
pub(super) fn importance_with<L: Lanes, const E: usize>(
    mean: L,
    importance: &[f32],
    x: &[L; E],
) -> [L; E] {
    let mut w = transpose::<L, E>(importance);
    for (w, &x) in w.iter_mut().zip(x) {
        *w = *w * (mean + x * x).sqrt();
    }
    w
}
