//! File blocks as quads of codes and as float factors.
//!
//! Codes are handled four at a time, one per byte of a word, in the form in which panels store them.

use super::super::scheme::SIX_BIT_PAIRS;

/// The codes of 32 elements, in order, four to a word.
pub(super) type Quads = [u32; 8];

const NIBBLES: u32 = 0x0f0f_0f0f;
const TWOS: u32 = 0x0303_0303;
const ONES: u32 = 0x0101_0101;

/// Each quad by its number. A loop, since what takes closures for arrays is not always inlined.
macro_rules! quads {
    (|$q:ident| $quad:expr) => {{
        let mut quads: Quads = [0; 8];
        for $q in 0..8 {
            quads[$q] = $quad;
        }
        quads
    }};
}

#[inline(always)]
fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Low nibbles of the 16 bytes at `at`, then the high ones.
#[inline(always)]
fn halves(b: &[u8], at: usize) -> Quads {
    let b: &[u8; 16] = b[at..at + 16].try_into().expect("sixteen bytes");
    quads!(|q| (word(b, q % 4 * 4) >> (q / 4 * 4)) & NIBBLES)
}

/// The bits of `bits`, one per element, as bit 4 of the codes.
#[inline(always)]
fn fifth_bits(bits: u32) -> Quads {
    quads!(|q| ((((bits >> (4 * q)) & 15) * 0x0020_4081) & ONES) << 4)
}

#[inline(always)]
fn or(a: Quads, b: Quads) -> Quads {
    quads!(|q| a[q] | b[q])
}

#[inline(always)]
fn shl(a: Quads, bits: u32) -> Quads {
    quads!(|q| a[q] << bits)
}

/// Signed bytes as unsigned ones, 128 more.
#[inline(always)]
fn flip(a: Quads) -> Quads {
    quads!(|q| a[q] ^ 0x8080_8080)
}

/// Bits `shift` and up of the 32 bytes at `at`, under `mask`.
#[inline(always)]
fn field(b: &[u8], at: usize, shift: usize, mask: u32) -> Quads {
    let b: &[u8; 32] = b[at..at + 32].try_into().expect("32 bytes");
    quads!(|q| (word(b, 4 * q) >> shift) & mask)
}

/// A format's blocks: `quads` gives the codes of 32-block `i`; `factors` writes row `row`'s float
/// factors and sub-block scales into a chunk, of which this is file block `b`.
pub(super) trait Blocks {
    fn quads(block: &[u8], i: usize) -> Quads;
    fn factors(block: &[u8], b: usize, row: usize, chunk: &mut [u8]);
}

/// Copies the half at byte `from` of a block to place `row` of a run of halves.
#[inline(always)]
fn half(block: &[u8], from: usize, run: usize, row: usize, chunk: &mut [u8]) {
    let at = run + 2 * row;
    (chunk[at], chunk[at + 1]) = (block[from], block[from + 1]);
}

macro_rules! formats {
    ($($name:ident: |$block:ident, $i:ident| $quads:expr,
        |$fblock:ident, $b:ident, $row:ident, $chunk:ident| $factors:expr;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Blocks for $name {
            #[inline(always)]
            fn quads($block: &[u8], $i: usize) -> Quads {
                $quads
            }
            #[inline(always)]
            fn factors($fblock: &[u8], $b: usize, $row: usize, $chunk: &mut [u8]) {
                $factors;
            }
        }
    )*};
}

