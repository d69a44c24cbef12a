//! The weights of a file as a backend asks for them; packed ones in the type that holds them.

use tokkata_core::DType;
use tokkata_formats::{FormatError, ModelFile, PackedWeight};
use tokkata_ir::{BackendError, Mapped, WeightSource};

/// Tensors of an opened file.
#[derive(Clone, Copy, Debug)]
pub struct FileWeights<'a>(pub &'a ModelFile);

impl WeightSource for FileWeights<'_> {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        let plain = self.0.tensor(name).map(|t| (t.dtype, t.shape.clone()));
        let packed = || {
            let weight = self.0.packed_weight(name)?;
            Some((weight.kept, weight.shape.clone()))
        };
        plain.or_else(packed)
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let wrong = |e: FormatError| BackendError::Weight(e.fault.to_string());
        if let Some(tensor) = self.0.tensor(name) {
            return self.0.read_at(tensor, offset, out).map_err(wrong);
        }
        let absent = || BackendError::Weight(format!("tensor {name} is absent"));
        let packed = self.0.packed_weight(name).ok_or_else(absent)?;
        read_packed(self.0, packed, offset, out).map_err(wrong)
    }

    fn mapped(&self, name: &str) -> Option<Mapped> {
        let (owner, range) = self.0.shared(self.0.tensor(name)?).ok()??;
        Mapped::new(owner, range)
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        tokkata_quant::dequantize(dtype, raw, out).map_err(|e| BackendError::Weight(e.to_string()))
    }
}

/// Bytes of a packed weight in the type that it is kept in, from `offset` on.
fn read_packed(
    file: &ModelFile,
    packed: &PackedWeight,
    offset: u64,
    out: &mut [u8],
) -> Result<(), FormatError> {
    let row_bytes = packed.row_bytes().max(1);
    let from = offset as usize;
    let (first, end) = (from / row_bytes, (from + out.len()).div_ceil(row_bytes));
    if from.is_multiple_of(row_bytes) && out.len().is_multiple_of(row_bytes) {
        return file.read_kept(packed, first, out);
    }
    let mut rows = vec![0; (end - first) * row_bytes];
    file.read_kept(packed, first, &mut rows)?;
    out.copy_from_slice(&rows[from - first * row_bytes..][..out.len()]);
    Ok(())
}
