//! The weights of a file as a backend asks for them.

use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::{BackendError, WeightSource};

/// Tensors of an opened file.
#[derive(Clone, Copy, Debug)]
pub struct FileWeights<'a>(pub &'a ModelFile);

impl WeightSource for FileWeights<'_> {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        self.0.tensor(name).map(|t| (t.dtype, t.shape.clone()))
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let tensor = self.0.tensor(name);
        let tensor =
            tensor.ok_or_else(|| BackendError::Weight(format!("tensor {name} is absent")))?;
        self.0
            .read_at(tensor, offset, out)
            .map_err(|e| BackendError::Weight(e.to_string()))
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        tokkata_quant::dequantize(dtype, raw, out).map_err(|e| BackendError::Weight(e.to_string()))
    }
}
