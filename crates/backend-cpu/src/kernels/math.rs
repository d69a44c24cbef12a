//! Exponentials and what follows from them, over [`Lanes`].

// Coefficients keep the digits that they were computed with.
#![allow(clippy::excessive_precision)]

use super::lanes::Lanes;

/// Below this `e^x` is no normal number and taken as 0.
const LEAST: f32 = -87.3;

/// `e^x`: 0 below −87.3, infinite above 88.3, relative error below 2e-7 between.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    // In this order of operands a NaN passes through.
    let y = exp_within(L::splat(88.3).min(L::splat(LEAST).max(x)));
    let y = x.pick_less(L::splat(LEAST), L::zero(), y);
    L::splat(88.3).pick_less(x, L::splat(f32::INFINITY), y)
}

/// [`exp`] of numbers that are not positive.
#[inline(always)]
pub(crate) fn exp_to_one<L: Lanes>(x: L) -> L {
    let y = exp_within(L::splat(LEAST).max(x));
    x.pick_less(L::splat(LEAST), L::zero(), y)
}

#[inline(always)]
fn exp_within<L: Lanes>(x: L) -> L {
    let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
    // ln 2 in two parts, the first with few bits, so that n times it is exact.
    let r = n.fma(L::splat(-0.693_359_4), x);
    let r = n.fma(L::splat(2.121_944_4e-4), r);
    let mut p = L::splat(1.0 / 5040.0);
    for c in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = p.fma(r, L::splat(c));
    }
    p.times_pow2(n)
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    L::splat(1.0).div(L::splat(1.0).add(exp(x.neg())))
}

/// `x / (1 + e^−(a·x))`.
#[inline(always)]
pub(crate) fn swish<L: Lanes>(x: L, alpha: f32) -> L {
    x.div(L::splat(1.0).add(exp(x.mul(L::splat(-alpha)))))
}

/// GELU in its tanh form: `x · σ(2·√(2/π)·(x + 0.044715·x³))`.
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(x: L) -> L {
    let square = x.mul(x);
    let inner = square
        .fma(L::splat(0.044_715 * 1.595_769_1), L::splat(1.595_769_1))
        .mul(x);
    x.div(L::splat(1.0).add(exp(inner.neg())))
}

/// Near zero the Taylor-like polynomial keeps the digits that `1 − 2/(e^2x + 1)` loses.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let z = x.mul(x);
    let mut p = L::splat(-5.704_988_7e-3);
    for c in [
        2.063_908_9e-2,
        -5.373_971_6e-2,
        1.333_144_2e-1,
        -3.333_328e-1,
    ] {
        p = p.fma(z, L::splat(c));
    }
    let near = p.mul(z).fma(x, x);
    let e = exp(x.add(x));
    let far = L::splat(1.0).sub(L::splat(2.0).div(e.add(L::splat(1.0))));
    x.abs().pick_less(L::splat(0.625), near, far)
}

/// The error function, within 2e-7 of the true value relative to it.
#[inline(always)]
pub(crate) fn erf<L: Lanes>(x: L) -> L {
    let (t, s) = (x.abs(), x.mul(x));
    let mut near = L::splat(-5.967_617e-4);
    for c in [
        4.991_194_2e-3,
        -2.676_813_5e-2,
        1.128_199_3e-1,
        -3.761_253_4e-1,
        1.283_791_7e-1,
    ] {
        near = near.fma(s, L::splat(c));
    }
    let near = near.fma(x, x);
    let high = L::splat(-1.728_534_7e-5).fma(t, L::splat(3.831_971_3e-4));
    let low = L::splat(-3.883_964_4e-3).fma(t, L::splat(2.425_462_2e-2));
    let mut far = high.fma(s, low);
    for c in [-1.067_778_8e-1, -6.348_466_9e-1, -1.287_175_1e-1] {
        far = far.fma(t, L::splat(c));
    }
    let far = L::splat(1.0).sub(exp(far.fma(t, t.neg())));
    let far = x.pick_less(L::zero(), far.neg(), far);
    t.pick_less(L::splat(0.927), near, far)
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{N, Portable};
    use super::*;

    fn at(f: impl Fn(Portable) -> Portable, x: f32) -> f64 {
        let mut out = [0.0; N];
        f(Portable::splat(x)).store(&mut out);
        f64::from(out[0])
    }

    fn close(f: impl Fn(Portable) -> Portable, want: impl Fn(f64) -> f64, bound: f64) {
        for i in -8000..=8000 {
            let x = i as f32 / 1000.0;
            let (got, want) = (at(&f, x), want(f64::from(x)));
            assert!(
                (got - want).abs() <= bound * want.abs() + 1e-30,
                "{x}: {got} {want}"
            );
        }
    }

    /// Maclaurin's series, good enough in f64 up to 4.
    fn true_erf(x: f64) -> f64 {
        if x.abs() > 4.0 {
            return x.signum();
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn functions_are_close_to_the_true_ones() {
        close(exp, f64::exp, 2e-7);
        close(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 4e-7);
        close(|x| swish(x, 1.0), |x| x / (1.0 + (-x).exp()), 4e-7);
        close(tanh, f64::tanh, 4e-7);
        close(erf, true_erf, 4e-7);
    }

    #[test]
    fn exp_saturates() {
        assert_eq!(at(exp, -100.0), 0.0);
        assert_eq!(at(exp, f32::NEG_INFINITY), 0.0);
        assert_eq!(at(exp, 0.0), 1.0);
        assert_eq!(at(exp, 100.0), f64::INFINITY);
        assert_eq!(at(exp, f32::INFINITY), f64::INFINITY);
    }
}
