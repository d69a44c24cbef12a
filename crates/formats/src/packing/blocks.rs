//! Rows of packed weights in the type that they are kept in.

use tokkata_core::DType;

use super::PackedWeight;
use super::decode::floats;
use super::ints::Ints;
use super::keep::half;
use super::pieces::{Pieces, Stored};

/// Writes one row.
pub(super) fn write(weight: &PackedWeight, pieces: &Pieces<'_>, row: usize, out: &mut [u8]) {
    let place = row * weight.cols();
    match weight.kept {
        DType::MXFP4 => {
            let blocks = out.chunks_exact_mut(DType::MXFP4.block_bytes());
            for (b, block) in (place / 32..).zip(blocks) {
                block[0] = pieces.scales.byte(b);
                repack(pieces.values, 32 * b, &mut block[1..]);
            }
        }
        DType::NVFP4 => {
            let blocks = out.chunks_exact_mut(DType::NVFP4.block_bytes());
            for (b, block) in (place / 64..).zip(blocks) {
                let (scales, codes) = block.split_at_mut(4);
                for (g, (scale, codes)) in scales.iter_mut().zip(codes.chunks_mut(8)).enumerate() {
                    *scale = pieces.scales.byte(4 * b + g);
                    repack(pieces.values, 64 * b + 16 * g, codes);
                }
            }
        }
        DType::F32 | DType::F16 | DType::BF16 => numbers(weight, pieces, row, out),
        _ => {
            if let Some(ints) = Ints::of(weight, pieces) {
                integers(&ints, weight.kept, row, out);
            }
        }
    }
}

/// Neighbouring codes become codes half a run apart.
fn repack(values: Stored<'_>, first: usize, out: &mut [u8]) {
    let half = out.len();
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = values.nibble(first + i) | values.nibble(first + half + i) << 4;
    }
}

fn numbers(weight: &PackedWeight, pieces: &Pieces<'_>, row: usize, out: &mut [u8]) {
    let mut row_floats = vec![0.0; weight.cols()];
    floats(weight, pieces, row, &mut row_floats);
    let size = weight.kept.block_bytes();
    for (bytes, x) in out.chunks_exact_mut(size).zip(row_floats) {
        match weight.kept {
            DType::F16 => bytes.copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
            _ => bytes.copy_from_slice(&x.to_le_bytes()),
        }
    }
}

fn integers(ints: &Ints<'_>, dtype: DType, row: usize, out: &mut [u8]) {
    let mut codes = vec![0; ints.cols];
    ints.codes(row, &mut codes);
    let blocks = out.chunks_exact_mut(dtype.block_bytes());
    for (b, (block, codes)) in blocks.zip(codes.as_chunks::<32>().0).enumerate() {
        // A factor that is no half multiplies zeros.
        let scale = half(ints.factor(row, 32 * b)).unwrap_or(0);
        let offset = ints.offset(row, 32 * b).and_then(half).unwrap_or(0);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        match dtype {
            DType::Q4_0 => nibbles(codes, 8, &mut block[2..]),
            DType::Q4_1 => {
                block[2..4].copy_from_slice(&offset.to_le_bytes());
                nibbles(codes, 0, &mut block[4..]);
            }
            DType::Q5_0 => fifths(codes, 16, &mut block[2..]),
            DType::Q5_1 => {
                block[2..4].copy_from_slice(&offset.to_le_bytes());
                fifths(codes, 0, &mut block[4..]);
            }
            _ => {
                for (byte, code) in block[2..].iter_mut().zip(codes) {
                    *byte = *code as u8;
                }
            }
        }
    }
}

/// Low four bits of codes raised by `middle`, those half a block apart in one byte.
fn nibbles(codes: &[i32; 32], middle: i32, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        let four = |k: usize| (codes[k] + middle) as u8 & 15;
        *byte = four(i) | four(i + 16) << 4;
    }
}

/// Fifth bits of 32 codes, then their nibbles.
fn fifths(codes: &[i32; 32], middle: i32, out: &mut [u8]) {
    let bit = |(k, &code): (usize, &i32)| ((code + middle) as u32 >> 4 & 1) << k;
    let high: u32 = codes.iter().enumerate().map(bit).sum();
    out[..4].copy_from_slice(&high.to_le_bytes());
    nibbles(codes, middle, &mut out[4..]);
}
