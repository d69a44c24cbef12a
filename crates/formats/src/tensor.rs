//! One tensor of a model file: its name, element type, shape and place.

use tokkata_core::DType;

/// Where a tensor is and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes, slowest first; the last one is contiguous. Empty for a single number.
    pub shape: Vec<usize>,
    /// Which file of a split model holds it.
    pub part: usize,
    /// First byte, from the start of that file.
    pub offset: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl TensorInfo {
    /// Sizes in GGUF's order, contiguous first, filled up with ones.
    #[must_use]
    pub fn dims_ggml(&self) -> [usize; 4] {
        let mut dims = [1; 4];
        for (dim, &size) in dims.iter_mut().zip(self.shape.iter().rev()) {
            *dim = size;
        }
        dims
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of one contiguous row.
    #[must_use]
    pub fn row_elems(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of contiguous rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.elements() / self.row_elems()
    }

    /// Bytes of one contiguous row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.bytes as usize / self.rows()
    }
}
