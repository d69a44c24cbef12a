// Three-valued codes: `TQ1_0`, five to a byte as in the file, and `TQ2_0`.

const FORMAT_MINS: bool = false;

#if FORMAT == 34
const BLOCK_WORDS: u32 = 14u;

// Digit `n` of the bytes of a word, each a fraction of 256 in base 3.
fn digits(word: u32, n: u32) -> u32 {
    let power = (select(1u, 3u, (n & 1u) != 0u) * select(1u, 9u, (n & 2u) != 0u)) * select(1u, 81u, n == 4u);
    let even = ((word & 0x00ff00ffu) * power) & 0x00ff00ffu;
    let odd = (((word >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu;
    return (((even * 3u) >> 8u) & 0x00ff00ffu) | ((odd * 3u) & 0xff00ff00u);
}

// 32 bytes hold weights 0 to 159, 16 bytes 160 to 239, 4 bytes the rest.
fn codes8(at: u32, i: u32) -> Codes {
    var w = (i & 3u) << 1u;
    var n = i >> 2u;
    if (i >= 20u) {
        w = 8u + ((i & 1u) << 1u);
        n = (i - 20u) >> 1u;
    }
    var q = Pair(weights[at + w], weights[at + w + 1u]);
    if (i >= 30u) {
        let last = weights[at + 12u];
        n = (i - 30u) << 1u;
        q = Pair(digits(last, n), digits(last, n + 1u));
    } else {
        q = Pair(digits(q.a, n), digits(q.b, n));
    }
    return plain(less(q, 0x01010101u), half_low(weights[at + 13u]));
}
#else
const BLOCK_WORDS: u32 = 17u;
fn codes8(at: u32, i: u32) -> Codes { return plain(less(crumbs(at + 1u, i), 0x01010101u), half_low(weights[at])); }
#endif
