// One scale per 32 weights and more: `Q1_0` to `Q8_1`. Scales come first.

#if FORMAT == 2
const BLOCK_WORDS: u32 = 36u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes { return plain(less(nibbles(at + 4u, i), 0x08080808u), half_of(at, i >> 2u)); }
#elif FORMAT == 3
const BLOCK_WORDS: u32 = 40u;
const FORMAT_MINS: bool = true;
fn codes8(at: u32, i: u32) -> Codes {
    let q = nibbles(at + 8u, i);
    let d = weights[at + (i >> 2u)];
    return Codes(q.a, q.b, half_low(d), -half_high(d));
}
#elif FORMAT == 6
const BLOCK_WORDS: u32 = 44u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = either(nibbles(at + 12u, i), bits(at + 4u, i), 4u);
    return plain(less(q, 0x10101010u), half_of(at, i >> 2u));
}
#elif FORMAT == 7
const BLOCK_WORDS: u32 = 48u;
const FORMAT_MINS: bool = true;
fn codes8(at: u32, i: u32) -> Codes {
    let q = either(nibbles(at + 16u, i), bits(at + 8u, i), 4u);
    let d = weights[at + (i >> 2u)];
    return Codes(q.a, q.b, half_low(d), -half_high(d));
}
#elif FORMAT == 41
const BLOCK_WORDS: u32 = 9u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = bits(at + 1u, i);
    return plain(less(Pair(q.a << 1u, q.b << 1u), 0x01010101u), half_of(at, i >> 4u));
}
#elif FORMAT == 42
const BLOCK_WORDS: u32 = 18u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes { return plain(less(crumbs(at + 2u, i), 0x01010101u), half_of(at, i >> 3u)); }
#else
// Q8_0 and Q8_1, whose sums are left out.
const BLOCK_WORDS: u32 = 68u;
const FORMAT_MINS: bool = false;
fn codes8(at: u32, i: u32) -> Codes {
    let q = at + 4u + 2u * i;
    return Codes(weights[q], weights[q + 1u], half_of(at, i >> 2u), 0.0);
}
#endif
