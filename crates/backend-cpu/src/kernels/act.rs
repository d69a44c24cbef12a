//! Activations and gates, elementwise.

use tokkata_ir::Act;
use tokkata_ir::op::GateClamp;

use super::lanes::{Lanes, N, map, map2, simd_fn};
use super::math::{erf, exp, gelu, sigmoid, swish, tanh};

/// Activations without vector form, or `None`.
fn scalar(act: Act) -> Option<impl Fn(f32) -> f32> {
    matches!(act, Act::Softplus | Act::Xielu { .. } | Act::SignedSqrt { .. }).then_some(move |x: f32| match act {
        Act::Softplus => softplus(x),
        Act::Xielu { alpha_n, alpha_p, beta, eps } => {
            let curve = if x > 0.0 { alpha_p * x * x } else { (x.min(eps).exp_m1() - x) * alpha_n };
            curve + beta * x
        }
        Act::SignedSqrt { eps } => {
            let root = x.abs().max(eps).sqrt();
            if x == 0.0 { 0.0 } else { root.copysign(x) }
        }
        _ => x,
    })
}

/// `ln(1 + e^x)` without overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[inline(always)]
fn lanewise<L: Lanes>(x: L, f: &impl Fn(f32) -> f32) -> L {
    let mut lanes = [0.0; N];
    x.store(&mut lanes);
    L::load(&lanes.map(f))
}

/// Calls `$body` with `$f` bound to the vector form of `$act`.
macro_rules! with_act {
    ($act:expr, $f:ident => $body:expr) => {
        match $act {
            Act::Identity => { let $f = |x: L| x; $body }
            Act::Silu => { let $f = |x: L| swish(x, 1.0); $body }
            Act::Gelu => { let $f = |x: L| gelu(x); $body }
            Act::GeluErf => {
                let $f = |x: L| {
                    let half = L::splat(0.5).mul(x);
                    half.mul(L::splat(1.0).add(erf(x.mul(L::splat(std::f32::consts::FRAC_1_SQRT_2)))))
                };
                $body
            }
            Act::GeluQuick => { let $f = |x: L| swish(x, 1.702); $body }
            Act::Swish { alpha } => { let $f = |x: L| swish(x, alpha); $body }
            Act::Relu => { let $f = |x: L| L::zero().max(x); $body }
            Act::Relu2 => { let $f = |x: L| { let y = L::zero().max(x); y.mul(y) }; $body }
            Act::Sigmoid => { let $f = |x: L| sigmoid(x); $body }
            Act::Tanh => { let $f = |x: L| tanh(x); $body }
            Act::Exp => { let $f = |x: L| exp(x); $body }
            Act::NegExp => { let $f = |x: L| exp(x).neg(); $body }
            Act::Situ { beta } => {
                let $f = |x: L| {
                    L::splat(beta).mul(tanh(x.div(L::splat(beta)))).mul(sigmoid(x))
                };
                $body
            }
            act => {
                let scalar = scalar(act).expect("every activation has a form");
                let $f = |x: L| lanewise(x, &scalar);
                $body
            }
        }
    };
}

#[inline(always)]
fn unary<L: Lanes>(act: Act, x: &[f32], out: &mut [f32]) {
    with_act!(act, f => map::<L>(x, out, f));
}

simd_fn! {
    /// `out = act(x)`.
    pub(crate) fn unary_run(act: Act, x: &[f32], out: &mut [f32]) = unary;
}

#[inline(always)]
fn bound<L: Lanes>(x: L, limit: f32) -> L {
    L::splat(limit).min(L::splat(-limit).max(x))
}

#[inline(always)]
fn gate<L: Lanes>(act: Act, clamp: GateClamp, g: &[f32], u: &[f32], out: &mut [f32]) {
    let one = L::splat(1.0);
    with_act!(act, f => match clamp {
        GateClamp::None => map2::<L>(g, u, out, |g, u| f(g).mul(u)),
        GateClamp::Before(l) => {
            map2::<L>(g, u, out, |g, u| f(L::splat(l).min(g)).mul(bound(u, l)));
        }
        GateClamp::After(l) => {
            map2::<L>(g, u, out, |g, u| L::splat(l).min(f(g)).mul(bound(u, l)));
        }
        GateClamp::BeforePlusOne(l) => {
            map2::<L>(g, u, out, |g, u| f(L::splat(l).min(g)).mul(bound(u, l).add(one)));
        }
        GateClamp::UpTanh(l) => {
            let l = L::splat(l);
            map2::<L>(g, u, out, |g, u| f(g).mul(l.mul(tanh(u.div(l)))));
        }
    });
}

simd_fn! {
    /// `out = act(g) · u`.
    pub(crate) fn gate_run(act: Act, clamp: GateClamp, g: &[f32], u: &[f32], out: &mut [f32]) = gate;
}

#[inline(always)]
fn softcap<L: Lanes>(cap: f32, x: &[f32], out: &mut [f32]) {
    let cap = L::splat(cap);
    map::<L>(x, out, |x| cap.mul(tanh(x.div(cap))));
}

simd_fn! {
    /// `out = cap · tanh(x / cap)`.
    pub(crate) fn softcap_run(cap: f32, x: &[f32], out: &mut [f32]) = softcap;
}
