// Eight scales and eight minima of six bits: a word of the scales' low nibbles, one of the minima's, one of both's high bits.

fn with_scales(at: u32, i: u32, q: Pair) -> Codes {
    let n = i >> 2u;
    let high = weights[at + 3u] >> (n << 1u);
    let scale = nibble_of(weights[at + 1u], n) | ((high & 3u) << 4u);
    let min = nibble_of(weights[at + 2u], n) | (((high >> 16u) & 3u) << 4u);
    let d = weights[at];
    return Codes(q.a, q.b, half_low(d) * f32(scale), half_high(d) * f32(min));
}
