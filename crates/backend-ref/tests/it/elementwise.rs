//! Activations, gates and binary ops. Values are worked out from tables of exp, tanh and erf.

use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind, Op};

use crate::support::{several, unary, with};

#[test]
fn activations() {
    let table: &[(Act, [f32; 3])] = &[
        (Act::Identity, [-2.0, 0.5, 3.0]),
        // σ(−2) = 0.11920292, σ(0.5) = 0.62245933, σ(3) = 0.95257413
        (Act::Silu, [-0.238_405_84, 0.311_229_67, 2.857_722_4]),
        (Act::Sigmoid, [0.119_202_92, 0.622_459_3, 0.952_574_13]),
        (Act::Gelu, [-0.045_402_3, 0.345_714, 2.996_362_6]),
        // Φ(−2) = 0.02275013, Φ(0.5) = 0.69146246, Φ(3) = 0.9986501
        (Act::GeluErf, [-0.045_500_26, 0.345_731_23, 2.995_950_2]),
        // σ(−3.404) = 0.03216126, σ(0.851) = 0.70078213, σ(5.106) = 0.99397595
        (Act::GeluQuick, [-0.064_341_38, 0.350_388_6, 2.981_928]),
        (Act::Relu, [0.0, 0.5, 3.0]),
        (Act::Relu2, [0.0, 0.25, 9.0]),
        (Act::Tanh, [-0.964_027_6, 0.462_117_16, 0.995_054_7]),
        (Act::Softplus, [0.126_928_01, 0.974_077, 3.048_587_3]),
        (Act::Exp, [0.135_335_28, 1.648_721_3, 20.085_537]),
        (Act::NegExp, [-0.135_335_28, -1.648_721_3, -20.085_537]),
        (
            Act::SignedSqrt { eps: 1.0 },
            [-std::f32::consts::SQRT_2, 1.0, 1.732_050_8],
        ),
        // σ(−4) = 0.01798621, σ(1) = 0.7310586, σ(6) = 0.99752738
        (
            Act::Swish { alpha: 2.0 },
            [-0.035_972_42, 0.365_529_3, 2.992_582],
        ),
    ];
    for &(act, expected) in table {
        println!("{act:?}");
        unary(Op::Unary(act), 3, &[-2.0, 0.5, 3.0], &expected);
    }
}

#[test]
fn softplus_does_not_overflow() {
    unary(Op::Unary(Act::Softplus), 2, &[200.0, -200.0], &[200.0, 0.0]);
}

#[test]
fn xielu_bends_on_both_sides() {
    let act = Act::Xielu {
        alpha_n: 2.0,
        alpha_p: 0.5,
        beta: 0.25,
        eps: -1e-6,
    };
    // x = 2: 0.5·4 + 0.5; x = −1: (e^−1 − 1 + 1)·2 − 0.25
    unary(Op::Unary(act), 2, &[2.0, -1.0], &[2.5, 0.485_758_88]);
}

#[test]
fn situ_bounds_by_beta() {
    // 2·tanh(1)·σ(2) = 2 · 0.7615942 · 0.8807971
    unary(
        Op::Unary(Act::Situ { beta: 2.0 }),
        1,
        &[2.0],
        &[1.341_619_8],
    );
}

#[test]
fn gates_clamp_where_they_say() {
    let g = [4.0, -1.0];
    let u = [5.0, -3.0];
    let act = Act::Relu;
    let table = [
        (GateClamp::None, [20.0, 0.0]),
        (GateClamp::Before(2.0), [4.0, 0.0]),
        (GateClamp::After(3.0), [9.0, 0.0]),
        (GateClamp::BeforePlusOne(2.0), [6.0, 0.0]),
        // 4 · 5·tanh(1)
        (GateClamp::UpTanh(5.0), [15.231_883, 0.0]),
    ];
    for (clamp, expected) in table {
        several(Op::Gate { act, clamp }, &[(2, &g), (2, &u)], &expected);
    }
    let silu = Op::Gate {
        act: Act::Silu,
        clamp: GateClamp::None,
    };
    several(silu, &[(1, &[0.5]), (1, &[2.0])], &[0.622_459_3]);
}

#[test]
fn binaries_scale_and_repeat() {
    let op = |kind, a_scale, b_scale| Op::Binary {
        kind,
        a_scale,
        b_scale,
    };
    let a = [1.0, 2.0, 3.0, 4.0];
    several(
        op(BinaryKind::Add, 1.0, 2.0),
        &[(4, &a), (4, &[1.0; 4])],
        &[3.0, 4.0, 5.0, 6.0],
    );
    several(
        op(BinaryKind::Sub, 1.0, 1.0),
        &[(4, &a), (2, &[1.0, 0.5])],
        &[0.0, 1.5, 2.0, 3.5],
    );
    several(
        op(BinaryKind::Mul, 2.0, 1.0),
        &[(2, &a), (1, &[10.0, 0.5])],
        &[20.0, 40.0, 3.0, 4.0],
    );
    several(
        op(BinaryKind::Div, 1.0, 2.0),
        &[(4, &a), (2, &[1.0, 2.0])],
        &[0.5, 0.5, 1.5, 1.0],
    );
}

#[test]
fn weights_repeat_along_the_row() {
    let op = |kind| {
        move |f: &mut tokkata_conformance::fixture::Fixture| {
            let weight = f.vector(&[2], &[2.0, -1.0]);
            Op::Weighted { kind, weight }
        }
    };
    with(
        op(BinaryKind::Mul),
        4,
        &[1.0, 2.0, 3.0, 4.0],
        &[2.0, -2.0, 6.0, -4.0],
    );
    with(
        op(BinaryKind::Add),
        2,
        &[1.0, 2.0, 3.0, 4.0],
        &[3.0, 1.0, 5.0, 3.0],
    );
}

#[test]
fn per_run_spreads_a_column() {
    let op = Op::PerRun {
        kind: BinaryKind::Mul,
        width: 2,
    };
    several(
        op,
        &[(4, &[1.0, 2.0, 3.0, 4.0]), (2, &[10.0, 0.5])],
        &[10.0, 20.0, 1.5, 2.0],
    );
}

#[test]
fn scalars() {
    unary(
        Op::Affine {
            scale: 2.0,
            offset: -1.0,
        },
        2,
        &[1.0, 3.0],
        &[1.0, 5.0],
    );
    // 2·tanh(1/2), 2·tanh(−2)
    unary(
        Op::Softcap { cap: 2.0 },
        2,
        &[1.0, -4.0],
        &[0.924_234_3, -1.928_055_2],
    );
    unary(
        Op::Clamp { lo: -1.0, hi: 2.0 },
        3,
        &[-3.0, 0.5, 9.0],
        &[-1.0, 0.5, 2.0],
    );
    unary(
        Op::Suppress { first: 1, last: 3 },
        4,
        &[1.0; 4],
        &[1.0, f32::MIN, f32::MIN, 1.0],
    );
    unary(Op::Copy, 2, &[1.0, -2.0], &[1.0, -2.0]);
}
