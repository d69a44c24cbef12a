//! Plain Rust, any processor.
#![allow(unsafe_code)]

use std::array::from_fn;

use tokkata_quant::num::{f16_to_f32, f32_to_f16};

use super::{Lanes, N};

#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; N]);

#[inline(always)]
fn zip(a: Portable, b: Portable, f: impl Fn(f32, f32) -> f32) -> Portable {
    Portable(from_fn(|i| f(a.0[i], b.0[i])))
}

#[inline(always)]
fn fold(mut x: [f32; N], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            x[i] = f(x[i], x[i + half]);
        }
    }
    x[0]
}

/// As the vector instructions: the second operand where the comparison fails.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

impl Lanes for Portable {
    const MANY: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; N])
    }
    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { p.cast::<[f32; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn read_half(p: *const u16) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(f16_to_f32))
    }
    #[inline(always)]
    unsafe fn write_half(self, p: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u16; N]>().write_unaligned(self.0.map(f32_to_f16)) }
    }
    #[inline(always)]
    unsafe fn read_i8(p: *const i8) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { p.cast::<[i8; N]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        zip(self, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        zip(self, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        zip(self, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        zip(self, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Portable(from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        zip(self, b, larger)
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        zip(self, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self) -> Self {
        Portable(self.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    fn times_pow2(self, n: Self) -> Self {
        zip(self, n, |x, n| {
            x * f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)
        })
    }
    #[inline(always)]
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self {
        Portable(from_fn(|i| {
            if self.0[i] < b.0[i] {
                yes.0[i]
            } else {
                no.0[i]
            }
        }))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        fold(self.0, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        fold(self.0, larger)
    }
}
