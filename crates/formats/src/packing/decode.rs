//! The elements of packed weights as floats: what each scheme's formula says, in F32.

use super::{GptqZeros, PackedWeight, Piece, Scheme};
use crate::error::{Fault, FormatError, Quoted, Result};
use crate::model::ModelFile;
use crate::tensor::{Storage, StoredTensor};

/// Values of E2M1 by code.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];
/// The nibble of an AWQ word that holds each column.
const AWQ_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl ModelFile {
    /// Rows of a packed weight from row `first` on (over all leading dimensions), as many as `out` holds.
    ///
    /// # Errors
    /// Rows that the weight does not have, or a piece without its bytes.
    pub fn read_packed(&self, weight: &PackedWeight, first: usize, out: &mut [f32]) -> Result<()> {
        let cols = weight.shape.last().copied().unwrap_or(1).max(1);
        let rows: usize = weight.shape.iter().rev().skip(1).product();
        let pieces = Pieces {
            values: self.piece(weight, Piece::Values)?,
            scales: self.piece(weight, Piece::Scales)?,
            zeros: self.piece(weight, Piece::Zeros)?,
            biases: self.piece(weight, Piece::Biases)?,
            index: self.piece(weight, Piece::GroupIndex)?,
            table: self.piece(weight, Piece::Table)?,
            outer: self.piece(weight, Piece::OuterScales)?,
            outer_table: self.piece(weight, Piece::OuterTable)?,
        };
        let wanted = out.len().div_ceil(cols);
        if first.checked_add(wanted).is_none_or(|end| end > rows) {
            let found = format!("a read of {wanted} rows at {first}");
            let (tensor, expected) = (Quoted::new(&weight.name), "rows that it has");
            let fault = Fault::Packed {
                tensor,
                found,
                expected,
            };
            return Err(FormatError::at(self.path(), fault));
        }
        for (row, out) in (first..).zip(out.chunks_mut(cols)) {
            decode(weight, &pieces, (row, cols), out);
        }
        Ok(())
    }

    fn piece(&self, weight: &PackedWeight, piece: Piece) -> Result<Option<Stored<'_>>> {
        let Some(tensor) = weight.piece(piece) else {
            return Ok(None);
        };
        Ok(Some(Stored {
            storage: tensor.storage,
            cols: tensor.shape.last().copied().unwrap_or(1),
            bytes: self.stored_data(tensor)?,
        }))
    }

    /// All bytes of a piece of a packed weight or of one of [`ModelFile::other_tensors`], out of the map.
    ///
    /// # Errors
    /// A tensor of another model.
    pub fn stored_data(&self, tensor: &StoredTensor) -> Result<&[u8]> {
        self.span_bytes(tensor.part, tensor.span())
    }
}

/// A stored tensor with its bytes.
#[derive(Clone, Copy)]
struct Stored<'a> {
    storage: Storage,
    cols: usize,
    bytes: &'a [u8],
}

struct Pieces<'a> {
    values: Option<Stored<'a>>,
    scales: Option<Stored<'a>>,
    zeros: Option<Stored<'a>>,
    biases: Option<Stored<'a>>,
    index: Option<Stored<'a>>,
    table: Option<Stored<'a>>,
    outer: Option<Stored<'a>>,
    outer_table: Option<Stored<'a>>,
}

impl Stored<'_> {
    fn byte(&self, i: usize) -> u8 {
        self.bytes.get(i).copied().unwrap_or(0)
    }

    fn word(&self, i: usize) -> u32 {
        let bytes = self.bytes.get(4 * i..4 * i + 4);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// `bits` bits of a little-endian stream that begins at word `start`, `stride` words apart.
    fn bits(&self, (start, stride): (usize, usize), at: usize, bits: usize) -> u32 {
        let (word, shift) = (at / 32, at % 32);
        let low = u64::from(self.word(start + word * stride));
        let high = match shift + bits > 32 {
            true => u64::from(self.word(start + (word + 1) * stride)),
            false => 0,
        };
        ((low | high << 32) >> shift) as u32 & ((1u64 << bits) - 1) as u32
    }

    /// Element `i` as its type says.
    fn float(&self, i: usize) -> f32 {
        let half = |at: usize| u16::from(self.byte(at)) | u16::from(self.byte(at + 1)) << 8;
        match self.storage {
            Storage::F32 => f32::from_bits(self.word(i)),
            Storage::F16 => half::f16::from_bits(half(2 * i)).to_f32(),
            Storage::BF16 => half::bf16::from_bits(half(2 * i)).to_f32(),
            Storage::F8E4M3 => e4m3(self.byte(i)),
            Storage::I8 => f32::from(self.byte(i) as i8),
            _ => f32::from(self.byte(i)),
        }
    }
}

