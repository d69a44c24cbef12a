//! NEON on 64-bit ARM: a panel's sixteen rows are four registers.
//!
//! Products come in three ways: sums of 16 bits for any processor, `sdot` for those with dot products, and for those with
//! 8-bit matrix instructions `usdot` where rows are few, `smmla` and `usmmla` where they are many. None of these has a stable
//! function, so they are written as assembly.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::simd::{Simd, Task};

/// The expression for each quarter of a panel. Closures would be compiled without the instructions of the set.
macro_rules! quarters {
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
            {
                const $i: usize = 2;
                $value
            },
            {
                const $i: usize = 3;
                $value
            },
        ]
    };
}

/// How four rows are multiplied. Wide codes less 128 are signed bytes.
///
/// # Safety
/// All functions need a processor with the instructions; only [`Dots::vectorize`] may be called from other code.
pub(crate) trait Dots: Copy + 'static {
    /// Running sum of four rows.
    type Sum: Copy;
    /// As [`Simd::STREAM_COLS`].
    const STREAM_COLS: usize;
    /// As [`Simd::MATRIX`].
    const MATRIX: bool;

    unsafe fn vectorize<T: Task>(task: T);
    unsafe fn start(sum: int32x4_t) -> Self::Sum;
    unsafe fn narrow(n: Self::Sum, codes: uint8x16_t, b: int8x16_t) -> Self::Sum;
    unsafe fn narrow_end(sum: int32x4_t, n: Self::Sum) -> int32x4_t;
    /// Adds the products of a quad with up to four columns, whose bytes follow each other.
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(
        n: &mut [[Self::Sum; 4]; C],
        codes: [uint8x16_t; 4],
        a: *const i8,
    ) {
        for (c, n) in n.iter_mut().enumerate() {
            // SAFETY: the caller gives four readable bytes for each column.
            unsafe {
                let b = splat_quad(a.add(4 * c));
                *n = quarters!(I => Self::narrow(n[I], codes[I], b));
            }
        }
    }
    /// Running sum of products of eight-bit codes.
    type Wide: Copy;
    unsafe fn wide_start(sum: int32x4_t) -> Self::Wide;
    unsafe fn wide(n: Self::Wide, codes: int8x16_t, b: int8x16_t) -> Self::Wide;
    unsafe fn wide_end(n: Self::Wide) -> int32x4_t;
    /// As [`Dots::narrow_quad`].
    #[inline(always)]
    unsafe fn wide_quad<const C: usize>(
        n: &mut [[Self::Wide; 4]; C],
        codes: [int8x16_t; 4],
        a: *const i8,
    ) {
        for (c, n) in n.iter_mut().enumerate() {
            // SAFETY: the caller gives four readable bytes for each column.
            unsafe {
                let b = splat_quad(a.add(4 * c));
                *n = quarters!(I => Self::wide(n[I], codes[I], b));
            }
        }
    }
}

/// Sixteen-bit sums: no larger than those of pairs, for which panels declare the lengths of groups.
#[derive(Clone, Copy)]
pub(crate) struct Halves;

/// Four signed products in one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Signed;

/// Four products of unsigned and signed bytes in one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Mixed;

#[target_feature(enable = "neon")]
unsafe fn with_neon<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn with_dotprod<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn with_i8mm<T: Task>(task: T) {
    // SAFETY: the caller answers for the task.
    unsafe { task.run() }
}

