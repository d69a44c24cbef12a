//! Products, norms and rotary positions.

use tokkata_core::DType;
use tokkata_ir::{ConstData, Limits, NormKind, Op, Pairing, RopeOp};
use tokkata_quant::can_quantize;

use super::case::{Case, LARGE, Rounds, one_op};
use crate::fixture::{Fixture, Rows, noises, small_limits};

/// Formats that weights come in.
pub(crate) fn formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&d| can_quantize(d))
}

/// Columns that a format's blocks allow, awkward where they can be.
fn columns(dtype: DType) -> Vec<u32> {
    match dtype.block_elems() as u32 {
        1 => vec![1, 3, 33, 100, 256],
        block => [1, 2, 3, 5].iter().map(|n| n * block).collect(),
    }
}

/// Rms error of a sum of `k` products in f32, in units of 2⁻²⁴ of the sum's rms. Partial sums grow as √j and each
/// is rounded by about 0.4 units, so that a plain loop strays by 0.4·√(k/2).
pub(crate) fn sum_ulps(k: u32) -> f64 {
    1.0 + 0.3 * f64::from(k).sqrt()
}

pub(crate) fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in formats() {
        for k in columns(dtype) {
            for n in [1, 5, 17] {
                cases.push(product(dtype, n, k));
            }
        }
    }
    cases.extend(formats().filter_map(tiles));
    cases.extend(formats().flat_map(crowds));
    cases.extend(formats().flat_map(extremes));
    for (scale, bias) in [(1, 0), (19, 0), (0, 19), (1, 19), (19, 19)] {
        cases.push(affine_product(scale, bias));
    }
    for heads in [1, 3] {
        for (n, k) in [(1, 1), (5, 33), (17, 8)] {
            cases.push(head_product(heads, n, k));
        }
    }
    cases
}

/// Weights of `n` rows and `k` columns.
pub(crate) fn matrix(f: &mut Fixture, dtype: DType, shape: &[u32]) -> tokkata_ir::WeightId {
    scaled_matrix(f, (dtype, 1.0), shape)
}

/// The same, of noise in −scale..scale.
fn scaled_matrix(
    f: &mut Fixture,
    (dtype, scale): (DType, f32),
    shape: &[u32],
) -> tokkata_ir::WeightId {
    let len = shape.iter().product::<u32>() as usize;
    let noise = noises(&format!("{dtype}{shape:?}"), len).into_iter();
    f.matrix(dtype, shape, &noise.map(|w| w * scale).collect::<Vec<_>>())
}

fn product(dtype: DType, n: u32, k: u32) -> Case {
    let build = |f: &mut Fixture| Op::Matmul {
        weight: matrix(f, dtype, &[n, k]),
        scale: None,
        bias: None,
    };
    one_op(format!("matmul/{dtype}/{n}x{k}"), (k, n), build)
        .ulps(sum_ulps(k))
        .rounds(Rounds::Matmul(dtype))
        .all_rows(1.0)
}

/// A product that steps of up to 192 rows are given to, with weights of noise in −scale..scale.
fn of_many_rows(name: &str, dtype: DType, [n, k]: [u32; 2], scale: f32) -> Case {
    let mut f = Fixture::new(Limits {
        rows: 192,
        ctx: 192,
        ..small_limits()
    });
    let x = f.input(&[k]);
    let op = Op::Matmul {
        weight: scaled_matrix(&mut f, (dtype, scale), &[n, k]),
        scale: None,
        bias: None,
    };
    let out = f.op(op, &[x], &[n]);
    let case = Case::new(format!("matmul/{name}/{dtype}"), f, vec![out]);
    let rounds = match k >= LARGE {
        true => Rounds::Large(dtype),
        false => Rounds::Matmul(dtype),
    };
    case.ulps(sum_ulps(k)).rounds(rounds)
}

