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

/// The expression for both halves of a panel. `array::map` would not always be inlined, and calls
/// between vector code and plain code are slow.
macro_rules! both {
    ($i:ident => $value:expr) => {
        [
            {
                const $i: usize = 0;
                $value
            },
            {
                const $i: usize = 1;
                $value
            },
        ]
    };
}

#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> __m256i {
    // SAFETY: the caller gives four readable bytes and a processor with the set.
    unsafe { _mm256_set1_epi32(a.cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn widen(bytes: __m128i) -> Two<__m256> {
    // SAFETY: the callers run on a processor with the set.
    unsafe {
        let parts = [bytes, _mm_unpackhi_epi64(bytes, bytes)];
        both!(I => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(parts[I])))
    }
}

/// Sums of pairs of 16-bit sums.
#[inline(always)]
unsafe fn pair_sums(v: Two<__m256i>) -> Two<__m256i> {
    // SAFETY: the callers run on a processor with the set.
    unsafe { both!(I => _mm256_madd_epi16(v[I], _mm256_set1_epi16(1))) }
}

/// `sum + products`. The empty assembly keeps the compiler from regrouping long chains of sums,
/// which needs more registers than there are.
#[inline]
#[target_feature(enable = "avx2")]
fn add_in_order(sum: __m256i, codes: __m256i, b: __m256i) -> __m256i {
    let mut sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, b));
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

#[inline(always)]
unsafe fn narrow_add(n: Two<__m256i>, codes: Two<__m256i>, b: __m256i) -> Two<__m256i> {
    // SAFETY: the callers run on a processor with the set.
    unsafe { both!(I => add_in_order(n[I], codes[I], b)) }
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
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        unsafe { both!(I => _mm256_loadu_si256(p.add(32 * I).cast())) }
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
        unsafe { both!(I => _mm256_and_si256(v[I], _mm256_set1_epi8(byte as i8))) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes {
        unsafe { both!(I => _mm256_or_si256(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn shr(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { both!(I => _mm256_srl_epi16(v[I], _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn shl(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { both!(I => _mm256_sll_epi16(v[I], _mm_cvtsi32_si128(bits as i32))) }
    }
    #[inline(always)]
    unsafe fn lookup(v: Self::Codes, table: &[u8; 16]) -> Self::Codes {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both!(I => _mm256_shuffle_epi8(table, v[I]))
        }
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> Self::Ints {
        unsafe { [_mm256_set1_epi32(*p); 2] }
    }
    #[inline(always)]
    unsafe fn floats_of(v: Self::Ints) -> Self::Floats {
        unsafe { both!(I => _mm256_cvtepi32_ps(v[I])) }
    }
    #[inline(always)]
    unsafe fn float_bits(v: Self::Ints) -> Self::Floats {
        unsafe { both!(I => _mm256_castsi256_ps(v[I])) }
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
            both!(I => _mm256_add_epi32(sum[I], pairs[I]))
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
            both!(I => {
                let high = _mm256_slli_epi32::<4>(high[I]);
                _mm256_add_epi32(sum[I], _mm256_add_epi32(low[I], high))
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
        unsafe { both!(I => _mm256_loadu_ps(p.add(8 * I))) }
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
        unsafe { both!(I => _mm256_cvtph_ps(_mm_loadu_si128(p.add(16 * I).cast()))) }
    }
    #[inline(always)]
    unsafe fn bfloat_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let pairs = Self::codes(p);
            let top = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let even = both!(I => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[I])));
            (
                even,
                both!(I => _mm256_castsi256_ps(_mm256_and_si256(pairs[I], top))),
            )
        }
    }
    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> Self::Floats {
        unsafe {
            both!(I => {
                let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * I).cast()));
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
            both!(I => {
                let eight = _mm_loadl_epi64(p.add(8 * I).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))
            })
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
        unsafe { both!(I => _mm256_add_ps(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { both!(I => _mm256_mul_ps(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { both!(I => _mm256_fmadd_ps(a[I], b[I], c[I])) }
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { both!(I => _mm256_fnmadd_ps(a[I], b[I], c[I])) }
    }
}
