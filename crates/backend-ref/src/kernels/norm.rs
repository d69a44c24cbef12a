//! Norms and statistics over runs of columns.

use tokkata_ir::NormKind;

use crate::args::{Args, Mat};
use crate::real::{Real, dot, total};

/// Statistic, epsilon and run of a norm.
#[derive(Clone, Copy)]
pub(crate) struct NormSpec {
    pub(crate) kind: NormKind,
    pub(crate) eps: f32,
    pub(crate) width: u32,
}

/// Normalises each run; weight and bias repeat along the row.
pub(crate) fn norm<R: Real>(
    args: &Args<'_, R>,
    spec: NormSpec,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
) -> Vec<R> {
    let mut out = args.mat(0).data.to_vec();
    for run in out.chunks_exact_mut(spec.width as usize) {
        normalise(run, spec);
    }
    for row in out.chunks_exact_mut(args.out_width(0)) {
        if let Some(w) = weight {
            row.iter_mut()
                .zip(w.iter().cycle())
                .for_each(|(x, &w)| *x = *x * R::from(w));
        }
        if let Some(b) = bias {
            row.iter_mut()
                .zip(b.iter().cycle())
                .for_each(|(x, &b)| *x += R::from(b));
        }
    }
    out
}

fn normalise<R: Real>(run: &mut [R], spec: NormSpec) {
    let (n, eps) = (R::of(run.len() as f64), R::from(spec.eps));
    if spec.kind == NormKind::Layer {
        let mean = mean(run);
        run.iter_mut().for_each(|x| *x = *x - mean);
    }
    let squares = dot(run, run);
    let root = match spec.kind {
        NormKind::Rms | NormKind::Layer => (squares / n + eps).sqrt(),
        NormKind::L2 => (squares + eps).sqrt(),
        NormKind::L2Max => squares.sqrt().max(eps),
    };
    run.iter_mut().for_each(|x| *x = *x / root);
}

fn mean<R: Real>(run: &[R]) -> R {
    total(run) / R::of(run.len() as f64)
}

/// Softmax of each run.
pub(crate) fn softmax<R: Real>(x: Mat<'_, R>, width: u32) -> Vec<R> {
    let mut out = x.data.to_vec();
    out.chunks_exact_mut(width as usize).for_each(softmax_run);
    out
}

/// Softmax in place.
pub(crate) fn softmax_run<R: Real>(run: &mut [R]) {
    let largest = run.iter().fold(-R::INFINITY, |m, &x| m.max(x));
    run.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum = total(run);
    run.iter_mut().for_each(|x| *x = *x / sum);
}

/// Each row as a square matrix, its rows and columns divided by their sums in turns.
pub(crate) fn sinkhorn<R: Real>(x: Mat<'_, R>, n: u32, iterations: u32, eps: f32) -> Vec<R> {
    let (n, eps) = (n as usize, R::from(eps));
    let mut out = x.data.to_vec();
    for matrix in out.chunks_exact_mut(n * n) {
        matrix.chunks_exact_mut(n).for_each(softmax_run);
        matrix.iter_mut().for_each(|x| *x += eps);
        for i in 0..iterations {
            if i > 0 {
                (0..n).for_each(|row| share(matrix, (0..n).map(|c| row * n + c), eps));
            }
            (0..n).for_each(|column| share(matrix, (0..n).map(|r| r * n + column), eps));
        }
    }
    out
}

/// Divides elements by their sum plus `eps`.
fn share<R: Real>(matrix: &mut [R], places: impl Iterator<Item = usize> + Clone, eps: R) {
    let sum = places.clone().fold(R::ZERO, |sum, i| sum + matrix[i]) + eps;
    places.for_each(|i| matrix[i] = matrix[i] / sum);
}

/// Sum of each run.
pub(crate) fn sum_runs<R: Real>(x: Mat<'_, R>, width: u32) -> Vec<R> {
    x.data.chunks_exact(width as usize).map(total).collect()
}

/// Root mean square of each run.
pub(crate) fn rms_runs<R: Real>(x: Mat<'_, R>, width: u32, eps: f32) -> Vec<R> {
    let n = R::of(f64::from(width));
    let rms = |run: &[R]| (dot(run, run) / n + R::from(eps)).sqrt();
    x.data.chunks_exact(width as usize).map(rms).collect()
}

/// `relu(x − (mean + z·std))` over the row, std being that of the row itself (divisor n).
pub(crate) fn gaussian_top_k<R: Real>(x: Mat<'_, R>, z: f32) -> Vec<R> {
    x.rows()
        .flat_map(|row| cut_below(row, R::from(z)))
        .collect()
}

fn cut_below<R: Real>(row: &[R], z: R) -> Vec<R> {
    let mean = mean(row);
    let centred: Vec<R> = row.iter().map(|&x| x - mean).collect();
    let std = (dot(&centred, &centred) / R::of(row.len() as f64)).sqrt();
    centred
        .iter()
        .map(|&x| (x - z * std).max(R::ZERO))
        .collect()
}
