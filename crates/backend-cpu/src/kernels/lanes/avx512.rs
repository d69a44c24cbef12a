//! One 512-bit register. Reached only through `simd_fn!`, after detection.
#![allow(unsafe_code)]
// SAFETY (of every block below): the processor has the AVX-512 sets of its level; pointers are the callers' promise.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use super::{Lanes, N};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

macro_rules! pairwise {
    ($($name:ident = $op:ident;)*) => {
        $(#[inline(always)]
        fn $name(self, b: Self) -> Self {
            unsafe { Avx512($op(self.0, b.0)) }
        })*
    };
}

macro_rules! fold {
    ($v:expr, $wide:ident, $op:ident, $one:ident) => {
        unsafe {
            let v = $wide(
                _mm512_castps512_ps256($v.0),
                _mm512_extractf32x8_ps::<1>($v.0),
            );
            let v = $op(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = $op(v, _mm_movehl_ps(v, v));
            let v = $one(v, _mm_shuffle_ps::<1>(v, v));
            _mm_cvtss_f32(v)
        }
    };
}

#[inline(always)]
unsafe fn unpack_low(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b))
    }
}

#[inline(always)]
unsafe fn unpack_high(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b))
    }
}

impl Lanes for Avx512 {
    const MANY: bool = true;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        unsafe { Avx512(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        unsafe { Avx512(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn read_half(p: *const u16) -> Self {
        unsafe { Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn write_half(self, p: *mut u16) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<0>(self.0)) }
    }
    #[inline(always)]
    unsafe fn read_i8(p: *const i8) -> Self {
        unsafe {
            Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(
                p.cast(),
            ))))
        }
    }
    pairwise! {
        add = _mm512_add_ps;
        sub = _mm512_sub_ps;
        mul = _mm512_mul_ps;
        div = _mm512_div_ps;
        max = _mm512_max_ps;
        min = _mm512_min_ps;
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Avx512(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    fn round(self) -> Self {
        unsafe { Avx512(_mm512_roundscale_ps::<8>(self.0)) }
    }
    #[inline(always)]
    fn times_pow2(self, n: Self) -> Self {
        unsafe { Avx512(_mm512_scalef_ps(self.0, n.0)) }
    }
    #[inline(always)]
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0);
            Avx512(_mm512_mask_blend_ps(less, no.0, yes.0))
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
        let (mut x, mut y) = (rows, rows);
        unsafe {
            for i in (0..N).step_by(2) {
                x[i] = Avx512(_mm512_unpacklo_ps(y[i].0, y[i + 1].0));
                x[i + 1] = Avx512(_mm512_unpackhi_ps(y[i].0, y[i + 1].0));
            }
            // Columns `4·l + j` of rows `4·i..4·i + 4` in part `l` of vector `4·i + j`.
            for i in (0..N).step_by(4) {
                y[i] = Avx512(unpack_low(x[i].0, x[i + 2].0));
                y[i + 1] = Avx512(unpack_high(x[i].0, x[i + 2].0));
                y[i + 2] = Avx512(unpack_low(x[i + 1].0, x[i + 3].0));
                y[i + 3] = Avx512(unpack_high(x[i + 1].0, x[i + 3].0));
            }
            for j in 0..4 {
                let even_low = _mm512_shuffle_f32x4::<0x88>(y[j].0, y[4 + j].0);
                let even_high = _mm512_shuffle_f32x4::<0x88>(y[8 + j].0, y[12 + j].0);
                let odd_low = _mm512_shuffle_f32x4::<0xdd>(y[j].0, y[4 + j].0);
                let odd_high = _mm512_shuffle_f32x4::<0xdd>(y[8 + j].0, y[12 + j].0);
                x[j] = Avx512(_mm512_shuffle_f32x4::<0x88>(even_low, even_high));
                x[4 + j] = Avx512(_mm512_shuffle_f32x4::<0x88>(odd_low, odd_high));
                x[8 + j] = Avx512(_mm512_shuffle_f32x4::<0xdd>(even_low, even_high));
                x[12 + j] = Avx512(_mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high));
            }
        }
        x
    }
}
