//! Activations and gates, elementwise.

use tokkata_ir::Act;
use tokkata_ir::op::GateClamp;

use super::Kernel;
use super::lanes::{Lanes, N, in_place, map, map2, simd_fn, with};
use super::math::{erf, exp, gelu, sigmoid, swish, tanh};

/// Activations without vector form.
fn scalar(act: Act, x: f32) -> f32 {
    match act {
        Act::Softplus => softplus(x),
        Act::Xielu {
            alpha_n,
            alpha_p,
            beta,
            eps,
        } => {
            let curve = if x > 0.0 {
                alpha_p * x * x
            } else {
                (x.min(eps).exp_m1() - x) * alpha_n
            };
            curve + beta * x
        }
        Act::SignedSqrt { .. } if x == 0.0 => 0.0,
        Act::SignedSqrt { eps } => x.abs().max(eps).sqrt().copysign(x),
        _ => x,
    }
}

/// `ln(1 + e^x)` without overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[inline(always)]
fn gelu_erf<L: Lanes>(x: L) -> L {
    let half = L::splat(0.5).mul(x);
    half.mul(L::splat(1.0).add(erf(x.mul(L::splat(std::f32::consts::FRAC_1_SQRT_2)))))
}

#[inline(always)]
fn relu<L: Lanes>(x: L) -> L {
    L::zero().max(x)
}

#[inline(always)]
fn situ<L: Lanes>(x: L, beta: f32) -> L {
    L::splat(beta)
        .mul(tanh(x.div(L::splat(beta))))
        .mul(sigmoid(x))
}

#[inline(always)]
fn activate<L: Lanes>(act: Act, x: &mut [f32]) {
    match act {
        Act::Identity => {}
        Act::Silu => in_place!(L, x, |x| swish(x, 1.0)),
        Act::Gelu => in_place!(L, x, |x| gelu(x)),
        Act::GeluErf => in_place!(L, x, |x| gelu_erf(x)),
        Act::GeluQuick => in_place!(L, x, |x| swish(x, 1.702)),
        Act::Swish { alpha } => in_place!(L, x, |x| swish(x, alpha)),
        Act::Relu => in_place!(L, x, |x| relu(x)),
        Act::Relu2 => in_place!(L, x, |x| relu(x).mul(relu(x))),
        Act::Sigmoid => in_place!(L, x, |x| sigmoid(x)),
        Act::Tanh => in_place!(L, x, |x| tanh(x)),
        Act::Exp => in_place!(L, x, |x| exp(x)),
        Act::NegExp => in_place!(L, x, |x| exp(x).neg()),
        Act::Situ { beta } => in_place!(L, x, |x| situ(x, beta)),
        Act::Softplus | Act::Xielu { .. } | Act::SignedSqrt { .. } => {
            x.iter_mut().for_each(|x| *x = scalar(act, *x));
        }
    }
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
    map2!(L, g, u, out, |g, u| swish(g, alpha).mul(u));
}

simd_fn! {
    /// `out = g · σ(alpha · g) · u`.
    fn swiglu_run(alpha: f32, g: &[f32], u: &[f32], out: &mut [f32]) = swiglu;
}

#[inline(always)]
fn geglu<L: Lanes>(g: &[f32], u: &[f32], out: &mut [f32]) {
    map2!(L, g, u, out, |g, u| gelu(g).mul(u));
}

simd_fn! {
    /// `out = gelu(g) · u`.
    fn geglu_run(g: &[f32], u: &[f32], out: &mut [f32]) = geglu;
}

#[inline(always)]
fn limit<L: Lanes>(limit: f32, g: &[f32], out: &mut [f32]) {
    map!(L, g, out, |g| L::splat(limit).min(g));
}

simd_fn! {
    /// `out = min(g, limit)`.
    fn limit_run(most: f32, g: &[f32], out: &mut [f32]) = limit;
}

#[inline(always)]
fn times_up<L: Lanes>(clamp: GateClamp, u: &[f32], out: &mut [f32]) {
    let one = L::splat(1.0);
    match clamp {
        GateClamp::None => with!(L, out, u, |g, u| g.mul(u)),
        GateClamp::Before(l) => with!(L, out, u, |g, u| g.mul(bound(u, l))),
        GateClamp::After(l) => with!(L, out, u, |g, u| L::splat(l).min(g).mul(bound(u, l))),
        GateClamp::BeforePlusOne(l) => with!(L, out, u, |g, u| g.mul(bound(u, l).add(one))),
        GateClamp::UpTanh(l) => {
            let l = L::splat(l);
            with!(L, out, u, |g, u| g.mul(l.mul(tanh(u.div(l)))));
        }
    }
}

simd_fn! {
    /// `out = out · u`, clamped.
    fn times_up_run(clamp: GateClamp, u: &[f32], out: &mut [f32]) = times_up;
}

/// `out = act(g) · u`, clamped.
pub(crate) fn gate_run(
    set: Kernel,
    (act, clamp): (Act, GateClamp),
    g: &[f32],
    u: &[f32],
    out: &mut [f32],
) {
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
    map!(L, x, out, |x| cap.mul(tanh(x.div(cap))));
}

simd_fn! {
    /// `out = cap · tanh(x / cap)`.
    pub(crate) fn softcap_run(cap: f32, x: &[f32], out: &mut [f32]) = softcap;
}
