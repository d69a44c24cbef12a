//! Products with weights.

use crate::args::Mat;
use crate::real::{Real, dot};

/// `weight [N, K]` times one row, scaled and shifted per output.
pub(crate) struct Linear<'a> {
    pub(crate) weight: &'a [f32],
    /// `[1]` or `[N]`.
    pub(crate) scale: Option<&'a [f32]>,
    pub(crate) bias: Option<&'a [f32]>,
}

impl Linear<'_> {
    /// Appends the outputs of row `x` to `out`.
    pub(crate) fn apply<R: Real>(&self, x: &[R], out: &mut Vec<R>) {
        for (n, w) in self.weight.chunks_exact(x.len()).enumerate() {
            let mut y = dot(x, w);
            if let Some(scale) = self.scale {
                y = y * R::from(scale[n % scale.len()]);
            }
            if let Some(bias) = self.bias {
                y += R::from(bias[n]);
            }
            out.push(y);
        }
    }
}

/// `(x · weightᵀ) ⊙ scale + bias`.
pub(crate) fn matmul<R: Real>(x: Mat<'_, R>, linear: &Linear<'_>) -> Vec<R> {
    let mut out = Vec::new();
    for row in x.rows() {
        linear.apply(row, &mut out);
    }
    out
}

/// Head h of each row times `weight[h]`.
pub(crate) fn head_matmul<R: Real>(x: Mat<'_, R>, weight: &[f32], heads: u32) -> Vec<R> {
    let heads = heads as usize;
    let (k, per_head) = (x.width / heads, weight.len() / heads);
    let mut out = Vec::new();
    for (i, head) in x.data.chunks_exact(k).enumerate() {
        let linear = Linear {
            weight: &weight[i % heads * per_head..][..per_head],
            scale: None,
            bias: None,
        };
        linear.apply(head, &mut out);
    }
    out
}
