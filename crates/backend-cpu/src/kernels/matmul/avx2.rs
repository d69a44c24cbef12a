//! AVX2 with FMA and F16C: a panel's sixteen rows are two registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::avx512::six_bit_bytes;
use super::simd::{Simd, Task};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enabled<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

type Two<V> = [V; 2];

#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> __m256i {
    // SAFETY: the caller gives four readable bytes and a processor with the set.
    unsafe { _mm256_set1_epi32(a.cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn widen(bytes: __m128i) -> Two<__m256> {
    // SAFETY: the callers run on a processor with the set.
    unsafe {
        let high = _mm_unpackhi_epi64(bytes, bytes);
        [bytes, high].map(|b| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)))
    }
}

/// Sums of pairs of 16-bit sums.
#[inline(always)]
unsafe fn pair_sums(v: Two<__m256i>) -> Two<__m256i> {
    // SAFETY: the callers run on a processor with the set.
    unsafe { v.map(|h| _mm256_madd_epi16(h, _mm256_set1_epi16(1))) }
}

#[inline(always)]
unsafe fn narrow_add(n: Two<__m256i>, codes: Two<__m256i>, b: __m256i) -> Two<__m256i> {
    // SAFETY: the callers run on a processor with the set.
    unsafe { [0, 1].map(|i| _mm256_add_epi16(n[i], _mm256_maddubs_epi16(codes[i], b))) }
}

// SAFETY (of every block below): the trait's contract gives the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type Codes = Two<__m256i>;
    type Ints = Two<__m256i>;
    type Floats = Two<__m256>;
    /// Sixteen-bit sums of pairs: at most 32767 for the group lengths the panels declare.
    type Narrow = Two<__m256i>;
    /// Low and high nibbles apart, so that sums of eight-bit codes fit sixteen bits.
    type Wide = Two<Two<__m256i>>;

    const STREAM_COLS: usize = 3;
    const LOOSE_COLS: usize = 3;
    const WIDE_COLS: usize = 2;
    const FLOAT_COLS: usize = 6;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { enabled(task) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        unsafe { [0, 32].map(|at| _mm256_loadu_si256(p.add(at).cast())) }
    }
    #[inline(always)]
    unsafe fn store_codes(p: *mut u8, v: Self::Codes) {
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(32).cast(), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn mask(v: Self::Codes, byte: u8) -> Self::Codes {
        unsafe { v.map(|h| _mm256_and_si256(h, _mm256_set1_epi8(byte as i8))) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes {
        unsafe { [0, 1].map(|i| _mm256_or_si256(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn shr(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { v.map(|h| _mm256_srl_epi16(h, _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn shl(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { v.map(|h| _mm256_sll_epi16(h, _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn lookup(v: Self::Codes, table: &[u8; 16]) -> Self::Codes {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            v.map(|h| _mm256_shuffle_epi8(table, h))
        }
    }

    #[inline(always)]
    unsafe fn zero_ints() -> Self::Ints {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> Self::Ints {
        unsafe { [_mm256_set1_epi32(*p); 2] }
    }
    #[inline(always)]
    unsafe fn floats_of(v: Self::Ints) -> Self::Floats {
        unsafe { v.map(|h| _mm256_cvtepi32_ps(h)) }
    }

    #[inline(always)]
    unsafe fn narrow_start(_: Self::Ints) -> Self::Narrow {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow {
        unsafe { narrow_add(n, codes, splat_quad(a)) }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: Self::Ints, n: Self::Narrow) -> Self::Ints {
        unsafe {
            let pairs = pair_sums(n);
            [0, 1].map(|i| _mm256_add_epi32(sum[i], pairs[i]))
        }
    }
    #[inline(always)]
    unsafe fn wide_start(_: Self::Ints) -> Self::Wide {
        unsafe { [[_mm256_setzero_si256(); 2]; 2] }
    }
    #[inline(always)]
    unsafe fn wide_dot(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide {
        unsafe {
            let b = splat_quad(a);
            let low = narrow_add(n[0], Self::mask(codes, 15), b);
            [
                low,
                narrow_add(n[1], Self::mask(Self::shr(codes, 4), 15), b),
            ]
        }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: Self::Ints, n: Self::Wide) -> Self::Ints {
        unsafe {
            let (low, high) = (pair_sums(n[0]), pair_sums(n[1]));
            [0, 1].map(|i| {
                let high = _mm256_slli_epi32::<4>(high[i]);
                _mm256_add_epi32(sum[i], _mm256_add_epi32(low[i], high))
            })
        }
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Floats {
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> Self::Floats {
        unsafe { [_mm256_set1_ps(*p); 2] }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> Self::Floats {
        unsafe { [0, 8].map(|at| _mm256_loadu_ps(p.add(at))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::Floats) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> Self::Floats {
        unsafe { [0, 16].map(|at| _mm256_cvtph_ps(_mm_loadu_si128(p.add(at).cast()))) }
    }
    #[inline(always)]
    unsafe fn bfloat_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let pairs = Self::codes(p);
            let top = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let even = pairs.map(|h| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(h)));
            (
                even,
                pairs.map(|h| _mm256_castsi256_ps(_mm256_and_si256(h, top))),
            )
        }
    }
    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> Self::Floats {
        unsafe {
            [0, 8].map(|at| {
                let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x20_0000), e);
                let is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
                _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny))
            })
        }
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> Self::Floats {
        unsafe {
            let wide = |at| _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(at).cast()));
            [0, 8].map(|at| _mm256_cvtepi32_ps(wide(at)))
        }
    }
    #[inline(always)]
    unsafe fn nibble_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            let low = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(v), low);
            (widen(_mm_and_si128(v, low)), widen(high))
        }
    }
    #[inline(always)]
    unsafe fn six_bit_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let (a, b) = six_bit_bytes(p);
            (widen(a), widen(b))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { [0, 1].map(|i| _mm256_add_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { [0, 1].map(|i| _mm256_mul_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { [0, 1].map(|i| _mm256_fmadd_ps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { [0, 1].map(|i| _mm256_fnmadd_ps(a[i], b[i], c[i])) }
    }
}
