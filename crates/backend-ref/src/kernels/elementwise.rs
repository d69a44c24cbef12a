//! Ops on elements and pairs of elements.

use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind};

use crate::args::Mat;
use crate::real::{Real, sigmoid, softplus};

/// `f(x)` of every element.
pub(crate) fn map<R: Real>(x: Mat<'_, R>, f: impl Fn(R) -> R) -> Vec<R> {
    x.data.iter().map(|&x| f(x)).collect()
}

/// An activation of one element.
pub(crate) fn activate<R: Real>(act: Act, x: R) -> R {
    let of = R::of;
    match act {
        Act::Identity => x,
        Act::Silu => x * sigmoid(x),
        Act::Gelu => {
            let inner = of(0.797_884_560_802_865_4) * (x + of(0.044_715) * x * x * x);
            of(0.5) * x * (R::ONE + inner.tanh())
        }
        Act::GeluErf => of(0.5) * x * (R::ONE + (x * of(std::f64::consts::FRAC_1_SQRT_2)).erf()),
        Act::GeluQuick => x * sigmoid(of(1.702) * x),
        Act::Relu => x.max(R::ZERO),
        Act::Relu2 => x.max(R::ZERO) * x.max(R::ZERO),
        Act::Sigmoid => sigmoid(x),
        Act::Tanh => x.tanh(),
        Act::Softplus => softplus(x),
        Act::Exp => x.exp(),
        Act::NegExp => -x.exp(),
        Act::Xielu {
            alpha_n,
            alpha_p,
            beta,
            eps,
        } => {
            let curve = if x > R::ZERO {
                R::from(alpha_p) * x * x
            } else {
                (x.min(R::from(eps)).exp_m1() - x) * R::from(alpha_n)
            };
            curve + R::from(beta) * x
        }
        Act::Situ { beta } => R::from(beta) * (x / R::from(beta)).tanh() * sigmoid(x),
        Act::Swish { alpha } => x * sigmoid(R::from(alpha) * x),
        Act::SignedSqrt { eps } => sign(x) * x.abs().max(R::from(eps)).sqrt(),
    }
}

fn sign<R: Real>(x: R) -> R {
    if x > R::ZERO {
        R::ONE
    } else if x < R::ZERO {
        -R::ONE
    } else {
        R::ZERO
    }
}

/// `f(gate) · up`.
pub(crate) fn gate<R: Real>(
    gate: Mat<'_, R>,
    up: Mat<'_, R>,
    act: Act,
    clamp: GateClamp,
) -> Vec<R> {
    let both = gate.data.iter().zip(up.data);
    both.map(|(&g, &u)| gated(act, clamp, g, u)).collect()
}

fn gated<R: Real>(act: Act, clamp: GateClamp, g: R, u: R) -> R {
    let within = |u: R, limit: R| u.max(-limit).min(limit);
    match clamp {
        GateClamp::None => activate(act, g) * u,
        GateClamp::Before(limit) => {
            let limit = R::from(limit);
            activate(act, g.min(limit)) * within(u, limit)
        }
        GateClamp::After(limit) => {
            let limit = R::from(limit);
            activate(act, g).min(limit) * within(u, limit)
        }
        GateClamp::BeforePlusOne(limit) => {
            let limit = R::from(limit);
            activate(act, g.min(limit)) * (within(u, limit) + R::ONE)
        }
        GateClamp::UpTanh(limit) => {
            let limit = R::from(limit);
            activate(act, g) * (limit * (u / limit).tanh())
        }
    }
}

fn combine<R: Real>(kind: BinaryKind, a: R, b: R) -> R {
    match kind {
        BinaryKind::Add => a + b,
        BinaryKind::Sub => a - b,
        BinaryKind::Mul => a * b,
        BinaryKind::Div => a / b,
    }
}

/// `a_scale·a ∘ b_scale·b`, b repeating along the row.
pub(crate) fn binary<R: Real>(
    kind: BinaryKind,
    (a, a_scale): (Mat<'_, R>, f32),
    (b, b_scale): (Mat<'_, R>, f32),
) -> Vec<R> {
    let scaled = |x: R, scale: f32| x * R::from(scale);
    let rows = a.rows().zip(b.rows());
    rows.flat_map(|(a, b)| {
        let both = a.iter().zip(b.iter().cycle());
        both.map(move |(&a, &b)| combine(kind, scaled(a, a_scale), scaled(b, b_scale)))
    })
    .collect()
}

/// `x ∘ weight`, the weight repeating along the row.
pub(crate) fn weighted<R: Real>(kind: BinaryKind, x: Mat<'_, R>, weight: &[f32]) -> Vec<R> {
    let both = x
        .rows()
        .flat_map(|row| row.iter().zip(weight.iter().cycle()));
    both.map(|(&x, &w)| combine(kind, x, R::from(w))).collect()
}

/// Each run of `width` columns with one column of the second input.
pub(crate) fn per_run<R: Real>(
    kind: BinaryKind,
    x: Mat<'_, R>,
    y: Mat<'_, R>,
    width: u32,
) -> Vec<R> {
    let runs = x.data.chunks_exact(width as usize).zip(y.data);
    runs.flat_map(|(run, &y)| run.iter().map(move |&x| combine(kind, x, y)))
        .collect()
}

/// Sets columns `first..last` to the lowest float.
pub(crate) fn suppress<R: Real>(x: Mat<'_, R>, first: u32, last: u32) -> Vec<R> {
    let mut out = x.data.to_vec();
    for row in out.chunks_exact_mut(x.width) {
        row[first as usize..last as usize].fill(R::from(f32::MIN));
    }
    out
}
