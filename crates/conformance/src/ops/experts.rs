//! Routing, segmented products per format, and their sums.

use tokkata_core::DType;
use tokkata_ir::op::ExpertGroups;
use tokkata_ir::{Lead, Op, RouteOp, Score, ValType, ValueId};

use super::case::{Case, ROWS, Rounds};
use super::linear::{formats, matrix, sum_ulps};
use crate::fixture::{Fixture, Rows, noises};

const EXPERTS: u32 = 8;
const TOP_K: u32 = 3;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = routes();
    for dtype in formats() {
        let block = dtype.block_elems() as u32;
        let k = if block == 1 { 33 } else { block };
        cases.push(experts((dtype, 5, k), true));
        cases.push(experts((dtype, 17, k), false));
    }
    cases.extend([1, 7, 64].map(combine));
    cases.push(group());
    cases
}

fn routes() -> Vec<Case> {
    let plain = RouteOp {
        n_experts: EXPERTS,
        top_k: TOP_K,
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
    };
    let scores = [
        Score::Softmax,
        Score::Sigmoid,
        Score::Logits,
        Score::SqrtSoftplus,
    ];
    let mut ops: Vec<RouteOp> = Vec::new();
    for score in scores {
        for renormalise in [false, score != Score::Logits] {
            ops.push(RouteOp {
                score,
                renormalise,
                ..plain.clone()
            });
        }
    }
    ops.push(RouteOp {
        score: Score::Logits,
        softmax_chosen: true,
        ..plain.clone()
    });
    ops.push(RouteOp {
        score: Score::Logits,
        near_ties: 0.4,
        ..plain.clone()
    });
    ops.push(RouteOp {
        score: Score::Logits,
        sigmoid_chosen: true,
        scale: 2.5,
        ..plain.clone()
    });
    ops.push(RouteOp {
        score: Score::Sigmoid,
        select: Some(Score::Logits),
        groups: Some(ExpertGroups { count: 4, used: 2 }),
        renormalise: true,
        ..plain.clone()
    });
    ops.push(RouteOp {
        id_divisor: 2,
        ..plain.clone()
    });
    let mut cases: Vec<Case> = ops.iter().map(|op| route(op, false)).collect();
    cases.push(route(&plain, true));
    cases.push(by_token(&plain));
    cases
}

/// Tokens that a table lists experts for.
const TOKENS: u32 = 7;

/// Experts that a table lists for a row's token.
fn by_token(plain: &RouteOp) -> Case {
    let mut f = Fixture::default();
    let expert = |i: u32| ((3 * (i / TOP_K) + 5 * (i % TOP_K) + 1) % EXPERTS) as f32;
    let listed: Vec<f32> = (0..TOKENS * TOP_K).map(expert).collect();
    let op = RouteOp {
        table: Some(f.vector(&[TOKENS, TOP_K], &listed)),
        renormalise: true,
        ..plain.clone()
    };
    let x = f.input(&[EXPERTS]);
    let ids = f.value(Lead::Rows, &[TOP_K], ValType::I32);
    let weights = f.value(Lead::Rows, &[TOP_K], ValType::F32);
    f.node(Op::Route(op), &[x], &[ids, weights]);
    let case = Case::new("route_by_token", f, vec![ids, weights]).ulps(12.0);
    let rows = |&n: &usize| Rows {
        tokens: (0..n as u32).map(|i| (i * 5 + 2) % TOKENS).collect(),
        ..Rows::first(n)
    };
    ROWS.iter()
        .fold(case, |case, n| case.scaled_step(vec![rows(n)], 2.0))
}

fn route(op: &RouteOp, biased: bool) -> Case {
    let mut f = Fixture::default();
    let name = format!("route/{op:?}/biased={biased}");
    let bias = biased.then(|| f.vector(&[EXPERTS], &noises("bias", EXPERTS as usize)));
    let x = f.input(&[EXPERTS]);
    let ids = f.value(Lead::Rows, &[TOP_K], ValType::I32);
    let weights = f.value(Lead::Rows, &[TOP_K], ValType::F32);
    f.node(
        Op::Route(RouteOp { bias, ..op.clone() }),
        &[x],
        &[ids, weights],
    );
    Case::new(name, f, vec![ids, weights])
        .ulps(12.0)
        .all_rows(2.0)
}

fn chosen(row: usize, j: usize) -> f32 {
    ((row * 5 + j * 3 + row / 2) % EXPERTS as usize) as f32
}

/// Sets the integers of every step's ids.
fn with_ids(mut case: Case, ids: ValueId, inputs: &[(ValueId, u32)]) -> Case {
    for rows in ROWS {
        let chosen = (0..rows).flat_map(|r| (0..TOP_K as usize).map(move |j| chosen(r, j)));
        let noise = |&(id, width): &(ValueId, u32)| {
            let name = format!("{}.{rows}.{}", case.name, id.0);
            (id, noises(&name, rows * width as usize))
        };
        let mut values: Vec<_> = inputs.iter().map(noise).collect();
        values.push((ids, chosen.collect()));
        let feed = crate::fixture::Feed {
            values,
            ..Default::default()
        };
        case.steps.push((vec![Rows::first(rows)], feed));
    }
    case
}

fn experts((dtype, n, k): (DType, u32, u32), shared: bool) -> Case {
    let mut f = Fixture::default();
    let weight = matrix(&mut f, dtype, &[EXPERTS, n, k]);
    let vector = |f: &mut Fixture, len: u32| f.vector(&[len], &noises("experts", len as usize));
    let scale = (!shared).then(|| vector(&mut f, EXPERTS));
    let bias = (!shared).then(|| f.vector(&[EXPERTS, n], &noises("bias", (EXPERTS * n) as usize)));
    let width = if shared { k } else { TOP_K * k };
    let x = f.input(&[width]);
    let ids = f.input_of(Lead::Rows, &[TOP_K], ValType::I32);
    let op = Op::Experts {
        weight,
        scale,
        bias,
        top_k: TOP_K,
    };
    let out = f.op(op, &[x, ids], &[TOP_K * n]);
    let name = format!("experts/{dtype}/{n}x{k}/shared={shared}");
    let case = Case::new(name, f, vec![out]).ulps(sum_ulps(k));
    with_ids(case.rounds(Rounds::Matmul(dtype)), ids, &[(x, width)])
}

fn combine(n: u32) -> Case {
    let mut f = Fixture::default();
    let x = f.input(&[TOP_K * n]);
    let weights = f.input(&[TOP_K]);
    let out = f.op(Op::Combine, &[x, weights], &[n]);
    let case = Case::new(format!("combine/{n}"), f, vec![out]);
    case.ulps(4.0).all_rows(1.0)
}

fn group() -> Case {
    let mut f = Fixture::default();
    let ids = f.input_of(Lead::Rows, &[TOP_K], ValType::I32);
    let outs = [0, 1].map(|_| f.value(Lead::Rows, &[TOP_K], ValType::I32));
    let op = Op::Group { n_experts: EXPERTS };
    f.node(op, &[ids], &outs);
    with_ids(Case::new("group", f, outs.to_vec()), ids, &[])
}
