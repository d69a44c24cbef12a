//! Rows of weights as kernels read them.
//!
//! A packed block is 256 weights, or 8 plain numbers: several of a file's blocks where those are shorter, scales first, and
//! every field in whole words (`Q6_K` as many as make vectors of four). A word of nibbles holds eight weights that are neighbours, a word of crumbs sixteen, one of bits
//! thirty-two: the lowest field of each of its bytes first, then the next field of each. Sizes are the file's but for what
//! makes words whole. Lattice points stay as they are, since a table has what they stand for.
//!
//! `kernels/formats.wgsl` reads them.

mod fields;

use tokkata_core::DType;
use tokkata_ir::sample::tables::{EXP, LN, LN_LN};
use tokkata_quant::num::f16_to_f32;
use tokkata_quant::{Layout, Unpacked, points};

use fields::{
    bits_of_bytes, bits_of_word, bytes_to_words, crumbs_of_bytes, crumbs_of_word, gathered_crumbs,
    gathered_nibbles, nibbles_of_bytes, word,
};

/// The size of a packed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Weights.
    pub(crate) elems: usize,
    /// Words.
    pub(crate) words: usize,
}

/// Makes one packed block of the bytes of as many blocks of the file.
type Pack = fn(&[u8], &mut [u32]);

/// How a type is packed; `None` for one without kernels.
#[must_use]
pub(crate) fn packed(dtype: DType) -> Option<Packed> {
    table(dtype).map(|(packed, _)| packed)
}

/// Whether packed blocks are vectors of four words whose parts begin at such vectors, as `formats_wide.wgsl` reads them.
#[must_use]
pub(crate) fn is_wide(dtype: DType) -> bool {
    use DType as D;
    matches!(
        dtype,
        D::Q4_0 | D::Q4_1 | D::Q5_0 | D::Q5_1 | D::Q8_0 | D::Q4_K | D::Q5_K | D::Q6_K
    )
}

/// What no weight of a row is larger than, where that follows from the halves in its blocks.
pub(crate) fn bound(dtype: DType, row: &[u8]) -> Option<f32> {
    // Where a block's scale and its minimum stand, and what they are multiplied by at most.
    let (scale, min) = match dtype {
        DType::Q4_0 => ((0, 8.0), None),
        DType::Q4_1 => ((0, 15.0), Some((2, 1.0))),
        DType::Q5_0 => ((0, 16.0), None),
        DType::Q5_1 => ((0, 31.0), Some((2, 1.0))),
        DType::Q8_0 | DType::IQ4_NL => ((0, 128.0), None),
        DType::Q4_K => ((0, 63.0 * 15.0), Some((2, 63.0))),
        DType::Q5_K => ((0, 63.0 * 31.0), Some((2, 63.0))),
        DType::Q6_K => ((208, 128.0 * 32.0), None),
        _ => return None,
    };
    let of = |block: &[u8]| {
        let half = |(at, times): (usize, f32)| {
            f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]])).abs() * times
        };
        half(scale) + min.map_or(0.0, half)
    };
    let blocks = row.chunks_exact(dtype.block_bytes());
    Some(blocks.map(of).fold(0.0, f32::max))
}

/// Packs a row. What lacks in its last packed block is zeros.
///
/// # Panics
/// When the type has no kernels, or `out` is not as long as the row's packed blocks.
pub(crate) fn pack(dtype: DType, row: &[u8], out: &mut [u32]) {
    let (packed, pack) = table(dtype).unwrap_or_else(|| panic!("{dtype} is not packed"));
    let bytes = packed.elems / dtype.block_elems() * dtype.block_bytes();
    assert_eq!(out.len(), row.len().div_ceil(bytes) * packed.words);
    let (blocks, rest) = (row.chunks_exact(bytes), row.len() % bytes);
    let mut outs = out.chunks_exact_mut(packed.words);
    for (block, out) in blocks.zip(&mut outs) {
        pack(block, out);
    }
    if rest > 0 {
        let mut last = vec![0; bytes];
        last[..rest].copy_from_slice(&row[row.len() - rest..]);
        outs.by_ref().for_each(|out| pack(&last, out));
    }
}

