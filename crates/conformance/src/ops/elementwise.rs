//! Elementwise ops, and ops that only move columns.

use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind, Op, ValueId};

use super::case::{Case, one_op};
use crate::fixture::{Fixture, noises};

/// Row widths: one, odd, a vector and a bit more.
const WIDTHS: [u32; 4] = [1, 7, 32, 100];

fn activations() -> Vec<Act> {
    let xielu = Act::Xielu {
        alpha_n: 0.8,
        alpha_p: 0.6,
        beta: 0.5,
        eps: -1e-6,
    };
    vec![
        Act::Identity,
        Act::Silu,
        Act::Gelu,
        Act::GeluErf,
        Act::GeluQuick,
        Act::Relu,
        Act::Relu2,
        Act::Sigmoid,
        Act::Tanh,
        Act::Softplus,
        Act::Exp,
        Act::NegExp,
        xielu,
        Act::Situ { beta: 2.0 },
        Act::Swish { alpha: 1.5 },
        Act::SignedSqrt { eps: 1e-6 },
    ]
}

const KINDS: [BinaryKind; 4] = [
    BinaryKind::Add,
    BinaryKind::Sub,
    BinaryKind::Mul,
    BinaryKind::Div,
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in WIDTHS {
        for act in activations() {
            let name = format!("unary/{act:?}/{width}");
            let case = one_op(name, (width, width), |_| Op::Unary(act));
            cases.push(case.ulps(8.0).all_rows(6.0));
        }
        cases.extend(gates(width));
        cases.extend(KINDS.iter().flat_map(|&kind| binaries(kind, width)));
        cases.extend(scalars(width));
    }
    cases
}

fn gates(width: u32) -> Vec<Case> {
    let clamps = [
        GateClamp::None,
        GateClamp::Before(1.5),
        GateClamp::After(1.5),
        GateClamp::BeforePlusOne(1.5),
        GateClamp::UpTanh(1.5),
    ];
    let acts = [Act::Silu, Act::Gelu, Act::GeluErf, Act::Relu2, Act::Sigmoid];
    let mut cases = Vec::new();
    for clamp in clamps {
        for act in acts {
            let name = format!("gate/{act:?}/{clamp:?}/{width}");
            let case = two_inputs(name, [width, width], width, Op::Gate { act, clamp });
            cases.push(case.ulps(10.0).all_rows(4.0));
        }
    }
    cases
}

fn two_inputs(name: String, widths: [u32; 2], out: u32, op: Op) -> Case {
    let mut fixture = Fixture::default();
    let ins = widths.map(|w| fixture.input(&[w]));
    let out = fixture.op(op, &ins, &[out]);
    Case::new(name, fixture, vec![out])
}

/// A division by noise has large outliers: its second input is moved away from zero.
fn binaries(kind: BinaryKind, width: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut shorter = vec![1, width];
    shorter.extend(width.is_multiple_of(4).then_some(width / 4));
    shorter.dedup();
    for b in shorter {
        let op = Op::Binary {
            kind,
            a_scale: 0.75,
            b_scale: 1.5,
        };
        let name = format!("binary/{kind:?}/{width}/{b}");
        cases.push(away_from_zero(name, (width, b), op));
        let build = |f: &mut Fixture| {
            let values: Vec<f32> = noises("weighted", b as usize)
                .iter()
                .map(|x| x + 2.0)
                .collect();
            let weight = f.vector(&[b], &values);
            Op::Weighted { kind, weight }
        };
        let name = format!("weighted/{kind:?}/{width}/{b}");
        let case = one_op(name, (width, width), build);
        cases.push(case.ulps(3.0).all_rows(1.0));
        let op = Op::PerRun {
            kind,
            width: width / b,
        };
        let name = format!("per_run/{kind:?}/{width}/{b}");
        cases.push(away_from_zero(name, (width, b), op));
    }
    cases
}

fn away_from_zero(name: String, (a, b): (u32, u32), op: Op) -> Case {
    let mut fixture = Fixture::default();
    let x = fixture.input(&[a]);
    let y = fixture.input(&[b]);
    let affine = Op::Affine {
        scale: 1.0,
        offset: 2.0,
    };
    let y = fixture.op(affine, &[y], &[b]);
    let out = fixture.op(op, &[x, y], &[a]);
    let case = Case::new(name, fixture, vec![out]);
    case.ulps(4.0).all_rows(1.0)
}

fn scalars(width: u32) -> Vec<Case> {
    let affine = Op::Affine {
        scale: 0.3,
        offset: 0.7,
    };
    let clamp = Op::Clamp { lo: -0.5, hi: 1.0 };
    [affine, Op::Softcap { cap: 3.0 }, clamp]
        .into_iter()
        .map(|op| {
            let name = format!("{}/{width}", op.name());
            let case = one_op(name, (width, width), |_| op);
            case.ulps(6.0).all_rows(6.0)
        })
        .collect()
}

/// Slices, joins and repeats: equal bits.
pub(crate) fn columns() -> Vec<Case> {
    let mut cases = Vec::new();
    for (group, start, len, runs) in [(7, 2, 3, 1), (1, 0, 1, 5), (40, 33, 7, 3), (96, 32, 64, 2)] {
        let name = format!("slice/{runs}x{group}/{start}+{len}");
        let op = Op::Slice { group, start, len };
        cases.push(one_op(name, (group * runs, len * runs), |_| op).all_rows(1.0));
    }
    for (width, runs, times) in [(1, 5, 3), (7, 1, 2), (33, 3, 4)] {
        for tiled in [false, true] {
            let name = format!("repeat/{runs}x{width}/{times}/tiled={tiled}");
            let op = Op::Repeat {
                width,
                times,
                tiled,
            };
            let sizes = (width * runs, width * runs * times);
            cases.push(one_op(name, sizes, |_| op).all_rows(1.0));
        }
    }
    for (groups, widths) in [
        (1, vec![3, 5]),
        (4, vec![4, 12, 3]),
        (3, vec![99, 21]),
        (2, vec![64, 16]),
    ] {
        cases.push(concat(groups, &widths));
    }
    for width in WIDTHS {
        let copy = one_op(format!("copy/{width}"), (width, width), |_| Op::Copy);
        cases.push(copy.all_rows(1.0));
        let op = Op::Suppress {
            first: width / 3,
            last: width / 2,
        };
        let suppress = one_op(format!("suppress/{width}"), (width, width), |_| op);
        cases.push(suppress.all_rows(1.0));
    }
    cases
}

/// The first input has a run per group, the others are repeated where they are no longer than a run.
fn concat(groups: u32, widths: &[u32]) -> Case {
    let mut fixture = Fixture::default();
    let split = |w: u32| w.is_multiple_of(groups) && w > groups;
    let run = |w: u32| if split(w) { w / groups } else { w };
    let dims = |w: u32| {
        if split(w) {
            vec![groups, w / groups]
        } else {
            vec![w]
        }
    };
    let ins: Vec<ValueId> = widths.iter().map(|&w| fixture.input(&dims(w))).collect();
    let width = widths.iter().map(|&w| run(w)).sum();
    let out = fixture.op(Op::Concat { groups }, &ins, &[groups, width]);
    Case::new(format!("concat/{groups}/{widths:?}"), fixture, vec![out]).all_rows(1.0)
}
