//! The integer scales of each format.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::avx512::six_bit_bytes;
use super::super::panel::{self, Panel};
use crate::layout::scheme::{self, SIX_BIT_PAIRS};

/// Scales and minima of a 32-block, one per row; second entries are used by formats with a scale per 16 only.
pub(super) struct Ints {
    pub(super) scale: [__m512i; 2],
    pub(super) min: [__m512i; 2],
}

/// A format with eight blocks a chunk and integer scales of at most eight bits.
///
/// # Safety
/// As [`Panel`], on a processor with AVX-512.
pub(super) trait Fold: Panel {
    unsafe fn ints(chunk: *const u8, i: usize) -> Ints;
}

#[inline(always)]
unsafe fn unsigned(bytes: __m128i) -> __m512i {
    // SAFETY: touches no memory.
    unsafe { _mm512_cvtepu8_epi32(bytes) }
}

#[inline(always)]
unsafe fn signed(at: *const u8) -> __m512i {
    // SAFETY: the caller gives sixteen bytes.
    unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())) }
}

#[inline(always)]
unsafe fn only(scale: [__m512i; 2]) -> Ints {
    // SAFETY: touches no memory.
    let min = [unsafe { _mm512_setzero_si512() }; 2];
    Ints { scale, min }
}

/// Less what is added to stored scales.
#[inline(always)]
unsafe fn centred(bytes: __m128i) -> __m512i {
    // SAFETY: touches no memory.
    unsafe {
        _mm512_sub_epi32(
            unsigned(bytes),
            _mm512_set1_epi32(scheme::SCALE_BIAS as i32),
        )
    }
}

macro_rules! folds {
    ($($name:ident: |$chunk:ident, $i:ident| $ints:block)*) => {$(
        impl Fold for panel::$name {
            #[inline(always)]
            unsafe fn ints($chunk: *const u8, $i: usize) -> Ints {
                // SAFETY: the scales of block `i` lie at these offsets of the chunk.
                unsafe { $ints }
            }
        }
    )*};
}

folds! {
    Q2_K: |chunk, i| {
        let pairs = |half: usize| _mm_loadu_si128(chunk.add(scheme::Q2_K.head + 32 * i + 16 * half).cast());
        let nibble = _mm_set1_epi8(15);
        let low = |v: __m128i| unsigned(_mm_and_si128(v, nibble));
        let (a, b) = (pairs(0), pairs(1));
        Ints {
            scale: [low(a), low(b)],
            min: [low(_mm_srli_epi16::<4>(a)), low(_mm_srli_epi16::<4>(b))],
        }
    }
    Q3_K: |chunk, i| {
        let (a, b) = six_bit_bytes(chunk.add(scheme::Q3_K.head + SIX_BIT_PAIRS * i));
        only([centred(a), centred(b)])
    }
    Q4_K: |chunk, i| { scale_and_min(chunk, i) }
    Q5_K: |chunk, i| { scale_and_min(chunk, i) }
    Q6_K: |chunk, i| {
        let at = chunk.add(scheme::Q6_K.head + 32 * i);
        only([signed(at), signed(at.add(16))])
    }
    IQ4_XS: |chunk, i| {
        let (a, b) = six_bit_bytes(chunk.add(scheme::IQ4_XS.head + SIX_BIT_PAIRS * (i / 2)));
        only([centred(if i.is_multiple_of(2) { a } else { b }); 2])
    }
}

#[inline(always)]
unsafe fn scale_and_min(chunk: *const u8, i: usize) -> Ints {
    // SAFETY: `Q4_K` and `Q5_K` share head and scales.
    unsafe {
        let (s, m) = six_bit_bytes(chunk.add(scheme::Q4_K.head + SIX_BIT_PAIRS * i));
        Ints {
            scale: [unsigned(s); 2],
            min: [unsigned(m); 2],
        }
    }
}
