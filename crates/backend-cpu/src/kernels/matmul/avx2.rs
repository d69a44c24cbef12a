//! 256-bit vectors: AVX2 with FMA and F16C, and the same with AVX-VNNI.
//!
//! A panel's sixteen rows are two registers. Sixteen registers hold the sums of one to three columns of all rows, or of up to
//! eight columns of eight rows: so there are a set for all rows and one for each half of them.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx512::six_bit_bytes;
use super::simd::{Simd, Task};

/// How eight rows are multiplied.
///
/// # Safety
/// All functions need a processor with the instructions; only [`Dots::vectorize`] may be called from other code.
pub(crate) trait Dots: Copy + 'static {
    /// As [`Simd::Wide`].
    type Wide: Copy;
    /// As [`Simd::WHOLE_COLS`].
    const WHOLE_COLS: usize;
    /// As [`Simd::KEPT_STORED_COLS`].
    const KEPT_STORED_COLS: usize;
    /// As [`Simd::LOOSE_COLS`].
    const LOOSE_COLS: usize;
    /// As [`Simd::BY_COLUMN`].
    const BY_COLUMN: bool;
    /// As [`Simd::WORDS`].
    const WORDS: bool;

    unsafe fn vectorize<T: Task>(task: T);
    unsafe fn narrow_start(sum: __m256i) -> __m256i;
    unsafe fn narrow_dot(n: __m256i, codes: __m256i, b: __m256i) -> __m256i;
    /// `n` is as it was started.
    unsafe fn narrow_first(n: __m256i, codes: __m256i, b: __m256i) -> __m256i;
    unsafe fn narrow_quad<const C: usize>(n: &mut [[__m256i; 1]; C], codes: __m256i, a: *const i8);
    unsafe fn whole_quad<const C: usize>(
        n: &mut [[__m256i; 2]; C],
        codes: [__m256i; 2],
        a: *const i8,
    );
    unsafe fn narrow_end(sum: __m256i, n: __m256i) -> __m256i;
    unsafe fn wide_start(sum: __m256i) -> Self::Wide;
    unsafe fn wide_dot(n: Self::Wide, codes: __m256i, b: __m256i) -> Self::Wide;
    /// `n` is as it was started.
    unsafe fn wide_first(n: Self::Wide, codes: __m256i, b: __m256i) -> Self::Wide;
    unsafe fn wide_quad<const C: usize>(n: &mut [[Self::Wide; 1]; C], codes: __m256i, a: *const i8);
    unsafe fn wide_end(sum: __m256i, n: Self::Wide) -> __m256i;
}

/// Sixteen-bit sums of pairs: at most 32767 for the group lengths that panels declare.
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

/// Four products in one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn with_avxvnni<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

