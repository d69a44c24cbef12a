//! Two 256-bit registers. Reached only through `simd_fn!`, after detection.
#![allow(unsafe_code)]
// SAFETY (of every block below): the processor has AVX2, FMA and F16C; pointers are the callers' promise.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Lanes, N};

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

#[inline]
#[target_feature(enable = "avx2,fma")]
fn plus(mut sum: __m256, a: __m256, b: __m256) -> __m256 {
    unsafe {
        asm!(
            "vfmadd231ps {0}, {1}, {2}",
            inout(ymm_reg) sum, in(ymm_reg) a, in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
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

/// Columns of eight rows of eight.
#[inline(always)]
unsafe fn turn(x: [__m256; 8]) -> [__m256; 8] {
    unsafe {
        let (a, b) = (
            _mm256_unpacklo_ps(x[0], x[1]),
            _mm256_unpackhi_ps(x[0], x[1]),
        );
        let (c, d) = (
            _mm256_unpacklo_ps(x[2], x[3]),
            _mm256_unpackhi_ps(x[2], x[3]),
        );
        let (e, f) = (
            _mm256_unpacklo_ps(x[4], x[5]),
            _mm256_unpackhi_ps(x[4], x[5]),
        );
        let (g, h) = (
            _mm256_unpacklo_ps(x[6], x[7]),
            _mm256_unpackhi_ps(x[6], x[7]),
        );
        // Columns `j` and `j + 4` of four rows each.
        let top = [
            _mm256_shuffle_ps::<0x44>(a, c),
            _mm256_shuffle_ps::<0xee>(a, c),
            _mm256_shuffle_ps::<0x44>(b, d),
            _mm256_shuffle_ps::<0xee>(b, d),
        ];
        let bottom = [
            _mm256_shuffle_ps::<0x44>(e, g),
            _mm256_shuffle_ps::<0xee>(e, g),
            _mm256_shuffle_ps::<0x44>(f, h),
            _mm256_shuffle_ps::<0xee>(f, h),
        ];
        [
            _mm256_permute2f128_ps::<0x20>(top[0], bottom[0]),
            _mm256_permute2f128_ps::<0x20>(top[1], bottom[1]),
            _mm256_permute2f128_ps::<0x20>(top[2], bottom[2]),
            _mm256_permute2f128_ps::<0x20>(top[3], bottom[3]),
            _mm256_permute2f128_ps::<0x31>(top[0], bottom[0]),
            _mm256_permute2f128_ps::<0x31>(top[1], bottom[1]),
            _mm256_permute2f128_ps::<0x31>(top[2], bottom[2]),
            _mm256_permute2f128_ps::<0x31>(top[3], bottom[3]),
        ]
    }
}

/// Eight of the halves of vectors.
macro_rules! eight {
    ($x:expr, $first:literal, $half:tt) => {
        [
            $x[$first].$half,
            $x[$first + 1].$half,
            $x[$first + 2].$half,
            $x[$first + 3].$half,
            $x[$first + 4].$half,
            $x[$first + 5].$half,
            $x[$first + 6].$half,
            $x[$first + 7].$half,
        ]
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
    fn plus(self, a: Self, b: Self) -> Self {
        unsafe { Avx2(plus(self.0, a.0, b.0), plus(self.1, a.1, b.1)) }
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
    #[inline(always)]
    fn transpose(rows: [Self; N]) -> [Self; N] {
        let mut out = rows;
        unsafe {
            let (a, b) = (turn(eight!(rows, 0, 0)), turn(eight!(rows, 8, 0)));
            let (c, d) = (turn(eight!(rows, 0, 1)), turn(eight!(rows, 8, 1)));
            for i in 0..8 {
                out[i] = Avx2(a[i], b[i]);
                out[i + 8] = Avx2(c[i], d[i]);
            }
        }
        out
    }
}