/// 8-bit float: 4 bits of exponent (bias 7), 3 of fraction; no infinities.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 != 0 { -size } else { size }
}

/// A power of two by its biased exponent.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

fn decode(weight: &PackedWeight, p: &Pieces<'_>, (row, cols): (usize, usize), out: &mut [f32]) {
    let (Some(values), Some(scales)) = (p.values, p.scales) else {
        return out.fill(0.0);
    };
    match weight.scheme {
        Scheme::Affine { bits, group } => affine(p, (bits.into(), group), (row, cols), out),
        Scheme::Mxfp4 | Scheme::Mxfp4Experts => {
            nibbles(values, row, cols, out, |k| {
                e8m0(scales.byte(row * cols / 32 + k / 32))
            });
        }
        Scheme::Nvfp4 => {
            nibbles(values, row, cols, out, |k| {
                e4m3(scales.byte(row * cols / 16 + k / 16))
            });
        }
        Scheme::Nvfp4Global => {
            let global = p.outer.map_or(1.0, |g| g.float(0));
            nibbles(values, row, cols, out, |k| {
                e4m3(scales.byte(row * cols / 16 + k / 16)) / global
            });
        }
        Scheme::Mxfp8 => {
            for (k, out) in out.iter_mut().enumerate() {
                let scale = e8m0(scales.byte(row * cols / 32 + k / 32));
                *out = e4m3(values.byte(row * cols + k)) * scale;
            }
        }
        Scheme::Gptq { bits, group, zeros } => {
            gptq(p, (bits.into(), group.unwrap_or(cols), zeros), row, out);
        }
        Scheme::Awq { group } => awq(p, group, row, out),
        Scheme::Fp8 { block } | Scheme::Int8Scaled { block } => {
            let per_tensor = scales.bytes.len() * 8 <= scales.storage.bits() as usize;
            for (k, out) in out.iter_mut().enumerate() {
                let scale = match block {
                    Some([n, b]) => row / n * scales.cols + k / b,
                    None if per_tensor => 0,
                    None => row,
                };
                *out = values.float(row * cols + k) * scales.float(scale);
            }
        }
        Scheme::Int8 => {
            let scale = scales.float(row);
            for (k, out) in out.iter_mut().enumerate() {
                *out = values.float(row * cols + k) * scale * (1.0 / 127.0);
            }
        }
        Scheme::Table4 { block, offset } => {
            table4(p, (block, f32::from_bits(offset)), (row, cols), out);
        }
        Scheme::Packed { bits, group } => packed(p, (bits.into(), group), (row, cols), out),
    }
}

fn affine(
    p: &Pieces<'_>,
    (bits, group): (usize, usize),
    (row, cols): (usize, usize),
    out: &mut [f32],
) {
    let (Some(values), Some(scales), Some(biases)) = (p.values, p.scales, p.biases) else {
        return;
    };
    let (words, groups) = (cols * bits / 32, cols / group);
    for (k, out) in out.iter_mut().enumerate() {
        let q = values.bits((row * words, 1), k * bits, bits) as f32;
        let g = row * groups + k / group;
        *out = scales.float(g) * q + biases.float(g);
    }
}

/// E2M1 values, two a byte, the low nibble first.
fn nibbles(
    values: Stored<'_>,
    row: usize,
    cols: usize,
    out: &mut [f32],
    scale: impl Fn(usize) -> f32,
) {
    for (k, out) in out.iter_mut().enumerate() {
        let byte = values.byte((row * cols + k) / 2);
        let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
        *out = E2M1[usize::from(code)] * scale(k);
    }
}