formats! {
    Q4_0: |block, _i| halves(block, 2), |block, b, row, chunk| half(block, 0, 32 * b, row, chunk);
    Q4_1: |block, _i| halves(block, 4), |block, b, row, chunk| two_halves(block, b, row, chunk);
    Q5_0: |block, _i| or(halves(block, 6), fifth_bits(word(block, 2))),
        |block, b, row, chunk| half(block, 0, 32 * b, row, chunk);
    Q5_1: |block, _i| or(halves(block, 8), fifth_bits(word(block, 4))),
        |block, b, row, chunk| two_halves(block, b, row, chunk);
    Q8_0: |block, _i| flip(field(block, 2, 0, u32::MAX)),
        |block, b, row, chunk| half(block, 0, 32 * b, row, chunk);
    IQ4_NL: |block, _i| halves(block, 2), |block, b, row, chunk| half(block, 0, 32 * b, row, chunk);
    MXFP4: |block, _i| halves(block, 1), |block, b, row, chunk| chunk[16 * b + row] = block[0];
    Q2_K: |block, i| field(block, 16 + 32 * (i / 4), 2 * (i % 4), TWOS),
        |block, _b, row, chunk| {
            half(block, 80, 0, row, chunk);
            half(block, 82, 32, row, chunk);
            for (s, pair) in block[..16].iter().enumerate() {
                chunk[64 + 16 * s + row] = *pair;
            }
        };
    Q3_K: |block, i| {
            let third = shl(field(block, 0, i, ONES), 2);
            or(field(block, 32 + 32 * (i / 4), 2 * (i % 4), TWOS), third)
        },
        |block, _b, row, chunk| {
            half(block, 108, 0, row, chunk);
            let scale = |s: usize| {
                let low = (block[96 + s % 8] >> (4 * (s / 8))) & 15;
                low | ((block[104 + s % 4] >> (2 * (s / 4))) & 3) << 4
            };
            for i in 0..8 {
                six_bit_pair(&mut chunk[64 + SIX_BIT_PAIRS * i..], row, scale(2 * i), scale(2 * i + 1));
            }
        };
    Q4_K: |block, i| field(block, 16 + 32 * (i / 2), 4 * (i % 2), NIBBLES),
        |block, _b, row, chunk| scales_and_mins(block, row, chunk);
    Q5_K: |block, i| {
            let fifth = shl(field(block, 16, i, ONES), 4);
            or(field(block, 48 + 32 * (i / 2), 4 * (i % 2), NIBBLES), fifth)
        },
        |block, _b, row, chunk| scales_and_mins(block, row, chunk);
    Q6_K: |block, i| {
            let (h, r) = (i / 4, i % 4);
            let high = shl(field(block, 128 + 32 * h, 2 * r, TWOS), 4);
            or(field(block, 64 * h + 32 * (r % 2), 4 * (r / 2), NIBBLES), high)
        },
        |block, _b, row, chunk| {
            half(block, 208, 0, row, chunk);
            for (s, scale) in block[192..208].iter().enumerate() {
                chunk[64 + 16 * s + row] = *scale;
            }
        };
    IQ4_XS: |block, i| halves(block, 8 + 16 * i),
        |block, _b, row, chunk| {
            half(block, 0, 0, row, chunk);
            let high = u16::from_le_bytes([block[2], block[3]]);
            let scale = |s: usize| {
                let low = (block[4 + s / 2] >> (4 * (s % 2))) & 15;
                low | (((high >> (2 * s)) & 3) as u8) << 4
            };
            for i in 0..4 {
                six_bit_pair(&mut chunk[32 + SIX_BIT_PAIRS * i..], row, scale(2 * i), scale(2 * i + 1));
            }
        };
}

#[inline(always)]
fn two_halves(block: &[u8], b: usize, row: usize, chunk: &mut [u8]) {
    half(block, 0, 32 * b, row, chunk);
    half(block, 2, 64 + 32 * b, row, chunk);
}

/// Head and six-bit pairs of `Q4_K` and `Q5_K`.
#[inline(always)]
fn scales_and_mins(block: &[u8], row: usize, chunk: &mut [u8]) {
    half(block, 0, 0, row, chunk);
    half(block, 2, 32, row, chunk);
    let p: &[u8; 12] = block[4..16].try_into().expect("twelve bytes");
    for s in 0..4 {
        six_bit_pair(
            &mut chunk[64 + SIX_BIT_PAIRS * s..],
            row,
            p[s] & 63,
            p[s + 4] & 63,
        );
        let (scale, min) = (
            p[s + 8] & 15 | (p[s] >> 6) << 4,
            p[s + 8] >> 4 | (p[s + 4] >> 6) << 4,
        );
        six_bit_pair(&mut chunk[64 + SIX_BIT_PAIRS * (s + 4)..], row, scale, min);
    }
}

/// Row `row`'s share of sixteen pairs of six-bit numbers; the memory was zero before.
#[inline(always)]
fn six_bit_pair(to: &mut [u8], row: usize, first: u8, second: u8) {
    to[row] = first & 15 | second << 4;
    to[16 + row / 2] |= (first >> 4 | second >> 4 << 2) << (4 * (row % 2));
}
