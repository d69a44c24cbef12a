//! Running a small fixture in both precisions.

use tokkata_backend_ref::{Precision, RefBackend};
use tokkata_conformance::fixture::{Feed, Fixture, Rows};
use tokkata_ir::{LoadOptions, Op, ValueId};

pub(crate) const BOTH: [Precision; 2] = [Precision::F32, Precision::F64];

/// Asserts that numbers agree to f32 rounding.
#[track_caller]
pub(crate) fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{found:?} is not {expected:?}");
    for (&a, &b) in found.iter().zip(expected) {
        let tolerance = 2e-6 * b.abs().max(1.0);
        assert!((a - b).abs() <= tolerance, "{found:?} is not {expected:?}");
    }
}

/// Runs one step of `fixture` in a precision and gives the floats of `out`.
pub(crate) fn run(
    fixture: &Fixture,
    precision: Precision,
    rows: &[Rows],
    feed: &Feed,
    out: ValueId,
) -> Vec<f32> {
    let backend = RefBackend { precision };
    let mut run = fixture.load(&backend, &LoadOptions::default()).unwrap();
    run.step(rows, feed).unwrap();
    run.floats(out)
}

/// A feed of values.
pub(crate) fn feed(values: &[(ValueId, &[f32])]) -> Feed {
    Feed {
        values: values.iter().map(|(id, v)| (*id, v.to_vec())).collect(),
        ..Feed::default()
    }
}

/// An op of one input over rows `x` (as wide as `width`) gives `expected`, in both precisions.
#[track_caller]
pub(crate) fn unary(op: Op, width: u32, x: &[f32], expected: &[f32]) {
    with(|_| op, width, x, expected);
}

/// As [`unary`], for an op whose weights `build` adds.
#[track_caller]
pub(crate) fn with(
    build: impl FnOnce(&mut Fixture) -> Op,
    width: u32,
    x: &[f32],
    expected: &[f32],
) {
    let rows = x.len() / width as usize;
    let mut fixture = Fixture::default();
    let op = build(&mut fixture);
    let input = fixture.input(&[width]);
    let out = fixture.op(op, &[input], &[(expected.len() / rows) as u32]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    for precision in BOTH {
        let found = run(
            &fixture,
            precision,
            &[Rows::first(rows)],
            &feed(&[(input, x)]),
            out,
        );
        near(&found, expected);
    }
}

/// An op of several inputs over rows, each as wide as given.
#[track_caller]
pub(crate) fn several(op: Op, inputs: &[(u32, &[f32])], expected: &[f32]) {
    let rows = inputs[0].1.len() / inputs[0].0 as usize;
    let mut fixture = Fixture::default();
    let ids: Vec<ValueId> = inputs.iter().map(|i| fixture.input(&[i.0])).collect();
    let out = fixture.op(op, &ids, &[(expected.len() / rows) as u32]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    let values: Vec<(ValueId, &[f32])> = ids.iter().zip(inputs).map(|(&id, i)| (id, i.1)).collect();
    for precision in BOTH {
        let found = run(
            &fixture,
            precision,
            &[Rows::first(rows)],
            &feed(&values),
            out,
        );
        near(&found, expected);
    }
}
