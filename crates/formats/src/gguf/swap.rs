//! Byte order of block fields, for big-endian files.
//!
//! Bytes stay; 16-bit and 32-bit fields turn round. Fields that upstream code declares as bytes and
//! reads as words have no portable meaning in a big-endian file; their types have no rule here,
//! except `qh` of Q5_0 and Q5_1, which every reader and writer moves as one 32-bit word.

use tokkata_core::DType;

/// A run of `count` fields of `width` bytes.
type Run = (usize, usize);

/// The fields of one block, or `None` where no rule is known.
pub(crate) fn swap_rule(dtype: DType) -> Option<&'static [Run]> {
    Some(match dtype {
        DType::I8 | DType::MXFP4 | DType::NVFP4 => &[],
        DType::F16 | DType::BF16 | DType::I16 => &[(2, 1)],
        DType::F32 | DType::I32 => &[(4, 1)],
        DType::F64 | DType::I64 => &[(8, 1)],
        DType::Q4_0 | DType::Q8_0 | DType::IQ4_NL | DType::Q1_0 | DType::Q2_0 => &[(2, 1)],
        DType::Q4_1 | DType::Q8_1 | DType::Q4_K | DType::Q5_K => &[(2, 2)],
        DType::Q5_0 => &[(2, 1), (4, 1)],
        DType::Q5_1 => &[(2, 2), (4, 1)],
        DType::Q2_K => &[(1, 80), (2, 2)],
        DType::Q3_K => &[(1, 108), (2, 1)],
        DType::Q6_K => &[(1, 208), (2, 1)],
        DType::Q8_K => &[(4, 1), (1, 256), (2, 16)],
        DType::TQ1_0 => &[(1, 52), (2, 1)],
        DType::TQ2_0 => &[(1, 64), (2, 1)],
        DType::IQ2_S | DType::IQ3_S => &[(2, 1)],
        DType::IQ4_XS => &[(2, 2)],
        DType::IQ2_XS => &[(2, 33)],
        DType::IQ1_S => &[(2, 1), (1, 32), (2, 8)],
        DType::IQ2_XXS | DType::IQ3_XXS | DType::IQ1_M => return None,
    })
}

/// Turns round the fields of whole blocks of `dtype`.
pub(crate) fn swap_blocks(dtype: DType, rule: &[Run], bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        let mut at = 0;
        for &(width, count) in rule {
            let run = &mut block[at..at + width * count];
            run.chunks_exact_mut(width).for_each(<[u8]>::reverse);
            at += width * count;
        }
    }
}