/// Sums of pairs of 16-bit sums.
#[inline(always)]
unsafe fn pair_sums(v: __m256i) -> __m256i {
    // SAFETY: the callers run on a processor with the set.
    unsafe { _mm256_madd_epi16(v, _mm256_set1_epi16(1)) }
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

/// Products with columns whose bytes follow each other, in assembly: compilers regroup the sums of columns so that registers
/// are too few. `$n` are the columns' sums, of one vector of codes or of two.
macro_rules! columns {
    ($n:ident, $codes:ident, $a:ident: $($c:literal $name:ident)+) => {
        std::arch::asm!(
            $(
                concat!("vpbroadcastd {b}, dword ptr [{a} + 4 * ", $c, "]"),
                "vpmaddubsw {b}, {w}, {b}",
                concat!("vpaddw {", stringify!($name), "}, {", stringify!($name), "}, {b}"),
            )+
            a = in(reg) $a, w = in(ymm_reg) $codes, b = out(ymm_reg) _,
            $($name = inout(ymm_reg) $n[$c][0],)+
            options(readonly, nostack, preserves_flags),
        )
    };
    ($n:ident, $v:ident, $w:ident, $a:ident: $($c:literal $first:ident $second:ident)+) => {
        columns!($n, $v, $w, $a, "vpmaddubsw", "vpaddw", 4: $($c $first $second)+)
    };
    ($n:ident, $v:ident, $w:ident, $a:ident, $dot:literal, $add:literal, $bytes:literal: $($c:literal $first:ident $second:ident)+) => {
        std::arch::asm!(
            $(
                concat!("vpbroadcastd {b}, dword ptr [{a} + ", $bytes, " * ", $c, "]"),
                concat!($dot, " {t}, {v}, {b}"),
                concat!($add, " {", stringify!($first), "}, {", stringify!($first), "}, {t}"),
                concat!($dot, " {b}, {w}, {b}"),
                concat!($add, " {", stringify!($second), "}, {", stringify!($second), "}, {b}"),
            )+
            a = in(reg) $a, v = in(ymm_reg) $v, w = in(ymm_reg) $w, b = out(ymm_reg) _, t = out(ymm_reg) _,
            $($first = inout(ymm_reg) $n[$c][0], $second = inout(ymm_reg) $n[$c][1],)+
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

/// Adds the products of a vector of codes with `C` columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns_of_one<const C: usize>(n: &mut [[__m256i; 1]; C], codes: __m256i, a: *const i8) {
    // SAFETY: the caller gives four readable bytes for each column.
    unsafe {
        match C {
            1 => columns!(n, codes, a: 0 n0),
            2 => columns!(n, codes, a: 0 n0 1 n1),
            3 => columns!(n, codes, a: 0 n0 1 n1 2 n2),
            4 => columns!(n, codes, a: 0 n0 1 n1 2 n2 3 n3),
            5 => columns!(n, codes, a: 0 n0 1 n1 2 n2 3 n3 4 n4),
            6 => columns!(n, codes, a: 0 n0 1 n1 2 n2 3 n3 4 n4 5 n5),
            7 => columns!(n, codes, a: 0 n0 1 n1 2 n2 3 n3 4 n4 5 n5 6 n6),
            8 => columns!(n, codes, a: 0 n0 1 n1 2 n2 3 n3 4 n4 5 n5 6 n6 7 n7),
            _ => unreachable!("no pass takes so many columns"),
        }
    }
}

/// The same of two vectors, which share what is read of a column.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns_of_two<const C: usize>(
    n: &mut [[__m256i; 2]; C],
    [v, w]: [__m256i; 2],
    a: *const i8,
) {
    // SAFETY: as above.
    unsafe {
        match C {
            1 => columns!(n, v, w, a: 0 n0 m0),
            2 => columns!(n, v, w, a: 0 n0 m0 1 n1 m1),
            3 => columns!(n, v, w, a: 0 n0 m0 1 n1 m1 2 n2 m2),
            4 => columns!(n, v, w, a: 0 n0 m0 1 n1 m1 2 n2 m2 3 n3 m3),
            _ => unreachable!("no pass takes so many columns"),
        }
    }
}

/// The same of words: pairs of `C` columns, eight bytes from one to the next, with two vectors of pairs.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn columns_of_words<const C: usize>(
    n: &mut [[__m256i; 2]; C],
    [v, w]: [__m256i; 2],
    a: *const i8,
) {
    // SAFETY: as above.
    unsafe {
        match C {
            1 => columns!(n, v, w, a, "vpmaddwd", "vpaddd", 8: 0 n0 m0),
            2 => columns!(n, v, w, a, "vpmaddwd", "vpaddd", 8: 0 n0 m0 1 n1 m1),
            3 => columns!(n, v, w, a, "vpmaddwd", "vpaddd", 8: 0 n0 m0 1 n1 m1 2 n2 m2),
            _ => unreachable!("no pass takes so many columns"),
        }
    }
}

/// The first two or the last two of four codes, less 128, as words.
#[inline]
#[target_feature(enable = "avx2")]
fn words(codes: __m256i, last: bool) -> __m256i {
    let (a, b) = if last { (2, 3) } else { (0, 1) };
    // Bytes become the upper ones of words, which a shift brings down with their sign.
    let upper = _mm256_setr_epi8(
        -1,
        a,
        -1,
        b,
        -1,
        a + 4,
        -1,
        b + 4,
        -1,
        a + 8,
        -1,
        b + 8,
        -1,
        a + 12,
        -1,
        b + 12,
        -1,
        a,
        -1,
        b,
        -1,
        a + 4,
        -1,
        b + 4,
        -1,
        a + 8,
        -1,
        b + 8,
        -1,
        a + 12,
        -1,
        b + 12,
    );
    let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(signed, upper))
}

