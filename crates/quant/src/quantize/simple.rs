//! Quantisers of the formats with one scale per block: `Q1_0` to `Q8_0`.

use tokkata_core::DType;

use super::affine::{self, Search};
use super::lanes::{self, Job, LANES, Lanes, transpose};
use super::weights::{Input, importance_with, sum_of_squares};
use super::{Task, pack, symmetric};
use crate::num::f32_to_f16;

/// Quantises whole rows to one of the formats with one scale per block.
pub(super) fn quantize(task: Task<'_>) {
    lanes::run(Blocks(task));
}

struct Blocks<'a>(Task<'a>);

impl Job for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { dtype, input, dst } = self.0;
        match (dtype, input.importance) {
            (DType::Q1_0, _) => each::<128>(input, dst, 18, q1_0),
            (DType::Q2_0, _) => each::<64>(input, dst, 18, q2_0),
            (DType::Q8_0, _) => each::<32>(input, dst, 34, q8_0),
            (DType::Q4_0, None) => each::<32>(input, dst, 18, |x, out| scaled(x, 8.0, out)),
            (DType::Q5_0, None) => each::<32>(input, dst, 22, |x, out| scaled(x, 16.0, out)),
            (DType::Q4_1, None) => each::<32>(input, dst, 20, |x, out| ranged(x, 15.0, out)),
            (DType::Q5_1, None) => each::<32>(input, dst, 24, |x, out| ranged(x, 31.0, out)),
            (DType::Q4_0, Some(w)) => weighted::<L>((input, w), dst, 18, Kind::Symmetric(8.0)),
            (DType::Q5_0, Some(w)) => weighted::<L>((input, w), dst, 22, Kind::Symmetric(16.0)),
            (DType::Q4_1, Some(w)) => weighted::<L>((input, w), dst, 20, Kind::Affine(15.0)),
            (DType::Q5_1, Some(w)) => weighted::<L>((input, w), dst, 24, Kind::Affine(31.0)),
            _ => unreachable!("{dtype} is not one of these formats"),
        }
    }
}

#[inline(always)]
fn each<const N: usize>(
    input: Input<'_>,
    dst: &mut [u8],
    bytes: usize,
    quantize: impl Fn(&[f32; N], &mut [u8]),
) {
    for (src, dst) in input
        .src
        .as_chunks::<N>()
        .0
        .iter()
        .zip(dst.chunks_exact_mut(bytes))
    {
        quantize(src, dst);
    }
}

