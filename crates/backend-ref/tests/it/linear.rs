//! Norms, products, statistics and rotary positions.

use tokkata_conformance::fixture::{Fixture, Rows};
use tokkata_core::DType;
use tokkata_ir::{ConstData, NormKind, Op, Pairing, RopeOp};

use crate::support::{BOTH, feed, near, run, unary, with};

fn plain_norm(kind: NormKind, eps: f32, width: u32) -> Op {
    Op::Norm {
        kind,
        eps,
        width,
        weight: None,
        bias: None,
    }
}

#[test]
fn norms_of_a_row_and_of_runs() {
    let x = [3.0, 4.0];
    // mean square 12.5, with eps 0.5: √13
    unary(
        plain_norm(NormKind::Rms, 0.5, 2),
        2,
        &x,
        &[0.832_050_3, 1.109_400_4],
    );
    // variance 0.25, with eps 0.75: 1
    unary(plain_norm(NormKind::Layer, 0.75, 2), 2, &x, &[-0.5, 0.5]);
    // 25 + 11 = 36
    unary(
        plain_norm(NormKind::L2, 11.0, 2),
        2,
        &x,
        &[0.5, 0.666_666_7],
    );
    unary(plain_norm(NormKind::L2Max, 10.0, 2), 2, &x, &[0.3, 0.4]);
    unary(plain_norm(NormKind::L2Max, 1.0, 2), 2, &x, &[0.6, 0.8]);
    let runs = [3.0, 4.0, 6.0, 8.0];
    unary(
        plain_norm(NormKind::L2, 0.0, 2),
        4,
        &runs,
        &[0.6, 0.8, 0.6, 0.8],
    );
    unary(
        plain_norm(NormKind::Rms, 1e-6, 1),
        2,
        &[0.0, -2.0],
        &[0.0, -1.0],
    );
}

#[test]
fn norm_weights_are_shared_by_runs_or_distinct() {
    let op = |len: usize| {
        move |f: &mut Fixture| {
            let weight = f.vector(&[len as u32], &[1.0, 2.0, 3.0, 4.0][..len]);
            let bias = f.vector(&[len as u32], &[0.5, 0.0, -0.5, 1.0][..len]);
            Op::Norm {
                kind: NormKind::L2,
                eps: 0.0,
                width: 2,
                weight: Some(weight),
                bias: Some(bias),
            }
        }
    };
    let x = [3.0, 4.0, 6.0, 8.0];
    with(op(2), 4, &x, &[1.1, 1.6, 1.1, 1.6]);
    with(op(4), 4, &x, &[1.1, 1.6, 1.3, 4.2]);
}

#[test]
fn products_with_scale_and_bias() {
    let w = [1.0, 0.0, -1.0, 2.0, 1.0, 0.5];
    let op = |scale: Option<&'static [f32]>, biased: bool| {
        move |f: &mut Fixture| Op::Matmul {
            weight: f.matrix(DType::F32, &[2, 3], &w),
            scale: scale.map(|s| f.vector(&[s.len() as u32], s)),
            bias: biased.then(|| f.vector(&[2], &[10.0, 20.0])),
        }
    };
    let x = [1.0, 2.0, 3.0, 0.0, 1.0, -2.0];
    with(op(None, false), 3, &x, &[-2.0, 5.5, 2.0, 0.0]);
    with(op(Some(&[2.0]), true), 3, &x, &[6.0, 31.0, 14.0, 20.0]);
    with(
        op(Some(&[2.0, -1.0]), false),
        3,
        &x,
        &[-4.0, -5.5, 4.0, 0.0],
    );
}

#[test]
fn products_of_quantised_rows_use_the_decoded_weights() {
    // Q8_0 of ±127 and 0 is exact.
    let w: Vec<f32> = (0..32).map(|i| if i < 2 { 127.0 } else { 0.0 }).collect();
    let x: Vec<f32> = (0..32).map(|i| i as f32 + 1.0).collect();
    let op = |f: &mut Fixture| Op::Matmul {
        weight: f.matrix(DType::Q8_0, &[1, 32], &w),
        scale: None,
        bias: None,
    };
    with(op, 32, &x, &[381.0]);
}

#[test]
fn products_per_head() {
    let op = |f: &mut Fixture| Op::HeadMatmul {
        weight: f.matrix(DType::F32, &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]),
        heads: 2,
    };
    with(
        op,
        4,
        &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        &[3.0, 7.0, 1.0, 4.0],
    );
    let op = |f: &mut Fixture| Op::HeadMatmul {
        weight: f.matrix(DType::F32, &[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]),
        heads: 2,
    };
    with(op, 2, &[10.0, 100.0], &[10.0, 20.0, 300.0, 400.0]);
}