fn gptq(
    p: &Pieces<'_>,
    (bits, group, zeros): (usize, usize, GptqZeros),
    n: usize,
    out: &mut [f32],
) {
    let (Some(values), Some(scales), Some(stored)) = (p.values, p.scales, p.zeros) else {
        return;
    };
    let (width, zero_words) = (values.cols, stored.cols);
    let more = u32::from(zeros == GptqZeros::LessOne);
    let groups = scales.bytes.len() * 8 / scales.storage.bits() as usize / width.max(1);
    for (k, out) in out.iter_mut().enumerate() {
        let g = p.index.map_or(k / group, |i| i.word(k) as usize);
        let g = g.min(groups.saturating_sub(1));
        let q = values.bits((n, width), k * bits, bits);
        let zero = stored.bits((g * zero_words, 1), n * bits, bits) + more;
        *out = scales.float(g * width + n) * (q as f32 - zero as f32);
    }
}

fn awq(p: &Pieces<'_>, group: usize, n: usize, out: &mut [f32]) {
    let (Some(values), Some(scales), Some(zeros)) = (p.values, p.scales, p.zeros) else {
        return;
    };
    let width = values.cols;
    let nibble =
        |s: Stored<'_>, row: usize| s.word(row * width + n / 8) >> (4 * AWQ_NIBBLE[n % 8]) & 15;
    for (k, out) in out.iter_mut().enumerate() {
        let g = k / group;
        let (q, zero) = (nibble(values, k), nibble(zeros, g));
        *out = scales.float(g * scales.cols + n) * (q as f32 - zero as f32);
    }
}

/// Codes into a table of 16 values, two a byte, the high nibble first; blocks run through the whole weight.
fn table4(
    p: &Pieces<'_>,
    (block, offset): (usize, f32),
    (row, cols): (usize, usize),
    out: &mut [f32],
) {
    let (Some(values), Some(scales), Some(table)) = (p.values, p.scales, p.table) else {
        return;
    };
    let scale = |b: usize| match (p.outer, p.outer_table) {
        (Some(outer), Some(map)) => {
            map.float(usize::from(scales.byte(b))) * outer.float(b / 256) + offset
        }
        _ => scales.float(b),
    };
    for (k, out) in out.iter_mut().enumerate() {
        let at = row * cols + k;
        let byte = values.byte(at / 2);
        let code = if at % 2 == 0 { byte >> 4 } else { byte & 15 };
        *out = table.float(code.into()) * scale(at / block);
    }
}

/// compressed-tensors: unsigned codes whose middle stands for zero, or for the stored zero point.
fn packed(
    p: &Pieces<'_>,
    (bits, group): (usize, Option<usize>),
    (row, cols): (usize, usize),
    out: &mut [f32],
) {
    let (Some(values), Some(scales)) = (p.values, p.scales) else {
        return;
    };
    let group = group.unwrap_or(cols).max(1);
    let groups = cols.div_ceil(group);
    let (per_word, middle) = (32 / bits, 1i32 << (bits - 1));
    let code = |s: Stored<'_>, word: usize, place: usize| {
        (s.word(word) >> (bits * place) & ((1 << bits) - 1)) as i32 - middle
    };
    for (k, out) in out.iter_mut().enumerate() {
        let g = k / group;
        let q = code(values, row * values.cols + k / per_word, k % per_word);
        // Zero points are packed along the rows.
        let zero = p
            .zeros
            .map_or(0, |z| code(z, row / per_word * z.cols + g, row % per_word));
        *out = scales.float(row * groups + g) * (q - zero) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_their_values() {
        assert_eq!(
            [e4m3(0x38), e4m3(0xB8), e4m3(0x01)],
            [1.0, -1.0, 2f32.powi(-9)]
        );
        assert_eq!((e4m3(0x7E), e4m3(0x08)), (448.0, 2f32.powi(-6)));
        assert!(e4m3(0x7F).is_nan());
        assert_eq!((e8m0(127), e8m0(128), e8m0(0)), (1.0, 2.0, 2f32.powi(-127)));
    }
}
