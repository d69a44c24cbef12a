//! Tensor bytes to `f32`.

use tokkata_core::DType;

use crate::block::Layout;
use crate::error::{QuantError, check_length};
use crate::num::{bf16_to_f32, f16_to_f32};

/// Writes the elements stored in `bytes` to `out`.
///
/// `bytes` are little-endian, whole blocks of `dtype`, and hold exactly `out.len()` elements. The
/// result has the bits that llama.cpp computes; integers and doubles round to the nearest `f32`.
///
/// # Errors
/// [`QuantError::PartialBlock`] when blocks do not divide `out`, [`QuantError::Length`] when the
/// byte count is another.
///
/// ```
/// use tokkata_core::DType;
/// let mut out = [0.0; 2];
/// tokkata_quant::dequantize(DType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut out)?;
/// assert_eq!(out, [1.0, -2.0]);
/// # Ok::<(), tokkata_quant::QuantError>(())
/// ```
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(dtype, out.len(), bytes.len())?;
    match Layout::of(dtype) {
        Some(layout) => layout.expand(bytes, out),
        None => plain(dtype, bytes, out),
    }
    Ok(())
}

/// The elements stored in `bytes` as a new vector.
///
/// # Errors
/// As [`dequantize`].
pub fn dequantize_vec(dtype: DType, bytes: &[u8], elems: usize) -> Result<Vec<f32>, QuantError> {
    check_length(dtype, elems, bytes.len())?;
    let mut out = vec![0.0; elems];
    dequantize(dtype, bytes, &mut out)?;
    Ok(out)
}

fn plain(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        DType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::I8 => each(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
        DType::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        DType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        _ => unreachable!("{dtype} has a block layout"),
    }
}

#[inline(always)]
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (elems, _) = bytes.as_chunks::<N>();
    for (value, &elem) in out.iter_mut().zip(elems) {
        *value = read(elem);
    }
}
