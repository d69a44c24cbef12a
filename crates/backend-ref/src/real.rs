//! The number type of a run: plain `f32`, or `f64` for the oracle.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// What the kernels need of a number.
pub(crate) trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + 'static
    + From<f32>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;

    /// Rounds to this type.
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn narrow(self) -> f32;
    fn exp(self) -> Self;
    fn exp_m1(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn abs(self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

macro_rules! real {
    ($t:ident, $erf:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $t::INFINITY;

            fn of(x: f64) -> Self {
                x as $t
            }
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn narrow(self) -> f32 {
                self as f32
            }
            fn exp(self) -> Self {
                $t::exp(self)
            }
            fn exp_m1(self) -> Self {
                $t::exp_m1(self)
            }
            fn ln_1p(self) -> Self {
                $t::ln_1p(self)
            }
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn tanh(self) -> Self {
                $t::tanh(self)
            }
            fn erf(self) -> Self {
                $erf(self)
            }
            fn abs(self) -> Self {
                $t::abs(self)
            }
            fn max(self, other: Self) -> Self {
                $t::max(self, other)
            }
            fn min(self, other: Self) -> Self {
                $t::min(self, other)
            }
        }
    };
}

real!(f32, libm::erff);
real!(f64, libm::erf);

const LANES: usize = 16;

/// `Σ x_i w_i` over sixteen lanes and then over the lanes: an order that the length alone decides.
pub(crate) fn dot<R: Real, W: Copy + Into<R>>(x: &[R], w: &[W]) -> R {
    assert_eq!(x.len(), w.len(), "a product of unequal lengths");
    let mut lanes = [R::ZERO; LANES];
    let (xs, x_tail) = x.as_chunks::<LANES>();
    let (ws, w_tail) = w.as_chunks::<LANES>();
    for (a, b) in xs.iter().zip(ws) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i].into();
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(x_tail).zip(w_tail) {
        *lane += a * b.into();
    }
    total(&lanes)
}

/// `Σ x_i`, halves first.
pub(crate) fn total<R: Real>(x: &[R]) -> R {
    match x {
        [] => R::ZERO,
        &[a] => a,
        _ => {
            let (low, high) = x.split_at(x.len() / 2);
            total(low) + total(high)
        }
    }
}

/// `1 / (1 + e^−x)`.
pub(crate) fn sigmoid<R: Real>(x: R) -> R {
    R::ONE / (R::ONE + (-x).exp())
}

/// `ln(1 + e^x)` without overflow.
pub(crate) fn softplus<R: Real>(x: R) -> R {
    x.max(R::ZERO) + (-x.abs()).exp().ln_1p()
}
