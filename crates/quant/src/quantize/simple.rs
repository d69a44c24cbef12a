//! Quantisers of the formats with one scale per block: `Q1_0` to `Q8_0`.

use tokkata_core::DType;

use super::affine::{self, Search};
use super::lanes::{self, Job, LANES, Lanes, MAGIC, transpose};
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

/// Drops the fraction of a number from 0 to 255, in steps that vector units have.
#[inline(always)]
fn truncate(value: f32) -> u8 {
    let shifted = value + MAGIC;
    (shifted.to_bits() as u8).wrapping_sub(u8::from(shifted - MAGIC > value))
}

/// Rounds halves away from zero; for magnitudes up to 255.
#[inline(always)]
pub(super) fn round_away(value: f32) -> i32 {
    let magnitude = i32::from(truncate(value.abs() + 0.499_999_97));
    if value < 0.0 { -magnitude } else { magnitude }
}

/// Bits of magnitudes are ordered as the magnitudes are.
#[inline(always)]
pub(super) fn largest_magnitude(x: &[f32]) -> f32 {
    let mut largest = 0;
    for v in x {
        largest = largest.max(v.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}

/// The first element of largest magnitude.
#[inline(always)]
fn signed_peak(x: &[f32; 32]) -> f32 {
    // As signed numbers the bits put the largest positive last, as unsigned ones the lowest negative.
    let (mut positive, mut negative) = (0i32, 0x8000_0000u32);
    for v in x {
        positive = positive.max(v.to_bits() as i32);
        negative = negative.max(v.to_bits());
    }
    let (high, low) = (f32::from_bits(positive as u32), f32::from_bits(negative));
    if high == -low {
        return x.iter().copied().find(|v| v.abs() == high).unwrap_or(0.0);
    }
    if high > -low { high } else { low }
}

/// Signs, and the mean magnitude.
#[inline(always)]
fn q1_0(x: &[f32; 128], dst: &mut [u8]) {
    let mut sum = 0.0;
    for v in x {
        sum += v.abs();
    }
    put_half(sum / 128.0, dst);
    for (byte, x) in dst[2..].iter_mut().zip(x.chunks_exact(8)) {
        *byte = (0..8).fold(0, |byte, i| byte | u8::from(x[i] >= 0.0) << i);
    }
}

/// -1, 0 or 1 times the largest magnitude.
#[inline(always)]
fn q2_0(x: &[f32; 64], dst: &mut [u8]) {
    let d = largest_magnitude(x);
    let id = inverse(d);
    put_half(d, dst);
    let mut codes = [0; 64];
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = (round_away(x * id) + 1) as u8;
    }
    for (byte, c) in dst[2..].iter_mut().zip(codes.as_chunks::<4>().0) {
        *byte = c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6;
    }
}

#[inline(always)]
fn q8_0(x: &[f32; 32], dst: &mut [u8]) {
    let d = largest_magnitude(x) / 127.0;
    let id = inverse(d);
    put_half(d, dst);
    for (byte, &x) in dst[2..].iter_mut().zip(x) {
        *byte = round_away(x * id) as u8;
    }
}

/// The element of largest magnitude gets the lowest code.
#[inline(always)]
fn scaled(x: &[f32; 32], steps: f32, dst: &mut [u8]) {
    let d = signed_peak(x) / -steps;
    let id = inverse(d);
    put_half(d, dst);
    let top = 2 * steps as u8 - 1;
    let mut codes = [0; 32];
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = truncate(x * id + (steps + 0.5)).min(top);
    }
    put_codes(&codes, &mut dst[2..]);
}

/// The range from least to greatest in equal steps.
#[inline(always)]
fn ranged(x: &[f32; 32], top: f32, dst: &mut [u8]) {
    let (low, high) = range(x);
    let d = (high - low) / top;
    let id = inverse(d);
    put_half(d, dst);
    put_half(low, &mut dst[2..]);
    let mut codes = [0; 32];
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = truncate((x - low) * id + 0.5).min(top as u8);
    }
    put_codes(&codes, &mut dst[4..]);
}

/// The least and the greatest element, eight runs at a time.
#[inline(always)]
fn range(x: &[f32; 32]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::MAX; 8], [f32::MIN; 8]);
    for x in x.as_chunks::<8>().0 {
        for i in 0..8 {
            low[i] = if x[i] < low[i] { x[i] } else { low[i] };
            high[i] = if x[i] > high[i] { x[i] } else { high[i] };
        }
    }
    let least = low.iter().fold(f32::MAX, |a, &v| if v < a { v } else { a });
    let greatest = high
        .iter()
        .fold(f32::MIN, |a, &v| if v > a { v } else { a });
    (least, greatest)
}

/// Nibbles, after the fifth bits where there is room for them.
#[inline(always)]
fn put_codes(codes: &[u8; 32], dst: &mut [u8]) {
    let (high, low) = dst.split_at_mut(dst.len() - 16);
    pack::halves(codes, low);
    for (byte, codes) in high.iter_mut().zip(codes.as_chunks::<8>().0) {
        // The fifth bits, gathered into the top byte by a product.
        let bits = (u64::from_le_bytes(*codes) >> 4) & 0x0101_0101_0101_0101;
        *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
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
