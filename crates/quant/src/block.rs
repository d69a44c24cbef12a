//! Blocks taken apart into integer codes, integer sub-block scales and float factors.
//!
//! Every block format is one formula: element `e` of sub-block `s = e / sub_elems` is
//! `(d * scales[s]) * codes[e] - dmin * mins[s]`, evaluated in `f32` in that order. The products
//! `d * scale` are exact, so the result has the bits that llama.cpp computes.

mod fp4;
mod iq;
mod k;
mod simple;
mod ternary;

use tokkata_core::DType;

use crate::error::{QuantError, check_length};
use crate::num::f16_to_f32;

/// Most elements in a block of any format.
pub const MAX_BLOCK: usize = 256;
/// Most sub-blocks with a scale of their own in a block of any format.
pub const MAX_SUB_BLOCKS: usize = 16;

/// One block, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Unpacked {
    /// Signed element codes; offsets and lookup tables are already applied.
    pub codes: [i8; MAX_BLOCK],
    /// Factor of every sub-block scale.
    pub d: f32,
    /// Factor of every sub-block minimum; 0 for formats without minima.
    pub dmin: f32,
    /// Integer scale per sub-block.
    pub scales: [i32; MAX_SUB_BLOCKS],
    /// Integer minimum per sub-block; 0 for formats without minima.
    pub mins: [i32; MAX_SUB_BLOCKS],
}

impl Unpacked {
    /// An empty block, to be filled by [`Layout::unpack`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            codes: [0; MAX_BLOCK],
            d: 0.0,
            dmin: 0.0,
            scales: [1; MAX_SUB_BLOCKS],
            mins: [0; MAX_SUB_BLOCKS],
        }
    }

    /// What one step of a code is worth in sub-block `s`.
    #[inline]
    #[must_use]
    pub fn scale(&self, s: usize) -> f32 {
        self.d * self.scales[s] as f32
    }

    /// What is subtracted from every element of sub-block `s`.
    #[inline]
    #[must_use]
    pub fn min(&self, s: usize) -> f32 {
        self.dmin * self.mins[s] as f32
    }
}

impl Default for Unpacked {
    fn default() -> Self {
        Self::new()
    }
}

type Unpack = fn(&[u8], &mut Unpacked);

/// How the blocks of one type are built.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    dtype: DType,
    sub_elems: usize,
    unpack: Unpack,
}

impl Layout {
    /// The layout of `dtype`, or `None` for plain numbers.
    #[must_use]
    pub fn of(dtype: DType) -> Option<Self> {
        let (sub_elems, unpack) = table(dtype)?;
        Some(Self {
            dtype,
            sub_elems,
            unpack,
        })
    }

    /// The element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements per block.
    #[must_use]
    pub const fn elems(&self) -> usize {
        self.dtype.block_elems()
    }

    /// Bytes per block.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.dtype.block_bytes()
    }

    /// Elements that share a scale.
    #[must_use]
    pub const fn sub_elems(&self) -> usize {
        self.sub_elems
    }

    /// Takes one block apart. Entries past the block's own elements and sub-blocks keep their old content.
    ///
    /// # Errors
    /// [`QuantError::Length`] unless `block` is exactly one block.
    pub fn unpack(&self, block: &[u8], out: &mut Unpacked) -> Result<(), QuantError> {
        check_length(self.dtype, self.elems(), block.len())?;
        (self.unpack)(block, out);
        Ok(())
    }

    /// Writes the values of whole blocks; lengths are the caller's to check.
    pub(crate) fn expand(&self, bytes: &[u8], out: &mut [f32]) {
        let mut u = Unpacked::new();
        let blocks = bytes.chunks_exact(self.bytes());
        for (block, values) in blocks.zip(out.chunks_exact_mut(self.elems())) {
            (self.unpack)(block, &mut u);
            expand_block(&u, self.sub_elems, values);
        }
    }
}

fn expand_block(u: &Unpacked, sub_elems: usize, values: &mut [f32]) {
    let subs = values
        .chunks_exact_mut(sub_elems)
        .zip(u.codes.chunks_exact(sub_elems));
    for (s, (values, codes)) in subs.enumerate() {
        let (scale, min) = (u.scale(s), u.min(s));
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = scale * f32::from(code) - min;
        }
    }
}

/// Elements per scale and the unpacking routine of each block format.
fn table(dtype: DType) -> Option<(usize, Unpack)> {
    macro_rules! of {
        ($sub:literal, $unpack:path) => {
            Some(($sub, |block, out| $unpack(whole(block), out)))
        };
    }
    match dtype {
        DType::Q1_0 => of!(128, simple::q1_0),
        DType::Q2_0 => of!(64, simple::q2_0),
        DType::Q4_0 => of!(32, simple::q4_0),
        DType::Q4_1 => of!(32, simple::q4_1),
        DType::Q5_0 => of!(32, simple::q5_0),
        DType::Q5_1 => of!(32, simple::q5_1),
        DType::Q8_0 => of!(32, simple::q8_0),
        DType::Q8_1 => of!(32, simple::q8_1),
        DType::Q2_K => of!(16, k::q2),
        DType::Q3_K => of!(16, k::q3),
        DType::Q4_K => of!(32, k::q4),
        DType::Q5_K => of!(32, k::q5),
        DType::Q6_K => of!(16, k::q6),
        DType::Q8_K => of!(256, k::q8),
        DType::IQ1_S => of!(32, iq::iq1_s),
        DType::IQ1_M => of!(16, iq::iq1_m),
        DType::IQ2_XXS => of!(32, iq::iq2_xxs),
        DType::IQ2_XS => of!(16, iq::iq2_xs),
        DType::IQ2_S => of!(16, iq::iq2_s),
        DType::IQ3_XXS => of!(32, iq::iq3_xxs),
        DType::IQ3_S => of!(32, iq::iq3_s),
        DType::IQ4_NL => of!(32, fp4::iq4_nl),
        DType::IQ4_XS => of!(32, fp4::iq4_xs),
        DType::MXFP4 => of!(32, fp4::mxfp4),
        DType::NVFP4 => of!(16, fp4::nvfp4),
        DType::TQ1_0 => of!(256, ternary::tq1_0),
        DType::TQ2_0 => of!(256, ternary::tq2_0),
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => None,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => None,
    }
}

fn whole<const N: usize>(block: &[u8]) -> &[u8; N] {
    block.try_into().expect("a block has its type's length")
}

/// The half at byte `at`.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

/// The little-endian word at byte `at`.
#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The little-endian double word at byte `at`.
#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16
}

/// Low nibbles into the first half of `codes`, high nibbles into the second.
#[inline(always)]
fn split_nibbles(packed: &[u8], codes: &mut [i8], code: impl Fn(u8) -> i8) {
    let (low, high) = codes.split_at_mut(packed.len());
    for ((&byte, l), h) in packed.iter().zip(low).zip(high) {
        *l = code(byte & 15);
        *h = code(byte >> 4);
    }
}
