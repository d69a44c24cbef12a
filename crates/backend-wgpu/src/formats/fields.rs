//! Small fields put together in words.

/// The word whose bytes begin at `at`.
#[inline(always)]
pub(super) fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
pub(super) fn bytes_to_words(b: &[u8], out: &mut [u32]) {
    let (words, _) = b.as_chunks::<4>();
    for (out, &bytes) in out.iter_mut().zip(words) {
        *out = u32::from_le_bytes(bytes);
    }
}

/// Words of nibbles, from bytes whose low nibbles are the first half of the weights.
#[inline(always)]
pub(super) fn nibbles_of_bytes(b: &[u8], out: &mut [u32]) {
    const LOW: u32 = 0x0F0F_0F0F;
    let (lows, highs) = out.split_at_mut(b.len() / 8);
    let (pairs, _) = b.as_chunks::<8>();
    for ((b, low), high) in pairs.iter().zip(lows).zip(highs) {
        let (x, y) = (word(b, 0), word(b, 4));
        *low = x & LOW | (y & LOW) << 4;
        *high = x >> 4 & LOW | y & !LOW;
    }
}

/// Words of crumbs, from runs of 32 bytes whose lowest crumbs are the first 32 of 128 weights, and so on.
#[inline(always)]
pub(super) fn crumbs_of_bytes(b: &[u8], out: &mut [u32]) {
    for (b, out) in b.chunks_exact(32).zip(out.chunks_exact_mut(8)) {
        for (t, out) in out.iter_mut().enumerate() {
            let crumb = |k: usize| word(b, 16 * (t % 2) + 4 * k) >> (2 * (t / 2)) & 0x0303_0303;
            *out = crumb(0) | crumb(1) << 2 | crumb(2) << 4 | crumb(3) << 6;
        }
    }
}

/// Words of bits, from 32 bytes whose lowest bits are the first 32 of 256 weights, and so on.
#[inline(always)]
pub(super) fn bits_of_bytes(b: &[u8], out: &mut [u32]) {
    for (g, out) in out.iter_mut().enumerate() {
        *out = (0..8).fold(0, |all, k| all | (word(b, 4 * k) >> g & 0x0101_0101) << k);
    }
}

/// A word of bits, from one whose bit `i` is that of weight `i`.
#[inline(always)]
pub(super) fn bits_of_word(bits: u32) -> u32 {
    let spread = |four: u32| ((four & 15) * 0x0020_4081) & 0x0101_0101;
    (0..8).fold(0, |all, k| all | spread(bits >> (4 * k)) << k)
}

/// A word of crumbs, from one whose crumb `i` is that of weight `i`.
#[inline(always)]
pub(super) fn crumbs_of_word(crumbs: u32) -> u32 {
    let spread = |x: u32| (x | x << 6 | x << 12 | x << 18) & 0x0303_0303;
    (0..4).fold(0, |all, k| all | spread(crumbs >> (8 * k) & 255) << (2 * k))
}

/// The low nibbles of four bytes side by side.
#[inline(always)]
pub(super) fn gathered_nibbles(x: u32) -> u32 {
    x & 15 | x >> 4 & 0xF0 | x >> 8 & 0xF00 | x >> 12 & 0xF000
}

/// The lowest crumbs of four bytes side by side.
#[inline(always)]
pub(super) fn gathered_crumbs(x: u32) -> u32 {
    x & 3 | x >> 6 & 12 | x >> 12 & 0x30 | x >> 18 & 0xC0
}
