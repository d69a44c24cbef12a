// Lattice formats: eight or four weights are a point of a fixed grid, with signs apart. Blocks are as in the file, their half
// factor behind them. A grid's points are words of 16 bits in `vecs`.

const FORMAT_MINS: bool = false;

fn point(table: u32, n: u32) -> u32 { return (vu(table + (n >> 1u)) >> ((n & 1u) << 4u)) & 0xffffu; }

// Fields of a point as bytes.
fn fields2(x: u32) -> u32 { return (x | (x << 6u) | (x << 12u) | (x << 18u)) & 0x03030303u; }
fn fields3(x: u32) -> u32 {
    return (x & 7u) | ((x << 5u) & 0x700u) | ((x << 10u) & 0x70000u) | ((x << 15u) & 0x7000000u);
}
fn signs4(x: u32) -> u32 { return ((x & 15u) * 0x00204081u) & 0x01010101u; }

// Eight signs from seven: the eighth makes the number of minus signs even.
fn even_signs(stored: u32) -> u32 {
    let low = stored & 127u;
    return low | ((countOneBits(low) & 1u) << 7u);
}

// Levels 0, 1, 2 are 8, 25, 43.
fn level2(f: u32) -> u32 { return f * 17u + ((f >> 1u) & 0x01010101u) + 0x08080808u; }

fn eight2(p: u32, signs: u32) -> Pair {
    return Pair(negated(level2(fields2(p & 255u)), signs4(signs)), negated(level2(fields2(p >> 8u)), signs4(signs >> 4u)));
}

// Levels -1 to 1 moved by an eighth up or down, in eighths.
fn eight1(p: u32, down: bool) -> Pair {
    let q = Pair(fields2(p & 255u) << 3u, fields2(p >> 8u) << 3u);
    return less(q, select(0x07070707u, 0x09090909u, down));
}

#if FORMAT == 16
const BLOCK_WORDS: u32 = 17u;
fn codes8(at: u32, i: u32) -> Codes {
    let g = at + ((i >> 2u) << 1u);
    let signs = weights[g + 1u];
    let l = i & 3u;
    let q = eight2(point(T_IQ2_XXS, (weights[g] >> (l << 3u)) & 255u), even_signs(signs >> (7u * l)));
    return plain(q, (half_low(weights[at + 16u]) * 0.125) * f32(2u * (signs >> 28u) + 1u));
}
#elif FORMAT == 17
const BLOCK_WORDS: u32 = 19u;
fn codes8(at: u32, i: u32) -> Codes {
    let word = (weights[at + (i >> 1u)] >> ((i & 1u) << 4u)) & 0xffffu;
    let s = (byte_of(at + 16u, i >> 2u) >> ((i & 2u) << 1u)) & 15u;
    let q = eight2(point(T_IQ2_XS, word & 511u), even_signs(word >> 9u));
    return plain(q, (half_low(weights[at + 18u]) * 0.125) * f32(2u * s + 1u));
}
#elif FORMAT == 22
const BLOCK_WORDS: u32 = 21u;
fn codes8(at: u32, i: u32) -> Codes {
    let high = (byte_of(at + 16u, i >> 2u) >> ((i & 3u) << 1u)) & 3u;
    let s = (byte_of(at + 18u, i >> 2u) >> ((i & 2u) << 1u)) & 15u;
    let q = eight2(point(T_IQ2_S, byte_of(at, i) | (high << 8u)), byte_of(at + 8u, i));
    return plain(q, (half_low(weights[at + 20u]) * 0.125) * f32(2u * s + 1u));
}
#elif FORMAT == 18
const BLOCK_WORDS: u32 = 25u;

// Levels are 4, 12, 20 up to 52, then 62.
fn level3(f: u32) -> u32 { return (f << 3u) + 0x04040404u + (((f & (f >> 1u) & (f >> 2u)) & 0x01010101u) << 1u); }

fn codes8(at: u32, i: u32) -> Codes {
    let signs = weights[at + 16u + (i >> 2u)];
    let own = even_signs(signs >> (7u * (i & 3u)));
    let points = weights[at + (i >> 1u)] >> ((i & 1u) << 4u);
    let a = level3(fields3(point(T_IQ3_XXS, points & 255u)));
    let b = level3(fields3(point(T_IQ3_XXS, (points >> 8u) & 255u)));
    let q = Pair(negated(a, signs4(own)), negated(b, signs4(own >> 4u)));
    return plain(q, (half_low(weights[at + 24u]) * 0.25) * f32(2u * (signs >> 28u) + 1u));
}
#elif FORMAT == 21
const BLOCK_WORDS: u32 = 28u;
fn codes8(at: u32, i: u32) -> Codes {
    let points = weights[at + (i >> 1u)] >> ((i & 1u) << 4u);
    let ninth = byte_of(at + 16u, i >> 2u) >> ((i & 3u) << 1u);
    let signs = byte_of(at + 18u, i);
    let a = fields3(point(T_IQ3_S, (points & 255u) | ((ninth & 1u) << 8u)));
    let b = fields3(point(T_IQ3_S, ((points >> 8u) & 255u) | ((ninth & 2u) << 7u)));
    let q = Pair(negated((a << 1u) + 0x01010101u, signs4(signs)), negated((b << 1u) + 0x01010101u, signs4(signs >> 4u)));
    let s = nibble_of(weights[at + 26u], i >> 2u);
    return plain(q, half_low(weights[at + 27u]) * f32(2u * s + 1u));
}
#elif FORMAT == 19
const BLOCK_WORDS: u32 = 13u;
fn codes8(at: u32, i: u32) -> Codes {
    let g = i >> 2u;
    let word = (weights[at + 8u + (g >> 1u)] >> ((g & 1u) << 4u)) & 0xffffu;
    let high = (word >> (3u * (i & 3u))) & 7u;
    let q = eight1(point(T_IQ1, byte_of(at, i) | (high << 8u)), (word & 0x8000u) != 0u);
    return plain(q, (half_low(weights[at + 12u]) * 0.125) * f32(2u * ((word >> 12u) & 7u) + 1u));
}
#else
const BLOCK_WORDS: u32 = 14u;
fn codes8(at: u32, i: u32) -> Codes {
    let x = weights[at + 12u];
    let y = weights[at + 13u];
    let d = ((x >> 12u) & 15u) | ((x >> 24u) & 0xf0u) | ((y >> 4u) & 0xf00u) | ((y >> 16u) & 0xf000u);
    let s = i >> 1u;
    let scales = (select(x, y, s >= 8u) >> (((s >> 2u) & 1u) << 4u)) & 0xffffu;
    let nibble = nibble_of(weights[at + 8u + (i >> 3u)], i & 7u);
    let q = eight1(point(T_IQ1, byte_of(at, i) | ((nibble & 7u) << 8u)), (nibble & 8u) != 0u);
    return plain(q, (half_exact(d) * 0.125) * f32(2u * ((scales >> (3u * (s & 3u))) & 7u) + 1u));
}
#endif