fn put_half(value: f32, dst: &mut [u8]) {
    dst[..2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

/// What to multiply by so that steps of `d` become 1.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Rounds halves away from zero; for magnitudes below 2^22.
#[inline(always)]
pub(super) fn round_away(value: f32) -> i32 {
    (value + 0.499_999_97_f32.copysign(value)) as i32
}

#[inline(always)]
fn largest_magnitude(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |a: f32, v| if v.abs() > a { v.abs() } else { a })
}

/// Signs, and the mean magnitude.
fn q1_0(x: &[f32; 128], dst: &mut [u8]) {
    let sum: f32 = x.iter().fold(0.0, |sum, v| sum + v.abs());
    put_half(sum / 128.0, dst);
    for (byte, x) in dst[2..].iter_mut().zip(x.chunks_exact(8)) {
        *byte = (0..8).fold(0, |byte, i| byte | u8::from(x[i] >= 0.0) << i);
    }
}

/// -1, 0 or 1 times the largest magnitude.
fn q2_0(x: &[f32; 64], dst: &mut [u8]) {
    let d = largest_magnitude(x);
    let id = inverse(d);
    put_half(d, dst);
    for (byte, x) in dst[2..].iter_mut().zip(x.chunks_exact(4)) {
        let code = |i: usize| (round_away(x[i] * id) + 1).clamp(0, 3) as u8;
        *byte = (0..4).fold(0, |byte, i| byte | code(i) << (2 * i));
    }
}

#[inline(always)]
fn q8_0(x: &[f32; 32], dst: &mut [u8]) {
    let d = largest_magnitude(x) / 127.0;
    let id = inverse(d);
    put_half(d, dst);
    for (byte, &x) in dst[2..].iter_mut().zip(x) {
        *byte = round_away(x * id) as i8 as u8;
    }
}

/// The element of largest magnitude gets the lowest code.
#[inline(always)]
fn scaled(x: &[f32; 32], steps: f32, dst: &mut [u8]) {
    let largest = x
        .iter()
        .fold(0.0, |a: f32, &v| if v.abs() > a.abs() { v } else { a });
    let d = largest / -steps;
    let id = inverse(d);
    put_half(d, dst);
    let top = 2 * steps as u8 - 1;
    put_codes(
        &x.map(|x| ((x * id + (steps + 0.5)) as u8).min(top)),
        &mut dst[2..],
    );
}

/// The range from least to greatest in equal steps.
#[inline(always)]
fn ranged(x: &[f32; 32], top: f32, dst: &mut [u8]) {
    let low = x.iter().fold(f32::MAX, |a, &v| if v < a { v } else { a });
    let high = x.iter().fold(f32::MIN, |a, &v| if v > a { v } else { a });
    let d = (high - low) / top;
    let id = inverse(d);
    put_half(d, dst);
    put_half(low, &mut dst[2..]);
    put_codes(
        &x.map(|x| (((x - low) * id + 0.5) as u8).min(top as u8)),
        &mut dst[4..],
    );
}

/// Nibbles, after the fifth bits where there is room for them.
#[inline(always)]
fn put_codes(codes: &[u8; 32], dst: &mut [u8]) {
    let (high, low) = dst.split_at_mut(dst.len() - 16);
    pack::halves(codes, low);
    for (byte, codes) in high.iter_mut().zip(codes.chunks_exact(8)) {
        *byte = (0..8).fold(0, |byte, i| byte | ((codes[i] >> 4) & 1) << i);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// A scale; codes from minus this.
    Symmetric(f32),
    /// A scale and a minimum; codes up to this.
    Affine(f32),
}

/// Blocks of a row side by side, weighted by importance and the row's mean square.
#[inline(always)]
fn weighted<L: Lanes>(
    (input, importance): (Input<'_>, &[f32]),
    dst: &mut [u8],
    bytes: usize,
    kind: Kind,
) {
    let row_bytes = input.width / 32 * bytes;
    for (row, dst) in input.rows().zip(dst.chunks_exact_mut(row_bytes)) {
        let mean = L::splat(sum_of_squares(row) / row.len() as f32);
        let runs = row.chunks(32 * LANES).zip(importance.chunks(32 * LANES));
        for ((src, importance), dst) in runs.zip(dst.chunks_mut(bytes * LANES)) {
            let x = transpose::<L, 32>(src);
            let w = importance_with(mean, importance, &x);
            let blocks = src
                .as_chunks::<32>()
                .0
                .iter()
                .zip(dst.chunks_exact_mut(bytes));
            match kind {
                Kind::Symmetric(steps) => put_symmetric(&symmetric::fit(&x, &w, steps), blocks),
                Kind::Affine(top) => {
                    put_affine(&affine::fit(&x, &w, &Search::weighted(top)), blocks);
                }
            }
        }
    }
}

#[inline(always)]
fn put_symmetric<'a>(
    fit: &symmetric::Fit,
    blocks: impl Iterator<Item = (&'a [f32; 32], &'a mut [u8])>,
) {
    for (s, (src, dst)) in blocks.enumerate() {
        put_half(fit.scale[s], dst);
        put_codes(&src.map(|x| fit.code(s, x)), &mut dst[2..]);
    }
}

#[inline(always)]
fn put_affine<'a>(fit: &affine::Fit, blocks: impl Iterator<Item = (&'a [f32; 32], &'a mut [u8])>) {
    for (s, (src, dst)) in blocks.enumerate() {
        put_half(fit.scale[s], dst);
        put_half(-fit.min[s], &mut dst[2..]);
        put_codes(&src.map(|x| fit.code(s, x)), &mut dst[4..]);
    }
}
