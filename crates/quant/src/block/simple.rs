//! One scale per block: `Q1_0` to `Q8_1`.

use super::{Unpacked, half_at, split_nibbles, u32_at};

/// Half scale, one bit per element: minus or plus the scale.
pub(super) fn q1_0(b: &[u8; 18], u: &mut Unpacked) {
    scale_only(b, u);
    for (codes, &byte) in u.codes.chunks_exact_mut(8).zip(&b[2..]) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = 2 * ((byte >> i) & 1) as i8 - 1;
        }
    }
}

/// Half scale, two bits per element for -1 to 2.
pub(super) fn q2_0(b: &[u8; 18], u: &mut Unpacked) {
    scale_only(b, u);
    for (codes, &byte) in u.codes.chunks_exact_mut(4).zip(&b[2..]) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = ((byte >> (2 * i)) & 3) as i8 - 1;
        }
    }
}

/// Half scale, nibbles less 8.
pub(super) fn q4_0(b: &[u8; 18], u: &mut Unpacked) {
    scale_only(b, u);
    split_nibbles(&b[2..], &mut u.codes[..32], |q| q as i8 - 8);
}

/// Half scale, half offset, nibbles.
pub(super) fn q4_1(b: &[u8; 20], u: &mut Unpacked) {
    scale_and_offset(b, u);
    split_nibbles(&b[4..], &mut u.codes[..32], |q| q as i8);
}

/// Half scale, 32 fifth bits, nibbles; less 16.
pub(super) fn q5_0(b: &[u8; 22], u: &mut Unpacked) {
    scale_only(b, u);
    split_nibbles(&b[6..], &mut u.codes[..32], |q| q as i8 - 16);
    add_fifth_bits(u32_at(b, 2), u);
}

/// Half scale, half offset, 32 fifth bits, nibbles.
pub(super) fn q5_1(b: &[u8; 24], u: &mut Unpacked) {
    scale_and_offset(b, u);
    split_nibbles(&b[8..], &mut u.codes[..32], |q| q as i8);
    add_fifth_bits(u32_at(b, 4), u);
}

/// Half scale, bytes.
pub(super) fn q8_0(b: &[u8; 34], u: &mut Unpacked) {
    scale_only(b, u);
    copy_bytes(&b[2..], u);
}

/// Half scale, half sum (derived, not needed to read the block), bytes.
pub(super) fn q8_1(b: &[u8; 36], u: &mut Unpacked) {
    scale_only(b, u);
    copy_bytes(&b[4..], u);
}

fn scale_only(b: &[u8], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 0), 0.0);
    (u.scales[0], u.mins[0]) = (1, 0);
}

fn scale_and_offset(b: &[u8], u: &mut Unpacked) {
    (u.d, u.dmin) = (half_at(b, 0), -half_at(b, 2));
    (u.scales[0], u.mins[0]) = (1, 1);
}

fn add_fifth_bits(bits: u32, u: &mut Unpacked) {
    for (i, code) in u.codes[..32].iter_mut().enumerate() {
        *code += (((bits >> i) & 1) << 4) as i8;
    }
}

fn copy_bytes(bytes: &[u8], u: &mut Unpacked) {
    for (code, &byte) in u.codes.iter_mut().zip(bytes) {
        *code = byte as i8;
    }
}
