//! Lanes as two AVX registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::{Job, LANES, Lanes};

/// Proof that this machine has AVX2.
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub(super) fn run(&self, job: impl Job) {
        // SAFETY: `self` exists only where the machine has AVX2.
        unsafe { enter(job) }
    }
}

#[target_feature(enable = "avx2")]
fn enter(job: impl Job) {
    job.run::<Pair>();
}

/// Lanes 0 to 7 and 8 to 15. Made only inside [`enter`], hence every intrinsic below may run.
#[derive(Clone, Copy)]
struct Pair(__m256, __m256);

impl Pair {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(__m256, __m256) -> __m256) -> Self {
        Self(f(self.0, other.0), f(self.1, other.1))
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $intrinsic:ident) => {
        impl $trait for Pair {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: see `Pair`.
                self.zip(other, |a, b| unsafe { $intrinsic(a, b) })
            }
        }
    };
}

operator!(Add, add, _mm256_add_ps);
operator!(Sub, sub, _mm256_sub_ps);
operator!(Mul, mul, _mm256_mul_ps);
operator!(Div, div, _mm256_div_ps);

impl Lanes for Pair {
    type Mask = Self;

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: see `Pair`; both loads are inside the array and need no alignment.
        unsafe {
            Self(
                _mm256_loadu_ps(values.as_ptr()),
                _mm256_loadu_ps(values[8..].as_ptr()),
            )
        }
    }

    #[inline(always)]
    fn from_bytes(values: &[u8; LANES]) -> Self {
        // SAFETY: see `Pair`; the load is the whole array and needs no alignment.
        unsafe {
            let bytes = _mm_loadu_si128(values.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: see `Pair`; both stores are inside the array and need no alignment.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), self.0);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), self.1);
        }
        out
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see `Pair`.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: see `Pair`.
        self.zip(Self::splat(-0.0), |a, sign| unsafe {
            _mm256_andnot_ps(sign, a)
        })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: see `Pair`.
        unsafe { Self(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see `Pair`.
        self.zip(other, |a, b| unsafe { _mm256_min_ps(a, b) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see `Pair`.
        self.zip(other, |a, b| unsafe { _mm256_max_ps(a, b) })
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Self {
        // SAFETY: see `Pair`.
        self.zip(other, |a, b| unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) })
    }

    #[inline(always)]
    fn both(a: Self, b: Self) -> Self {
        // SAFETY: see `Pair`.
        a.zip(b, |a, b| unsafe { _mm256_and_ps(a, b) })
    }

    #[inline(always)]
    fn any(mask: Self) -> bool {
        // SAFETY: see `Pair`.
        unsafe { _mm256_movemask_ps(_mm256_or_ps(mask.0, mask.1)) != 0 }
    }

    #[inline(always)]
    fn pick(mask: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see `Pair`.
        unsafe {
            Self(
                _mm256_blendv_ps(no.0, yes.0, mask.0),
                _mm256_blendv_ps(no.1, yes.1, mask.1),
            )
        }
    }
}