#[test]
fn statistics_of_runs() {
    let x = [1.0, 2.0, 3.0, 5.0];
    unary(Op::SumRuns { width: 2 }, 4, &x, &[3.0, 8.0]);
    // √(2.5 + 1.5), √(17 + 1.5)
    unary(
        Op::RmsRuns { width: 2, eps: 1.5 },
        4,
        &x,
        &[2.0, 4.301_162_7],
    );
    // e^0, e^ln3 and equal ones; a large offset changes nothing
    let ln3 = 1.098_612_3;
    unary(
        Op::Softmax { width: 2 },
        4,
        &[0.0, ln3, 7.0, 7.0],
        &[0.25, 0.75, 0.5, 0.5],
    );
    unary(Op::Softmax { width: 2 }, 2, &[1000.0, 1000.0], &[0.5, 0.5]);
}

#[test]
fn gaussian_cut_is_relative_to_the_row() {
    // mean 2.5, standard deviation √1.25 = 1.118034; half of it above the mean is 3.059017
    let expected = [0.0, 0.0, 0.0, 0.940_983];
    unary(
        Op::GaussianTopK { z: 0.5 },
        4,
        &[1.0, 2.0, 3.0, 4.0],
        &expected,
    );
}

fn rope_op(f: &mut Fixture, freqs: &[f32], head_dim: u32) -> RopeOp {
    RopeOp {
        pairing: Pairing::Halves,
        head_dim,
        offset: 0,
        freqs: f.constant(ConstData::F32(freqs.to_vec())),
        magnitude: 1.0,
        channels: None,
        inverse: false,
        back: 0,
    }
}

/// Cosine and sine of 1.
const TURN: (f32, f32) = (0.540_302_3, 0.841_471);

#[test]
fn rotations_pair_halves_or_neighbours() {
    let x = [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
    let (c, s) = TURN;
    let halves = |f: &mut Fixture| Op::Rope(rope_op(f, &[1.0, 0.0], 4));
    with(
        halves,
        4,
        &x,
        &[0.0, 0.0, 0.0, 0.0, c - 3.0 * s, 2.0, s + 3.0 * c, 4.0],
    );
    let adjacent = |f: &mut Fixture| {
        Op::Rope(RopeOp {
            pairing: Pairing::Adjacent,
            ..rope_op(f, &[1.0, 0.0], 4)
        })
    };
    with(
        adjacent,
        4,
        &x,
        &[0.0, 0.0, 0.0, 0.0, c - 2.0 * s, s + 2.0 * c, 3.0, 4.0],
    );
}

#[test]
fn rotations_can_be_partial_scaled_and_undone() {
    let (c, s) = TURN;
    let x = [0.0, 0.0, 0.0, 5.0, 1.0, 2.0];
    let op = |f: &mut Fixture| {
        Op::Rope(RopeOp {
            offset: 1,
            magnitude: 2.0,
            inverse: true,
            ..rope_op(f, &[1.0], 3)
        })
    };
    with(
        op,
        3,
        &x,
        &[0.0, 0.0, 0.0, 5.0, 2.0 * (c + 2.0 * s), 2.0 * (2.0 * c - s)],
    );
}

#[test]
fn every_head_turns_alike_and_channels_have_their_own_positions() {
    let (c, s) = TURN;
    let mut fixture = Fixture::default();
    let channels = fixture.constant(ConstData::U32(vec![0, 3]));
    let op = RopeOp {
        channels: Some(channels),
        ..rope_op(&mut fixture, &[1.0, 1.0], 4)
    };
    let x = fixture.input(&[2, 4]);
    let out = fixture.op(Op::Rope(op), &[x], &[2, 4]);
    let feed = feed(&[(x, &[1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0])]);
    for precision in BOTH {
        // Text rows stand at 0 in channel 3, so the second pair does not turn.
        let found = run(&fixture, precision, &[Rows::of(0, 1..2)], &feed, out);
        near(&found, &[c, 1.0, s, 0.0, 2.0 * c, 2.0, 2.0 * s, 0.0]);
    }
}

#[test]
fn far_positions_keep_their_digits() {
    // 50000 · 0.1 = 5000 (freq 0.1 as f32 is 0.100000001490116: 5000.0000745); cos and sin of it
    let mut fixture = Fixture::new(tokkata_ir::Limits {
        ctx: 60_000,
        ..Default::default()
    });
    let op = rope_op(&mut fixture, &[0.1], 2);
    let x = fixture.input(&[2]);
    let out = fixture.op(Op::Rope(op), &[x], &[2]);
    let rows = [Rows::of(0, 50_000..50_001)];
    for precision in BOTH {
        let found = run(&fixture, precision, &rows, &feed(&[(x, &[1.0, 0.0])]), out);
        near(&found, &[0.154_742_02, -0.987_954_9]);
    }
}

#[test]
fn position_scales_grow_by_steps() {
    let mut fixture = Fixture::default();
    let x = fixture.input(&[1]);
    let op = Op::PosScale {
        coef: 0.5,
        length: 2.0,
        offset: 1.0,
    };
    let out = fixture.op(op, &[x], &[1]);
    let feed = feed(&[(x, &[1.0, 1.0, 10.0])]);
    for precision in BOTH {
        let found = run(&fixture, precision, &[Rows::first(3)], &feed, out);
        // floor((p + 1) / 2) is 0, 1, 1: ln 1, ln 2, ln 2
        near(&found, &[1.0, 1.346_573_6, 13.465_736]);
    }
}
