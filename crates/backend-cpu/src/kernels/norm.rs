//! Norms and statistics over runs of columns.

use tokkata_ir::NormKind;

use super::lanes::{Lanes, N, in_place, map, map2, reduce, simd_fn, with};
use super::math::exp;

/// A norm over one run, without its weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormSpec {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
}

#[inline(always)]
fn squares<L: Lanes>(x: &[f32]) -> f32 {
    reduce!(L, x, |x, acc| x.fma(x, acc))
}

#[inline(always)]
fn mean_of<L: Lanes>(x: &[f32]) -> f32 {
    reduce!(L, x, |x, acc| acc.add(x)) / x.len() as f32
}

/// Weight and bias of one run.
pub(crate) type Scaling<'a> = (Option<&'a [f32]>, Option<&'a [f32]>);

#[inline(always)]
fn norm<L: Lanes>(spec: NormSpec, x: &[f32], scaling: Scaling<'_>, out: &mut [f32]) {
    let n = x.len() as f32;
    let source = if spec.kind == NormKind::Layer {
        let mean = L::splat(mean_of::<L>(x));
        map!(L, x, out, |x| x.sub(mean));
        None
    } else {
        Some(x)
    };
    let sum = squares::<L>(source.unwrap_or(out));
    let root = match spec.kind {
        NormKind::Rms | NormKind::Layer => (sum / n + spec.eps).sqrt(),
        NormKind::L2 => (sum + spec.eps).sqrt(),
        NormKind::L2Max => sum.sqrt().max(spec.eps),
    };
    let inverse = L::splat(1.0 / root);
    match source {
        Some(x) => scale::<L>(x, inverse, scaling, out),
        None => {
            in_place!(L, out, |x| x.mul(inverse));
            if let Some(w) = scaling.0 {
                with!(L, out, w, |x, w| x.mul(w));
            }
            if let Some(b) = scaling.1 {
                with!(L, out, b, |x, b| x.add(b));
            }
        }
    }
}

#[inline(always)]
fn scale<L: Lanes>(x: &[f32], inverse: L, (weight, bias): Scaling<'_>, out: &mut [f32]) {
    match weight {
        Some(w) => map2!(L, x, w, out, |x, w| x.mul(inverse).mul(w)),
        None => map!(L, x, out, |x| x.mul(inverse)),
    }
    if let Some(b) = bias {
        with!(L, out, b, |x, b| x.add(b));
    }
}

simd_fn! {
    /// Normalises one run.
    pub(crate) fn norm_run(spec: NormSpec, x: &[f32], scaling: Scaling<'_>, out: &mut [f32]) = norm;
}

#[inline(always)]
fn softmax<L: Lanes>(x: &[f32], out: &mut [f32]) {
    let mut top = L::splat(f32::NEG_INFINITY);
    for part in x.chunks(N) {
        top = L::load_part(part, f32::NEG_INFINITY).max(top);
    }
    let top = L::splat(top.largest());
    map!(L, x, out, |x| exp(x.sub(top)));
    let sum = L::splat(reduce!(L, out, |x, acc| acc.add(x)));
    in_place!(L, out, |x| x.div(sum));
}

simd_fn! {
    /// Softmax of one run.
    pub(crate) fn softmax_run(x: &[f32], out: &mut [f32]) = softmax;
}

#[inline(always)]
fn sum<L: Lanes>(x: &[f32]) -> f32 {
    reduce!(L, x, |x, acc| acc.add(x))
}

simd_fn! {
    /// Sum of one run.
    pub(crate) fn sum_run(x: &[f32]) -> f32 = sum;
}

#[inline(always)]
fn rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    (squares::<L>(x) / x.len() as f32 + eps).sqrt()
}

simd_fn! {
    /// Root mean square of one run.
    pub(crate) fn rms_run(x: &[f32], eps: f32) -> f32 = rms;
}

#[inline(always)]
fn gaussian_top_k<L: Lanes>(x: &[f32], z: f32, out: &mut [f32]) {
    let mean = L::splat(mean_of::<L>(x));
    map!(L, x, out, |x| x.sub(mean));
    let std = (squares::<L>(out) / x.len() as f32).sqrt();
    let cut = L::splat(z * std);
    in_place!(L, out, |x| x.sub(cut).max(L::zero()));
}

simd_fn! {
    /// `relu(x − (mean + z·std))` of one row.
    pub(crate) fn gaussian_top_k_row(x: &[f32], z: f32, out: &mut [f32]) = gaussian_top_k;
}

/// Adds `eps` to every element of a matrix `[n, n]` and divides its columns, and after the first of some iterations its
/// rows before them, by their sum plus `eps`. Every sum runs in order.
pub(crate) fn balance(matrix: &mut [f32], n: usize, (iterations, eps): (usize, f32)) {
    matrix.iter_mut().for_each(|x| *x += eps);
    for i in 0..iterations {
        if i > 0 {
            for row in matrix.chunks_exact_mut(n) {
                let sum = row.iter().fold(0.0, |sum, x| sum + x) + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = (matrix.iter().skip(column).step_by(n)).fold(0.0, |sum, x| sum + x) + eps;
            let column = matrix.iter_mut().skip(column).step_by(n);
            column.for_each(|x| *x /= sum);
        }
    }
}