/// Functions of one instruction: `sum` plus products of `a` and `b`.
macro_rules! instructions {
    ($($name:ident($a:ty, $b:ty): $code:literal;)*) => {$(
        #[inline(always)]
        unsafe fn $name(mut sum: int32x4_t, a: $a, b: $b) -> int32x4_t {
            // SAFETY: the callers run on a processor with the instruction.
            unsafe {
                asm!(
                    $code,
                    inout(vreg) sum, in(vreg) a, in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    )*};
}

instructions! {
    sdot(int8x16_t, int8x16_t): "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b";
    usdot(uint8x16_t, int8x16_t): "usdot {0:v}.4s, {1:v}.16b, {2:v}.16b";
    smmla(int8x16_t, int8x16_t): "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b";
    usmmla(uint8x16_t, int8x16_t): "usmmla {0:v}.4s, {1:v}.16b, {2:v}.16b";
}

/// Two quads of all rows, signed where they are `WIDE`, with two quads of two columns.
#[inline(always)]
unsafe fn two_columns<const WIDE: bool>(
    sums: &mut [[int32x4_t; 4]; 4],
    pair: *const u8,
    columns: int8x16_t,
) {
    // SAFETY: the callers run on a processor with the instructions.
    unsafe {
        macro_rules! half {
            ($half:literal) => {
                let rows = quarters!(I => vld1q_u8(pair.add(64 * $half + 16 * I)));
                sums[$half] = quarters!(I => if WIDE {
                    smmla(sums[$half][I], vreinterpretq_s8_u8(rows[I]), columns)
                } else {
                    usmmla(sums[$half][I], rows[I], columns)
                });
            };
        }
        half!(0);
        half!(1);
    }
}

/// The same of four columns, which take most registers: compilers would read rows too early for the sums to have theirs.
#[inline(always)]
unsafe fn four_columns<const WIDE: bool>(
    sums: &mut [[int32x4_t; 4]; 4],
    pair: *const u8,
    columns: [int8x16_t; 2],
) {
    let [
        [mut a0, mut a1, mut a2, mut a3],
        [mut b0, mut b1, mut b2, mut b3],
        [mut c0, mut c1, mut c2, mut c3],
        [mut d0, mut d1, mut d2, mut d3],
    ] = *sums;
    macro_rules! dots {
        ($dot:literal) => {
            asm!(
                "ldp {r0:q}, {r1:q}, [{pair}]",
                "ldp {r2:q}, {r3:q}, [{pair}, #32]",
                concat!($dot, " {a0:v}.4s, {r0:v}.16b, {x:v}.16b"),
                concat!($dot, " {c0:v}.4s, {r0:v}.16b, {y:v}.16b"),
                concat!($dot, " {a1:v}.4s, {r1:v}.16b, {x:v}.16b"),
                concat!($dot, " {c1:v}.4s, {r1:v}.16b, {y:v}.16b"),
                "ldp {r0:q}, {r1:q}, [{pair}, #64]",
                concat!($dot, " {a2:v}.4s, {r2:v}.16b, {x:v}.16b"),
                concat!($dot, " {c2:v}.4s, {r2:v}.16b, {y:v}.16b"),
                concat!($dot, " {a3:v}.4s, {r3:v}.16b, {x:v}.16b"),
                concat!($dot, " {c3:v}.4s, {r3:v}.16b, {y:v}.16b"),
                "ldp {r2:q}, {r3:q}, [{pair}, #96]",
                concat!($dot, " {b0:v}.4s, {r0:v}.16b, {x:v}.16b"),
                concat!($dot, " {d0:v}.4s, {r0:v}.16b, {y:v}.16b"),
                concat!($dot, " {b1:v}.4s, {r1:v}.16b, {x:v}.16b"),
                concat!($dot, " {d1:v}.4s, {r1:v}.16b, {y:v}.16b"),
                concat!($dot, " {b2:v}.4s, {r2:v}.16b, {x:v}.16b"),
                concat!($dot, " {d2:v}.4s, {r2:v}.16b, {y:v}.16b"),
                concat!($dot, " {b3:v}.4s, {r3:v}.16b, {x:v}.16b"),
                concat!($dot, " {d3:v}.4s, {r3:v}.16b, {y:v}.16b"),
                pair = in(reg) pair, x = in(vreg) columns[0], y = in(vreg) columns[1],
                r0 = out(vreg) _, r1 = out(vreg) _, r2 = out(vreg) _, r3 = out(vreg) _,
                a0 = inout(vreg) a0, a1 = inout(vreg) a1, a2 = inout(vreg) a2, a3 = inout(vreg) a3,
                b0 = inout(vreg) b0, b1 = inout(vreg) b1, b2 = inout(vreg) b2, b3 = inout(vreg) b3,
                c0 = inout(vreg) c0, c1 = inout(vreg) c1, c2 = inout(vreg) c2, c3 = inout(vreg) c3,
                d0 = inout(vreg) d0, d1 = inout(vreg) d1, d2 = inout(vreg) d2, d3 = inout(vreg) d3,
                options(pure, readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: the callers run on a processor with the instructions, and 128 bytes of codes can be read.
    unsafe {
        if WIDE {
            dots!("smmla");
        } else {
            dots!("usmmla");
        }
    }
    *sums = [
        [a0, a1, a2, a3],
        [b0, b1, b2, b3],
        [c0, c1, c2, c3],
        [d0, d1, d2, d3],
    ];
}

/// As [`instructions`], with one quad of `b` that is chosen by its number.
macro_rules! by_quad {
    ($($name:ident($a:ty): $code:literal;)*) => {$(
        #[inline(always)]
        unsafe fn $name<const QUAD: i32>(mut sum: int32x4_t, a: $a, b: int8x16_t) -> int32x4_t {
            // SAFETY: the callers run on a processor with the instruction.
            unsafe {
                asm!(
                    $code,
                    inout(vreg) sum, in(vreg) a, in(vreg) b, quad = const QUAD,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    )*};
}

by_quad! {
    sdot_quad(int8x16_t): "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{quad}]";
    usdot_quad(uint8x16_t): "usdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{quad}]";
}

/// The quads of up to four columns, and whatever behind them.
#[inline(always)]
unsafe fn quads<const C: usize>(a: *const i8) -> int8x16_t {
    // SAFETY: the caller gives four readable bytes for each column.
    unsafe {
        match C {
            1 => splat_quad(a),
            2 => vcombine_s8(vld1_s8(a), vdup_n_s8(0)),
            3 => vcombine_s8(vld1_s8(a), vget_low_s8(splat_quad(a.add(8)))),
            _ => vld1q_s8(a),
        }
    }
}

/// Adds to each column of `$n` the products of `$codes` with its quad of `$b`.
macro_rules! each_column {
    ($n:ident, $codes:ident, $b:ident, $dot:ident) => {
        each_column!($n, $codes, $b, $dot: 0 1 2 3)
    };
    ($n:ident, $codes:ident, $b:ident, $dot:ident: $($c:literal)+) => {$(
        if let Some(n) = $n.get_mut($c) {
            *n = quarters!(I => $dot::<$c>(n[I], $codes[I], $b));
        }
    )+};
}

// SAFETY (of every block below): the traits' contracts give the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Halves {
    /// Products of the first two rows and of the last two.
    type Sum = [int16x8_t; 2];
    /// Sums of pairs of products, so too.
    type Wide = (int32x4_t, [int32x4_t; 2]);
    const STREAM_COLS: usize = 1;
    const MATRIX: bool = false;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { with_neon(task) }
    }
    #[inline(always)]
    unsafe fn start(_: int32x4_t) -> [int16x8_t; 2] {
        unsafe { [vdupq_n_s16(0); 2] }
    }
    #[inline(always)]
    unsafe fn narrow(n: [int16x8_t; 2], codes: uint8x16_t, b: int8x16_t) -> [int16x8_t; 2] {
        unsafe {
            let codes = vreinterpretq_s8_u8(codes);
            [
                vmlal_s8(n[0], vget_low_s8(codes), vget_low_s8(b)),
                vmlal_high_s8(n[1], codes, b),
            ]
        }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: int32x4_t, n: [int16x8_t; 2]) -> int32x4_t {
        unsafe { vpadalq_s16(sum, vpaddq_s16(n[0], n[1])) }
    }
    #[inline(always)]
    unsafe fn wide_start(sum: int32x4_t) -> Self::Wide {
        unsafe { (sum, [vdupq_n_s32(0); 2]) }
    }
    #[inline(always)]
    unsafe fn wide((sum, n): Self::Wide, codes: int8x16_t, b: int8x16_t) -> Self::Wide {
        unsafe {
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(b));
            let high = vmull_high_s8(codes, b);
            (sum, [vpadalq_s16(n[0], low), vpadalq_s16(n[1], high)])
        }
    }
    #[inline(always)]
    unsafe fn wide_end((sum, n): Self::Wide) -> int32x4_t {
        unsafe { vaddq_s32(sum, vpaddq_s32(n[0], n[1])) }
    }
}

macro_rules! whole_dots {
    ($name:ident, $vectorize:ident, $matrix:literal, $quad:ident, |$codes:ident| $signs:expr, $dot:ident) => {
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Dots for $name {
            type Sum = int32x4_t;
            type Wide = int32x4_t;
            const STREAM_COLS: usize = 2;
            const MATRIX: bool = $matrix;

            #[inline(always)]
            unsafe fn vectorize<T: Task>(task: T) {
                unsafe { $vectorize(task) }
            }
            #[inline(always)]
            unsafe fn start(sum: int32x4_t) -> int32x4_t {
                sum
            }
            #[inline(always)]
            unsafe fn narrow(n: int32x4_t, $codes: uint8x16_t, b: int8x16_t) -> int32x4_t {
                unsafe { $dot(n, $signs, b) }
            }
            #[inline(always)]
            unsafe fn narrow_quad<const C: usize>(
                n: &mut [[int32x4_t; 4]; C],
                codes: [uint8x16_t; 4],
                a: *const i8,
            ) {
                unsafe {
                    let b = quads::<C>(a);
                    let codes = quarters!(I => {
                        let $codes = codes[I];
                        $signs
                    });
                    each_column!(n, codes, b, $quad);
                }
            }
            #[inline(always)]
            unsafe fn narrow_end(_: int32x4_t, n: int32x4_t) -> int32x4_t {
                n
            }
            #[inline(always)]
            unsafe fn wide_start(sum: int32x4_t) -> int32x4_t {
                sum
            }
            #[inline(always)]
            unsafe fn wide(n: int32x4_t, codes: int8x16_t, b: int8x16_t) -> int32x4_t {
                unsafe { sdot(n, codes, b) }
            }
            #[inline(always)]
            unsafe fn wide_end(n: int32x4_t) -> int32x4_t {
                n
            }
            #[inline(always)]
            unsafe fn wide_quad<const C: usize>(
                n: &mut [[int32x4_t; 4]; C],
                codes: [int8x16_t; 4],
                a: *const i8,
            ) {
                unsafe {
                    let b = quads::<C>(a);
                    each_column!(n, codes, b, sdot_quad);
                }
            }
        }
    };
}

whole_dots!(
    Signed,
    with_dotprod,
    false,
    sdot_quad,
    |codes| vreinterpretq_s8_u8(codes),
    sdot
);
whole_dots!(Mixed, with_i8mm, true, usdot_quad, |codes| codes, usdot);

#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> int8x16_t {
    // SAFETY: the caller gives four readable bytes.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned())) }
}

#[inline(always)]
unsafe fn less_128(codes: [uint8x16_t; 4]) -> [int8x16_t; 4] {
    // SAFETY: touches no memory.
    unsafe {
        let top = vdupq_n_u8(0x80);
        quarters!(I => vreinterpretq_s8_u8(veorq_u8(codes[I], top)))
    }
}

/// Sixteen bytes as numbers of 32 bits.
#[inline(always)]
unsafe fn widen_ints(bytes: uint8x16_t) -> [uint32x4_t; 4] {
    // SAFETY: touches no memory.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_high_u16(low),
            vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high),
        ]
    }
}

#[inline(always)]
unsafe fn widen(bytes: uint8x16_t) -> [float32x4_t; 4] {
    // SAFETY: touches no memory.
    unsafe {
        let ints = widen_ints(bytes);
        quarters!(I => vcvtq_f32_u32(ints[I]))
    }
}

/// Four registers of rows and a way to multiply.
#[derive(Clone, Copy)]
pub(crate) struct Quarters<D>(PhantomData<D>);

pub(crate) type Neon = Quarters<Halves>;
pub(crate) type Dotprod = Quarters<Signed>;
pub(crate) type I8mm = Quarters<Mixed>;

#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> Simd for Quarters<D> {
    type Codes = [uint8x16_t; 4];
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    type Narrow = [D::Sum; 4];
    type Wide = [D::Wide; 4];
    type Low = Self;
    type High = Self;

    const WHOLE_COLS: usize = 12;
    const STREAM_COLS: usize = D::STREAM_COLS;
    const KEPT_COLS: usize = 2;
    const LOOSE_COLS: usize = if D::MATRIX { 4 } else { 2 };
    const PAIR_COLS: usize = 2;
    const WIDE_COLS: usize = D::STREAM_COLS;
    const FLOAT_COLS: usize = 4;
    const SIGNED_WIDE: bool = true;
    const MATRIX: bool = D::MATRIX;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { D::vectorize(task) }
    }
    #[inline(always)]
    unsafe fn later<T, N>(mut p: *const T, sum: &N) -> *const T {
        unsafe {
            let sum = std::ptr::from_ref(sum).cast::<int32x4_t>().read();
            asm!(
                "/* {0} {1:v} */",
                inout(reg) p, in(vreg) sum,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        p
    }
    #[inline(always)]
    unsafe fn prefetch_first(p: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly))
        }
    }
    #[inline(always)]
    unsafe fn prefetch_second(p: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly))
        }
    }

    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        unsafe { quarters!(I => vld1q_u8(p.add(16 * I))) }
    }
    #[inline(always)]
    unsafe fn store_codes(p: *mut u8, v: Self::Codes) {
        unsafe { quarters!(I => vst1q_u8(p.add(16 * I), v[I])) };
    }
    #[inline(always)]
    unsafe fn mask(v: Self::Codes, byte: u8) -> Self::Codes {
        unsafe { quarters!(I => vandq_u8(v[I], vdupq_n_u8(byte))) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes {
        unsafe { quarters!(I => vorrq_u8(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn shr(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { quarters!(I => vshlq_u8(v[I], vdupq_n_s8(-(bits as i8)))) }
    }
    #[inline(always)]
    unsafe fn shl(v: Self::Codes, bits: u32) -> Self::Codes {
        unsafe { quarters!(I => vshlq_u8(v[I], vdupq_n_s8(bits as i8))) }
    }
    #[inline(always)]
    unsafe fn lookup(v: Self::Codes, table: &[u8; 16]) -> Self::Codes {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            quarters!(I => vqtbl1q_u8(table, v[I]))
        }
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> Self::Ints {
        unsafe { [vdupq_n_s32(*p); 4] }
    }
    #[inline(always)]
    unsafe fn floats_of(v: Self::Ints) -> Self::Floats {
        unsafe { quarters!(I => vcvtq_f32_s32(v[I])) }
    }
    #[inline(always)]
    unsafe fn float_bits(v: Self::Ints) -> Self::Floats {
        unsafe { quarters!(I => vreinterpretq_f32_s32(v[I])) }
    }

    #[inline(always)]
    unsafe fn narrow_start(sum: Self::Ints) -> Self::Narrow {
        unsafe { quarters!(I => D::start(sum[I])) }
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: Self::Narrow, codes: Self::Codes, a: *const i8) -> Self::Narrow {
        unsafe {
            let b = splat_quad(a);
            quarters!(I => D::narrow(n[I], codes[I], b))
        }
    }
    #[inline(always)]
    unsafe fn narrow_quad<const C: usize>(
        n: &mut [Self::Narrow; C],
        codes: Self::Codes,
        a: *const i8,
    ) {
        unsafe { D::narrow_quad(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn narrow_end(sum: Self::Ints, n: Self::Narrow) -> Self::Ints {
        unsafe { quarters!(I => D::narrow_end(sum[I], n[I])) }
    }
    #[inline(always)]
    unsafe fn wide_start(sum: Self::Ints) -> Self::Wide {
        unsafe { quarters!(I => D::wide_start(sum[I])) }
    }
    #[inline(always)]
    unsafe fn wide_dot(n: Self::Wide, codes: Self::Codes, a: *const i8) -> Self::Wide {
        unsafe {
            let (b, codes) = (splat_quad(a), less_128(codes));
            quarters!(I => D::wide(n[I], codes[I], b))
        }
    }
    #[inline(always)]
    unsafe fn wide_quad<const C: usize>(n: &mut [Self::Wide; C], codes: Self::Codes, a: *const i8) {
        unsafe { D::wide_quad(n, less_128(codes), a) }
    }
    #[inline(always)]
    unsafe fn wide_end(_: Self::Ints, n: Self::Wide) -> Self::Ints {
        unsafe { quarters!(I => D::wide_end(n[I])) }
    }

    #[inline(always)]
    unsafe fn store_pair<const WIDE: bool>(p: *mut u8, low: Self::Codes, high: Self::Codes) {
        unsafe {
            let top = vdupq_n_u8(if WIDE { 0x80 } else { 0 });
            let to = p.cast::<u32>();
            quarters!(I => {
                let low = vreinterpretq_u32_u8(veorq_u8(low[I], top));
                let high = vreinterpretq_u32_u8(veorq_u8(high[I], top));
                vst1q_u32(to.add(8 * I), vzip1q_u32(low, high));
                vst1q_u32(to.add(8 * I + 4), vzip2q_u32(low, high));
            });
        }
    }
    /// Two registers of two rows and two columns each for every quarter: `sums[0]` and `sums[1]` of the first two columns.
    #[inline(always)]
    unsafe fn matrix_pair<const C: usize, const WIDE: bool>(
        sums: &mut [Self::Ints; 4],
        pair: *const u8,
        [a, b]: [*const i8; 2],
    ) {
        unsafe {
            let a = vreinterpretq_s32_s8(quads::<C>(a));
            let b = vreinterpretq_s32_s8(quads::<C>(b));
            let columns = [
                vreinterpretq_s8_s32(vzip1q_s32(a, b)),
                vreinterpretq_s8_s32(vzip2q_s32(a, b)),
            ];
            if C > 2 {
                four_columns::<WIDE>(sums, pair, columns);
            } else {
                two_columns::<WIDE>(sums, pair, columns[0]);
            }
        }
    }
    #[inline(always)]
    unsafe fn matrix_end<const C: usize>(to: &mut [Self::Ints; C], sums: [Self::Ints; 4]) {
        unsafe {
            for (c, to) in to.iter_mut().enumerate() {
                let of = [sums[c / 2 * 2], sums[c / 2 * 2 + 1]];
                *to = quarters!(I => {
                    let (first, second) = (of[I / 2][I % 2 * 2], of[I / 2][I % 2 * 2 + 1]);
                    let sum = if c % 2 == 0 {
                        vuzp1q_s32(first, second)
                    } else {
                        vuzp2q_s32(first, second)
                    };
                    vaddq_s32(to[I], sum)
                });
            }
        }
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Floats {
        unsafe { [vdupq_n_f32(0.0); 4] }
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> Self::Floats {
        unsafe { [vdupq_n_f32(*p); 4] }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> Self::Floats {
        unsafe { quarters!(I => vld1q_f32(p.add(4 * I))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::Floats) {
        unsafe { quarters!(I => vst1q_f32(p.add(4 * I), v[I])) };
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> Self::Floats {
        unsafe {
            quarters!(I => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast::<u16>().add(4 * I)))))
        }
    }
    #[inline(always)]
    unsafe fn bfloat_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let pairs = quarters!(I => vreinterpretq_u32_u8(vld1q_u8(p.add(16 * I))));
            let top = vdupq_n_u32(0xffff_0000);
            (
                quarters!(I => vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs[I]))),
                quarters!(I => vreinterpretq_f32_u32(vandq_u32(pairs[I], top))),
            )
        }
    }
    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> Self::Floats {
        unsafe {
            let e = widen_ints(vld1q_u8(p));
            let (one, two) = (vdupq_n_u32(1), vdupq_n_u32(2));
            let tiny =
                quarters!(I => vshlq_u32(vdupq_n_u32(0x20_0000), vreinterpretq_s32_u32(e[I])));
            let normal = quarters!(I => vshlq_n_u32::<23>(vsubq_u32(e[I], one)));
            quarters!(I => vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e[I], two), tiny[I], normal[I])))
        }
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> Self::Floats {
        unsafe {
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn nibble_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let v = vld1q_u8(p);
            let low = vandq_u8(v, vdupq_n_u8(15));
            (widen(low), widen(vshrq_n_u8::<4>(v)))
        }
    }
    #[inline(always)]
    unsafe fn six_bit_pairs(p: *const u8) -> (Self::Floats, Self::Floats) {
        unsafe {
            let (low, packed) = (vld1q_u8(p), vld1_u8(p.add(16)));
            let high = vcombine_u8(
                vzip1_u8(packed, vshr_n_u8::<4>(packed)),
                vzip2_u8(packed, vshr_n_u8::<4>(packed)),
            );
            let top = vdupq_n_u8(0x30);
            let first = vandq_u8(vshlq_n_u8::<4>(high), top);
            let second = vandq_u8(vshlq_n_u8::<2>(high), top);
            (
                widen(vorrq_u8(vandq_u8(low, vdupq_n_u8(15)), first)),
                widen(vorrq_u8(vshrq_n_u8::<4>(low), second)),
            )
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { quarters!(I => vaddq_f32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { quarters!(I => vmulq_f32(a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { quarters!(I => vfmaq_f32(c[I], a[I], b[I])) }
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { quarters!(I => vfmsq_f32(c[I], a[I], b[I])) }
    }
}
