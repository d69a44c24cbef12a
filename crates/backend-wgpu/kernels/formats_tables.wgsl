// Nibbles that stand for other numbers: `IQ4_NL`, `IQ4_XS`, `MXFP4`, `NVFP4`.

const FORMAT_MINS: bool = false;

#if FORMAT == 20 || FORMAT == 23
// By pairs of nibbles: the number of the low one, and that of the high one 16 bits above.
fn looked_up(word: u32) -> Pair {
    let x = vu(T_IQ4 + (word & 255u)) | (vu(T_IQ4 + ((word >> 8u) & 255u)) << 8u);
    let y = vu(T_IQ4 + ((word >> 16u) & 255u)) | (vu(T_IQ4 + (word >> 24u)) << 8u);
    return Pair((x & 0xffffu) | (y << 16u), (x >> 16u) | (y & 0xffff0000u));
}
#else
// Twice the values of E2M1: 0, 1, 2, 3, 4, 6, 8, 12, and a sign.
fn small_float(q: u32) -> u32 {
    let large = (q >> 2u) & 0x01010101u;
    let largest = large & (q >> 1u);
    let low = q & 0x03030303u;
    let m = (q & 0x07070707u) + (low & (large * 3u)) + (((low & largest) << 1u) & 0x02020202u);
    return negated(m, (q >> 3u) & 0x01010101u);
}

fn small_floats(q: Pair) -> Pair { return Pair(small_float(q.a), small_float(q.b)); }
#endif

#if FORMAT == 20
const BLOCK_WORDS: u32 = 36u;
fn codes8(at: u32, i: u32) -> Codes { return plain(looked_up(weights[at + 4u + i]), half_of(at, i >> 2u)); }
#elif FORMAT == 23
const BLOCK_WORDS: u32 = 34u;
fn codes8(at: u32, i: u32) -> Codes {
    let n = i >> 2u;
    let d = weights[at];
    let s = nibble_of(weights[at + 1u], n) | (((d >> (16u + (n << 1u))) & 3u) << 4u);
    return plain(looked_up(weights[at + 2u + i]), half_low(d) * f32(i32(s) - 32));
}
#elif FORMAT == 39
const BLOCK_WORDS: u32 = 34u;
fn codes8(at: u32, i: u32) -> Codes {
    // Half of a power of two, since codes are doubled.
    let e = byte_of(at, i >> 2u);
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return plain(small_floats(nibbles(at + 2u, i)), scale);
}
#else
const BLOCK_WORDS: u32 = 36u;
fn codes8(at: u32, i: u32) -> Codes {
    // A scale counts 2⁻⁹, and codes are doubled.
    let s = byte_of(at, i >> 1u);
    let e = (s >> 3u) & 15u;
    var units = s & 7u;
    if (e != 0u) { units = (8u + units) << (e - 1u); }
    if (s == 0x7fu) { units = 0u; }
    return plain(small_floats(nibbles(at + 4u, i)), f32(units) * 0.0009765625);
}
#endif
