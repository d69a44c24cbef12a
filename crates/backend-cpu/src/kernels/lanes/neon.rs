//! Four 128-bit registers, which every 64-bit ARM processor has.
#![allow(unsafe_code)]
// SAFETY (of every block below): NEON belongs to the target; pointers are the callers' promise.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::aarch64::*;

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Neon([float32x4_t; 4]);

macro_rules! each {
    ($i:ident => $value:expr) => {{
        let quarter = |$i: usize| unsafe { $value };
        Neon([quarter(0), quarter(1), quarter(2), quarter(3)])
    }};
}

/// As the vector instructions of other processors: the second operand where the comparison fails.
#[inline(always)]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn pow2(x: float32x4_t) -> float32x4_t {
    unsafe {
        let biased = vaddq_s32(vcvtq_s32_f32(x), vdupq_n_s32(127));
        vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
    }
}

/// Halves are taken together until one lane is left.
#[inline(always)]
fn fold(v: Neon, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> f32 {
    unsafe {
        let v = f(f(v.0[0], v.0[2]), f(v.0[1], v.0[3]));
        let v = f(v, vextq_f32::<2>(v, v));
        let v = f(v, vextq_f32::<1>(v, v));
        vgetq_lane_f32::<0>(v)
    }
}

impl Lanes for Neon {
    const MANY: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Neon([unsafe { vdupq_n_f32(x) }; 4])
    }
    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        each!(i => vld1q_f32(p.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        for (i, v) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), v) };
        }
    }
    #[inline(always)]
    unsafe fn read_half(p: *const u16) -> Self {
        each!(i => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4 * i)))))
    }
    #[inline(always)]
    unsafe fn write_half(self, p: *mut u16) {
        for (i, v) in self.0.into_iter().enumerate() {
            unsafe { vst1_u16(p.add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(v))) };
        }
    }
    #[inline(always)]
    unsafe fn read_i8(p: *const i8) -> Self {
        unsafe {
            let bytes = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Neon([
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ])
        }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        each!(i => vaddq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        each!(i => vsubq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        each!(i => vmulq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        each!(i => vdivq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        each!(i => vfmaq_f32(c.0[i], self.0[i], b.0[i]))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Neon([0, 1, 2, 3].map(|i| larger(self.0[i], b.0[i])))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        Neon([0, 1, 2, 3].map(|i| smaller(self.0[i], b.0[i])))
    }
    #[inline(always)]
    fn round(self) -> Self {
        each!(i => vrndnq_f32(self.0[i]))
    }
    #[inline(always)]
    fn times_pow2(self, n: Self) -> Self {
        self.mul(each!(i => pow2(n.0[i])))
    }
    #[inline(always)]
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self {
        each!(i => vbslq_f32(vcltq_f32(self.0[i], b.0[i]), yes.0[i], no.0[i]))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        fold(self, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        fold(self, larger)
    }
}
