//! What a caller can get wrong about a tensor's bytes.

use tokkata_core::DType;

/// Why a tensor's bytes could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// A row or tensor does not consist of whole blocks.
    #[error("{dtype} stores blocks of {block} elements, which do not divide {elems}")]
    PartialBlock {
        /// The element type.
        dtype: DType,
        /// Elements per block.
        block: usize,
        /// Elements asked for.
        elems: usize,
    },
    /// The byte count does not belong to the element count.
    #[error("{elems} elements of {dtype} take {expected} bytes, found {found}")]
    Length {
        /// The element type.
        dtype: DType,
        /// Elements asked for.
        elems: usize,
        /// Bytes these elements take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The type has no blocks to unpack.
    #[error("{dtype} is a plain number type without blocks")]
    NotBlocked {
        /// The element type.
        dtype: DType,
    },
}

/// Checks that `bytes` bytes hold exactly `elems` elements of `dtype`.
pub(crate) fn check_length(dtype: DType, elems: usize, found: usize) -> Result<(), QuantError> {
    let block = dtype.block_elems();
    let Some(expected) = dtype.row_bytes(elems) else {
        return Err(QuantError::PartialBlock {
            dtype,
            block,
            elems,
        });
    };
    if expected != found {
        return Err(QuantError::Length {
            dtype,
            elems,
            expected,
            found,
        });
    }
    Ok(())
}
