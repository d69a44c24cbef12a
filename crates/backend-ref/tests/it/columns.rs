//! Ops that move columns.

use tokkata_conformance::fixture::{Fixture, Rows};
use tokkata_ir::Op;

use crate::support::{BOTH, feed, near, run, several, unary};

#[test]
fn slices_of_each_run() {
    let x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    unary(
        Op::Slice {
            group: 3,
            start: 1,
            len: 2,
        },
        6,
        &x,
        &[1.0, 2.0, 4.0, 5.0],
    );
    unary(
        Op::Slice {
            group: 6,
            start: 5,
            len: 1,
        },
        6,
        &x,
        &[5.0],
    );
}

#[test]
fn repeats_runs_or_rows() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let op = |tiled| Op::Repeat {
        width: 2,
        times: 2,
        tiled,
    };
    unary(op(false), 4, &x, &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    unary(op(true), 4, &x, &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    unary(op(true), 2, &x, &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn joins_runs_and_repeats_a_single_one() {
    let op = || Op::Concat { groups: 2 };
    let heads: &[f32] = &[1.0, 2.0, 3.0, 4.0];
    several(
        op(),
        &[(4, heads), (2, &[8.0, 9.0])],
        &[1.0, 2.0, 8.0, 3.0, 4.0, 9.0],
    );
    several(
        op(),
        &[(4, heads), (1, &[9.0])],
        &[1.0, 2.0, 9.0, 3.0, 4.0, 9.0],
    );
    several(
        op(),
        &[(1, &[9.0]), (4, heads)],
        &[9.0, 1.0, 2.0, 9.0, 3.0, 4.0],
    );
    several(
        Op::Concat { groups: 1 },
        &[(1, &[1.0, 2.0]), (1, &[3.0, 4.0])],
        &[1.0, 3.0, 2.0, 4.0],
    );
}

#[test]
fn dims_settle_which_input_repeats() {
    let mut fixture = Fixture::default();
    let shared = fixture.input(&[2]);
    let heads = fixture.input(&[2, 1]);
    let out = fixture.op(Op::Concat { groups: 2 }, &[shared, heads], &[2, 3]);
    let feed = feed(&[(shared, &[7.0, 8.0]), (heads, &[1.0, 2.0])]);
    for precision in BOTH {
        let found = run(&fixture, precision, &[Rows::first(1)], &feed, out);
        near(&found, &[7.0, 8.0, 1.0, 7.0, 8.0, 2.0]);
    }
}
