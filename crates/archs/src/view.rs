//! A file as the resolver sees it: metadata, and tensors under their canonical names.

use tokkata_core::{DType, Metadata};
use tokkata_formats::ModelFile;
use tokkata_ir::Recipe;

use crate::error::ArchError;

/// A tensor under its canonical name.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Format of its rows.
    pub dtype: DType,
    /// Shape, slowest first.
    pub shape: Vec<usize>,
    /// How to make it from the file.
    pub recipe: Recipe,
}

/// A file of any container, in canonical terms.
pub trait View {
    /// Metadata under GGUF's keys.
    fn metadata(&self) -> &Metadata;

    /// The tensor with this canonical name.
    fn tensor(&self, name: &str) -> Option<Found>;

    /// Canonical names of every tensor.
    fn names(&self) -> Vec<String>;

    /// A small tensor as floats.
    ///
    /// # Errors
    /// When it is absent, unreadable or of a type without floats.
    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError>;
}

/// A GGUF file: canonical names are its own.
pub struct GgufView<'a>(pub &'a ModelFile);

impl View for GgufView<'_> {
    fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        let t = self.0.tensor(name)?;
        Some(Found {
            dtype: t.dtype,
            shape: t.shape.clone(),
            recipe: Recipe::Source(name.to_owned()),
        })
    }

    fn names(&self) -> Vec<String> {
        self.0.tensors().iter().map(|t| t.name.clone()).collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        let unreadable = |what: String| ArchError::Tensor {
            name: name.to_owned(),
            what,
        };
        let t = self
            .0
            .tensor(name)
            .ok_or_else(|| unreadable("is absent".to_owned()))?;
        let data = self.0.data(t).map_err(|e| unreadable(e.to_string()))?;
        let mut out = vec![0.0; t.elements()];
        tokkata_quant::dequantize(t.dtype, data, &mut out)
            .map_err(|e| unreadable(e.to_string()))?;
        Ok(out)
    }
}