/// Words that kernels look things up in, and where each table begins, by the name of its constant.
#[must_use]
pub(crate) fn tables() -> (Vec<u32>, Vec<(&'static str, u32)>) {
    let mut words = Vec::new();
    let mut places = Vec::new();
    let lattices = [
        ("T_IQ2_XXS", DType::IQ2_XXS),
        ("T_IQ2_XS", DType::IQ2_XS),
        ("T_IQ2_S", DType::IQ2_S),
        ("T_IQ3_XXS", DType::IQ3_XXS),
        ("T_IQ3_S", DType::IQ3_S),
        ("T_IQ1", DType::IQ1_S),
    ];
    for (name, dtype) in lattices {
        places.push((name, words.len() as u32));
        let (pairs, _) = points(dtype).unwrap_or_default().as_chunks::<2>();
        words.extend(
            pairs
                .iter()
                .map(|p| u32::from(p[0]) | u32::from(p[1]) << 16),
        );
    }
    let others: [(&str, &[u32]); 4] = [
        ("T_IQ4", &pairs_of_iq4()),
        ("T_EXPS", &EXP),
        ("T_LNS", &LN),
        ("T_LN_LNS", &LN_LN),
    ];
    for (name, table) in others {
        places.push((name, words.len() as u32));
        words.extend(table);
    }
    (words, places)
}

/// The numbers of two nibbles by their byte: that of the low one, and that of the high one 16 bits above.
fn pairs_of_iq4() -> [u32; 256] {
    let mut block = [0; 18];
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = i as u8;
    }
    let mut numbers = Unpacked::new();
    let layout = Layout::of(DType::IQ4_NL).expect("IQ4_NL has blocks");
    layout.unpack(&block, &mut numbers).expect("a whole block");
    let number = |nibble: usize| u32::from(numbers.codes[nibble] as u8);
    std::array::from_fn(|i| number(i & 15) | number(i >> 4) << 16)
}

fn table(dtype: DType) -> Option<(Packed, Pack)> {
    macro_rules! of {
        ($elems:literal, $words:literal, $pack:expr) => {
            Some((
                Packed {
                    elems: $elems,
                    words: $words,
                },
                $pack,
            ))
        };
    }
    match dtype {
        DType::F32 => of!(8, 8, bytes_to_words),
        DType::F16 | DType::BF16 => of!(8, 4, bytes_to_words),
        DType::Q1_0 => of!(256, 9, q1_0),
        DType::Q2_0 => of!(256, 18, q2_0),
        DType::Q4_0 | DType::IQ4_NL => of!(256, 36, |b, o| fours::<18, 2, 0>(b, o)),
        DType::Q4_1 => of!(256, 40, |b, o| fours::<20, 4, 0>(b, o)),
        DType::Q5_0 => of!(256, 44, |b, o| fours::<22, 2, 4>(b, o)),
        DType::Q5_1 => of!(256, 48, |b, o| fours::<24, 4, 4>(b, o)),
        DType::Q8_0 => of!(256, 68, |b, o| eights::<34>(b, o)),
        DType::Q8_1 => of!(256, 68, |b, o| eights::<36>(b, o)),
        DType::MXFP4 => of!(256, 34, |b, o| fours::<17, 1, 0>(b, o)),
        DType::NVFP4 => of!(256, 36, nvfp4),
        DType::Q2_K => of!(256, 21, q2_k),
        DType::Q3_K => of!(256, 28, q3_k),
        DType::Q4_K => of!(256, 36, q4_k),
        DType::Q5_K => of!(256, 44, q5_k),
        DType::Q6_K => of!(256, 56, q6_k),
        DType::Q8_K => of!(256, 65, |b, o| bytes_to_words(&b[..260], o)),
        DType::IQ4_XS => of!(256, 34, iq4_xs),
        DType::TQ1_0 => of!(256, 14, |b, o| factor_last(b, 52, o)),
        DType::TQ2_0 => of!(256, 17, tq2_0),
        DType::IQ1_M => of!(256, 14, bytes_to_words),
        DType::IQ1_S => of!(256, 13, factor_first),
        DType::IQ2_XXS => of!(256, 17, factor_first),
        DType::IQ2_XS => of!(256, 19, factor_first),
        DType::IQ2_S => of!(256, 21, factor_first),
        DType::IQ3_XXS => of!(256, 25, factor_first),
        DType::IQ3_S => of!(256, 28, factor_first),
        DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => None,
    }
}

/// Eight blocks of `BYTES`: a scale of `SCALE` bytes, fifth bits of `BITS`, nibbles.
#[inline(always)]
fn fours<const BYTES: usize, const SCALE: usize, const BITS: usize>(b: &[u8], out: &mut [u32]) {
    let (scales, rest) = out.split_at_mut(2 * SCALE);
    let (bits, nibbles) = rest.split_at_mut(2 * BITS);
    scales.fill(0);
    for (i, b) in b.chunks_exact(BYTES).enumerate() {
        for (at, &byte) in (SCALE * i..).zip(&b[..SCALE]) {
            scales[at / 4] |= u32::from(byte) << (8 * (at % 4));
        }
        if BITS > 0 {
            bits[i] = bits_of_word(word(b, SCALE));
        }
        nibbles_of_bytes(&b[SCALE + BITS..], &mut nibbles[4 * i..4 * i + 4]);
    }
}

/// Eight blocks of `BYTES`: a half, what is left out, bytes.
#[inline(always)]
fn eights<const BYTES: usize>(b: &[u8], out: &mut [u32]) {
    let (scales, codes) = out.split_at_mut(4);
    scales.fill(0);
    for (i, b) in b.chunks_exact(BYTES).enumerate() {
        scales[i / 2] |= half(b, 0) << (16 * (i % 2));
        bytes_to_words(&b[BYTES - 32..], &mut codes[8 * i..8 * i + 8]);
    }
}

