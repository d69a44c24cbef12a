//! AVX-512, with VNNI or without: a panel's sixteen rows are one register.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::simd::{Simd, Task};

/// How sixteen rows are multiplied.
///
/// # Safety
/// All functions need a processor with the instructions; only [`Dots::vectorize`] may be called from other code.
pub(crate) trait Dots: Copy + 'static {
    /// As [`Simd::Wide`].
    type Wide: Copy;
    /// As [`Simd::WIDE_STREAM_COLS`].
    const WIDE_STREAM_COLS: usize;
    /// As [`Simd::LOOSE_COLS`].
    const LOOSE_COLS: usize;
    /// As [`Simd::WIDE_COLS`].
    const WIDE_COLS: usize;

    unsafe fn vectorize<T: Task>(task: T);
    unsafe fn narrow_start(sum: __m512i) -> __m512i;
    unsafe fn narrow_dot(n: __m512i, codes: __m512i, b: __m512i) -> __m512i;
    unsafe fn narrow_end(sum: __m512i, n: __m512i) -> __m512i;
    unsafe fn wide_start(sum: __m512i) -> Self::Wide;
    unsafe fn wide_dot(n: Self::Wide, codes: __m512i, b: __m512i) -> Self::Wide;
    unsafe fn wide_end(sum: __m512i, n: Self::Wide) -> __m512i;
}

/// Sixteen-bit sums of pairs, as in `avx2`.
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

/// Four products in one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

#[derive(Clone, Copy)]
pub(crate) struct Zmm<D>(PhantomData<D>);

pub(crate) type Avx512 = Zmm<Vnni>;
pub(crate) type Avx512Bw = Zmm<Pairs>;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn with_avx512<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn with_avx512bw<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

/// The same bytes in each 32-bit lane.
#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> __m512i {
    // SAFETY: the caller gives four readable bytes and a processor with the set.
    unsafe { _mm512_set1_epi32(a.cast::<i32>().read_unaligned()) }
}

/// Sums of pairs of 16-bit sums.
#[inline(always)]
unsafe fn pair_sums(v: __m512i) -> __m512i {
    // SAFETY: the callers run on a processor with the set.
    unsafe { _mm512_madd_epi16(v, _mm512_set1_epi16(1)) }
}

/// `sum + products`, in the order of the calls: regrouped sums would need more registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_in_order(sum: __m512i, codes: __m512i, b: __m512i) -> __m512i {
    let mut sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, b));
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(zmm_reg) sum, options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

// SAFETY (of every block below): the traits' contracts give the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Vnni {
    type Wide = __m512i;
    const WIDE_STREAM_COLS: usize = 12;
    const LOOSE_COLS: usize = 12;
    const WIDE_COLS: usize = 12;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { with_avx512(task) }
    }
    #[inline(always)]
    unsafe fn narrow_start(sum: __m512i) -> __m512i {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m512i, codes: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(n, codes, b) }
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
    unsafe fn wide_dot(n: __m512i, codes: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn wide_end(_: __m512i, n: __m512i) -> __m512i {
        n
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Pairs {
    /// Low and high nibbles apart, so that sums of eight-bit codes fit sixteen bits.
    type Wide = [__m512i; 2];
    const WIDE_STREAM_COLS: usize = 4;
    const LOOSE_COLS: usize = 6;
    const WIDE_COLS: usize = 6;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { with_avx512bw(task) }
    }
    #[inline(always)]
    unsafe fn narrow_start(_: __m512i) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m512i, codes: __m512i, b: __m512i) -> __m512i {
        unsafe { add_in_order(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: __m512i, n: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(sum, pair_sums(n)) }
    }
    #[inline(always)]
    unsafe fn wide_start(_: __m512i) -> [__m512i; 2] {
        unsafe { [_mm512_setzero_si512(); 2] }
    }
    #[inline(always)]
    unsafe fn wide_dot(n: [__m512i; 2], codes: __m512i, b: __m512i) -> [__m512i; 2] {
        unsafe {
            let low = _mm512_set1_epi8(15);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
            [
                add_in_order(n[0], _mm512_and_si512(codes, low), b),
                add_in_order(n[1], high, b),
            ]
        }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: __m512i, n: [__m512i; 2]) -> __m512i {
        unsafe {
            let high = _mm512_slli_epi32::<4>(pair_sums(n[1]));
            _mm512_add_epi32(sum, _mm512_add_epi32(pair_sums(n[0]), high))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> Simd for Zmm<D> {
    type Codes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Narrow = __m512i;
    type Wide = D::Wide;
    type Low = Self;
    type High = Self;

    const WHOLE_COLS: usize = 12;
    const STREAM_COLS: usize = 4;
    const WIDE_STREAM_COLS: usize = D::WIDE_STREAM_COLS;
    const LOOSE_COLS: usize = D::LOOSE_COLS;
    const PAIR_COLS: usize = 6;
    const WIDE_COLS: usize = D::WIDE_COLS;
    const FLOAT_COLS: usize = 12;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { D::vectorize(task) }
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
    unsafe fn prefetch_first(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_second(p: *const u8) {
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
        unsafe { D::narrow_start(sum) }
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        unsafe { D::narrow_dot(n, codes, splat_quad(a)) }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: __m512i, n: __m512i) -> __m512i {
        unsafe { D::narrow_end(sum, n) }
    }
    #[inline(always)]
    unsafe fn wide_start(sum: __m512i) -> D::Wide {
        unsafe { D::wide_start(sum) }
    }
    #[inline(always)]
    unsafe fn wide_dot(n: D::Wide, codes: __m512i, a: *const i8) -> D::Wide {
        unsafe { D::wide_dot(n, codes, splat_quad(a)) }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: __m512i, n: D::Wide) -> __m512i {
        unsafe { D::wide_end(sum, n) }
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
