//! Quantisers of the super-block formats `Q2_K` to `Q6_K`.

use tokkata_core::DType;

use super::affine::{self, Cost, Search};
use super::lanes::{self, Job, LANES, Lanes, nearest, squares, total, transpose};
use super::scales::{self, Scales};
use super::symmetric;
use super::weights::{self, Input};
use super::{Task, pack};

const BLOCK: usize = 256;

/// Quantises whole rows to one of the super-block formats.
pub(super) fn quantize(task: Task<'_>) {
    lanes::run(Blocks(task));
}

struct Blocks<'a>(Task<'a>);

impl Job for Blocks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { dtype, input, dst } = self.0;
        match dtype {
            DType::Q2_K => affine_tiles::<L, 16>(input, dst, &Q2),
            DType::Q4_K => affine_tiles::<L, 32>(input, dst, &Q4),
            DType::Q5_K => affine_tiles::<L, 32>(input, dst, &Q5),
            DType::Q3_K => each_block::<L, Q3>(input, dst),
            DType::Q6_K => each_block::<L, Q6>(input, dst),
            _ => unreachable!("{dtype} is not one of these formats"),
        }
    }
}

/// A format with minima.
struct Affine {
    /// The search without importance weights.
    plain: Search,
    /// Highest code of scales and minima.
    scale_top: u8,
    /// Share of the block's mean square in a weight.
    variance: f32,
    bytes: usize,
    pack: fn(&Block, &mut [u8]),
}

const Q2: Affine = Affine {
    plain: Search {
        top: 3.0,
        first: -0.5,
        step: 0.1,
        last: 15,
        cost: Cost::Absolute,
    },
    scale_top: 15,
    variance: 1.0,
    bytes: 84,
    pack: pack_q2,
};

const Q4: Affine = Affine {
    plain: Search {
        top: 15.0,
        first: -1.0,
        step: 0.1,
        last: 20,
        cost: Cost::Square,
    },
    scale_top: 63,
    variance: 2.0,
    bytes: 144,
    pack: pack_q4,
};

const Q5: Affine = Affine {
    plain: Search {
        top: 31.0,
        first: -0.5,
        step: 0.1,
        last: 15,
        cost: Cost::Square,
    },
    scale_top: 63,
    variance: 2.0,
    bytes: 176,
    pack: pack_q5,
};

/// A super-block ready to be packed.
struct Block {
    codes: [u8; BLOCK],
    scales: Scales<u8>,
    mins: Scales<u8>,
}

/// Super-blocks taken together until sub-blocks of `E` elements fill the lanes.
#[inline(always)]
fn affine_tiles<L: Lanes, const E: usize>(input: Input<'_>, dst: &mut [u8], format: &Affine) {
    let tile_bytes = LANES * E / BLOCK * format.bytes;
    let tiles = input.tiles(LANES * E).zip(dst.chunks_mut(tile_bytes));
    for (tile, dst) in tiles {
        let x = transpose::<L, E>(tile.src);
        let fit = match tile.importance() {
            None => affine::fit(&x, &affine_weights(&x), &format.plain),
            Some(importance) => {
                let w = weights::importance_lanes(tile.src, &importance, &x, format.variance);
                affine::fit(&x, &w, &Search::weighted(format.plain.top))
            }
        };
        let blocks = tile
            .src
            .as_chunks::<BLOCK>()
            .0
            .iter()
            .zip(dst.chunks_exact_mut(format.bytes));
        for (b, (src, dst)) in blocks.enumerate() {
            let (scales, mins) = affine_scales(
                &fit,
                b * BLOCK / E,
                BLOCK / E,
                (input.importance.is_some(), format),
            );
            let codes = affine_codes::<E>(src, &fit, b * BLOCK / E, (&scales, &mins));
            (format.pack)(
                &Block {
                    codes,
                    scales,
                    mins,
                },
                dst,
            );
        }
    }
}

/// Magnitudes; with sub-blocks of 32, on top of their root mean square.
#[inline(always)]
fn affine_weights<L: Lanes, const E: usize>(x: &[L; E]) -> [L; E] {
    let mean = match E {
        16 => L::splat(0.0),
        _ => (total(&squares(x)) / L::splat(E as f32)).sqrt(),
    };
    let mut w = *x;
    for w in &mut w {
        *w = mean + w.abs();
    }
    w
}

#[inline(always)]
fn affine_scales(
    fit: &affine::Fit,
    first: usize,
    count: usize,
    (weighted, format): (bool, &Affine),
) -> (Scales<u8>, Scales<u8>) {
    let subs = first..first + count;
    let (scale, min) = (&fit.scale[subs.clone()], &fit.min[subs.clone()]);
    let top = format.scale_top;
    if weighted {
        let w = &fit.weight[subs];
        return (
            scales::by_search(scale, w, top),
            scales::by_search(min, w, top),
        );
    }
    (scales::by_largest(scale, top), scales::by_largest(min, top))
}

/// Codes for the rounded scales; the search's own where a scale rounds to zero.
#[inline(always)]
fn affine_codes<const E: usize>(
    src: &[f32; BLOCK],
    fit: &affine::Fit,
    first: usize,
    (scales, mins): (&Scales<u8>, &Scales<u8>),
) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (s, (src, codes)) in src
        .chunks_exact(E)
        .zip(codes.chunks_exact_mut(E))
        .enumerate()
    {
        let (scale, min) = (scales.scale(s), mins.scale(s));
        for (code, &x) in codes.iter_mut().zip(src) {
            *code = if scale == 0.0 {
                fit.code(first + s, x)
            } else {
                nearest((x + min) / scale).clamp(0, fit.top) as u8
            };
        }
    }
    codes
}

