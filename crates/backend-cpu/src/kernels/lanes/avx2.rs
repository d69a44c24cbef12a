//! Two 256-bit registers. Reached only through `simd_fn!`, after detection.
#![allow(unsafe_code)]
// SAFETY (of every block below): the processor has AVX2, FMA and F16C; pointers are the callers' promise.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

macro_rules! pairwise {
    ($($name:ident = $op:ident;)*) => {
        $(#[inline(always)]
        fn $name(self, b: Self) -> Self {
            unsafe { Avx2($op(self.0, b.0), $op(self.1, b.1)) }
        })*
    };
}

#[inline(always)]
unsafe fn pow2(x: __m256) -> __m256 {
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvttps_epi32(x), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

macro_rules! fold {
    ($v:expr, $wide:ident, $op:ident, $one:ident) => {
        unsafe {
            let v = $wide($v.0, $v.1);
            let v = $op(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = $op(v, _mm_movehl_ps(v, v));
            let v = $one(v, _mm_shuffle_ps::<1>(v, v));
            _mm_cvtss_f32(v)
        }
    };
}

impl Lanes for Avx2 {
    const MANY: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        let v = unsafe { _mm256_set1_ps(x) };
        Avx2(v, v)
    }
    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn read_half(p: *const u16) -> Self {
        unsafe {
            Avx2(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn write_half(self, p: *mut u16) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<0>(self.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<0>(self.1));
        }
    }
    #[inline(always)]
    unsafe fn read_i8(p: *const i8) -> Self {
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            Avx2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    pairwise! {
        add = _mm256_add_ps;
        sub = _mm256_sub_ps;
        mul = _mm256_mul_ps;
        div = _mm256_div_ps;
        max = _mm256_max_ps;
        min = _mm256_min_ps;
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        unsafe {
            Avx2(
                _mm256_fmadd_ps(self.0, b.0, c.0),
                _mm256_fmadd_ps(self.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    fn round(self) -> Self {
        unsafe { Avx2(_mm256_round_ps::<8>(self.0), _mm256_round_ps::<8>(self.1)) }
    }
    #[inline(always)]
    fn times_pow2(self, n: Self) -> Self {
        self.mul(unsafe { Avx2(pow2(n.0), pow2(n.1)) })
    }
    #[inline(always)]
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, b.1);
            Avx2(
                _mm256_blendv_ps(no.0, yes.0, low),
                _mm256_blendv_ps(no.1, yes.1, high),
            )
        }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        fold!(self, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        fold!(self, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
    }
}
