//! Where things lie inside a panel.
//!
//! A panel is sixteen rows of a matrix, stored as a run of *chunks* along K so that one sequential
//! read serves a matrix–vector product. A chunk is: a head with the float factors, the sub-block
//! scales of all its 32-blocks, then per 32-block the codes. Inside a 32-block the codes are eight
//! *quads*: 64 bytes that hold four consecutive K positions of each of the sixteen rows. Codes of
//! less than eight bits share these bytes: nibble lines hold quads 2j (low) and 2j + 1 (high), bit
//! planes hold bit q of every byte for quad q, two-bit planes two bits each for four quads.

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;
/// K positions that share an activation scale.
pub const BLOCK: usize = 32;

/// How codes of one 32-block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Two-bit planes.
    Two,
    /// Two-bit planes, then a plane of third bits.
    Three,
    /// Nibble lines.
    Four,
    /// Nibble lines, then a plane of fifth bits.
    Five,
    /// Nibble lines, then two-bit planes of the high bits.
    Six,
    /// One byte per code.
    Eight,
}

impl Codes {
    /// Bytes of a 32-block of sixteen rows.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Codes::Two => 128,
            Codes::Three => 192,
            Codes::Four => 256,
            Codes::Five => 320,
            Codes::Six => 384,
            Codes::Eight => 512,
        }
    }

    /// Quads whose products one 16-bit sum of pairs can hold; 0 when not even one fits.
    pub(crate) const fn quads_per_sum(self) -> usize {
        match self {
            Codes::Two | Codes::Three | Codes::Four => 8,
            Codes::Five => 4,
            Codes::Six => 2,
            Codes::Eight => 0,
        }
    }
}

/// Sizes of one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    /// 32-blocks of the chunk.
    pub(crate) blocks: usize,
    /// Bytes of the float factors.
    pub(crate) head: usize,
    /// Bytes of the sub-block scales of the whole chunk.
    pub(crate) scales: usize,
    pub(crate) codes: Codes,
}

impl Scheme {
    const fn new(blocks: usize, head: usize, scales: usize, codes: Codes) -> Self {
        Self {
            blocks,
            head,
            scales,
            codes,
        }
    }

    /// Bytes of the chunk.
    pub(crate) const fn bytes(&self) -> usize {
        self.head + self.scales + self.blocks * self.codes.bytes()
    }

    /// Byte at which the codes of 32-block `i` start.
    pub(crate) const fn codes_at(&self, i: usize) -> usize {
        self.head + self.scales + i * self.codes.bytes()
    }
}

/// Halves for the scales of two blocks.
pub(crate) const Q4_0: Scheme = Scheme::new(2, 64, 0, Codes::Four);
/// Halves for the scales of two blocks, then for their offsets.
pub(crate) const Q4_1: Scheme = Scheme::new(2, 128, 0, Codes::Four);
/// As `Q4_0`.
pub(crate) const Q5_0: Scheme = Scheme::new(2, 64, 0, Codes::Five);
/// As `Q4_1`.
pub(crate) const Q5_1: Scheme = Scheme::new(2, 128, 0, Codes::Five);
/// As `Q4_0`; codes are biased by 128.
pub(crate) const Q8_0: Scheme = Scheme::new(2, 64, 0, Codes::Eight);
/// As `Q4_0`.
pub(crate) const IQ4_NL: Scheme = Q4_0;
/// Exponent bytes of four blocks.
pub(crate) const MXFP4: Scheme = Scheme::new(4, 64, 0, Codes::Four);
/// Halves `d` and `dmin`; per block and row a nibble pair per 16 positions: scale, minimum.
pub(crate) const Q2_K: Scheme = Scheme::new(8, 64, 256, Codes::Two);
/// Halves `d` (32 bytes unused); per block the six-bit pairs of its two sub-blocks.
pub(crate) const Q3_K: Scheme = Scheme::new(8, 64, 192, Codes::Three);
/// Halves `d` and `dmin`; per block six-bit pairs: scale, minimum.
pub(crate) const Q4_K: Scheme = Scheme::new(8, 64, 192, Codes::Four);
/// As `Q4_K`.
pub(crate) const Q5_K: Scheme = Scheme::new(8, 64, 192, Codes::Five);
/// Halves `d` (32 bytes unused); per 16 positions one signed byte per row.
pub(crate) const Q6_K: Scheme = Scheme::new(8, 64, 256, Codes::Six);
/// Halves `d`; per two blocks the six-bit pairs of their scales.
pub(crate) const IQ4_XS: Scheme = Scheme::new(8, 32, 96, Codes::Four);

/// Bytes of six-bit pairs for sixteen rows.
pub(crate) const SIX_BIT_PAIRS: usize = 24;
/// What is subtracted from the stored scales of `Q3_K` and `IQ4_XS`.
pub(crate) const SCALE_BIAS: f32 = 32.0;
/// `IQ4_NL` values plus 128.
pub(crate) const IQ4_TABLE: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];
/// Doubled E2M1 values plus 12.
pub(crate) const FP4_TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
