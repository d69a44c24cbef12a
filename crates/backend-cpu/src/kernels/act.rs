//! Activations and gates, elementwise.

use tokkata_ir::Act;
use tokkata_ir::op::GateClamp;

use super::Kernel;
use super::lanes::{Lanes, N, map, map2, simd_fn};
use super::math::{erf, exp, gelu, sigmoid, swish, tanh};
use super::norm::in_place;

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
fn activate<L: Lanes>(act: Act, x: &mut [f32]) {
    with_act!(act, f => in_place::<L>(x, f));
}

simd_fn! {
    /// `x = act(x)`.
    pub(crate) fn act_run(act: Act, x: &mut [f32]) = activate;
}

#[inline(always)]
fn bound<L: Lanes>(x: L, limit: f32) -> L {
    L::splat(limit).min(L::splat(-limit).max(x))
}

#[inline(always)]
fn swiglu<L: Lanes>(alpha: f32, g: &[f32], u: &[f32], out: &mut [f32]) {
    map2::<L>(g, u, out, |g, u| swish(g, alpha).mul(u));
}

simd_fn! {
    /// `out = g · σ(alpha · g) · u`.
    fn swiglu_run(alpha: f32, g: &[f32], u: &[f32], out: &mut [f32]) = swiglu;
}

#[inline(always)]
fn geglu<L: Lanes>(g: &[f32], u: &[f32], out: &mut [f32]) {
    map2::<L>(g, u, out, |g, u| gelu(g).mul(u));
}

simd_fn! {
    /// `out = gelu(g) · u`.
    fn geglu_run(g: &[f32], u: &[f32], out: &mut [f32]) = geglu;
}

#[inline(always)]
fn limit<L: Lanes>(limit: f32, g: &[f32], out: &mut [f32]) {
    map::<L>(g, out, |g| L::splat(limit).min(g));
}

simd_fn! {
    /// `out = min(g, limit)`.
    fn limit_run(most: f32, g: &[f32], out: &mut [f32]) = limit;
}

#[inline(always)]
fn times_up<L: Lanes>(clamp: GateClamp, u: &[f32], out: &mut [f32]) {
    let one = L::splat(1.0);
    for (o, u) in out.chunks_mut(N).zip(u.chunks(N)) {
        let (g, u) = (L::load_part(o, 0.0), L::load_part(u, 0.0));
        let product = match clamp {
            GateClamp::None => g.mul(u),
            GateClamp::Before(l) => g.mul(bound(u, l)),
            GateClamp::After(l) => L::splat(l).min(g).mul(bound(u, l)),
            GateClamp::BeforePlusOne(l) => g.mul(bound(u, l).add(one)),
            GateClamp::UpTanh(l) => g.mul(L::splat(l).mul(tanh(u.div(L::splat(l))))),
        };
        product.store_part(o);
    }
}

simd_fn! {
    /// `out = out · u`, clamped.
    fn times_up_run(clamp: GateClamp, u: &[f32], out: &mut [f32]) = times_up;
}

/// `out = act(g) · u`, clamped.
pub(crate) fn gate_run(set: Kernel, (act, clamp): (Act, GateClamp), g: &[f32], u: &[f32], out: &mut [f32]) {
    match (act, clamp) {
        (Act::Silu, GateClamp::None) => return swiglu_run(set, 1.0, g, u, out),
        (Act::Swish { alpha }, GateClamp::None) => return swiglu_run(set, alpha, g, u, out),
        (Act::Gelu, GateClamp::None) => return geglu_run(set, g, u, out),
        (_, GateClamp::Before(l) | GateClamp::BeforePlusOne(l)) => limit_run(set, l, g, out),
        _ => out.copy_from_slice(g),
    }
    act_run(set, act, out);
    times_up_run(set, clamp, u, out);
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
