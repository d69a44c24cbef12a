//! AVX-512 with VNNI: a panel's sixteen rows are one register.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::simd::{Simd, Task};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn enabled<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

/// The same bytes in each 32-bit lane.
#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> __m512i {
    // SAFETY: the caller gives four readable bytes and a processor with the set.
    unsafe { _mm512_set1_epi32(a.cast::<i32>().read_unaligned()) }
}

// SAFETY (of every block below): the trait's contract gives the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type Codes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Narrow = __m512i;
    type Wide = __m512i;

    const STREAM_COLS: usize = 4;
    const LOOSE_COLS: usize = 12;
    const WIDE_COLS: usize = 12;
    const FLOAT_COLS: usize = 12;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { enabled(task) }
    }
    /// An operation on sums and memory is one until it is issued, but two if the address is the sum of two registers.
    /// Compilers share a counter among all addresses; the empty assembly hides that they move together.
    #[inline(always)]
    #[allow(clippy::pointers_in_nomem_asm_block)]
    fn step<T>(p: *const T, n: usize) -> *const T {
        let mut p = p.wrapping_add(n);
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
        }
        p
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn codes(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_codes(p: *mut u8, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn mask(v: __m512i, byte: u8) -> __m512i {
        unsafe { _mm512_and_si512(v, _mm512_set1_epi8(byte as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(v: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(v: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_sll_epi16(v, _mm_cvtsi32_si128(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn lookup(v: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, v)
        }
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> __m512i {
        unsafe { _mm512_set1_epi32(*p) }
    }
    #[inline(always)]
    unsafe fn floats_of(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn float_bits(v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }

    #[inline(always)]
    unsafe fn narrow_start(sum: __m512i) -> __m512i {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(n, codes, splat_quad(a)) }
    }
    #[inline(always)]
    unsafe fn narrow_end(_: __m512i, n: __m512i) -> __m512i {
        n
    }
    #[inline(always)]
    unsafe fn wide_start(sum: __m512i) -> __m512i {
        sum
    }
    #[inline(always)]
    unsafe fn wide_dot(n: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(n, codes, splat_quad(a)) }
    }
    #[inline(always)]
    unsafe fn wide_end(_: __m512i, n: __m512i) -> __m512i {
        n
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> __m512 {
        unsafe { _mm512_set1_ps(*p) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bfloat_pairs(p: *const u8) -> (__m512, __m512) {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(odd),
            )
        }
    }
    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> __m512 {
        unsafe {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x20_0000), e);
            let is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny))
        }
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn nibble_pairs(p: *const u8) -> (__m512, __m512) {
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            let low = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(v), low);
            (widen(_mm_and_si128(v, low)), widen(high))
        }
    }
    #[inline(always)]
    unsafe fn six_bit_pairs(p: *const u8) -> (__m512, __m512) {
        unsafe {
            let (a, b) = six_bit_bytes(p);
            (widen(a), widen(b))
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
}

#[inline(always)]
unsafe fn widen(bytes: __m128i) -> __m512 {
    // SAFETY: the callers run on a processor with the set.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)) }
}

/// The two numbers of each row as bytes, from the form of [`Simd::six_bit_pairs`].
#[inline(always)]
pub(super) unsafe fn six_bit_bytes(p: *const u8) -> (__m128i, __m128i) {
    // SAFETY: the caller gives 24 readable bytes and a processor with AVX2.
    unsafe {
        let low = _mm_loadu_si128(p.cast());
        let packed = _mm_loadl_epi64(p.add(16).cast());
        let high = _mm_unpacklo_epi8(packed, _mm_srli_epi16::<4>(packed));
        let nibble = _mm_set1_epi8(15);
        let first = _mm_and_si128(_mm_slli_epi16::<4>(high), _mm_set1_epi8(0x30));
        let second = _mm_and_si128(_mm_slli_epi16::<2>(high), _mm_set1_epi8(0x30));
        let above = _mm_and_si128(_mm_srli_epi16::<4>(low), nibble);
        (
            _mm_or_si128(_mm_and_si128(low, nibble), first),
            _mm_or_si128(above, second),
        )
    }
}
