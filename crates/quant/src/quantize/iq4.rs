//! Quantisers of `IQ4_NL` and `IQ4_XS`: nibbles that index a table of unequal steps.

use tokkata_core::DType;

use super::lanes::{self, Job, LANES, Lanes, nearest, squares, transpose};
use super::symmetric::{TINY, peak};
use super::weights::{Input, importance_with, sum_of_squares};
use super::{Task, pack, scales};
use crate::num::f32_to_f16;
use crate::tables::IQ4;

/// Quantises whole rows to `IQ4_NL` or `IQ4_XS`.
pub(super) fn quantize(task: Task<'_>) {
    lanes::run(Blocks(task));
}

struct Blocks<'a>(Task<'a>);

impl Job for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { dtype, input, dst } = self.0;
        match dtype {
            DType::IQ4_NL => tiles::<L, 32>(input, dst, 18, put_nl),
            _ => tiles::<L, 256>(input, dst, 136, put_xs),
        }
    }
}

/// Runs of 16 times 32 elements, in blocks of `B` elements that share a mean square.
#[inline(always)]
fn tiles<L: Lanes, const B: usize>(
    input: Input<'_>,
    dst: &mut [u8],
    bytes: usize,
    put: fn(&[f32; B], &[f32], &mut [u8]),
) {
    let tile_bytes = LANES * 32 / B * bytes;
    for (tile, dst) in input.tiles(LANES * 32).zip(dst.chunks_mut(tile_bytes)) {
        let x = transpose::<L, 32>(tile.src);
        let w = match tile.importance() {
            None => squares(&x),
            Some(importance) => importance_with(mean_squares::<L, B>(tile.src), &importance, &x),
        };
        let scales = search(&x, &w);
        let blocks = tile
            .src
            .as_chunks::<B>()
            .0
            .iter()
            .zip(dst.chunks_exact_mut(bytes));
        for ((src, dst), scales) in blocks.zip(scales.chunks_exact(B / 32)) {
            put(src, scales, dst);
        }
    }
}

/// Twice the mean square of each block.
#[inline(always)]
fn mean_squares<L: Lanes, const B: usize>(src: &[f32]) -> L {
    let mut means = [0.0; LANES];
    for (block, means) in src.chunks_exact(B).zip(means.chunks_exact_mut(B / 32)) {
        means.fill(sum_of_squares(block) * (2.0 / B as f32));
    }
    L::load(&means)
}

/// The best scale of each sub-block among sixteen divisions of its range.
#[inline(always)]
fn search<L: Lanes>(x: &[L; 32], w: &[L; 32]) -> [f32; LANES] {
    let zero = L::splat(0.0);
    let lowest = f32::from(IQ4[0]);
    let (peak, value) = peak(x);
    let first = L::splat(1.0) / ((zero - value) / L::splat(lowest));
    let (qx, q2) = sums(x, w, first);
    let mut scale = L::pick(zero.lt(q2), qx / q2, zero);
    let mut best = scale * qx;
    for step in -7i8..=7 {
        let (qx, q2) = sums(x, w, L::splat(f32::from(step) + lowest) / value);
        let better = L::both(zero.lt(q2), (best * q2).lt(qx * qx));
        if L::any(better) {
            scale = L::pick(better, qx / q2, scale);
            best = L::pick(better, scale * qx, best);
        }
    }
    L::pick(peak.lt(L::splat(TINY)), zero, scale).to_array()
}

#[inline(always)]
fn sums<L: Lanes>(x: &[L; 32], w: &[L; 32], inverse: L) -> (L, L) {
    let (mut qx, mut q2) = (L::splat(0.0), L::splat(0.0));
    for (&x, &w) in x.iter().zip(w) {
        let q = nearest_value(inverse * x);
        let wq = w * q;
        qx = qx + wq * x;
        q2 = q2 + wq * q;
    }
    (qx, q2)
}

/// The table's value nearest to `x`, the higher one where two are.
#[inline(always)]
fn nearest_value<L: Lanes>(x: L) -> L {
    let value = |i: usize| L::splat(f32::from(IQ4[i]));
    let (mut below, mut above) = (value(0), value(1));
    for i in 1..16 {
        let less = x.lt(value(i));
        below = L::pick(less, below, value(i));
        above = L::pick(less, above, value((i + 1).min(15)));
    }
    L::pick((x - below).lt(above - x), below, above)
}

/// The index of [`nearest_value`].
#[inline(always)]
fn nearest_code(x: f32) -> u8 {
    let above = IQ4.iter().filter(|&&v| f32::from(v) <= x).count();
    match above {
        0 => 0,
        16 => 15,
        _ => {
            let (low, high) = (f32::from(IQ4[above - 1]), f32::from(IQ4[above]));
            (above - usize::from(x - low < high - x)) as u8
        }
    }
}

#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn put_nl(src: &[f32; 32], scales: &[f32], dst: &mut [u8]) {
    let id = inverse(scales[0]);
    dst[..2].copy_from_slice(&f32_to_f16(scales[0]).to_le_bytes());
    pack::halves(&src.map(|x| nearest_code(id * x)), &mut dst[2..]);
}

fn put_xs(src: &[f32; 256], scales: &[f32], dst: &mut [u8]) {
    let d = -scales::signed_peak(scales) / 32.0;
    let id = inverse(d);
    dst[..8].fill(0);
    dst[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    for (s, (src, &scale)) in src.as_chunks::<32>().0.iter().zip(scales).enumerate() {
        let code = nearest(id * scale).clamp(-32, 31);
        let sub_id = inverse(d * code as f32);
        let offset = (code + 32) as u8;
        dst[2 + s / 4] |= (offset >> 4) << (2 * (s % 4));
        dst[4 + s / 2] |= (offset & 15) << (4 * (s % 2));
        pack::halves(
            &src.map(|x| nearest_code(sub_id * x)),
            &mut dst[8 + 16 * s..24 + 16 * s],
        );
    }
}
