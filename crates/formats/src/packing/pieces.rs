//! The bytes of a packed weight's pieces, and the small numbers in them.

use half::{bf16, f16};

use super::{PackedWeight, Piece};
use crate::tensor::{Storage, StoredTensor};

/// Values of E2M1 by code.
pub(super) const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// A stored tensor with its bytes; what lies behind them reads as 0.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) storage: Storage,
    pub(super) cols: usize,
    pub(super) bytes: &'a [u8],
}

/// The pieces of one weight.
pub(crate) struct Pieces<'a> {
    pub(super) values: Stored<'a>,
    pub(super) scales: Stored<'a>,
    pub(super) zeros: Option<Stored<'a>>,
    pub(super) biases: Option<Stored<'a>>,
    pub(super) index: Option<Stored<'a>>,
    pub(super) table: Option<Stored<'a>>,
    pub(super) outer: Option<Stored<'a>>,
    pub(super) outer_table: Option<Stored<'a>>,
}

impl<'a> Pieces<'a> {
    /// The pieces of `weight`, whose bytes `bytes` finds.
    pub(crate) fn of<E>(
        weight: &PackedWeight,
        bytes: impl Fn(&StoredTensor) -> Result<&'a [u8], E>,
    ) -> Result<Self, E> {
        let piece = |piece| {
            let tensor = weight.piece(piece);
            let stored = tensor.map(|t| Ok(Stored::new(t, bytes(t)?)));
            stored.transpose()
        };
        let empty = Stored {
            storage: Storage::U8,
            cols: 1,
            bytes: &[],
        };
        Ok(Pieces {
            values: piece(Piece::Values)?.unwrap_or(empty),
            scales: piece(Piece::Scales)?.unwrap_or(empty),
            zeros: piece(Piece::Zeros)?,
            biases: piece(Piece::Biases)?,
            index: piece(Piece::GroupIndex)?,
            table: piece(Piece::Table)?,
            outer: piece(Piece::OuterScales)?,
            outer_table: piece(Piece::OuterTable)?,
        })
    }
}

impl<'a> Stored<'a> {
    fn new(tensor: &StoredTensor, bytes: &'a [u8]) -> Self {
        Stored {
            storage: tensor.storage,
            cols: tensor.shape.last().copied().unwrap_or(1),
            bytes,
        }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() * 8 / self.storage.bits() as usize
    }

    /// Every element.
    pub(super) fn floats(self) -> impl Iterator<Item = f32> {
        (0..self.len()).map(move |i| self.float(i))
    }

    /// A half of byte `at`: the low one first.
    pub(super) fn nibble(&self, at: usize) -> u8 {
        self.byte(at / 2) >> (4 * (at % 2)) & 15
    }

    pub(super) fn byte(&self, i: usize) -> u8 {
        self.bytes.get(i).copied().unwrap_or(0)
    }

    pub(super) fn word(&self, i: usize) -> u32 {
        let bytes = self.bytes.get(4 * i..4 * i + 4);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// `bits` bits of a little-endian stream that begins at word `start`, `stride` words apart.
    pub(super) fn bits(&self, (start, stride): (usize, usize), at: usize, bits: usize) -> u32 {
        let (word, shift) = (at / 32, at % 32);
        let low = u64::from(self.word(start + word * stride));
        let high = match shift + bits > 32 {
            true => u64::from(self.word(start + (word + 1) * stride)),
            false => 0,
        };
        ((low | high << 32) >> shift) as u32 & ((1u64 << bits) - 1) as u32
    }

    /// Element `i` as its type says.
    pub(super) fn float(&self, i: usize) -> f32 {
        let half = |at: usize| u16::from(self.byte(at)) | u16::from(self.byte(at + 1)) << 8;
        match self.storage {
            Storage::F32 => f32::from_bits(self.word(i)),
            Storage::F16 => f16::from_bits(half(2 * i)).to_f32(),
            Storage::BF16 => bf16::from_bits(half(2 * i)).to_f32(),
            Storage::F8E4M3 => e4m3(self.byte(i)),
            Storage::F8E8M0 => e8m0(self.byte(i)),
            Storage::I8 => f32::from(self.byte(i) as i8),
            _ => f32::from(self.byte(i)),
        }
    }
}

/// 8-bit float: 4 bits of exponent (bias 7), 3 of fraction; no infinities.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 != 0 { -size } else { size }
}

/// A power of two by its biased exponent.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
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
