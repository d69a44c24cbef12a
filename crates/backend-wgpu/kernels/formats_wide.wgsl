// Block formats whose packed blocks are vectors of four words: 32 weights of a row at a time, as codes and what they stand for.
//
// What codes stand for, `scale * code - min`, is computed once for a sum of codes times what they are multiplied by. Codes are taken from
// the middle of their range on: most weights lie around zero, so that little is left of `min`. Where there are `DOTS` of bytes, whose sums
// are exact, they are taken as they are.

const COLUMNS: u32 = 32u;

fn half_low(word: u32) -> f32 { return half_value(word & 0xffffu); }
fn half_high(word: u32) -> f32 { return half_value(word >> 16u); }

#if HALVES
fn half_value(h: u32) -> f32 { return unpack2x16float(h).x; }
#else
fn half_value(h: u32) -> f32 { return half_exact(h); }
#endif

// Bytes less the middle of their range.
fn bytes4(w: u32) -> vec4<f32> {
    // A byte below the leading bit of 1,024 as a half.
    let even = unpack2x16float((w & 0x00ff00ffu) | 0x64006400u);
    let odd = unpack2x16float(((w >> 8u) & 0x00ff00ffu) | 0x64006400u);
    return vec4<f32>(even.x, odd.x, even.y, odd.y) - (1024.0 + MIDDLE);
}

// Nibbles of a word, and those with bits above them: bytes of four columns and of the next four.
fn nibbles_of(w: u32) -> vec2<u32> { return vec2<u32>(w, w >> 4u) & vec2<u32>(0x0f0f0f0fu); }
fn fives(w: u32, high: u32) -> vec2<u32> { return nibbles_of(w) | vec2<u32>((high & 0x01010101u) << 4u, (high & 0x02020202u) << 3u); }

#if FORMAT == 2 || FORMAT == 3 || FORMAT == 12
const MIDDLE: f32 = 8.0;
struct Raw { q: vec4<u32>, head: vec4<u32> }
fn words_of(r: Raw, j: u32) -> vec2<u32> { return nibbles_of(r.q[j]); }
#elif FORMAT == 6 || FORMAT == 7 || FORMAT == 13
const MIDDLE: f32 = 16.0;
struct Raw { q: vec4<u32>, high: u32, head: vec4<u32> }
fn words_of(r: Raw, j: u32) -> vec2<u32> { return fives(r.q[j], r.high >> (2u * j)); }
#elif FORMAT == 14
const MIDDLE: f32 = 32.0;
struct Raw { q: vec4<u32>, high: vec2<u32>, head: vec2<u32> }
fn words_of(r: Raw, j: u32) -> vec2<u32> {
    let high = r.high[j >> 1u] >> ((j & 1u) << 2u);
    return nibbles_of(r.q[j]) | vec2<u32>((high & 0x03030303u) << 4u, (high & 0x0c0c0c0cu) << 2u);
}
#else
const MIDDLE: f32 = 128.0;
struct Raw { q: vec4<u32>, more: vec4<u32>, head: vec4<u32> }
fn words_of(r: Raw, j: u32) -> vec2<u32> {
    let words = select(r.q, r.more, vec4<bool>(j > 1u));
    return vec2<u32>(words[(2u * j) & 3u], words[(2u * j + 1u) & 3u]) ^ vec2<u32>(SIGN);
}
#endif

#if FORMAT == 3 || FORMAT == 7 || FORMAT == 12 || FORMAT == 13
const MINS: bool = true;
#else
const MINS: bool = false;
#endif

#if DOTS
// What minima lose to codes, what is taken off these, and bytes with a sign as they are.
const LESS: f32 = 0.0;
#if FORMAT == 2
const OFFSET: i32 = 8;
#elif FORMAT == 6
const OFFSET: i32 = 16;
#elif FORMAT == 14
const OFFSET: i32 = 32;
#else
const OFFSET: i32 = 0;
#endif
const SIGN: u32 = 0u;
#else
const LESS: f32 = MIDDLE;
const SIGN: u32 = 0x80808080u;
fn codes_of(r: Raw, j: u32) -> Eight {
    let words = words_of(r, j);
    return Eight(bytes4(words.x), bytes4(words.y));
}
#endif

