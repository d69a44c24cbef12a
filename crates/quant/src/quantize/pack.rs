//! Codes and scales of one super-block to bytes: the inverse of [`crate::block`].

/// Elements 32 apart, within runs of 128, share a byte.
#[inline(always)]
pub(super) fn two_bits(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = codes[i] & 3
                | (codes[i + 32] & 3) << 2
                | (codes[i + 64] & 3) << 4
                | (codes[i + 96] & 3) << 6;
        }
    }
}

/// Bit `bit` of every code: codes 32 apart share a byte.
#[inline(always)]
pub(super) fn one_bit(codes: &[u8; 256], bit: u8, out: &mut [u8]) {
    out.fill(0);
    for (run, codes) in codes.chunks_exact(32).enumerate() {
        for (byte, &code) in out.iter_mut().zip(codes) {
            *byte |= ((code >> bit) & 1) << run;
        }
    }
}

/// Low nibbles: the codes of each run of 64 halve into low and high.
#[inline(always)]
pub(super) fn nibbles(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        halves(codes, out);
    }
}

/// Low nibbles of the first half of `codes` below those of the second.
#[inline(always)]
pub(super) fn halves(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(out.len());
    for ((byte, &l), &h) in out.iter_mut().zip(low).zip(high) {
        *byte = l & 15 | (h & 15) << 4;
    }
}

/// Eight 6-bit scales and minima in twelve bytes.
pub(super) fn six_bit_pairs(scales: &[u8; 16], mins: &[u8; 16], out: &mut [u8]) {
    for s in 0..4 {
        let (sc, mn) = (scales[s + 4], mins[s + 4]);
        out[s] = scales[s] | (sc >> 4) << 6;
        out[s + 4] = mins[s] | (mn >> 4) << 6;
        out[s + 8] = sc & 15 | (mn & 15) << 4;
    }
}

/// Sixteen 6-bit scales, offset by 32, in twelve bytes.
pub(super) fn six_bits(scales: &[i8; 16], out: &mut [u8]) {
    let code = scales.map(|s| (s + 32) as u8);
    for s in 0..8 {
        out[s] = code[s] & 15 | (code[s + 8] & 15) << 4;
    }
    for s in 0..4 {
        out[8 + s] = (0..4).fold(0, |byte, i| byte | (code[s + 4 * i] >> 4) << (2 * i));
    }
}

/// `Q6_K` codes: nibbles of elements 64 apart, then pairs of high bits of elements 32 apart.
#[inline(always)]
pub(super) fn six_bit_codes(codes: &[u8; 256], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(128);
    for (h, codes) in codes.chunks_exact(128).enumerate() {
        halves(codes, &mut low[64 * h..64 * h + 64]);
        for (i, byte) in high[32 * h..32 * h + 32].iter_mut().enumerate() {
            *byte = codes[i] >> 4
                | (codes[i + 32] >> 4) << 2
                | (codes[i + 64] >> 4) << 4
                | (codes[i + 96] >> 4) << 6;
        }
    }
}
