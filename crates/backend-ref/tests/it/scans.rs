//! Convolutions, shifts and recurrences by hand: two steps of tiny states.

use tokkata_backend_ref::shape::check;
use tokkata_conformance::fixture::{Fixture, Rows, noises};
use tokkata_core::DType;
use tokkata_ir::{ConstData, Conv1dOp, LoadOptions, Op, Scan, SlotId, ValueId};

use crate::support::{BOTH, feed, near};

/// Runs `rows` in two steps (all but the last, then the last) and as one, and compares both with `expected`.
#[track_caller]
fn recurs(
    build: impl Fn(&mut Fixture) -> Op,
    inputs: &[(u32, &[f32])],
    width: u32,
    expected: &[f32],
) {
    let rows = inputs[0].1.len() / inputs[0].0 as usize;
    let mut fixture = Fixture::default();
    let op = build(&mut fixture);
    let ids: Vec<ValueId> = inputs.iter().map(|i| fixture.input(&[i.0])).collect();
    let out = fixture.op(op, &ids, &[width]);
    check(&fixture.program().plans[0], fixture.program()).unwrap();
    for precision in BOTH {
        let backend = tokkata_backend_ref::RefBackend { precision };
        let mut run = fixture.load(&backend, &LoadOptions::default()).unwrap();
        for cuts in [vec![0, rows], vec![0, rows - 1, rows]] {
            let mut found = Vec::new();
            for cut in cuts.windows(2) {
                let part = |(i, &id): (usize, &ValueId)| {
                    let w = inputs[i].0 as usize;
                    (id, &inputs[i].1[cut[0] * w..cut[1] * w])
                };
                let values: Vec<_> = ids.iter().enumerate().map(part).collect();
                run.step(&[Rows::of(2, cut[0]..cut[1])], &feed(&values))
                    .unwrap();
                found.extend(run.floats(out));
            }
            near(&found, expected);
        }
    }
}

#[test]
fn convolutions_remember_their_tail() {
    // Two channels, three taps, oldest first.
    let op = |f: &mut Fixture| Op::Conv {
        weight: f.vector(&[2, 3], &[1.0, 10.0, 100.0, 0.0, 0.0, 1.0]),
        bias: Some(f.vector(&[2], &[0.5, 0.0])),
        kernel: 3,
        slot: Some(f.state(4)),
    };
    let x = [1.0, 7.0, 2.0, 8.0, 3.0, 9.0];
    recurs(op, &[(2, &x)], 2, &[100.5, 7.0, 210.5, 8.0, 321.5, 9.0]);
}

#[test]
fn centred_convolutions_see_both_sides() {
    let mut fixture = Fixture::default();
    let weight = fixture.vector(&[1, 3], &[1.0, 10.0, 100.0]);
    let x = fixture.input(&[1]);
    let op = Op::Conv {
        weight,
        bias: None,
        kernel: 3,
        slot: None,
    };
    let out = fixture.op(op, &[x], &[1]);
    let feed = feed(&[(x, &[1.0, 2.0, 3.0, 4.0])]);
    let rows = [Rows::of(0, 0..3), Rows::of(1, 0..1)];
    for precision in BOTH {
        // Sequences do not see each other.
        near(
            &crate::support::run(&fixture, precision, &rows, &feed, out),
            &[210.0, 321.0, 32.0, 40.0],
        );
    }
}

/// One output of `kernel` taps over frames of so many channels, two to a row: two rows of a sequence, one of another.
fn conv1d(weight: &[f32], (channels, stride): (u32, u32), x: &[f32]) -> Vec<f32> {
    let mut fixture = Fixture::default();
    let columns = weight.len() as u32;
    let op = Conv1dOp {
        weight: fixture.matrix(DType::F32, &[1, columns], weight),
        bias: Some(fixture.vector(&[1], &[0.5])),
        kernel: columns / channels,
        stride,
        padding: 1,
        frames: 2,
    };
    let input = fixture.input(&[2, channels]);
    let out = fixture.op(Op::Conv1d(op), &[input], &[2 / stride]);
    check(&fixture.program().plans[0], fixture.program()).unwrap();
    let rows = [Rows::of(0, 0..2), Rows::of(1, 0..1)];
    let [single, double] =
        BOTH.map(|p| crate::support::run(&fixture, p, &rows, &feed(&[(input, x)]), out));
    near(&single, &double);
    single
}