fn pack_q2(block: &Block, dst: &mut [u8]) {
    for ((byte, &scale), &min) in dst
        .iter_mut()
        .zip(&block.scales.codes)
        .zip(&block.mins.codes)
    {
        *byte = scale | min << 4;
    }
    pack::two_bits(&block.codes, &mut dst[16..80]);
    put_halves(block, &mut dst[80..84]);
}

fn pack_q4(block: &Block, dst: &mut [u8]) {
    put_halves(block, &mut dst[..4]);
    pack::six_bit_pairs(&block.scales.codes, &block.mins.codes, &mut dst[4..16]);
    pack::nibbles(&block.codes, &mut dst[16..144]);
}

fn pack_q5(block: &Block, dst: &mut [u8]) {
    put_halves(block, &mut dst[..4]);
    pack::six_bit_pairs(&block.scales.codes, &block.mins.codes, &mut dst[4..16]);
    pack::one_bit(&block.codes, 4, &mut dst[16..48]);
    pack::nibbles(&block.codes, &mut dst[48..176]);
}

fn put_halves(block: &Block, dst: &mut [u8]) {
    dst[..2].copy_from_slice(&block.scales.d.to_le_bytes());
    dst[2..4].copy_from_slice(&block.mins.d.to_le_bytes());
}

/// A format without minima. A trait rather than a closure, so that inlining is certain.
trait Symmetric {
    const BYTES: usize;

    fn quantize<L: Lanes>(src: &[f32; BLOCK], importance: Option<&[f32]>, dst: &mut [u8]);
}

/// One super-block at a time: its sixteen sub-blocks fill the lanes.
#[inline(always)]
fn each_block<L: Lanes, F: Symmetric>(input: Input<'_>, dst: &mut [u8]) {
    for (tile, dst) in input.tiles(BLOCK).zip(dst.chunks_exact_mut(F::BYTES)) {
        let src = tile.src.try_into().expect("rows are whole blocks");
        F::quantize::<L>(src, tile.importance().as_deref(), dst);
    }
}

struct Q6;

impl Symmetric for Q6 {
    const BYTES: usize = 210;

    #[inline(always)]
    fn quantize<L: Lanes>(src: &[f32; BLOCK], importance: Option<&[f32]>, dst: &mut [u8]) {
        let x = transpose::<L, 16>(src);
        let w = match importance {
            None => squares(&x),
            Some(importance) => transpose::<L, 16>(importance),
        };
        let fit = symmetric::fit(&x, &w, 32.0);
        if scales::signed_peak(&fit.scale).abs() < symmetric::TINY {
            return dst.fill(0);
        }
        let scales = scales::by_signed_largest(&fit.scale, 128.0, 127);
        let codes = symmetric_codes(src, &scales, 32, |s, i| fit.code(s, src[16 * s + i]));
        pack::six_bit_codes(&codes, &mut dst[..192]);
        for (byte, &scale) in dst[192..208].iter_mut().zip(&scales.codes) {
            *byte = scale as u8;
        }
        dst[208..].copy_from_slice(&scales.d.to_le_bytes());
    }
}

struct Q3;

impl Symmetric for Q3 {
    const BYTES: usize = 110;

    #[inline(always)]
    fn quantize<L: Lanes>(src: &[f32; BLOCK], importance: Option<&[f32]>, dst: &mut [u8]) {
        let (scales, codes) = q3_codes::<L>(src, importance);
        pack::one_bit(&codes, 2, &mut dst[..32]);
        pack::two_bits(&codes, &mut dst[32..96]);
        pack::six_bits(&scales.codes, &mut dst[96..108]);
        dst[108..].copy_from_slice(&scales.d.to_le_bytes());
    }
}

#[inline(always)]
fn q3_codes<L: Lanes>(src: &[f32; BLOCK], importance: Option<&[f32]>) -> (Scales<i8>, [u8; BLOCK]) {
    let x = transpose::<L, 16>(src);
    let Some(importance) = importance else {
        let fit = symmetric::refine(&x, 4.0);
        let scales = scales::by_signed_largest(&fit.scale, 32.0, 31);
        let codes = symmetric_codes(src, &scales, 4, |s, i| fit.code(s, i));
        return (scales, codes);
    };
    let w = weights::importance_lanes(src, importance, &x, 2.0);
    let fit = symmetric::fit(&x, &w, 4.0);
    let scales = scales::by_signed_search(&fit.scale, &total(&w).to_array());
    let codes = symmetric_codes(src, &scales, 4, |s, i| fit.code(s, src[16 * s + i]));
    (scales, codes)
}

/// Codes for the rounded scales, plus `steps`; the search's own where a scale rounds to zero.
#[inline(always)]
fn symmetric_codes(
    src: &[f32; BLOCK],
    scales: &Scales<i8>,
    steps: i32,
    searched: impl Fn(usize, usize) -> u8,
) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (s, (src, codes)) in src
        .chunks_exact(16)
        .zip(codes.chunks_exact_mut(16))
        .enumerate()
    {
        let scale = scales.scale(s);
        for (i, (code, &x)) in codes.iter_mut().zip(src).enumerate() {
            *code = if scale == 0.0 {
                searched(s, i)
            } else {
                (nearest(x / scale).clamp(-steps, steps - 1) + steps) as u8
            };
        }
    }
    codes
}
