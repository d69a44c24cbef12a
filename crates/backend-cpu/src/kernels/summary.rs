//! Summaries of rows: a softmax over rows in each column.

use super::lanes::{Lanes, N, simd_fn};
use super::math::exp_to_one;

#[inline(always)]
fn summarise<L: Lanes>(values: &[f32], scores: &[f32], out: &mut [f32]) {
    let width = out.len();
    let mut column = 0;
    while column < width {
        let end = width.min(column + N);
        let mut top = L::splat(f32::NEG_INFINITY);
        for row in scores.chunks_exact(width) {
            top = L::load_part(&row[column..end], 0.0).max(top);
        }
        let (mut sum, mut mix) = (L::zero(), L::zero());
        for (row, value) in scores.chunks_exact(width).zip(values.chunks_exact(width)) {
            let weight = exp_to_one(L::load_part(&row[column..end], 0.0).sub(top));
            sum = sum.add(weight);
            mix = weight.fma(L::load_part(&value[column..end], 0.0), mix);
        }
        mix.div(sum).store_part(&mut out[column..end]);
        column = end;
    }
}

simd_fn! {
    /// `Σ_r w_r ⊙ values_r`, w the softmax over rows of the scores in each column; both `[rows, columns]`.
    pub(crate) fn summarise_rows(values: &[f32], scores: &[f32], out: &mut [f32]) = summarise;
}
