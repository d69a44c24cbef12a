// Blocks of 256 with integer scales of their parts: `Q2_K` to `Q8_K`. Factors come first, then scales, then codes from
// their highest bits on.

#if FORMAT == 10
const BLOCK_WORDS: u32 = 21u;
const FORMAT_MINS: bool = true;
fn codes8(at: u32, i: u32) -> Codes {
    let q = crumbs(at + 5u, i);
    let s = byte_of(at + 1u, i >> 1u);
    let d = weights[at];
    return Codes(q.a, q.b, half_low(d) * f32(s & 15u), half_high(d) * f32(s >> 4u));
}
#elif FORMAT == 11
const BLOCK_WORDS: u32 = 28u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = either(crumbs(at + 12u, i), bits(at + 4u, i), 2u);
    let n = i >> 1u;
    let s = nibble_of(weights[at + 1u + (n >> 3u)], n & 7u) | (((weights[at + 3u] >> (n << 1u)) & 3u) << 4u);
    return plain(less(q, 0x04040404u), half_low(weights[at]) * f32(i32(s) - 32));
}
#elif FORMAT == 12
const BLOCK_WORDS: u32 = 36u;
const FORMAT_MINS: bool = true;
fn codes8(at: u32, i: u32) -> Codes { return with_scales(at, i, nibbles(at + 4u, i)); }
#elif FORMAT == 13
const BLOCK_WORDS: u32 = 44u;
const FORMAT_MINS: bool = true;
fn codes8(at: u32, i: u32) -> Codes { return with_scales(at, i, either(nibbles(at + 12u, i), bits(at + 4u, i), 4u)); }
#elif FORMAT == 14
// The factor is last here, so that everything else begins at a multiple of four words.
const BLOCK_WORDS: u32 = 56u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = either(nibbles(at + 20u, i), crumbs(at + 4u, i), 4u);
    let s = bitcast<i32>(byte_of(at, i >> 1u) << 24u) >> 24u;
    return plain(less(q, 0x20202020u), half_low(weights[at + 52u]) * f32(s));
}
#else
const BLOCK_WORDS: u32 = 65u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = at + 1u + 2u * i;
    return Codes(weights[q], weights[q + 1u], bitcast<f32>(weights[at]), 0.0);
}
#endif

#if FORMAT == 12 || FORMAT == 13
#include "formats_k_scales.wgsl"
#endif
