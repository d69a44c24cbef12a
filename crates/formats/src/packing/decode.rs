//! The elements of packed weights as floats: what each scheme's formula says, in F32.

use super::ints::{Ints, scale_place};
use super::pieces::{E2M1, Pieces, e4m3, e8m0};
use super::{PackedWeight, Scheme, blocks};
use crate::error::{Fault, FormatError, Quoted, Result};
use crate::model::ModelFile;
use crate::tensor::StoredTensor;

impl ModelFile {
    /// Rows of a packed weight from row `first` on (over all leading dimensions) as floats, as many as `out` holds.
    ///
    /// # Errors
    /// Rows that the weight does not have, or a piece without its bytes.
    pub fn read_packed(&self, weight: &PackedWeight, first: usize, out: &mut [f32]) -> Result<()> {
        let pieces = self.pieces(weight, first, out.len().div_ceil(weight.cols()))?;
        for (row, out) in (first..).zip(out.chunks_mut(weight.cols())) {
            floats(weight, &pieces, row, out);
        }
        Ok(())
    }

    /// The same rows in the type that the weight is kept in, whole ones.
    ///
    /// # Errors
    /// As [`ModelFile::read_packed`].
    pub fn read_kept(&self, weight: &PackedWeight, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = weight.row_bytes().max(1);
        let pieces = self.pieces(weight, first, out.len() / row_bytes)?;
        for (row, out) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
            blocks::write(weight, &pieces, row, out);
        }
        Ok(())
    }

    fn pieces(&self, weight: &PackedWeight, first: usize, wanted: usize) -> Result<Pieces<'_>> {
        if first
            .checked_add(wanted)
            .is_none_or(|end| end > weight.rows())
        {
            let found = format!("a read of {wanted} rows at {first}");
            let (tensor, expected) = (Quoted::new(&weight.name), "rows that it has");
            let fault = Fault::Packed {
                tensor,
                found,
                expected,
            };
            return Err(FormatError::at(self.path(), fault));
        }
        Pieces::of(weight, |tensor| self.stored_data(tensor))
    }

    /// All bytes of a piece of a packed weight or of one of [`ModelFile::other_tensors`], out of the map.
    ///
    /// # Errors
    /// A tensor of another model.
    pub fn stored_data(&self, tensor: &StoredTensor) -> Result<&[u8]> {
        self.span_bytes(tensor.part, tensor.span())
    }
}

/// One row of a weight.
pub(super) fn floats(weight: &PackedWeight, p: &Pieces<'_>, row: usize, out: &mut [f32]) {
    if let Some(ints) = Ints::of(weight, p) {
        return scaled(&ints, row, out);
    }
    let (values, scales, cols) = (p.values, p.scales, weight.cols());
    let four_bits = |k: usize, scale: f32| E2M1[usize::from(values.nibble(row * cols + k))] * scale;
    let block = |k: usize, len: usize| scales.byte(row * cols / len + k / len);
    let global = p.outer.map_or(1.0, |g| g.float(0));
    for (k, out) in out.iter_mut().enumerate() {
        let at = row * cols + k;
        *out = match weight.scheme {
            Scheme::Mxfp4 | Scheme::Mxfp4Bytes | Scheme::Mxfp4Experts => {
                four_bits(k, e8m0(block(k, 32)))
            }
            Scheme::Nvfp4 => four_bits(k, e4m3(block(k, 16))),
            Scheme::Nvfp4Global => four_bits(k, e4m3(block(k, 16)) / global),
            Scheme::Mxfp8 => e4m3(values.byte(at)) * e8m0(block(k, 32)),
            Scheme::Fp8 { block } => {
                values.float(at) * scales.float(scale_place(scales, block, (row, k)))
            }
            Scheme::Int8 => f32::from(values.byte(at) as i8) * scales.float(row) * (1.0 / 127.0),
            Scheme::Table4 { block, offset } => table4(p, (block, f32::from_bits(offset)), at),
            _ => 0.0,
        };
    }
}

fn scaled(ints: &Ints<'_>, row: usize, out: &mut [f32]) {
    let mut codes = vec![0; out.len()];
    ints.codes(row, &mut codes);
    for (k, (out, code)) in out.iter_mut().zip(codes).enumerate() {
        let product = ints.factor(row, k) * code as f32;
        *out = ints.offset(row, k).map_or(product, |o| product + o);
    }
}

/// A code into a table of 16 values, two a byte, the high nibble first; blocks run through the whole weight.
fn table4(p: &Pieces<'_>, (block, offset): (usize, f32), at: usize) -> f32 {
    let place = at / block;
    let scale = match (p.outer, p.outer_table) {
        (Some(outer), Some(map)) => {
            map.float(usize::from(p.scales.byte(place))) * outer.float(place / 256) + offset
        }
        _ => p.scales.float(place),
    };
    let code = p.values.nibble(at ^ 1);
    p.table.map_or(0.0, |t| t.float(code.into())) * scale
}
