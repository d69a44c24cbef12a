//! Routing and segmented products by hand.

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::fixture::{Fixture, Rows};
use tokkata_core::DType;
use tokkata_ir::op::ExpertGroups;
use tokkata_ir::{Lead, LoadOptions, Op, RouteOp, Score, ValType};

use crate::support::{BOTH, feed, near, run, several};

fn top(top_k: u32, n_experts: u32) -> RouteOp {
    RouteOp {
        n_experts,
        top_k,
        score: Score::Softmax,
        select: None,
        bias: None,
        table: None,
        groups: None,
        softmax_chosen: false,
        sigmoid_chosen: false,
        near_ties: 0.0,
        renormalise: false,
        scale: 1.0,
        id_divisor: 1,
    }
}

#[track_caller]
fn routes(
    build: impl FnOnce(&mut Fixture) -> RouteOp,
    logits: &[f32],
    ids: &[i32],
    weights: &[f32],
) {
    let mut fixture = Fixture::default();
    let op = build(&mut fixture);
    let x = fixture.input(&[op.n_experts]);
    let rows = logits.len() / op.n_experts as usize;
    let id_value = fixture.value(Lead::Rows, &[op.top_k], ValType::I32);
    let weight_value = fixture.value(Lead::Rows, &[op.top_k], ValType::F32);
    fixture.node(Op::Route(op), &[x], &[id_value, weight_value]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    for precision in BOTH {
        let backend = RefBackend { precision };
        let mut run = fixture.load(&backend, &LoadOptions::default()).unwrap();
        run.step(&[Rows::first(rows)], &feed(&[(x, logits)]))
            .unwrap();
        assert_eq!(run.ints(id_value), ids);
        near(&run.floats(weight_value), weights);
    }
}

/// ln 1, ln 2, ln 4, ln 3: softmax gives tenths.
const TENTHS: [f32; 4] = [
    0.0,
    std::f32::consts::LN_2,
    2.0 * std::f32::consts::LN_2,
    1.098_612_3,
];

#[test]
fn scores_give_weights_best_first() {
    routes(|_| top(2, 4), &TENTHS, &[2, 3], &[0.4, 0.3]);
    routes(
        |_| RouteOp {
            renormalise: true,
            scale: 2.5,
            ..top(2, 4)
        },
        &TENTHS,
        &[2, 3],
        &[1.428_571_4, 1.071_428_6],
    );
    routes(
        |_| RouteOp {
            score: Score::Logits,
            ..top(1, 4)
        },
        &TENTHS,
        &[2],
        &[1.386_294_4],
    );
    // σ(ln 4) = 4/5, σ(ln 3) = 3/4
    routes(
        |_| RouteOp {
            score: Score::Sigmoid,
            ..top(2, 4)
        },
        &TENTHS,
        &[2, 3],
        &[0.8, 0.75],
    );
    // √ln 5
    routes(
        |_| RouteOp {
            score: Score::SqrtSoftplus,
            ..top(1, 4)
        },
        &TENTHS,
        &[2],
        &[1.268_636_2],
    );
}

#[test]
fn equals_go_to_the_lowest_id() {
    routes(|_| top(2, 4), &[0.0; 8], &[0, 1, 0, 1], &[0.25; 4]);
}

#[test]
fn chosen_scores_are_mapped_last() {
    let softmax = |_: &mut Fixture| RouteOp {
        score: Score::Logits,
        softmax_chosen: true,
        ..top(2, 4)
    };
    routes(softmax, &TENTHS, &[2, 3], &[4.0 / 7.0, 3.0 / 7.0]);
    let sigmoid = |_: &mut Fixture| RouteOp {
        score: Score::Logits,
        sigmoid_chosen: true,
        ..top(2, 4)
    };
    routes(sigmoid, &TENTHS, &[2, 3], &[0.8, 0.75]);
}

#[test]
fn near_ties_share_the_weight_of_a_choice() {
    let op = |_: &mut Fixture| RouteOp {
        score: Score::Logits,
        near_ties: 0.02,
        ..top(2, 4)
    };
    let first = 1.0 / (1.0 + (-0.01f32).exp());
    routes(op, &[0.5, 1.0, -2.0, 0.99], &[1, 3], &[first, 1.0]);
    let both = 1.0 / (1.0 + (-0.015f32).exp());
    routes(op, &[-1.0, -1.015, -3.0, -9.0], &[0, 1], &[both, 1.0]);
}

#[test]
fn a_bias_selects_and_does_not_weigh() {
    let op = |f: &mut Fixture| RouteOp {
        bias: Some(f.vector(&[4], &[1.0, 0.0, 0.0, 0.0])),
        ..top(2, 4)
    };
    routes(op, &TENTHS, &[0, 2], &[0.1, 0.4]);
}

#[test]
fn another_score_may_select() {
    let op = |_: &mut Fixture| RouteOp {
        score: Score::Sigmoid,
        select: Some(Score::Logits),
        ..top(1, 4)
    };
    routes(op, &TENTHS, &[2], &[0.8]);
}

#[test]
fn groups_are_scored_by_their_best_two() {
    let groups = Some(ExpertGroups { count: 2, used: 1 });
    let op = |_: &mut Fixture| RouteOp {
        score: Score::Logits,
        groups,
        ..top(2, 6)
    };
    // 5 + 1 against 4 + 3: the best expert stays out.
    routes(op, &[5.0, 1.0, 1.0, 4.0, 3.0, 0.0], &[3, 4], &[4.0, 3.0]);
}

#[test]
fn second_level_ids_are_divided() {
    let op = |_: &mut Fixture| RouteOp {
        id_divisor: 2,
        ..top(2, 4)
    };
    routes(op, &TENTHS, &[1, 1], &[0.4, 0.3]);
}

#[test]
fn tiny_sums_are_not_divided_by() {
    // σ(−20) = 2.0611537e−9 over 2⁻¹⁴
    let op = |_: &mut Fixture| RouteOp {
        score: Score::Sigmoid,
        renormalise: true,
        ..top(1, 1)
    };
    routes(op, &[-20.0], &[0], &[3.376_994e-5]);
}

#[test]
fn rows_are_ordered_by_expert() {
    let mut fixture = Fixture::default();
    let ids = fixture.input_of(Lead::Rows, &[2], ValType::I32);
    let order = fixture.value(Lead::Rows, &[2], ValType::I32);
    let starts = fixture.value(Lead::Rows, &[2], ValType::I32);
    fixture.node(Op::Group { n_experts: 4 }, &[ids], &[order, starts]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    let mut run = fixture
        .load(&RefBackend::default(), &LoadOptions::default())
        .unwrap();
    let feed = feed(&[(ids, &[3.0, 1.0, 1.0, 0.0, 3.0, 1.0])]);
    run.step(&[Rows::first(3)], &feed).unwrap();
    assert_eq!(run.ints(order), [3, 1, 2, 5, 0, 4]);
    assert_eq!(run.ints(starts), [0, 1, 1, 1, 4, 4]);
}

#[track_caller]
fn segments(x_width: u32, x: &[f32], expected: &[f32]) {
    let mut fixture = Fixture::default();
    let weight = fixture.matrix(DType::F32, &[3, 2, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let scale = Some(fixture.vector(&[3], &[1.0, 10.0, 100.0]));
    let bias = Some(fixture.vector(&[3, 2], &[0.0, 0.0, 0.5, 0.25, 0.0, 0.0]));
    let input = fixture.input(&[x_width]);
    let ids = fixture.input_of(Lead::Rows, &[2], ValType::I32);
    let op = Op::Experts {
        weight,
        scale,
        bias,
        top_k: 2,
    };
    let out = fixture.op(op, &[input, ids], &[4]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    let feed = feed(&[(input, x), (ids, &[1.0, 0.0, 2.0, 1.0])]);
    for precision in BOTH {
        near(
            &run(&fixture, precision, &[Rows::first(2)], &feed, out),
            expected,
        );
    }
}

#[test]
fn experts_take_a_shared_row_or_their_own_part() {
    segments(
        1,
        &[2.0, 3.0],
        &[60.5, 80.25, 2.0, 4.0, 1500.0, 1800.0, 90.5, 120.25],
    );
    let own = [1.0, 2.0, 3.0, 4.0];
    segments(
        2,
        &own,
        &[30.5, 40.25, 2.0, 4.0, 1500.0, 1800.0, 120.5, 160.25],
    );
}

#[test]
fn combine_weighs_the_parts() {
    let x = [1.0, 2.0, 10.0, 20.0];
    several(Op::Combine, &[(4, &x), (2, &[0.5, 0.25])], &[3.0, 6.0]);
}

#[test]
fn a_table_lists_the_experts_of_a_token() {
    let mut f = Fixture::default();
    let op = RouteOp {
        table: Some(f.vector(&[3, 2], &[0.0, 1.0, 3.0, 2.0, 1.0, 0.0])),
        ..top(2, 4)
    };
    let x = f.input(&[4]);
    let ids = f.value(Lead::Rows, &[2], ValType::I32);
    let weights = f.value(Lead::Rows, &[2], ValType::F32);
    f.node(Op::Route(op), &[x], &[ids, weights]);
    tokkata_backend_ref::shape::check(&f.program().plans[0], f.program()).unwrap();
    let rows = Rows {
        tokens: vec![1, 0, 2],
        ..Rows::first(3)
    };
    for precision in BOTH {
        let backend = RefBackend { precision };
        let mut run = f.load(&backend, &LoadOptions::default()).unwrap();
        run.step(
            std::slice::from_ref(&rows),
            &feed(&[(x, &TENTHS.repeat(3))]),
        )
        .unwrap();
        assert_eq!(run.ints(ids), [3, 2, 0, 1, 1, 0]);
        near(&run.floats(weights), &[0.3, 0.4, 0.1, 0.2, 0.2, 0.1]);
    }
}
