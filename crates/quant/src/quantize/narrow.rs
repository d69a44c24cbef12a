//! Quantisers of the ternary and FP4 formats.

use tokkata_core::DType;

use super::Task;
use super::simple::{largest_magnitude, round_away};
use crate::num::{e8m0_half, f32_to_f16, f32_to_ue4m3, ue4m3_units};
use crate::tables::FP4;

/// Quantises whole rows to a ternary or FP4 format.
pub(super) fn quantize(task: Task<'_>) {
    let (elems, bytes) = (task.dtype.block_elems(), task.dtype.block_bytes());
    let quantize = match task.dtype {
        DType::TQ1_0 => tq1_0,
        DType::TQ2_0 => tq2_0,
        DType::MXFP4 => mxfp4,
        DType::NVFP4 => nvfp4,
        other => unreachable!("{other} is not one of these formats"),
    };
    let Task { input, dst, .. } = task;
    for (src, dst) in input
        .src
        .chunks_exact(elems)
        .zip(dst.chunks_exact_mut(bytes))
    {
        quantize(src, dst);
    }
}

/// Codes 0 to 2, and the scale.
fn trits(x: &[f32]) -> ([u8; 256], u16) {
    let d = largest_magnitude(x);
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; 256];
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = (round_away(x * id) + 1) as u8;
    }
    (codes, f32_to_f16(d))
}

fn tq1_0(x: &[f32], dst: &mut [u8]) {
    let (codes, d) = trits(x);
    base_three(&codes[..160], 5, &mut dst[..32]);
    base_three(&codes[160..240], 5, &mut dst[32..48]);
    base_three(&codes[240..], 4, &mut dst[48..52]);
    dst[52..].copy_from_slice(&d.to_le_bytes());
}

/// Digits from runs of `dst.len()` codes, first run most significant, as a fraction of 256.
fn base_three(codes: &[u8], digits: usize, dst: &mut [u8]) {
    let run = dst.len();
    for (i, byte) in dst.iter_mut().enumerate() {
        let number = (0..digits).fold(0, |q, n| q * 3 + u16::from(codes[i + n * run]));
        let number = number * 3u16.pow(5 - digits as u32);
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

fn tq2_0(x: &[f32], dst: &mut [u8]) {
    let (codes, d) = trits(x);
    super::pack::two_bits(&codes, &mut dst[..64]);
    dst[64..].copy_from_slice(&d.to_le_bytes());
}

/// The code whose value is nearest to `x`, the lower code where two are.
#[inline(always)]
fn nearest_fp4(x: f32, unit: f32) -> u8 {
    let mut best = (0, (f32::from(FP4[0]) * unit - x).abs());
    for (code, &value) in (1..).zip(&FP4[1..]) {
        let error = (f32::from(value) * unit - x).abs();
        let better = error < best.1;
        best = (
            if better { code } else { best.0 },
            if better { error } else { best.1 },
        );
    }
    best.0
}

fn fp4_halves(x: &[f32], unit: f32, dst: &mut [u8]) {
    let (low, high) = x.split_at(dst.len());
    for ((byte, &l), &h) in dst.iter_mut().zip(low).zip(high) {
        *byte = nearest_fp4(l, unit) | nearest_fp4(h, unit) << 4;
    }
}

/// The exponent puts the largest magnitude between 4 and 8 units.
fn mxfp4(x: &[f32], dst: &mut [u8]) {
    let largest = largest_magnitude(x);
    dst[0] = if largest > 0.0 {
        shared_exponent(largest)
    } else {
        0
    };
    fp4_halves(x, e8m0_half(dst[0]), &mut dst[1..]);
}

/// Rounding the logarithm to single precision is part of the format's published behaviour.
fn shared_exponent(largest: f32) -> u8 {
    let log = f64::from(largest).log2() as f32;
    (log.floor() - 2.0 + 127.0) as u8
}

/// A scale per sixteen elements puts the largest magnitude at 6.
fn nvfp4(x: &[f32], dst: &mut [u8]) {
    let (scales, packed) = dst.split_at_mut(4);
    for ((x, scale), packed) in x
        .chunks_exact(16)
        .zip(scales)
        .zip(packed.chunks_exact_mut(8))
    {
        *scale = f32_to_ue4m3(largest_magnitude(x) / 6.0);
        fp4_halves(x, ue4m3_units(*scale) as f32 / 1024.0, packed);
    }
}
