//! Lattice formats: groups of eight or four elements are points of a fixed grid, with signs apart.

use super::{Unpacked, half_at, u16_at, u32_at};
use crate::grids;
use crate::num::f16_to_f32;
use crate::tables::{IQ2_LEVELS, IQ3_XXS_LEVELS, even_signs};

/// Half factor; per 32 elements four point bytes, then four 7-bit sign sets and a 4-bit scale.
pub(super) fn iq2_xxs(b: &[u8; 66], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0) * 0.125, u);
    for s in 0..8 {
        let points = &b[2 + 8 * s..6 + 8 * s];
        let signs = u32_at(b, 6 + 8 * s);
        u.scales[s] = 2 * (signs >> 28) as i32 + 1;
        for (l, &point) in points.iter().enumerate() {
            let at = 32 * s + 8 * l;
            eight(
                grids::IQ2_XXS[usize::from(point)],
                even_signs(signs >> (7 * l)),
                &mut u.codes[at..at + 8],
            );
        }
    }
}

/// Half factor, words of a 9-bit point and a 7-bit sign set, two 4-bit scales per 32.
pub(super) fn iq2_xs(b: &[u8; 74], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0) * 0.125, u);
    nibble_scales(&b[66..], u);
    for (l, codes) in u.codes.chunks_exact_mut(8).enumerate() {
        let word = u16_at(b, 2 + 2 * l);
        eight(
            grids::IQ2_XS[usize::from(word & 511)],
            even_signs(u32::from(word) >> 9),
            codes,
        );
    }
}

/// Half factor, low bytes of points, sign bytes, high bits of points, two 4-bit scales per 32.
pub(super) fn iq2_s(b: &[u8; 82], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0) * 0.125, u);
    nibble_scales(&b[74..], u);
    for (l, codes) in u.codes.chunks_exact_mut(8).enumerate() {
        let high = usize::from(b[66 + l / 4] >> (2 * (l % 4))) & 3;
        eight(
            grids::IQ2_S[usize::from(b[2 + l]) | high << 8],
            b[34 + l],
            codes,
        );
    }
}

/// Half factor, point bytes, then per 32 elements four 7-bit sign sets and a 4-bit scale.
pub(super) fn iq3_xxs(b: &[u8; 98], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0) * 0.25, u);
    for s in 0..8 {
        let signs = u32_at(b, 66 + 4 * s);
        u.scales[s] = 2 * (signs >> 28) as i32 + 1;
        for l in 0..4 {
            let at = 32 * s + 8 * l;
            let points = [0, 1].map(|i| grids::IQ3_XXS[usize::from(b[2 + at / 4 + i])]);
            let level = |q: u16| IQ3_XXS_LEVELS[usize::from(q)];
            two_fours(
                points,
                even_signs(signs >> (7 * l)),
                level,
                &mut u.codes[at..at + 8],
            );
        }
    }
}

/// Half factor, low bytes of points, their ninth bits, sign bytes, one 4-bit scale per 32.
pub(super) fn iq3_s(b: &[u8; 110], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0), u);
    for s in 0..8 {
        let nibble = (b[106 + s / 2] >> (4 * (s % 2))) & 15;
        u.scales[s] = 2 * i32::from(nibble) + 1;
    }
    for (l, codes) in u.codes.chunks_exact_mut(8).enumerate() {
        let points = [2 * l, 2 * l + 1].map(|i| {
            let ninth = usize::from(b[66 + i / 8] >> (i % 8)) & 1;
            grids::IQ3_S[usize::from(b[2 + i]) | ninth << 8]
        });
        two_fours(points, b[74 + l], |q| 2 * q as i8 + 1, codes);
    }
}

/// Half factor, low bytes of points, words of 3-bit highs, a 3-bit scale and the shift's sign.
pub(super) fn iq1_s(b: &[u8; 50], u: &mut Unpacked) {
    lattice_factor(half_at(b, 0) * 0.125, u);
    for s in 0..8 {
        let word = u16_at(b, 34 + 2 * s);
        u.scales[s] = 2 * i32::from((word >> 12) & 7) + 1;
        for l in 0..4 {
            let high = usize::from((word >> (3 * l)) & 7);
            let at = 32 * s + 8 * l;
            let point = grids::IQ1[usize::from(b[2 + at / 8]) | high << 8];
            shifted(point, word & 0x8000 != 0, &mut u.codes[at..at + 8]);
        }
    }
}

/// Low bytes of points, nibbles of 3-bit highs and a shift sign, words of four 3-bit scales whose
/// top nibbles make up the half factor.
pub(super) fn iq1_m(b: &[u8; 56], u: &mut Unpacked) {
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(b, 48 + 2 * i));
    let factor = (0..4).fold(0, |acc, i| acc | (words[i] >> 12) << (4 * i));
    lattice_factor(f16_to_f32(factor) * 0.125, u);
    for (s, scale) in u.scales.iter_mut().enumerate() {
        *scale = 2 * i32::from((words[s / 4] >> (3 * (s % 4))) & 7) + 1;
    }
    for (l, codes) in u.codes.chunks_exact_mut(8).enumerate() {
        let nibble = usize::from(b[32 + l / 2] >> (4 * (l % 2)));
        let point = grids::IQ1[usize::from(b[l]) | (nibble & 7) << 8];
        shifted(point, nibble & 8 != 0, codes);
    }
}

fn lattice_factor(d: f32, u: &mut Unpacked) {
    (u.d, u.dmin) = (d, 0.0);
    u.mins = [0; 16];
}

/// Odd scales from sixteen nibbles.
fn nibble_scales(packed: &[u8], u: &mut Unpacked) {
    for (s, scale) in u.scales.iter_mut().enumerate() {
        *scale = 2 * i32::from((packed[s / 2] >> (4 * (s % 2))) & 15) + 1;
    }
}

#[inline(always)]
fn signed(value: i8, signs: u8, i: usize) -> i8 {
    if (signs >> i) & 1 == 1 { -value } else { value }
}

fn eight(point: u16, signs: u8, codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = signed(IQ2_LEVELS[usize::from((point >> (2 * i)) & 3)], signs, i);
    }
}

fn two_fours(points: [u16; 2], signs: u8, level: impl Fn(u16) -> i8, codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = signed(level((points[i / 4] >> (3 * (i % 4))) & 7), signs, i);
    }
}

/// Levels -1 to 1 moved by an eighth up or down, in eighths.
fn shifted(point: u16, down: bool, codes: &mut [i8]) {
    let shift = if down { -1 } else { 1 };
    for (i, code) in codes.iter_mut().enumerate() {
        *code = 8 * (((point >> (2 * i)) & 3) as i8 - 1) + shift;
    }
}
