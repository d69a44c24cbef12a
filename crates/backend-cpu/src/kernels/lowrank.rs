//! Products of one row with few.

use super::lanes::{Lanes, N, simd_fn};

#[inline(always)]
fn down<L: Lanes>(x: &[f32], a: &[f32], out: &mut [f32]) {
    for (out, a) in out.iter_mut().zip(a.chunks_exact(x.len())) {
        let mut sum = L::zero();
        for (x, a) in x.chunks(N).zip(a.chunks(N)) {
            sum = L::load_part(x, 0.0).mul(L::load_part(a, 0.0)).add(sum);
        }
        *out = sum.sum();
    }
}

simd_fn! {
    /// `out_j = Σ_k a[j, k] · x_k`, `a` of as many rows as there are outputs.
    pub(crate) fn down_run(x: &[f32], a: &[f32], out: &mut [f32]) = down;
}