/// More rows and outputs than tiles have, of a format with kernels for many rows; the last ones fill no tile.
fn tiles(dtype: DType) -> Option<Case> {
    use DType::{BF16, F16, IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let shape = match dtype {
        F16 => [300, 2304],
        BF16 => [300, 512],
        Q4_0 | Q8_0 | MXFP4 | IQ4_NL => [6438, 320],
        Q4_K | Q5_K | Q6_K => [6438, 512],
        _ => return None,
    };
    let case = of_many_rows("tiles", dtype, shape, 1.0);
    Some(case.step(vec![Rows::first(133), Rows::of(1, 0..9)]))
}

/// Row counts at which kernels take turns, and those beside them.
pub(crate) const CROWDS: [usize; 12] = [1, 2, 3, 4, 5, 7, 8, 9, 33, 64, 65, 129];

/// The most rows at which kernels take turns, of a format with kernels for many rows: outputs that fill no tile, and more groups
/// of columns than turns; or stretches of 1,024 columns, an odd number of them.
pub(crate) fn crowds(dtype: DType) -> Vec<Case> {
    use DType::{BF16, F16, IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let columns: &[u32] = match dtype {
        F16 | BF16 => &[1160],
        Q4_0 | Q8_0 | MXFP4 | IQ4_NL => &[1152, 1280],
        Q4_K | Q5_K | Q6_K => &[2304, 3072],
        _ => &[],
    };
    let case = |&k: &u32| {
        let case = of_many_rows(&format!("crowds{k}"), dtype, [37, k], 1.0);
        case.step(vec![Rows::first(CROWDS[CROWDS.len() - 1])])
            .step(vec![Rows::first(9)])
            .step(vec![Rows::first(3)])
            .step(vec![Rows::first(1)])
    };
    columns.iter().map(case).collect()
}

/// Weights that are larger than halves, and such that most halves like them have fewer bits.
fn extremes(dtype: DType) -> Vec<Case> {
    use DType::{BF16, IQ4_NL, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let scales: &[(&str, f32)] = match dtype {
        BF16 => &[("huge", 1e6), ("tiny", 1e-6)],
        Q4_0 | Q8_0 | IQ4_NL | Q4_K | Q5_K | Q6_K => &[("huge", 1e5), ("tiny", 1e-4)],
        _ => &[],
    };
    let case = |&(name, scale): &(&str, f32)| {
        let case = of_many_rows(name, dtype, [133, 512], scale);
        [40, 9, 3, 1]
            .iter()
            .fold(case, |case, &n| case.step(vec![Rows::first(n)]))
    };
    scales.iter().map(case).collect()
}

fn affine_product(scale: u32, bias: u32) -> Case {
    let build = |f: &mut Fixture| {
        let vector = |f: &mut Fixture, len: u32| {
            (len > 0).then(|| f.vector(&[len], &noises("affine", len as usize)))
        };
        Op::Matmul {
            weight: matrix(f, DType::F32, &[19, 40]),
            scale: vector(f, scale),
            bias: vector(f, bias),
        }
    };
    one_op(format!("matmul/scale{scale}/bias{bias}"), (40, 19), build)
        .ulps(sum_ulps(40))
        .rounds(Rounds::Matmul(DType::F32))
        .all_rows(1.0)
}

fn head_product(heads: u32, n: u32, k: u32) -> Case {
    let build = |f: &mut Fixture| Op::HeadMatmul {
        weight: matrix(f, DType::F32, &[heads, n, k]),
        heads,
    };
    let sizes = (heads * k, heads * n);
    one_op(format!("head_matmul/{heads}x{n}x{k}"), sizes, build)
        .ulps(sum_ulps(k))
        .rounds(Rounds::Matmul(DType::F32))
        .all_rows(1.0)
}

pub(crate) fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    let kinds = [
        NormKind::Rms,
        NormKind::Layer,
        NormKind::L2,
        NormKind::L2Max,
    ];
    for kind in kinds {
        for (width, runs) in [(3, 1), (64, 1), (100, 1), (33, 5)] {
            for weights in [0, width, width * runs] {
                cases.push(norm(kind, (width, runs), weights));
            }
        }
    }
    cases.extend(statistics());
    cases.extend(ropes());
    cases
}

fn norm(kind: NormKind, (width, runs): (u32, u32), weights: u32) -> Case {
    let row = width * runs;
    let build = |f: &mut Fixture| {
        let some = weights > 0;
        let values = noises("norm", weights as usize);
        Op::Norm {
            kind,
            eps: 1e-5,
            width,
            weight: some.then(|| f.vector(&[weights], &values)),
            bias: some.then(|| f.vector(&[weights], &values)),
        }
    };
    one_op(
        format!("norm/{kind:?}/{runs}x{width}/{weights}"),
        (row, row),
        build,
    )
    .ulps(4.0 + sum_ulps(width))
    .all_rows(2.0)
}

fn statistics() -> Vec<Case> {
    let mut cases = Vec::new();
    for (width, runs) in [(1, 7), (33, 1), (8, 3), (100, 1)] {
        let row = width * runs;
        let name = |op: &str| format!("{op}/{runs}x{width}");
        let op = |op: Op| move |_: &mut Fixture| op;
        let softmax = one_op(name("softmax"), (row, row), op(Op::Softmax { width }));
        cases.push(softmax.ulps(8.0 + sum_ulps(width)).all_rows(8.0));
        let sum = one_op(name("sum_runs"), (row, runs), op(Op::SumRuns { width }));
        cases.push(sum.ulps(sum_ulps(width)).all_rows(1.0));
        let rms = Op::RmsRuns { width, eps: 1e-6 };
        let rms = one_op(name("rms_runs"), (row, runs), op(rms));
        cases.push(rms.ulps(sum_ulps(width)).all_rows(1.0));
        let cut = Op::GaussianTopK { z: 0.25 };
        let cut = one_op(name("gaussian_top_k"), (row, row), op(cut));
        cases.push(cut.ulps(4.0 + sum_ulps(row)).all_rows(1.0));
    }
    for (n, iterations) in [(2, 1), (3, 5), (4, 20)] {
        let op = Op::Sinkhorn {
            n,
            iterations,
            eps: 1e-6,
        };
        let name = format!("sinkhorn/{n}/{iterations}");
        let case = one_op(name, (n * n, n * n), |_| op);
        cases.push(case.ulps(8.0 + f64::from(iterations)).all_rows(2.0));
    }
    cases
}

fn ropes() -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [Pairing::Adjacent, Pairing::Halves] {
        for (head_dim, heads, offset, pairs) in [(8, 3, 0, 4), (80, 1, 0, 16), (10, 2, 3, 2)] {
            for (inverse, back) in [(false, 0), (true, 0), (false, 3)] {
                let build = |f: &mut Fixture| {
                    Op::Rope(RopeOp {
                        pairing,
                        head_dim,
                        offset,
                        freqs: f.constant(ConstData::F32(freqs(pairs))),
                        magnitude: 1.25,
                        channels: None,
                        inverse,
                        back,
                    })
                };
                let row = head_dim * heads;
                let sizes = format!("{heads}x{head_dim}+{offset}/{pairs}");
                let name = format!("rope/{pairing:?}/{sizes}/inverse={inverse}/back={back}");
                let case = one_op(name, (row, row), build).ulps(8.0);
                cases.push(case.all_rows(1.0).step(vec![Rows::of(1, 40..64)]));
            }
        }
    }
    cases.push(pos_scale());
    cases
}

fn freqs(pairs: u32) -> Vec<f32> {
    let freq = |i| 100f32.powf(-(i as f32) / pairs as f32);
    (0..pairs).map(freq).collect()
}

fn pos_scale() -> Case {
    let op = Op::PosScale {
        coef: 0.1,
        length: 8.0,
        offset: 1.0,
    };
    let case = one_op("pos_scale", (7, 7), |_| op).ulps(4.0);
    case.all_rows(1.0).step(vec![Rows::of(1, 40..64)])
}
