// Block formats: eight weights of a row at a time, with the bits that the host's dequantiser gives.
//
// Every block format is `(d * scale) * code - dmin * min` with codes of eight bits, rounded after each operation: products
// with a minimum behind them are exact, so that one that is fused with the difference is the same. A block is 256 weights
// as `formats.rs` packed them: several of a file's blocks where those are shorter.
//
// A word of nibbles holds eight weights, one of crumbs sixteen, one of bits thirty-two: the lowest field of each of its
// bytes first, then the next field of each.

#include "halves.wgsl"

// Signed bytes, and what they mean: `scale * code - min`.
struct Codes { a: u32, b: u32, scale: f32, min: f32 }

// Two words of fields of eight weights.
struct Pair { a: u32, b: u32 }

#if FORMAT == 0 || FORMAT == 1 || FORMAT == 30
#include "formats_plain.wgsl"
#else
const BLOCK: u32 = 256u;

fn half_low(word: u32) -> f32 { return half_exact(word & 0xffffu); }
fn half_high(word: u32) -> f32 { return half_exact(word >> 16u); }
fn half_of(at: u32, n: u32) -> f32 { return half_exact((weights[at + (n >> 1u)] >> ((n & 1u) << 4u)) & 0xffffu); }
fn byte_of(at: u32, n: u32) -> u32 { return (weights[at + (n >> 2u)] >> ((n & 3u) << 3u)) & 255u; }
fn nibble_of(word: u32, n: u32) -> u32 { return (word >> (n << 2u)) & 15u; }

fn nibbles(at: u32, i: u32) -> Pair {
    let w = weights[at + i];
    return Pair(w & 0x0f0f0f0fu, (w >> 4u) & 0x0f0f0f0fu);
}

fn crumbs(at: u32, i: u32) -> Pair {
    let w = weights[at + (i >> 1u)] >> ((i & 1u) << 2u);
    return Pair(w & 0x03030303u, (w >> 2u) & 0x03030303u);
}

fn bits(at: u32, i: u32) -> Pair {
    let w = weights[at + (i >> 2u)] >> ((i & 3u) << 1u);
    return Pair(w & 0x01010101u, (w >> 1u) & 0x01010101u);
}

fn either(x: Pair, y: Pair, shift: u32) -> Pair { return Pair(x.a | (y.a << shift), x.b | (y.b << shift)); }

// Bytes below 128 less those of `k`, as signed bytes.
fn less(x: Pair, k: u32) -> Pair {
    return Pair(((x.a | 0x80808080u) - k) ^ 0x80808080u, ((x.b | 0x80808080u) - k) ^ 0x80808080u);
}

// The same bytes, negative where the bytes of `signs` are 1.
fn negated(bytes: u32, signs: u32) -> u32 {
    return ((bytes ^ (signs * 127u)) + signs) ^ (signs << 7u);
}

fn plain(q: Pair, scale: f32) -> Codes { return Codes(q.a, q.b, scale, 0.0); }

fn widened(c: u32) -> vec4<f32> {
    let v = bitcast<vec4<i32>>(vec4<u32>(c << 24u, c << 16u, c << 8u, c));
    return vec4<f32>(v >> vec4<u32>(24u));
}

#if FORMAT == 20 || FORMAT == 23 || FORMAT == 39 || FORMAT == 40
#include "formats_tables.wgsl"
#elif FORMAT == 34 || FORMAT == 35
#include "formats_ternary.wgsl"
#elif FORMAT == 10 || FORMAT == 11 || FORMAT == 12 || FORMAT == 13 || FORMAT == 14 || FORMAT == 15
#include "formats_k.wgsl"
#elif FORMAT == 16 || FORMAT == 17 || FORMAT == 18 || FORMAT == 19 || FORMAT == 21 || FORMAT == 22 || FORMAT == 29
#include "formats_iq.wgsl"
#else
#include "formats_simple.wgsl"
#endif

// Weights 8i to 8i + 7 of the block that begins at word `at`.
fn load8(at: u32, i: u32) -> Eight {
    let c = codes8(at, i);
    if (FORMAT_MINS) { return Eight(c.scale * widened(c.a) - c.min, c.scale * widened(c.b) - c.min); }
    return Eight(c.scale * widened(c.a), c.scale * widened(c.b));
}
#endif
