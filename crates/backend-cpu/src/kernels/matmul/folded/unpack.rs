//! Codes times their scales, as bytes for tiles.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::avx512::Avx512;
use super::super::simd::Simd;
use super::super::tile::ahead;
use super::formats::{Fold, Ints};
use super::{GROUPS, heads};
use crate::kernels::quantize::folded::{FOLD, STEP};
use crate::memory::LINE_BYTES;
use crate::tuning::Fetch;

/// Blocks of a group.
const BLOCKS: usize = FOLD / 32;
/// Bytes of one byte plane of a step: sixteen quads of sixteen rows.
pub(in super::super) const PLANE: usize = STEP * 16;
/// Where a group's factors start: `d`, `dmin`, then pairs of minima.
pub(super) const FACTORS: usize = 2 * FOLD * 16;
/// Pairs of minima of a group, at most.
pub(super) const PAIRS: usize = FOLD / 32;
/// Bytes of an unpacked group: per step the high bytes, then the low ones; then factors.
pub(super) const GROUP_BYTES: usize = FACTORS + (2 + PAIRS) * 64;

/// Unpacks a chunk.
///
/// # Safety
/// The processor has AVX-512; `to` has room for the chunk's groups.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn unpack<P: Fold>(chunk: *const u8, to: *mut u8, fetch: Fetch) {
    // SAFETY: as the caller promises.
    unsafe {
        let heads = heads::<P>(chunk);
        ahead::<Avx512>(fetch, chunk, P::BYTES / LINE_BYTES);
        for g in 0..GROUPS {
            let to = to.add(g * GROUP_BYTES);
            let factors = to.add(FACTORS);
            _mm512_storeu_ps(factors.cast(), heads[0]);
            _mm512_storeu_ps(factors.add(64).cast(), heads[1]);
            let mut last = _mm512_setzero_si512();
            for b in 0..BLOCKS {
                let ints = P::ints(chunk, g * BLOCKS + b);
                block::<P>(
                    chunk,
                    g * BLOCKS + b,
                    &ints,
                    to.add(b / 2 * 2 * PLANE + b % 2 * 512),
                );
                if !P::MINS {
                    continue;
                }
                let pairs = factors.add(128);
                if P::SUBS == 2 {
                    let pair = couple(ints.min[0], ints.min[1]);
                    _mm512_storeu_si512(pairs.add(64 * b).cast(), pair);
                } else if b % 2 == 1 {
                    let pair = couple(last, ints.min[0]);
                    _mm512_storeu_si512(pairs.add(64 * (b / 2)).cast(), pair);
                }
                last = ints.min[0];
            }
        }
    }
}

/// Two numbers of each row as 16-bit lanes.
#[inline(always)]
unsafe fn couple(low: __m512i, high: __m512i) -> __m512i {
    // SAFETY: touches no memory. High bits of a negative number are not wanted in the other half.
    unsafe {
        let low = _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
        _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
    }
}

/// Writes the high bytes of a block's products to `to`, the low ones a plane behind.
#[inline(always)]
unsafe fn block<P: Fold>(chunk: *const u8, i: usize, ints: &Ints, to: *mut u8) {
    // SAFETY: as the caller of `unpack` promises.
    unsafe {
        let scales = [
            couple(ints.scale[0], ints.scale[0]),
            couple(ints.scale[1], ints.scale[1]),
        ];
        for j in 0..4 {
            let scale = scales[if P::SUBS == 2 { j / 2 } else { 0 }];
            let (a, b) = P::pair::<Avx512>(chunk, i, j);
            quad::<P>(a, scale, to.add(128 * j));
            quad::<P>(b, scale, to.add(128 * j + 64));
        }
    }
}

/// Products are made in 16-bit lanes, of the even codes and of the odd ones.
#[inline(always)]
unsafe fn quad<P: Fold>(codes: __m512i, scale: __m512i, to: *mut u8) {
    // SAFETY: as above.
    unsafe {
        let low = _mm512_set1_epi16(0xff);
        let bias = _mm512_set1_epi16(P::BIAS as i16);
        let mut even = _mm512_and_si512(codes, low);
        let mut odd = _mm512_srli_epi16::<8>(codes);
        if P::BIAS != 0 {
            even = _mm512_sub_epi16(even, bias);
            odd = _mm512_sub_epi16(odd, bias);
        }
        let even = _mm512_mullo_epi16(even, scale);
        let odd = _mm512_mullo_epi16(odd, scale);
        // Bits of the second where the first has ones, of the third elsewhere.
        let high = _mm512_ternarylogic_epi32::<0xca>(low, _mm512_srli_epi16::<8>(even), odd);
        let low = _mm512_ternarylogic_epi32::<0xca>(low, even, _mm512_slli_epi16::<8>(odd));
        Avx512::store_codes(to, high);
        Avx512::store_codes(to.add(PLANE), low);
    }
}