fn half(b: &[u8], at: usize) -> u32 {
    u32::from(b[at]) | u32::from(b[at + 1]) << 8
}

fn q1_0(b: &[u8], out: &mut [u32]) {
    out[0] = half(b, 0) | half(b, 18) << 16;
    for (i, out) in out[1..].iter_mut().enumerate() {
        *out = bits_of_word(word(b, 2 + 18 * (i / 4) + 4 * (i % 4)));
    }
}

fn q2_0(b: &[u8], out: &mut [u32]) {
    out[0] = half(b, 0) | half(b, 18) << 16;
    out[1] = half(b, 36) | half(b, 54) << 16;
    for (i, out) in out[2..].iter_mut().enumerate() {
        *out = crumbs_of_word(word(b, 2 + 18 * (i / 4) + 4 * (i % 4)));
    }
}

fn nvfp4(b: &[u8], out: &mut [u32]) {
    let (scales, nibbles) = out.split_at_mut(4);
    let blocks = b.chunks_exact(36).zip(nibbles.chunks_exact_mut(8));
    for ((b, nibbles), scale) in blocks.zip(scales) {
        *scale = word(b, 0);
        for (b, out) in b[4..].chunks_exact(8).zip(nibbles.chunks_exact_mut(2)) {
            nibbles_of_bytes(b, out);
        }
    }
}

fn q2_k(b: &[u8], out: &mut [u32]) {
    out[0] = word(b, 80);
    bytes_to_words(&b[..16], &mut out[1..5]);
    crumbs_of_bytes(&b[16..80], &mut out[5..]);
}

/// The sixteen scales of six bits lie as nibbles in two words and crumbs in a third.
fn q3_k(b: &[u8], out: &mut [u32]) {
    out[0] = half(b, 108);
    let [low, next, high] = [96, 100, 104].map(|at| word(b, at));
    out[1] = gathered_nibbles(low) | gathered_nibbles(next) << 16;
    out[2] = gathered_nibbles(low >> 4) | gathered_nibbles(next >> 4) << 16;
    out[3] = (0..4).fold(0, |all, i| {
        all | gathered_crumbs(high >> (2 * i)) << (8 * i)
    });
    bits_of_bytes(&b[..32], &mut out[4..12]);
    crumbs_of_bytes(&b[32..96], &mut out[12..]);
}

fn q4_k(b: &[u8], out: &mut [u32]) {
    k_scales(b, out);
    for (b, out) in b[16..].chunks_exact(32).zip(out[4..].chunks_exact_mut(8)) {
        nibbles_of_bytes(b, out);
    }
}

fn q5_k(b: &[u8], out: &mut [u32]) {
    k_scales(b, out);
    bits_of_bytes(&b[16..48], &mut out[4..12]);
    for (b, out) in b[48..].chunks_exact(32).zip(out[12..].chunks_exact_mut(8)) {
        nibbles_of_bytes(b, out);
    }
}

/// Factors; low nibbles of eight scales, of eight minima; the crumbs above both.
fn k_scales(b: &[u8], out: &mut [u32]) {
    let [scales, mins, last] = [4, 8, 12].map(|at| word(b, at));
    out[0] = word(b, 0);
    out[1] = gathered_nibbles(scales) | gathered_nibbles(last) << 16;
    out[2] = gathered_nibbles(mins) | gathered_nibbles(last >> 4) << 16;
    let high = |x: u32| gathered_crumbs(x >> 4) | gathered_crumbs(x >> 6) << 8;
    out[3] = high(scales) | high(mins) << 16;
}

fn q6_k(b: &[u8], out: &mut [u32]) {
    bytes_to_words(&b[192..208], &mut out[..4]);
    crumbs_of_bytes(&b[128..192], &mut out[4..20]);
    out[52..].copy_from_slice(&[half(b, 208), 0, 0, 0]);
    for (b, out) in b[..128]
        .chunks_exact(64)
        .zip(out[20..52].chunks_exact_mut(16))
    {
        nibbles_of_bytes(b, out);
    }
}

fn iq4_xs(b: &[u8], out: &mut [u32]) {
    bytes_to_words(&b[..8], &mut out[..2]);
    for (b, out) in b[8..].chunks_exact(16).zip(out[2..].chunks_exact_mut(4)) {
        nibbles_of_bytes(b, out);
    }
}

fn tq2_0(b: &[u8], out: &mut [u32]) {
    out[0] = half(b, 64);
    crumbs_of_bytes(&b[..64], &mut out[1..]);
}

/// Everything but a half factor, then that.
fn factor_last(b: &[u8], at: usize, out: &mut [u32]) {
    let last = out.len() - 1;
    bytes_to_words(&b[..at], &mut out[..last]);
    out[last] = half(b, at);
}

/// What is behind a half factor, then that.
fn factor_first(b: &[u8], out: &mut [u32]) {
    let last = out.len() - 1;
    bytes_to_words(&b[2..], &mut out[..last]);
    out[last] = half(b, 0);
}

#[cfg(test)]
mod tests;
