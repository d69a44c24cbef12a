//! NEON on 64-bit ARM: a panel's sixteen rows are four registers.
//!
//! Products come in three ways: sums of 16 bits for any processor, `sdot` for those with dot products, and `usdot` for
//! those with 8-bit matrix instructions. The last two have no stable functions, so they are written as assembly.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::simd::{Simd, Task};

/// How four rows are multiplied. Wide codes less 128 are signed bytes.
///
/// # Safety
/// All functions need a processor with the instructions; only [`Dots::vectorize`] may be called from other code.
pub(crate) trait Dots: Copy + 'static {
    /// Running sum of four rows.
    type Sum: Copy;
    /// As [`Simd::STREAM_COLS`].
    const STREAM_COLS: usize;

    unsafe fn vectorize<T: Task>(task: T);
    unsafe fn start(sum: int32x4_t) -> Self::Sum;
    unsafe fn narrow(n: Self::Sum, codes: uint8x16_t, b: int8x16_t) -> Self::Sum;
    unsafe fn narrow_end(sum: int32x4_t, n: Self::Sum) -> int32x4_t;
    /// Running sum of products of eight-bit codes.
    type Wide: Copy;
    unsafe fn wide_start(sum: int32x4_t) -> Self::Wide;
    unsafe fn wide(n: Self::Wide, codes: int8x16_t, b: int8x16_t) -> Self::Wide;
    unsafe fn wide_end(n: Self::Wide) -> int32x4_t;
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

#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the callers run on a processor with the instruction.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

#[inline(always)]
unsafe fn usdot(mut sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the callers run on a processor with the instruction.
    unsafe {
        asm!(
            "usdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

// SAFETY (of every block below): the traits' contracts give the processor and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Halves {
    /// Products of the first two rows and of the last two.
    type Sum = [int16x8_t; 2];
    /// Sums of pairs of products, so too.
    type Wide = (int32x4_t, [int32x4_t; 2]);
    const STREAM_COLS: usize = 1;

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
    ($name:ident, $vectorize:ident, |$n:ident, $codes:ident, $b:ident| $narrow:expr) => {
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Dots for $name {
            type Sum = int32x4_t;
            type Wide = int32x4_t;
            const STREAM_COLS: usize = 2;

            #[inline(always)]
            unsafe fn vectorize<T: Task>(task: T) {
                unsafe { $vectorize(task) }
            }
            #[inline(always)]
            unsafe fn start(sum: int32x4_t) -> int32x4_t {
                sum
            }
            #[inline(always)]
            unsafe fn narrow($n: int32x4_t, $codes: uint8x16_t, $b: int8x16_t) -> int32x4_t {
                unsafe { $narrow }
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
        }
    };
}

whole_dots!(Signed, with_dotprod, |n, codes, b| sdot(
    n,
    vreinterpretq_s8_u8(codes),
    b
));
whole_dots!(Mixed, with_i8mm, |n, codes, b| usdot(n, codes, b));

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

#[inline(always)]
unsafe fn splat_quad(a: *const i8) -> int8x16_t {
    // SAFETY: the caller gives four readable bytes.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned())) }
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
    const LOOSE_COLS: usize = 2;
    const PAIR_COLS: usize = 2;
    const WIDE_COLS: usize = D::STREAM_COLS;
    const FLOAT_COLS: usize = 4;
    const SIGNED_WIDE: bool = true;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { D::vectorize(task) }
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
            let (b, top) = (splat_quad(a), vdupq_n_u8(0x80));
            quarters!(I => D::wide(n[I], vreinterpretq_s8_u8(veorq_u8(codes[I], top)), b))
        }
    }
    #[inline(always)]
    unsafe fn wide_end(_: Self::Ints, n: Self::Wide) -> Self::Ints {
        unsafe { quarters!(I => D::wide_end(n[I])) }
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
