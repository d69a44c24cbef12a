//! Weights that a directory stores as several tensors: packed integers or small floats, scales, offsets.
//!
//! The description comes from `config.json`, and a setting that is not known is refused, since it may change numbers.
//! [`crate::ModelFile::read_packed`] gives the elements as floats, [`crate::ModelFile::read_kept`] in the narrowest type
//! that holds them all.

mod blocks;
mod config;
mod decode;
mod group;
mod ints;
mod keep;
mod more;
mod pieces;

use tokkata_core::DType;

use crate::tensor::StoredTensor;

pub(crate) use config::Quantisation;
pub(crate) use group::group;
pub(crate) use keep::kept;
pub(crate) use pieces::Pieces;

/// How the elements of a packed weight are made from its pieces.
///
/// `w` is an element of logical shape `[N, K]`, `q` its packed value, and groups run along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// MLX: `w = scale * q + bias`; `values` is `U32 [.., N, K * bits / 32]`, a dense little-endian bit stream
    /// per row, `scales` and `biases` are `[.., N, K / group]`.
    Affine {
        /// Bits per value: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Values per scale: 32, 64 or 128.
        group: usize,
    },
    /// MLX: E2M1 values in `U32`, groups of 32, E8M0 `scales` in `U8`.
    Mxfp4,
    /// MLX: E4M3 values in `U32`, groups of 32, E8M0 `scales` in `U8`.
    Mxfp8,
    /// MLX: E2M1 values in `U32`, groups of 16, E4M3 `scales` in `U8`.
    Nvfp4,
    /// GPTQ: `w = scale * (q - zero)`; `values` is `I32 [K * bits / 32, N]`, `zeros` is `I32 [G, N * bits / 32]`,
    /// `scales` is `[G, N]`, and an optional `group_index` `[K]` says which of G groups a column is in.
    Gptq {
        /// Bits per value: 2, 3, 4 or 8.
        bits: u8,
        /// Values per scale; `None` for one group per row.
        group: Option<usize>,
        /// What the stored zeros mean.
        zeros: GptqZeros,
    },
    /// AWQ: `w = scale * (q - zero)`; `values` is `I32 [K, N / 8]` whose nibbles hold columns 0 2 4 6 1 3 5 7,
    /// `zeros` is `I32 [K / group, N / 8]`, `scales` is `[K / group, N]`.
    Awq {
        /// Values per scale.
        group: usize,
    },
    /// 8-bit floats E4M3 `[N, K]` times one scale per tensor, per row, or per `block` of rows and columns.
    Fp8 {
        /// Rows and columns per scale.
        block: Option<[usize; 2]>,
    },
    /// compressed-tensors: E2M1 values in `U8 [N, K / 2]`, groups of 16, E4M3 `scales` divided by one `F32`.
    Nvfp4Global,
    /// compressed-tensors: `w = scale * (q - zero)` of unsigned codes in `I32 [N, K * bits / 32]`, whose middle stands
    /// for zero; zero points are packed along N.
    Packed {
        /// Bits per value: 4 or 8.
        bits: u8,
        /// Values per scale; `None` for one group per row.
        group: Option<usize>,
    },
    /// 8-bit integers `[N, K]` times one scale per tensor, per row, or per block of rows and columns.
    Int8Scaled {
        /// Rows and columns per scale.
        block: Option<[usize; 2]>,
    },
    /// bitsandbytes: 8-bit integers `[N, K]` times the largest size of their row over 127.
    Int8,
    /// bitsandbytes: codes into a table of 16 values, two a byte, the high nibble first, in blocks with one scale each;
    /// scales may be codes into a table of 256 themselves.
    Table4 {
        /// Values per scale.
        block: usize,
        /// Bits of the F32 that is added to scales that are codes.
        offset: u32,
    },
    /// Experts of a directory of 8-bit floats: E2M1 values in `I8 [N, K / 2]`, low nibble first, groups of 32, E8M0 `scale`
    /// `[N, K / 32]`.
    Mxfp4Bytes,
    /// gpt-oss: E2M1 `values` in `U8 [E, N, K / 32, 16]`, low nibble first, E8M0 `scales` in `U8 [E, N, K / 32]`.
    Mxfp4Experts,
}

/// What a GPTQ file stores as zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GptqZeros {
    /// The zero point less one (`checkpoint_format` `gptq`).
    LessOne,
    /// The zero point itself (`gptq_v2`).
    Exact,
}

/// The part a stored tensor plays in a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// The packed elements.
    Values,
    /// Factors.
    Scales,
    /// Packed zero points.
    Zeros,
    /// Offsets that are added.
    Biases,
    /// The group of each column.
    GroupIndex,
    /// The values that codes stand for.
    Table,
    /// Factors of the factors.
    OuterScales,
    /// The values that codes of factors stand for.
    OuterTable,
    /// What a library needs to know beside the numbers.
    State,
    /// The scale of the activations, which a weight-only computation has no use for.
    InputScale,
}

/// A weight stored as several tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedWeight {
    /// The name it would have as one tensor.
    pub name: String,
    /// Its logical sizes, slowest first.
    pub shape: Vec<usize>,
    /// How its elements are made.
    pub scheme: Scheme,
    /// The narrowest type that holds the value of each element.
    pub kept: DType,
    /// What it is stored as.
    pub pieces: Vec<(Piece, StoredTensor)>,
}

impl PackedWeight {
    /// The tensor that plays this part.
    #[must_use]
    pub fn piece(&self, piece: Piece) -> Option<&StoredTensor> {
        self.pieces
            .iter()
            .find(|(p, _)| *p == piece)
            .map(|(_, tensor)| tensor)
    }

    /// Elements of a row, at least one.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// Rows over all leading dimensions.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of a row in the type that it is kept in.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.kept.row_bytes(self.cols()).unwrap_or(0)
    }

    /// Bytes of all its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, tensor)| tensor.bytes).sum()
    }
}