// Scale and min of 32 weights, or the scales of the first 16 and of the others.
#if FORMAT == 2
const BLOCK_VECS: u32 = 9u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    return Raw(weights[at + 1u + (g & 7u)], weights[at]);
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = half_value((r.head[(g & 7u) >> 1u] >> ((g & 1u) << 4u)) & 0xffffu);
    return vec2<f32>(d, 0.0);
}
#elif FORMAT == 3
const BLOCK_VECS: u32 = 10u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    return Raw(weights[at + 2u + (g & 7u)], weights[at + ((g & 7u) >> 2u)]);
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = r.head[g & 3u];
    return vec2<f32>(half_low(d), -half_high(d) - LESS * half_low(d));
}
#elif FORMAT == 6
const BLOCK_VECS: u32 = 11u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    let n = g & 7u;
    return Raw(weights[at + 3u + n], weights[at + 1u + (n >> 2u)][n & 3u], weights[at]);
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = half_value((r.head[(g & 7u) >> 1u] >> ((g & 1u) << 4u)) & 0xffffu);
    return vec2<f32>(d, 0.0);
}
#elif FORMAT == 7
const BLOCK_VECS: u32 = 12u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    let n = g & 7u;
    return Raw(weights[at + 4u + n], weights[at + 2u + (n >> 2u)][n & 3u], weights[at + (n >> 2u)]);
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = r.head[g & 3u];
    return vec2<f32>(half_low(d), -half_high(d) - LESS * half_low(d));
}
#elif FORMAT == 8
const BLOCK_VECS: u32 = 17u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    let n = g & 7u;
    return Raw(weights[at + 1u + 2u * n], weights[at + 2u + 2u * n], weights[at]);
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = half_value((r.head[(g & 7u) >> 1u] >> ((g & 1u) << 4u)) & 0xffffu);
    return vec2<f32>(d, 0.0);
}
#elif FORMAT == 14
const BLOCK_VECS: u32 = 14u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    let n = g & 7u;
    let scales = weights[at][n >> 1u] >> ((n & 1u) << 4u);
    let crumbs = weights[at + 1u + (n >> 1u)];
    return Raw(weights[at + 5u + n], select(crumbs.xy, crumbs.zw, vec2<bool>((n & 1u) == 1u)), vec2<u32>(scales, weights[at + 13u].x));
}
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let d = half_low(r.head.y);
    let a = d * f32(bitcast<i32>(r.head.x << 24u) >> 24u);
    let b = d * f32(bitcast<i32>(r.head.x << 16u) >> 24u);
    return vec2<f32>(a, b);
}
#else
// Eight scales and eight minima of six bits, as in `formats_k_scales.wgsl`.
#if FORMAT == 12
const BLOCK_VECS: u32 = 9u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    return Raw(weights[at + 1u + (g & 7u)], weights[at]);
}
#else
const BLOCK_VECS: u32 = 11u;
fn raw_of(row: u32, g: u32) -> Raw {
    let at = row + (g >> 3u) * BLOCK_VECS;
    let n = g & 7u;
    return Raw(weights[at + 3u + n], weights[at + 1u + (n >> 2u)][n & 3u], weights[at]);
}
#endif
fn factors(r: Raw, g: u32) -> vec2<f32> {
    let n = g & 7u;
    let high = r.head.w >> (n << 1u);
    let scale = ((r.head.y >> (n << 2u)) & 15u) | ((high & 3u) << 4u);
    let min = ((r.head.z >> (n << 2u)) & 15u) | (((high >> 16u) & 3u) << 4u);
    let a = half_low(r.head.x) * f32(scale);
    let b = half_high(r.head.x) * f32(min);
    return vec2<f32>(a, b - LESS * a);
}
#endif
