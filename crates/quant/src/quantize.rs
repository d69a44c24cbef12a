//! `f32` rows to tensor bytes.
//!
//! The searches are llama.cpp's, term by term in the same order, so the bytes are the same; many
//! sub-blocks are searched side by side (see `lanes`) to be faster.

mod affine;
mod iq;
mod iq1;
mod iq4;
mod k;
mod lanes;
mod lattice;
mod narrow;
mod pack;
mod scales;
mod simple;
mod symmetric;
mod weights;

use tokkata_core::DType;

use crate::error::{QuantError, check_length};
use crate::num::{f32_to_bf16, f32_to_f16};
use weights::Input;

/// Rows of one tensor, and where their bytes go.
struct Task<'a> {
    dtype: DType,
    input: Input<'a>,
    dst: &'a mut [u8],
}

/// Whether [`quantize`] can write `dtype` at all.
#[must_use]
pub fn can_quantize(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::Q8_1 | DType::Q8_K | DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64
    )
}

/// Whether `dtype` is too coarse to be made without importance weights.
#[must_use]
pub fn needs_importance(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS
    )
}

/// Quantises whole rows of `width` elements.
///
/// `src` holds any run of rows of a tensor, `dst` receives their bytes; splitting a tensor into row
/// ranges gives the same bytes as one call. `importance` has one weight per column (an importance
/// matrix's means of squared activations); formats that have no use for it ignore it.
///
/// # Errors
/// Lengths that do not fit together, values that are not finite, a type nothing is quantised to, and
/// missing importance where [`needs_importance`].
///
/// ```
/// use tokkata_core::DType;
/// let row: Vec<f32> = (0..256).map(|i| (i as f32).sin()).collect();
/// let mut bytes = vec![0; 144];
/// tokkata_quant::quantize(DType::Q4_K, &row, 256, None, &mut bytes)?;
/// let back = tokkata_quant::dequantize_vec(DType::Q4_K, &bytes, 256)?;
/// assert!(row.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.1));
/// # Ok::<(), tokkata_quant::QuantError>(())
/// ```
pub fn quantize(
    dtype: DType,
    src: &[f32],
    width: usize,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), QuantError> {
    if !can_quantize(dtype) {
        return Err(QuantError::NotATarget { dtype });
    }
    check_length(dtype, src.len(), dst.len())?;
    check_rows(dtype, src.len(), width)?;
    if !dtype.is_quantised() {
        plain(dtype, src, dst);
        return Ok(());
    }
    check_values(dtype, src, width, importance)?;
    block(Task {
        dtype,
        input: Input {
            src,
            width,
            importance,
        },
        dst,
    });
    Ok(())
}

fn check_rows(dtype: DType, elems: usize, width: usize) -> Result<(), QuantError> {
    let block = dtype.block_elems();
    if width == 0 || !width.is_multiple_of(block) {
        return Err(QuantError::PartialBlock {
            dtype,
            block,
            elems: width,
        });
    }
    if !elems.is_multiple_of(width) {
        return Err(QuantError::PartialRow { elems, width });
    }
    Ok(())
}

fn check_values(
    dtype: DType,
    src: &[f32],
    width: usize,
    importance: Option<&[f32]>,
) -> Result<(), QuantError> {
    if let Some(index) = first_not_finite(src) {
        return Err(QuantError::NotFinite {
            row: index / width,
            column: index % width,
        });
    }
    let Some(importance) = importance else {
        return if needs_importance(dtype) {
            Err(QuantError::NoImportance { dtype })
        } else {
            Ok(())
        };
    };
    if importance.len() != width {
        return Err(QuantError::ImportanceLength {
            width,
            found: importance.len(),
        });
    }
    match importance.iter().position(|w| !w.is_finite() || *w < 0.0) {
        Some(column) => Err(QuantError::BadImportance { column }),
        None => Ok(()),
    }
}

/// A sum of exponents would not be exact; a maximum of magnitudes is, and becomes vector code.
fn first_not_finite(src: &[f32]) -> Option<usize> {
    let largest = src
        .iter()
        .map(|v| v.to_bits() & 0x7fff_ffff)
        .fold(0, u32::max);
    if largest < 0x7f80_0000 {
        return None;
    }
    src.iter().position(|v| !v.is_finite())
}

fn plain(dtype: DType, src: &[f32], dst: &mut [u8]) {
    match dtype {
        DType::F32 => each(src, dst, f32::to_le_bytes),
        DType::F16 => each(src, dst, |v| f32_to_f16(v).to_le_bytes()),
        DType::BF16 => each(src, dst, |v| f32_to_bf16(v).to_le_bytes()),
        _ => unreachable!("{dtype} is refused before"),
    }
}

#[inline(always)]
fn each<const N: usize>(src: &[f32], dst: &mut [u8], write: impl Fn(f32) -> [u8; N]) {
    for (out, &v) in dst.as_chunks_mut::<N>().0.iter_mut().zip(src) {
        *out = write(v);
    }
}

fn block(task: Task<'_>) {
    match task.dtype {
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => k::quantize(task),
        DType::TQ1_0 | DType::TQ2_0 | DType::MXFP4 | DType::NVFP4 => narrow::quantize(task),
        DType::IQ1_S | DType::IQ1_M => iq1::quantize(task),
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => iq::quantize(task),
        DType::IQ3_XXS | DType::IQ3_S => iq::quantize(task),
        DType::IQ4_NL | DType::IQ4_XS => iq4::quantize(task),
        _ => simple::quantize(task),
    }
}
