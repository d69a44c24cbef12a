//! Super-blocks of 256 with integer scales per sub-block: `Q2_K` to `Q8_K`.

use super::{Unpacked, half_at, u32_at};

/// Sixteen bytes of 4-bit scale and minimum, 2-bit codes, two half factors.
pub(super) fn q2(b: &[u8; 84], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 80), half_at(b, 82));
    for (s, &byte) in b[..16].iter().enumerate() {
        u.scales[s] = i32::from(byte & 15);
        u.mins[s] = i32::from(byte >> 4);
    }
    two_bits(&b[16..80], &mut u.codes);
}

/// Third bits, 2-bit codes, 6-bit scales less 32, half factor; codes less 4.
pub(super) fn q3(b: &[u8; 110], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 108), 0.0);
    u.mins = [0; 16];
    u.scales = q3_scales(&b[96..108]);
    two_bits(&b[32..96], &mut u.codes);
    for (bit, codes) in u.codes.chunks_exact_mut(32).enumerate() {
        for (code, &high) in codes.iter_mut().zip(&b[..32]) {
            *code += 4 * ((high >> bit) & 1) as i8 - 4;
        }
    }
}

/// Low nibbles in the first eight bytes, pairs of high bits in the last four.
fn q3_scales(b: &[u8]) -> [i32; 16] {
    std::array::from_fn(|s| {
        let low = (b[s % 8] >> (4 * (s / 8))) & 15;
        let high = (b[8 + s % 4] >> (2 * (s / 4))) & 3;
        i32::from(low | high << 4) - 32
    })
}

/// Two half factors, 6-bit scales and minima, nibbles.
pub(super) fn q4(b: &[u8; 144], u: &mut Unpacked) {
    factors_and_scales(b, u);
    paired_nibbles(&b[16..], &mut u.codes);
}

/// As [`q4`], with fifth bits in front of the nibbles.
pub(super) fn q5(b: &[u8; 176], u: &mut Unpacked) {
    factors_and_scales(b, u);
    paired_nibbles(&b[48..], &mut u.codes);
    for (bit, codes) in u.codes.chunks_exact_mut(32).enumerate() {
        for (code, &high) in codes.iter_mut().zip(&b[16..48]) {
            *code += 16 * ((high >> bit) & 1) as i8;
        }
    }
}

/// Low nibbles, pairs of high bits, signed byte scales, half factor; codes less 32.
pub(super) fn q6(b: &[u8; 210], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 208), 0.0);
    u.mins = [0; 16];
    for (scale, &byte) in u.scales.iter_mut().zip(&b[192..208]) {
        *scale = i32::from(byte as i8);
    }
    for (h, codes) in u.codes.chunks_exact_mut(128).enumerate() {
        q6_half(
            &b[64 * h..64 * h + 64],
            &b[128 + 32 * h..160 + 32 * h],
            codes,
        );
    }
}

fn q6_half(low: &[u8], high: &[u8], codes: &mut [i8]) {
    for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
        let low = &low[32 * (r & 1)..];
        for ((code, &l), &h) in codes.iter_mut().zip(low).zip(high) {
            let q = (l >> (4 * (r / 2))) & 15 | ((h >> (2 * r)) & 3) << 4;
            *code = q as i8 - 32;
        }
    }
}

/// Float factor, bytes; the sums that follow are derived.
pub(super) fn q8(b: &[u8; 292], u: &mut Unpacked) {
    (u.d, u.dmin) = (f32::from_bits(u32_at(b, 0)), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
    for (code, &byte) in u.codes.iter_mut().zip(&b[4..]) {
        *code = byte as i8;
    }
}

/// Each byte holds elements 32 apart, within runs of 128.
fn two_bits(packed: &[u8], codes: &mut [i8]) {
    for (codes, packed) in codes.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
        for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, &byte) in codes.iter_mut().zip(packed) {
                *code = ((byte >> (2 * r)) & 3) as i8;
            }
        }
    }
}

/// Low nibbles of 32 bytes for one sub-block, high nibbles for the next.
fn paired_nibbles(packed: &[u8], codes: &mut [i8]) {
    for (codes, packed) in codes.chunks_exact_mut(64).zip(packed.chunks_exact(32)) {
        super::split_nibbles(packed, codes, |q| q as i8);
    }
}

fn factors_and_scales(b: &[u8], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 0), half_at(b, 2));
    let p = &b[4..16];
    for s in 0..4 {
        u.scales[s] = i32::from(p[s] & 63);
        u.mins[s] = i32::from(p[s + 4] & 63);
        u.scales[s + 4] = i32::from(p[s + 8] & 15 | (p[s] >> 6) << 4);
        u.mins[s + 4] = i32::from(p[s + 8] >> 4 | (p[s + 4] >> 6) << 4);
    }
}
