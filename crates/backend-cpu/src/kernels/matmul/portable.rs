//! Plain Rust: the fallback for any processor, and the readable form of every vector operation.
#![allow(unsafe_code)]

use std::array::from_fn;

use half::{bf16, f16};

use super::simd::{ROWS, Simd, Task};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
unsafe fn bytes<const N: usize>(p: *const u8) -> [u8; N] {
    // SAFETY: the caller gives `N` readable bytes.
    unsafe { p.cast::<[u8; N]>().read_unaligned() }
}

#[inline(always)]
fn lanes16(v: [u8; 64], f: impl Fn(u16) -> u16) -> [u8; 64] {
    let mut out = [0; 64];
    for (o, i) in out.chunks_exact_mut(2).zip(v.chunks_exact(2)) {
        o.copy_from_slice(&f(u16::from_le_bytes([i[0], i[1]])).to_le_bytes());
    }
    out
}

// SAFETY (of every block below): the trait's contract gives the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Portable {
    type Codes = [u8; 64];
    type Ints = [i32; ROWS];
    type Floats = [f32; ROWS];
    type Narrow = [i32; ROWS];
    type Wide = [i32; ROWS];

    type Low = Self;
    type High = Self;

    const WHOLE_COLS: usize = 2;
    const STREAM_COLS: usize = 2;
    const LOOSE_COLS: usize = 2;
    const PAIR_COLS: usize = 2;
    const WIDE_COLS: usize = 2;
    const FLOAT_COLS: usize = 2;

    unsafe fn vectorize<T: Task>(task: T) {
        unsafe { task.run() }
    }
    #[inline(always)]
    unsafe fn prefetch_first(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_second(_: *const u8) {}

    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [u8; 64] {
        unsafe { bytes(p) }
    }
    #[inline(always)]
    unsafe fn store_codes(p: *mut u8, v: [u8; 64]) {
        unsafe { p.cast::<[u8; 64]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn mask(v: [u8; 64], byte: u8) -> [u8; 64] {
        v.map(|b| b & byte)
    }
    #[inline(always)]
    unsafe fn or(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shr(v: [u8; 64], bits: u32) -> [u8; 64] {
        lanes16(v, |lane| lane >> bits)
    }
    #[inline(always)]
    unsafe fn shl(v: [u8; 64], bits: u32) -> [u8; 64] {
        lanes16(v, |lane| lane << bits)
    }
    #[inline(always)]
    unsafe fn lookup(v: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        v.map(|b| table[usize::from(b & 15)])
    }

    #[inline(always)]
    unsafe fn splat_int(p: *const i32) -> [i32; ROWS] {
        unsafe { [*p; ROWS] }
    }
    #[inline(always)]
    unsafe fn floats_of(v: [i32; ROWS]) -> [f32; ROWS] {
        v.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn float_bits(v: [i32; ROWS]) -> [f32; ROWS] {
        v.map(|x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    unsafe fn narrow_start(sum: [i32; ROWS]) -> [i32; ROWS] {
        sum
    }
    #[inline(always)]
    unsafe fn narrow_dot(n: [i32; ROWS], codes: [u8; 64], a: *const i8) -> [i32; ROWS] {
        let a = unsafe { bytes::<4>(a.cast()) };
        let product = |r: usize, i: usize| i32::from(codes[4 * r + i]) * i32::from(a[i] as i8);
        from_fn(|r| n[r] + product(r, 0) + product(r, 1) + product(r, 2) + product(r, 3))
    }
    #[inline(always)]
    unsafe fn narrow_end(_: [i32; ROWS], n: [i32; ROWS]) -> [i32; ROWS] {
        n
    }
    #[inline(always)]
    unsafe fn wide_start(sum: [i32; ROWS]) -> [i32; ROWS] {
        sum
    }
    #[inline(always)]
    unsafe fn wide_dot(n: [i32; ROWS], codes: [u8; 64], a: *const i8) -> [i32; ROWS] {
        unsafe { Self::narrow_dot(n, codes, a) }
    }
    #[inline(always)]
    unsafe fn wide_end(_: [i32; ROWS], n: [i32; ROWS]) -> [i32; ROWS] {
        n
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; ROWS] {
        [0.0; ROWS]
    }
    #[inline(always)]
    unsafe fn splat(p: *const f32) -> [f32; ROWS] {
        unsafe { [*p; ROWS] }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> [f32; ROWS] {
        unsafe { p.cast::<[f32; ROWS]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; ROWS]) {
        unsafe { p.cast::<[f32; ROWS]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; ROWS] {
        let b = unsafe { bytes::<32>(p) };
        from_fn(|r| f16::from_le_bytes([b[2 * r], b[2 * r + 1]]).to_f32())
    }
    #[inline(always)]
    unsafe fn bfloat_pairs(p: *const u8) -> ([f32; ROWS], [f32; ROWS]) {
        let b = unsafe { bytes::<64>(p) };
        let at = |i: usize| bf16::from_le_bytes([b[i], b[i + 1]]).to_f32();
        (from_fn(|r| at(4 * r)), from_fn(|r| at(4 * r + 2)))
    }
    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> [f32; ROWS] {
        let b = unsafe { bytes::<ROWS>(p) };
        b.map(|e| match u32::from(e) {
            e @ 0..2 => f32::from_bits(0x20_0000 << e),
            e => f32::from_bits((e - 1) << 23),
        })
    }
    #[inline(always)]
    unsafe fn signed_bytes(p: *const u8) -> [f32; ROWS] {
        unsafe { bytes::<ROWS>(p) }.map(|b| f32::from(b as i8))
    }
    #[inline(always)]
    unsafe fn nibble_pairs(p: *const u8) -> ([f32; ROWS], [f32; ROWS]) {
        let b = unsafe { bytes::<ROWS>(p) };
        (b.map(|b| f32::from(b & 15)), b.map(|b| f32::from(b >> 4)))
    }
    #[inline(always)]
    unsafe fn six_bit_pairs(p: *const u8) -> ([f32; ROWS], [f32; ROWS]) {
        let (low, high) = unsafe { (bytes::<ROWS>(p), bytes::<8>(p.add(16))) };
        let nibble = |r: usize| high[r / 2] >> (4 * (r % 2));
        let first = from_fn(|r| f32::from(low[r] & 15 | (nibble(r) & 3) << 4));
        (
            first,
            from_fn(|r| f32::from(low[r] >> 4 | (nibble(r) & 12) << 2)),
        )
    }
    #[inline(always)]
    unsafe fn add(a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn fnma(a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
}
