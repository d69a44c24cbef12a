// What a draw computes with: integers of 64 bits, fixed point, exponentials, logarithms, noise.
//
// As `ir::sample` says, with nothing wider than a word and no float behind the logits.

#include "wide.wgsl"

const EXCLUDED: i32 = i32(-2147483648);
const MOST: i32 = 1073741760;
const LN_2: u32 = 11629080u;
const LOG2_E: u32 = 3098164009u;

// The product of two words, by halves.
fn product(a: u32, b: u32) -> Wide {
    let a1 = a >> 16u;
    let a0 = a & 0xffffu;
    let b1 = b >> 16u;
    let b0 = b & 0xffffu;
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 16u);
    let other = a0 * b1 + (middle & 0xffffu);
    return Wide(a1 * b1 + (middle >> 16u) + (other >> 16u), (other << 16u) | (low & 0xffffu));
}

// The lower 64 bits of a product.
fn multiplied(a: Wide, factor: u32) -> Wide {
    let low = product(a.low, factor);
    return Wide(low.high + a.high * factor, low.low);
}

fn lowered(a: Wide, n: u32) -> Wide {
    if (n == 0u) { return a; }
    if (n < 32u) { return Wide(a.high >> n, (a.low >> n) | (a.high << (32u - n))); }
    return Wide(0u, a.high >> (n - 32u));
}

fn raised(a: Wide, n: u32) -> Wide {
    if (n == 0u) { return a; }
    if (n < 32u) { return Wide((a.high << n) | (a.low >> (32u - n)), a.low << n); }
    return Wide(a.low << (n - 32u), 0u);
}

// The share `p / 2³²`, rounded down.
fn share(a: Wide, p: u32) -> Wide { return sum_of(product(a.high, p), word_of(product(a.low, p).high)); }

// The quotient, bit by bit.
fn quotient(a: Wide, divisor: Wide) -> Wide {
    var found = Wide(0u, 0u);
    var rest = Wide(0u, 0u);
    for (var bit = 64u; bit > 0u; bit--) {
        rest = raised(rest, 1u);
        rest.low |= lowered(a, bit - 1u).low & 1u;
        found = raised(found, 1u);
        if (at_least(rest, divisor)) {
            rest = difference(rest, divisor);
            found.low |= 1u;
        }
    }
    return found;
}

// The square root, rounded down, bit by bit.
fn root(a: Wide) -> u32 {
    var found = 0u;
    for (var bit = 32u; bit > 0u; bit--) {
        let tried = found | (1u << (bit - 1u));
        if (at_least(a, product(tried, tried))) { found = tried; }
    }
    return found;
}

// A logit that is a number in fixed point, by its bits.
fn fixed(x: f32) -> i32 {
    let b = bitcast<u32>(x);
    if (b == 0xff800000u) { return EXCLUDED; }
    let e = (b >> 23u) & 255u;
    let m = (b & 0x7fffffu) | 0x800000u;
    var v = 0xffffffffu;
    if (e < 111u) { v = 0u; }
    else if (e < 134u) { v = m >> (134u - e); }
    else if (e < 141u) { v = m << (e - 134u); }
    let most = i32(min(v, u32(MOST)));
    return select(most, -most, (b >> 31u) == 1u);
}

// Numbers whose order is that of logits, both zeros alike.
fn ordered(x: f32) -> u32 {
    var b = bitcast<u32>(x);
    if (b == 0x80000000u) { b = 0u; }
    return select(b | 0x80000000u, ~b, (b >> 31u) == 1u);
}

fn plus(a: i32, b: i32) -> i32 {
    if (a == EXCLUDED || b == EXCLUDED) { return EXCLUDED; }
    return clamp(a + b, -MOST, MOST);
}

fn minus(a: i32, b: i32) -> i32 {
    if (b == EXCLUDED) { return EXCLUDED; }
    return plus(a, -b);
}

fn times(a: i32, factor: u32, shift: u32) -> i32 {
    if (a == EXCLUDED) { return a; }
    let m = lowered(product(u32(abs(a)), factor), shift);
    let r = select(i32(min(m.low, u32(MOST))), MOST, m.high != 0u);
    return select(r, -r, a < 0);
}

// How far a value is below another; neither is excluded.
fn below(value: i32, top: i32) -> u32 { return bitcast<u32>(top - value); }

// The exponential of a distance, falling, with 31 fraction bits.
fn exp_of(d: u32) -> u32 {
    if (d >= 0x200000u) { return 0u; }
    let turns = product(d << 10u, LOG2_E).high;
    let n = turns >> 25u;
    let i = (turns >> 17u) & 255u;
    let e = vu(T_EXPS + i);
    let v = e - product(e - vu(T_EXPS + i + 1u), turns << 15u).high;
    if (n == 0u) { return v; }
    if (n < 32u) { return (v + (1u << (n - 1u))) >> n; }
    return 0u;
}

fn neg_ln(a: Wide) -> u32 {
    let v = Wide(a.high, a.low | 1u);
    let zeros = select(countLeadingZeros(v.high), 32u + countLeadingZeros(v.low), v.high == 0u);
    let mantissa = raised(v, zeros).high;
    let i = (mantissa >> 22u) & 511u;
    let rest = (mantissa >> 6u) & 0xffffu;
    let ln = vu(T_LNS + i);
    return zeros * LN_2 + ln - (((ln - vu(T_LNS + i + 1u)) * rest) >> 16u);
}

fn gumbel(v: Wide) -> i32 {
    if ((v.high >> 31u) == 1u) {
        let exponential = neg_ln(Wide(~v.high, ~v.low));
        return bitcast<i32>(neg_ln(Wide(exponential, 0u)) - 8u * LN_2);
    }
    let i = v.high >> 23u;
    let rest = (v.high >> 7u) & 0xffffu;
    let low = vu(T_LN_LNS + i);
    let bend = low + (((vu(T_LN_LNS + i + 1u) - low) * rest) >> 16u);
    return bitcast<i32>(neg_ln(v) - bend);
}

// What `gumbel` cannot exceed.
fn gumbel_bound(v: Wide) -> i32 {
    let zeros = select(countLeadingZeros(v.high), 32u + countLeadingZeros(v.low), v.high == 0u);
    return i32((zeros + 1u) * LN_2) + 1;
}

fn turned(x: u32, n: u32) -> u32 { return (x << n) | (x >> (32u - n)); }

fn four_rounds(x: vec2<u32>, n: vec4<u32>) -> vec2<u32> {
    var a = x.x;
    var b = x.y;
    a += b;
    b = turned(b, n.x) ^ a;
    a += b;
    b = turned(b, n.y) ^ a;
    a += b;
    b = turned(b, n.z) ^ a;
    a += b;
    b = turned(b, n.w) ^ a;
    return vec2<u32>(a, b);
}

// Threefry-2×32 with 13 rounds.
fn noise(k0: u32, k1: u32, position: u32, id: u32) -> Wide {
    let k2 = 0x1bd11bdau ^ k0 ^ k1;
    var x = vec2<u32>(position + k0, id + k1);
    x = four_rounds(x, vec4<u32>(13u, 15u, 26u, 6u)) + vec2<u32>(k1, k2 + 1u);
    x = four_rounds(x, vec4<u32>(17u, 29u, 16u, 24u)) + vec2<u32>(k2, k0 + 2u);
    x = four_rounds(x, vec4<u32>(13u, 15u, 26u, 6u)) + vec2<u32>(k0, k1 + 3u);
    let a = x.x + x.y;
    return Wide(a, turned(x.y, 17u) ^ a);
}
