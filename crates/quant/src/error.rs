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
    /// The elements do not make whole rows.
    #[error("{elems} elements are not whole rows of {width}")]
    PartialRow {
        /// Elements given.
        elems: usize,
        /// Elements per row.
        width: usize,
    },
    /// Nothing is quantised to this type.
    #[error("no tensor is quantised to {dtype}")]
    NotATarget {
        /// The element type.
        dtype: DType,
    },
    /// A value to quantise is infinite or not a number.
    #[error("the value in row {row}, column {column} is not finite")]
    NotFinite {
        /// Row within the given rows.
        row: usize,
        /// Column.
        column: usize,
    },
    /// The type is too coarse without importance weights.
    #[error("{dtype} needs an importance matrix; make one with `tokkata imatrix`")]
    NoImportance {
        /// The element type.
        dtype: DType,
    },
    /// There is not one importance weight per column.
    #[error("rows of {width} elements need as many importance weights, found {found}")]
    ImportanceLength {
        /// Elements per row.
        width: usize,
        /// Weights given.
        found: usize,
    },
    /// An importance weight is negative, infinite or not a number.
    #[error("the importance weight of column {column} is not a finite, non-negative number")]
    BadImportance {
        /// Column.
        column: usize,
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