/// `p`, which compilers do not know before `sum`.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::pointers_in_nomem_asm_block)]
fn known_with<T>(mut p: *const T, sum: __m256i) -> *const T {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(reg) p, in(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags));
    }
    p
}

/// Low and high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(codes: __m256i) -> [__m256i; 2] {
    let nibble = _mm256_set1_epi8(15);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
    [_mm256_and_si256(codes, nibble), high]
}

// SAFETY (of every block below): the traits' contracts give the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Pairs {
    /// Low and high nibbles apart, so that sums of eight-bit codes fit sixteen bits.
    type Wide = [__m256i; 2];
    const WHOLE_COLS: usize = 3;
    const KEPT_STORED_COLS: usize = 1;
    const LOOSE_COLS: usize = 3;
    const BY_COLUMN: bool = true;
    const WORDS: bool = true;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { with_avx2(task) }
    }
    #[inline(always)]
    unsafe fn narrow_start(_: __m256i) -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { add_in_order(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn narrow_first(_: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_maddubs_epi16(codes, b) }
    }
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(n: &mut [[__m256i; 1]; C], codes: __m256i, a: *const i8) {
        unsafe { columns_of_one(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn whole_quad<const C: usize>(
        n: &mut [[__m256i; 2]; C],
        codes: [__m256i; 2],
        a: *const i8,
    ) {
        unsafe { columns_of_two(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: __m256i, n: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(sum, pair_sums(n)) }
    }
    #[inline(always)]
    unsafe fn wide_start(_: __m256i) -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn wide_dot(n: [__m256i; 2], codes: __m256i, b: __m256i) -> [__m256i; 2] {
        unsafe {
            let [low, high] = nibbles(codes);
            [add_in_order(n[0], low, b), add_in_order(n[1], high, b)]
        }
    }
    #[inline(always)]
    unsafe fn wide_first(_: [__m256i; 2], codes: __m256i, b: __m256i) -> [__m256i; 2] {
        unsafe {
            let [low, high] = nibbles(codes);
            [_mm256_maddubs_epi16(low, b), _mm256_maddubs_epi16(high, b)]
        }
    }
    #[inline(always)]
    unsafe fn wide_quad<const C: usize>(
        n: &mut [[[__m256i; 2]; 1]; C],
        codes: __m256i,
        a: *const i8,
    ) {
        unsafe {
            // The sums of each column's nibbles, without the array around them.
            let n = &mut *n.as_mut_ptr().cast::<[[__m256i; 2]; C]>();
            columns_of_two(n, nibbles(codes), a);
        }
    }
    #[inline(always)]
    unsafe fn wide_end(sum: __m256i, n: [__m256i; 2]) -> __m256i {
        unsafe {
            let high = _mm256_slli_epi32::<4>(pair_sums(n[1]));
            _mm256_add_epi32(sum, _mm256_add_epi32(pair_sums(n[0]), high))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Vnni {
    type Wide = __m256i;
    const WHOLE_COLS: usize = 1;
    const KEPT_STORED_COLS: usize = 4;
    const LOOSE_COLS: usize = 4;
    const BY_COLUMN: bool = false;
    const WORDS: bool = false;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { with_avxvnni(task) }
    }
    #[inline(always)]
    unsafe fn narrow_start(sum: __m256i) -> __m256i {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn narrow_first(n: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { Self::narrow_dot(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(n: &mut [[__m256i; 1]; C], codes: __m256i, a: *const i8) {
        for (c, n) in n.iter_mut().enumerate() {
            unsafe { n[0] = Self::narrow_dot(n[0], codes, splat_quad(a.add(4 * c))) };
        }
    }
    #[inline(always)]
    unsafe fn whole_quad<const C: usize>(
        n: &mut [[__m256i; 2]; C],
        codes: [__m256i; 2],
        a: *const i8,
    ) {
        for (c, n) in n.iter_mut().enumerate() {
            unsafe {
                let b = splat_quad(a.add(4 * c));
                *n = [
                    Self::narrow_dot(n[0], codes[0], b),
                    Self::narrow_dot(n[1], codes[1], b),
                ];
            }
        }
    }
    #[inline(always)]
    unsafe fn narrow_end(_: __m256i, n: __m256i) -> __m256i {
        n
    }
    #[inline(always)]
    unsafe fn wide_start(sum: __m256i) -> __m256i {
        sum
    }
    #[inline(always)]
    unsafe fn wide_dot(n: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn wide_first(n: __m256i, codes: __m256i, b: __m256i) -> __m256i {
        unsafe { Self::wide_dot(n, codes, b) }
    }
    #[inline(always)]
    unsafe fn wide_quad<const C: usize>(n: &mut [[__m256i; 1]; C], codes: __m256i, a: *const i8) {
        unsafe { Self::narrow_quad(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn wide_end(_: __m256i, n: __m256i) -> __m256i {
        n
    }
}

#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> __m256i {
    // SAFETY: the caller gives four readable bytes and a processor with the set.
    unsafe { _mm256_set1_epi32(a.cast::<i32>().read_unaligned()) }
}

/// Eight bytes as floats.
#[inline(always)]
unsafe fn widen(bytes: __m128i) -> __m256 {
    // SAFETY: the callers run on a processor with the set.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

/// Half `half` of sixteen bytes.
#[inline(always)]
unsafe fn eight(bytes: __m128i, half: usize) -> __m128i {
    // SAFETY: the callers run on a processor with the set.
    unsafe {
        if half == 0 {
            bytes
        } else {
            _mm_unpackhi_epi64(bytes, bytes)
        }
    }
}

/// A set: its name, the sets for halves, most columns of all rows, and which halves are which vectors of a value.
/// Expressions are repeated for each vector: `array::map` would not always be inlined, and calls between vector code
/// and plain code are slow.
macro_rules! set {
    ($(#[$doc:meta])* $name:ident, $low:ident, $high:ident, $whole:expr, $n:literal: $($v:literal = $h:literal),+ $(; $($more:tt)+)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name<D>(PhantomData<D>);

        #[allow(clippy::undocumented_unsafe_blocks)]
        impl<D: Dots> Simd for $name<D> {
            type Codes = [__m256i; $n];
            type Ints = [__m256i; $n];
            type Floats = [__m256; $n];
            type Narrow = [__m256i; $n];
            type Wide = [D::Wide; $n];
            type Low = $low<D>;
            type High = $high<D>;

            const WHOLE_COLS: usize = $whole;
            const WHOLE_GROUPED_COLS: usize = if $n == 2 { 1 } else { 12 };
            const STREAM_COLS: usize = 8;
            const KEPT_COLS: usize = 4;
            const KEPT_STORED_COLS: usize = D::KEPT_STORED_COLS;
            const LOOSE_COLS: usize = D::LOOSE_COLS;
            const GROUPED_COLS: usize = 4;
            const PAIR_COLS: usize = 4;
            const BY_COLUMN: bool = D::BY_COLUMN;
            const WIDE_COLS: usize = 4;
            const FLOAT_COLS: usize = 6;
            const WORDS: bool = D::WORDS;

            $($($more)+)?

            #[inline(always)]
            unsafe fn vectorize<T: Task>(task: T) {
                unsafe { D::vectorize(task) }
            }
            #[inline(always)]
            unsafe fn later<T, N>(p: *const T, sum: &N) -> *const T {
                unsafe { known_with(p, std::ptr::from_ref(sum).cast::<__m256i>().read()) }
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
            unsafe fn codes(p: *const u8) -> Self::Codes {
                unsafe { [$(_mm256_loadu_si256(p.add(32 * $h).cast())),+] }
            }
            #[inline(always)]
            unsafe fn store_codes(p: *mut u8, v: Self::Codes) {
                unsafe { $(_mm256_storeu_si256(p.add(32 * $h).cast(), v[$v]);)+ }
            }
            #[inline(always)]
            unsafe fn mask(v: Self::Codes, byte: u8) -> Self::Codes {
                unsafe { [$(_mm256_and_si256(v[$v], _mm256_set1_epi8(byte as i8))),+] }
            }
            #[inline(always)]
            unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes {
                unsafe { [$(_mm256_or_si256(a[$v], b[$v])),+] }
            }
            #[inline(always)]
            unsafe fn shr(v: Self::Codes, bits: u32) -> Self::Codes {
                unsafe { [$(_mm256_srl_epi16(v[$v], _mm_cvtsi32_si128(bits as i32))),+] }
            }
            #[inline(always)]
            unsafe fn shl(v: Self::Codes, bits: u32) -> Self::Codes {
                unsafe { [$(_mm256_sll_epi16(v[$v], _mm_cvtsi32_si128(bits as i32))),+] }
            }
            #[inline(always)]
            unsafe fn lookup(v: Self::Codes, table: &[u8; 16]) -> Self::Codes {
                unsafe {
                    let table = _mm_loadu_si128(table.as_ptr().cast());
                    let table = _mm256_broadcastsi128_si256(table);
                    [$(_mm256_shuffle_epi8(table, v[$v])),+]
                }
            }

            #[inline(always)]
            unsafe fn splat_int(p: *const i32) -> Self::Ints {
                unsafe { [_mm256_set1_epi32(*p); $n] }
            }
            #[inline(always)]
            unsafe fn floats_of(v: Self::Ints) -> Self::Floats {
                unsafe { [$(_mm256_cvtepi32_ps(v[$v])),+] }
            }
            #[inline(always)]
            unsafe fn float_bits(v: Self::Ints) -> Self::Floats {
                unsafe { [$(_mm256_castsi256_ps(v[$v])),+] }
            }

            #[inline(always)]
            unsafe fn narrow_start(sum: Self::Ints) -> Self::Narrow {
                unsafe { [$(D::narrow_start(sum[$v])),+] }
            }
            #[inline(always)]
            unsafe fn narrow_dot(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow {
                unsafe {
                    let b = splat_quad(a);
                    [$(D::narrow_dot(n[$v], codes[$v], b)),+]
                }
            }
            #[inline(always)]
            unsafe fn narrow_first(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow {
                unsafe {
                    let b = splat_quad(a);
                    [$(D::narrow_first(n[$v], codes[$v], b)),+]
                }
            }
            #[inline(always)]
            unsafe fn narrow_end(sum: Self::Ints, n: Self::Narrow) -> Self::Ints {
                unsafe { [$(D::narrow_end(sum[$v], n[$v])),+] }
            }
            #[inline(always)]
            unsafe fn wide_start(sum: Self::Ints) -> Self::Wide {
                unsafe { [$(D::wide_start(sum[$v])),+] }
            }
            #[inline(always)]
            unsafe fn wide_dot(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide {
                unsafe {
                    let b = splat_quad(a);
                    [$(D::wide_dot(n[$v], codes[$v], b)),+]
                }
            }
            #[inline(always)]
            unsafe fn wide_first(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide {
                unsafe {
                    let b = splat_quad(a);
                    [$(D::wide_first(n[$v], codes[$v], b)),+]
                }
            }
            #[inline(always)]
            unsafe fn wide_end(sum: Self::Ints, n: Self::Wide) -> Self::Ints {
                unsafe { [$(D::wide_end(sum[$v], n[$v])),+] }
            }

            #[inline(always)]
            unsafe fn zero() -> Self::Floats {
                unsafe { [_mm256_setzero_ps(); $n] }
            }
            #[inline(always)]
            unsafe fn splat(p: *const f32) -> Self::Floats {
                unsafe { [_mm256_set1_ps(*p); $n] }
            }
            #[inline(always)]
            unsafe fn floats(p: *const f32) -> Self::Floats {
                unsafe { [$(_mm256_loadu_ps(p.add(8 * $h))),+] }
            }
            #[inline(always)]
            unsafe fn store(p: *mut f32, v: Self::Floats) {
                unsafe { $(_mm256_storeu_ps(p.add(8 * $h), v[$v]);)+ }
            }
            #[inline(always)]
            unsafe fn halves(p: *const u8) -> Self::Floats {
                unsafe { [$(_mm256_cvtph_ps(_mm_loadu_si128(p.add(16 * $h).cast()))),+] }
            }
            #[inline(always)]
            unsafe fn bfloat_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
                unsafe {
                    let pairs = Self::codes(p);
                    let top = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                    (
                        [$(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[$v]))),+],
                        [$(_mm256_castsi256_ps(_mm256_and_si256(pairs[$v], top))),+],
                    )
                }
            }
            #[inline(always)]
            unsafe fn exponents(p: *const u8) -> Self::Floats {
                unsafe { [$(exponents(p.add(8 * $h))),+] }
            }
            #[inline(always)]
            unsafe fn signed_bytes(p: *const u8) -> Self::Floats {
                unsafe {
                    [$(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * $h).cast())))),+]
                }
            }
            #[inline(always)]
            unsafe fn nibble_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
                unsafe {
                    let v = _mm_loadu_si128(p.cast());
                    let nibble = _mm_set1_epi8(15);
                    let low = _mm_and_si128(v, nibble);
                    let high = _mm_and_si128(_mm_srli_epi16::<4>(v), nibble);
                    ([$(widen(eight(low, $h))),+], [$(widen(eight(high, $h))),+])
                }
            }
            #[inline(always)]
            unsafe fn six_bit_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
                unsafe {
                    let (a, b) = six_bit_bytes(p);
                    ([$(widen(eight(a, $h))),+], [$(widen(eight(b, $h))),+])
                }
            }
            #[inline(always)]
            unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
                unsafe { [$(_mm256_add_ps(a[$v], b[$v])),+] }
            }
            #[inline(always)]
            unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
                unsafe { [$(_mm256_mul_ps(a[$v], b[$v])),+] }
            }
            #[inline(always)]
            unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
                unsafe { [$(_mm256_fmadd_ps(a[$v], b[$v], c[$v])),+] }
            }
            #[inline(always)]
            unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
                unsafe { [$(_mm256_fnmadd_ps(a[$v], b[$v], c[$v])),+] }
            }
        }
    };
}

/// Eight E8M0 exponents.
#[inline(always)]
unsafe fn exponents(p: *const u8) -> __m256 {
    // SAFETY: the caller gives eight bytes and a processor with the set.
    unsafe {
        let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x20_0000), e);
        let is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny))
    }
}

set! {
    /// All rows.
    Ymm, Low, High, D::WHOLE_COLS, 2: 0 = 0, 1 = 1;
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(n: &mut [Self::Narrow; C], codes: Self::Codes, a: *const i8) {
        unsafe { D::whole_quad(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn store_words(p: *mut u8, v: Self::Codes) {
        for (i, &codes) in v.iter().enumerate() {
            unsafe {
                _mm256_storeu_si256(p.add(32 * i).cast(), words(codes, false));
                _mm256_storeu_si256(p.add(32 * i + 64).cast(), words(codes, true));
            }
        }
    }
    #[inline(always)]
    unsafe fn word_quad<const C: usize>(n: &mut [Self::Ints; C], p: *const u8, a: *const i8) {
        unsafe {
            columns_of_words(n, Self::codes(p), a);
            columns_of_words(n, Self::codes(p.add(64)), a.add(4));
        }
    }
}
/// Eight of the rows, in half `$h` of their bytes.
macro_rules! half {
    ($(#[$doc:meta])* $name:ident, $h:literal) => {
        set! {
            $(#[$doc])*
            $name, $name, $name, 12, 1: 0 = $h;
            #[inline(always)]
            unsafe fn narrow_quad<const C: usize>(n: &mut [Self::Narrow; C], codes: Self::Codes, a: *const i8) {
                unsafe { D::narrow_quad(n, codes[0], a) }
            }
            #[inline(always)]
            unsafe fn wide_quad<const C: usize>(n: &mut [Self::Wide; C], codes: Self::Codes, a: *const i8) {
                unsafe { D::wide_quad(n, codes[0], a) }
            }
        }
    };
}
half! {
    /// The first eight rows.
    Low, 0
}
half! {
    /// The last eight rows.
    High, 1
}

pub(crate) type Avx2 = Ymm<Pairs>;
pub(crate) type AvxVnni = Ymm<Vnni>;
