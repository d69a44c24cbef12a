//! The weights of a file as a backend asks for them; packed ones as floats.

use tokkata_core::DType;
use tokkata_formats::{FormatError, ModelFile, PackedWeight};
use tokkata_ir::{BackendError, Mapped, WeightSource};

/// Tensors of an opened file.
#[derive(Clone, Copy, Debug)]
pub struct FileWeights<'a>(pub &'a ModelFile);

impl WeightSource for FileWeights<'_> {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        let plain = self.0.tensor(name).map(|t| (t.dtype, t.shape.clone()));
        let packed = || Some((DType::F32, self.0.packed_weight(name)?.shape.clone()));
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

/// Bytes of a packed weight's floats, from `offset` on, both whole floats.
fn read_packed(
    file: &ModelFile,
    packed: &PackedWeight,
    offset: u64,
    out: &mut [u8],
) -> Result<(), FormatError> {
    let cols = packed.shape.last().copied().unwrap_or(1).max(1);
    let (from, len) = (offset as usize / 4, out.len() / 4);
    let (first, end) = (from / cols, (from + len).div_ceil(cols));
    let mut floats = vec![0.0; (end - first) * cols];
    file.read_packed(packed, first, &mut floats)?;
    let wanted = &floats[from - first * cols..][..len];
    for (bytes, value) in out.chunks_exact_mut(4).zip(wanted) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}
