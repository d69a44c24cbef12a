//! Nibbles that index a table of values: `IQ4_NL`, `IQ4_XS`, `MXFP4`, `NVFP4`.

use super::{Unpacked, half_at, split_nibbles, u16_at};
use crate::num::{e8m0_half, ue4m3_units};
use crate::tables::{FP4, IQ4};

/// Half scale, nibbles.
pub(super) fn iq4_nl(b: &[u8; 18], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 0), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
    split_nibbles(&b[2..], &mut u.codes[..32], |q| IQ4[usize::from(q)]);
}

/// Half factor, high bits and low nibbles of eight 6-bit scales less 32, nibbles.
pub(super) fn iq4_xs(b: &[u8; 136], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 0), 0.0);
    u.mins = [0; 16];
    let high = u16_at(b, 2);
    for s in 0..8 {
        let low = (b[4 + s / 2] >> (4 * (s % 2))) & 15;
        u.scales[s] = i32::from(low) + i32::from((high >> (2 * s)) & 3) * 16 - 32;
    }
    for (codes, packed) in u.codes.chunks_exact_mut(32).zip(b[8..].chunks_exact(16)) {
        split_nibbles(packed, codes, |q| IQ4[usize::from(q)]);
    }
}

/// Exponent byte, nibbles.
pub(super) fn mxfp4(b: &[u8; 17], u: &mut Unpacked) {
    (u.d, u.dmin) = (e8m0_half(b[0]), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
    split_nibbles(&b[1..], &mut u.codes[..32], |q| FP4[usize::from(q)]);
}

/// Four scale bytes, then nibbles per run of sixteen.
pub(super) fn nvfp4(b: &[u8; 36], u: &mut Unpacked) {
    // Scale bytes count 2^-9; codes are doubled, hence another half.
    (u.d, u.dmin) = (1.0 / 1024.0, 0.0);
    u.mins = [0; 16];
    for (s, &byte) in b[..4].iter().enumerate() {
        u.scales[s] = ue4m3_units(byte);
    }
    for (codes, packed) in u.codes.chunks_exact_mut(16).zip(b[4..].chunks_exact(8)) {
        split_nibbles(packed, codes, |q| FP4[usize::from(q)]);
    }
}