#[test]
fn dense_convolutions_take_frames_of_their_sequence() {
    let (taps, x) = ([1.0, 10.0, 100.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let every = [210.5, 321.5, 432.5, 43.5, 650.5, 65.5];
    near(&conv1d(&taps, (1, 1), &x), &every);
    near(&conv1d(&taps, (1, 2), &x), &[210.5, 432.5, 650.5]);
    // The channels of a tap are neighbours.
    let taps = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let x = [1.0, 7.0, 2.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    near(&conv1d(&taps, (2, 2), &x), &[89.5, 18.5, 5.5]);
}

#[test]
fn shifts_give_the_row_before() {
    let op = |f: &mut Fixture| Op::Shift { slot: f.state(2) };
    recurs(
        op,
        &[(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        2,
        &[0.0, 0.0, 1.0, 2.0, 3.0, 4.0],
    );
}

fn scan(f: &mut Fixture, scan: Scan, state: u32) -> Op {
    let slot: SlotId = f.state(state);
    Op::Scan { scan, slot }
}

/// softplus⁻¹(1) = ln(e − 1)
const DT_ONE: f32 = 0.541_324_85;
const LN_HALF: f32 = -std::f32::consts::LN_2;

#[test]
fn mamba1_decays_and_mixes() {
    let op = |f: &mut Fixture| {
        let a = f.vector(&[1, 2], &[LN_HALF, 2.0 * LN_HALF]);
        let d = f.vector(&[1], &[10.0]);
        scan(f, Scan::Mamba1 { state: 2, a, d }, 2)
    };
    // Δ = 1: S = (2, 4), then (1 + 3, 1 + 3); y = S·C + 10x
    let inputs: [(u32, &[f32]); 4] = [
        (1, &[2.0, 3.0]),
        (1, &[DT_ONE, DT_ONE]),
        (2, &[1.0, 2.0, 1.0, 1.0]),
        (2, &[1.0, 1.0, 1.0, 0.5]),
    ];
    recurs(op, &inputs, 1, &[26.0, 36.0]);
}

#[test]
fn mamba2_has_one_decay_per_head_and_shared_groups() {
    let op = |f: &mut Fixture| {
        let a = f.vector(&[2], &[LN_HALF, 0.0]);
        let d = f.vector(&[2], &[0.0, 1.0]);
        let dt_bias = Some(f.vector(&[2], &[DT_ONE, 0.0]));
        scan(
            f,
            Scan::Mamba2 {
                heads: 2,
                state: 1,
                groups: 1,
                a,
                d,
                dt_bias,
            },
            2,
        )
    };
    // Head 0: S = 2, then 1 + 1·4·3 = 13; head 1 never decays: S = 10, then 10 + 5·3; D adds x.
    let inputs: [(u32, &[f32]); 4] = [
        (2, &[2.0, 10.0, 4.0, 5.0]),
        (2, &[0.0, DT_ONE, 0.0, DT_ONE]),
        (1, &[1.0, 3.0]),
        (1, &[1.0, 2.0]),
    ];
    recurs(op, &inputs, 2, &[2.0, 20.0, 26.0, 55.0]);
}

#[test]
fn mamba2_groups_split_the_heads() {
    let op = |f: &mut Fixture| {
        let zeros = f.vector(&[2], &[0.0, 0.0]);
        let kind = Scan::Mamba2 {
            heads: 2,
            state: 1,
            groups: 2,
            a: zeros,
            d: zeros,
            dt_bias: None,
        };
        scan(f, kind, 4)
    };
    let inputs: [(u32, &[f32]); 4] = [
        (4, &[1.0, 2.0, 3.0, 4.0]),
        (2, &[DT_ONE, DT_ONE]),
        (2, &[1.0, 10.0]),
        (2, &[1.0, 2.0]),
    ];
    recurs(op, &inputs, 4, &[1.0, 2.0, 60.0, 80.0]);
}

#[test]
fn wkv6_reads_before_it_writes() {
    let op = |f: &mut Fixture| {
        let first = f.vector(&[2], &[2.0, 0.0]);
        scan(f, Scan::Wkv6 { head_dim: 2, first }, 4)
    };
    // Row 1: o_j = Σ r_i u_i k_i v_j = 1·2·1·v; S = [[5, 6], [10, 12]].
    // Row 2: k = 0: o_j = 1·5 + 0.5·10, 1·6 + 0.5·12.
    let inputs: [(u32, &[f32]); 4] = [
        (2, &[1.0, 1.0, 1.0, 0.5]),
        (2, &[1.0, 2.0, 0.0, 0.0]),
        (2, &[5.0, 6.0, 1.0, 1.0]),
        (2, &[0.5, 0.5, 0.5, 0.5]),
    ];
    recurs(op, &inputs, 2, &[10.0, 12.0, 10.0, 12.0]);
}

#[test]
fn gated_linear_attention_decays_by_key_column() {
    let op = |f: &mut Fixture| {
        scan(
            f,
            Scan::Gla {
                head_dim: 2,
                scale: 0.5,
            },
            4,
        )
    };
    // S = [[5, 6], [10, 12]], o = ½(15, 18); then S = [[2.5, 3], [10, 12]] + [[1, 1], [0, 0]].
    let inputs: [(u32, &[f32]); 4] = [
        (2, &[1.0, 1.0, 2.0, 1.0]),
        (2, &[1.0, 2.0, 1.0, 0.0]),
        (2, &[5.0, 6.0, 1.0, 1.0]),
        (2, &[0.0, 0.0, 0.5, 1.0]),
    ];
    recurs(op, &inputs, 2, &[7.5, 9.0, 8.5, 10.0]);
}

#[test]
fn wkv7_removes_what_it_replaces() {
    let op = |f: &mut Fixture| scan(f, Scan::Wkv7 { head_dim: 2 }, 4);
    // Row 1: S = v kᵀ = [[3, 0], [5, 0]], o = S r = (3, 5).
    // Row 2: s = −S κ = (−3, −5); S ← ½S + v kᵀ + s (κ ⊙ a)ᵀ = [[1.5 − 1.5, 1], [2.5 − 2.5, 2]]; o = S·(4, 1).
    let inputs: [(u32, &[f32]); 6] = [
        (2, &[1.0, 1.0, 4.0, 1.0]),
        (2, &[1.0, 1.0, 0.5, 0.5]),
        (2, &[1.0, 0.0, 0.0, 1.0]),
        (2, &[3.0, 5.0, 1.0, 2.0]),
        (2, &[0.0, 0.0, 1.0, 0.0]),
        (2, &[0.0, 0.0, 0.5, 0.5]),
    ];
    recurs(op, &inputs, 2, &[3.0, 5.0, 1.0, 2.0]);
}

fn delta(k_heads: u32, v_heads: u32, tiled: bool) -> Scan {
    Scan::GatedDelta {
        k_heads,
        v_heads,
        dim_k: 2,
        dim_v: 1,
        tiled,
        scale: 2.0,
    }
}

#[test]
fn the_delta_rule_corrects_towards_the_value() {
    let op = |f: &mut Fixture| scan(f, delta(1, 1, false), 2);
    // Row 1: S = 0, e = 0.5·8, S = (4, 0), o = 2·(4·1).
    // Row 2: S = (2, 0), e = 1·(5 − 2), k = (1, 0): S = (5, 0), o = 2·(5·3).
    let inputs: [(u32, &[f32]); 5] = [
        (2, &[1.0, 1.0, 3.0, 1.0]),
        (2, &[1.0, 0.0, 1.0, 0.0]),
        (1, &[8.0, 5.0]),
        (1, &[0.0, LN_HALF]),
        (1, &[0.5, 1.0]),
    ];
    recurs(op, &inputs, 1, &[8.0, 30.0]);
}

#[test]
fn the_delta_rule_decays_per_channel_too() {
    let op = |f: &mut Fixture| scan(f, delta(1, 1, false), 2);
    // Row 1: S = (8, 8). Row 2: S = (4, 8), v − Sᵀk = 12 − 12, o = 2·(4 + 0).
    let inputs: [(u32, &[f32]); 5] = [
        (2, &[1.0, 0.0, 1.0, 0.0]),
        (2, &[1.0, 1.0, 1.0, 1.0]),
        (1, &[8.0, 12.0]),
        (2, &[0.0, 0.0, LN_HALF, 0.0]),
        (1, &[1.0, 1.0]),
    ];
    recurs(op, &inputs, 1, &[16.0, 8.0]);
}

#[test]
fn value_heads_share_key_heads_in_runs_or_tiles() {
    let inputs: [(u32, &[f32]); 5] = [
        (4, &[1.0, 0.0, 10.0, 0.0]),
        (4, &[1.0, 0.0, 1.0, 0.0]),
        (4, &[1.0, 2.0, 3.0, 4.0]),
        (4, &[0.0; 4]),
        (4, &[1.0; 4]),
    ];
    let op = |tiled| move |f: &mut Fixture| scan(f, delta(2, 4, tiled), 8);
    recurs(op(false), &inputs, 4, &[2.0, 4.0, 60.0, 80.0]);
    recurs(op(true), &inputs, 4, &[2.0, 40.0, 6.0, 80.0]);
}

#[test]
fn fixed_decay_is_per_head() {
    let op = |f: &mut Fixture| {
        let slopes = f.constant(ConstData::F32(vec![-LN_HALF, 0.0]));
        scan(f, Scan::Decay { heads: 2, slopes }, 2)
    };
    // Head 0: 6, then 3 + 1; head 1: 6, then 6 + 1.
    let inputs: [(u32, &[f32]); 3] = [
        (2, &[1.0, 1.0, 2.0, 2.0]),
        (2, &[2.0, 2.0, 1.0, 1.0]),
        (2, &[3.0, 3.0, 1.0, 1.0]),
    ];
    recurs(op, &inputs, 2, &[6.0, 6.0, 8.0, 14.0]);
}

#[test]
fn a_new_sequence_starts_from_zeros_in_a_used_block() {
    let mut fixture = Fixture::default();
    let slot = fixture.state(2);
    let x = fixture.input(&[2]);
    let out = fixture.op(Op::Shift { slot }, &[x], &[2]);
    let backend = tokkata_backend_ref::RefBackend::default();
    let mut run = fixture.load(&backend, &LoadOptions::default()).unwrap();
    for _ in 0..2 {
        run.step(&[Rows::first(1)], &feed(&[(x, &noises("x", 2))]))
            .unwrap();
        assert_eq!(run.floats(out), [0.0, 0.0]);
    }
}
