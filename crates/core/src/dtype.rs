//! Element types of tensors: plain numbers and block formats.

macro_rules! dtypes {
    ($($name:ident = $code:literal, $text:literal, $elems:literal, $bytes:literal;)*) => {
        /// Element type of a tensor. Codes are those of the GGUF container.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum DType { $($name = $code,)* }

        impl DType {
            /// Every element type, in the order of their codes.
            pub const ALL: &'static [DType] = &[$(DType::$name,)*];

            /// The type a GGUF file means by `code`, or `None` for removed and unknown codes.
            #[must_use]
            pub const fn from_ggml(code: u32) -> Option<Self> {
                match code { $($code => Some(DType::$name),)* _ => None }
            }

            /// The name as GGUF tools write it, such as `Q4_K`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// Elements per block; 1 for plain numbers.
            #[must_use]
            pub const fn block_elems(self) -> usize {
                match self { $(DType::$name => $elems,)* }
            }

            /// Bytes per block.
            #[must_use]
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$name => $bytes,)* }
            }
        }
    };
}

dtypes! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl DType {
    /// The GGUF code of this type.
    #[must_use]
    pub const fn ggml(self) -> u32 {
        self as u32
    }

    /// Bytes of a row of `elems` elements, or `None` when blocks do not divide the row or the size overflows.
    #[must_use]
    pub const fn row_bytes(self, elems: usize) -> Option<usize> {
        if !elems.is_multiple_of(self.block_elems()) {
            return None;
        }
        (elems / self.block_elems()).checked_mul(self.block_bytes())
    }

    /// The type with this name, whatever the case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Whether elements share a block with a scale.
    #[must_use]
    pub const fn is_quantised(self) -> bool {
        self.block_elems() > 1
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
