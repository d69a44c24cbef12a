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
    /// Sizes in GGUF's order, contiguous first, filled up with ones; more than four are multiplied into the last.
    #[must_use]
    pub fn dims_ggml(&self) -> [usize; 4] {
        let mut dims = [1; 4];
        for (i, &size) in self.shape.iter().rev().enumerate() {
            dims[i.min(3)] *= size;
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
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of one contiguous row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        // A tensor without rows has no bytes either.
        self.bytes as usize / self.rows().max(1)
    }

    pub(crate) fn span(&self) -> Span<'_> {
        Span {
            name: &self.name,
            offset: self.offset,
            bytes: self.bytes,
        }
    }
}

/// The bytes of a tensor, whatever they mean.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) name: &'a str,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

macro_rules! storages {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $bits:literal;)*) => {
        /// Element type as a safetensors file stores it: computable, or a piece of a packed weight.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Storage { $($(#[$doc])* $name,)* }

        impl Storage {
            /// Every type.
            pub const ALL: &'static [Storage] = &[$(Storage::$name,)*];

            /// The name in a safetensors header.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Storage::$name => $text,)* }
            }

            /// Bits per element.
            #[must_use]
            pub const fn bits(self) -> u64 {
                match self { $(Storage::$name => $bits,)* }
            }
        }
    };
}

storages! {
    Bool = "BOOL", 8;
    F4 = "F4", 4;
    F6E2M3 = "F6_E2M3", 6;
    F6E3M2 = "F6_E3M2", 6;
    U8 = "U8", 8;
    I8 = "I8", 8;
    F8E4M3 = "F8_E4M3", 8;
    F8E5M2 = "F8_E5M2", 8;
    F8E8M0 = "F8_E8M0", 8;
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8;
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8;
    U16 = "U16", 16;
    I16 = "I16", 16;
    F16 = "F16", 16;
    BF16 = "BF16", 16;
    U32 = "U32", 32;
    I32 = "I32", 32;
    F32 = "F32", 32;
    U64 = "U64", 64;
    I64 = "I64", 64;
    F64 = "F64", 64;
    C64 = "C64", 64;
}

impl Storage {
    /// The type with this name in a safetensors header.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name() == name)
    }

    /// The same type as a tensor's, where there is one.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        Some(match self {
            Storage::I8 => DType::I8,
            Storage::I16 => DType::I16,
            Storage::F16 => DType::F16,
            Storage::BF16 => DType::BF16,
            Storage::I32 => DType::I32,
            Storage::F32 => DType::F32,
            Storage::I64 => DType::I64,
            Storage::F64 => DType::F64,
            _ => return None,
        })
    }
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor as stored in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub storage: Storage,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// Which file of a split model holds it.
    pub part: usize,
    /// First byte, from the start of that file.
    pub offset: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl StoredTensor {
    pub(crate) fn span(&self) -> Span<'_> {
        Span {
            name: &self.name,
            offset: self.offset,
            bytes: self.bytes,
        }
    }

    /// The tensor with a computable type, or itself.
    pub(crate) fn into_info(self) -> Result<TensorInfo, Self> {
        let Some(dtype) = self.storage.dtype() else {
            return Err(self);
        };
        let Self {
            name,
            shape,
            part,
            offset,
            bytes,
            ..
        } = self;
        Ok(TensorInfo {
            name,
            dtype,
            shape,
            part,
            offset,
            bytes,
        })
    }
}
