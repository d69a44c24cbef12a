//! Rewriting a model in other element types.
//!
//! [`Quantization::plan`] decides the type of every tensor, [`Quantization::write`] streams the file through
//! [`tokkata_quant`], a few chunks of rows per thread at a time.

mod stream;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tokkata_core::{Array, DType, Metadata, Value};
use tokkata_formats::{Container, FormatError, GgufWriter, ModelFile, ShardLimit, TensorInfo};
use tokkata_quant::QuantError;
use tokkata_quant::mix::{Choice, MixOptions, ModelFacts, Preset, TensorFacts, mix};

use crate::importance::Importance;

pub use tokkata_quant::mix::{Override, OverrideError};

/// Version of the block layouts, which files name.
const QUANTIZATION_VERSION: u32 = 2;

/// Why a model could not be quantised.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum QuantizeError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("{file}: found a model in safetensors, expected GGUF; convert it first")]
    Container { file: String },
    #[error(
        "{file}: {tensor} would become {dtype}, which is garbage without an importance matrix; give one with --imatrix"
    )]
    NeedsImportance {
        file: String,
        tensor: String,
        dtype: DType,
    },
    #[error(
        "the importance matrix has {found} values for {tensor}, expected {expected}; it belongs to another model"
    )]
    ImportanceSize {
        tensor: String,
        found: usize,
        expected: usize,
    },
    #[error(
        "{file}: {tensor} is {dtype} already; quantise the original, or allow the loss with --allow-requantize"
    )]
    Requantize {
        file: String,
        tensor: String,
        dtype: DType,
    },
    #[error("{file}: {tensor}, rows from {row}: {source}")]
    Tensor {
        file: String,
        tensor: String,
        row: usize,
        source: QuantError,
    },
    #[error("{file}: stopped; nothing was written")]
    Stopped { file: String },
}

/// What to make of a model.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// The mix; `None` copies every tensor as it is.
    pub preset: Option<&'static Preset>,
    /// Exceptions from the mix. Whether there is importance is known from [`QuantizeOptions::importance`].
    pub mix: MixOptions,
    /// Importance of columns, and the name of its file.
    pub importance: Option<(Importance, String)>,
    /// Writes as many files as the model has, instead of one.
    pub keep_split: bool,
    /// Takes tensors that are quantised already.
    pub requantize: bool,
    /// Threads.
    pub threads: usize,
}

/// A decided type for every tensor of a file.
#[derive(Debug)]
pub struct Quantization<'a> {
    file: &'a ModelFile,
    options: &'a QuantizeOptions,
    tensors: Vec<Target<'a>>,
}

/// A tensor and what becomes of it.
#[derive(Debug)]
pub struct Target<'a> {
    /// As it is.
    pub source: &'a TensorInfo,
    /// The type to write.
    pub dtype: DType,
    /// The type the mix wanted, where its blocks do not fit the rows.
    pub instead_of: Option<DType>,
    importance: Option<Vec<f32>>,
}

impl Target<'_> {
    /// Bytes it will have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let row = self.dtype.row_bytes(self.source.row_elems()).unwrap_or(0);
        row as u64 * self.source.rows() as u64
    }

    fn changes(&self) -> bool {
        self.dtype != self.source.dtype
    }
}

impl<'a> Quantization<'a> {
    /// Chooses the types of all tensors of `file`.
    ///
    /// # Errors
    /// A file that is not GGUF, importance that is missing or belongs to another model, or tensors that are
    /// quantised already.
    pub fn plan(file: &'a ModelFile, options: &'a QuantizeOptions) -> Result<Self, QuantizeError> {
        if file.container() != Container::Gguf {
            let file = file.path().display().to_string();
            return Err(QuantizeError::Container { file });
        }
        let tensors = file.tensors().iter().zip(choices(file, options));
        let tensors: Result<_, _> = tensors
            .map(|(tensor, choice)| target(file, options, tensor, choice))
            .collect();
        Ok(Quantization {
            file,
            options,
            tensors: tensors?,
        })
    }

    /// All tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[Target<'a>] {
        &self.tensors
    }

    /// Writes the model to `path`, which exists only when it is whole.
    ///
    /// `on_bytes` hears how many of the source's tensor bytes are done and how many there are, and may stop.
    ///
    /// # Errors
    /// Values that are not finite, failed reads and writes, and being stopped; nothing is left then.
    pub fn write(
        &self,
        path: &Path,
        on_bytes: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<PathBuf>, QuantizeError> {
        let mut writer = GgufWriter::new(path, self.metadata())?;
        let mut part = 0;
        for target in &self.tensors {
            if target.source.part != part {
                part = target.source.part;
                writer.next_file();
            }
            writer.declare(&target.source.name, target.dtype, &target.source.shape)?;
        }
        let split = self.options.keep_split && self.file.part_names().len() > 1;
        let limit = if split {
            ShardLimit::Marked
        } else {
            ShardLimit::Whole
        };
        let mut out = writer.create(limit)?;
        stream::write(self, &mut out, on_bytes)?;
        Ok(out.finish()?)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = self.file.metadata().clone();
        metadata.insert(
            "general.quantization_version",
            Value::U32(QUANTIZATION_VERSION),
        );
        if let Some(preset) = self.options.preset {
            metadata.insert("general.file_type", Value::U32(preset.file_type));
        }
        if let Some((importance, name)) = &self.options.importance {
            describe(importance, name, &mut metadata);
        }
        metadata
    }
}

/// Says in a file what importance its types were chosen by.
fn describe(importance: &Importance, name: &str, metadata: &mut Metadata) {
    metadata.insert("quantize.imatrix.file", Value::from(name));
    if let Some(dataset) = importance.datasets.first() {
        metadata.insert("quantize.imatrix.dataset", Value::from(dataset.as_str()));
    }
    let entries = importance.entries.len() as u32;
    metadata.insert("quantize.imatrix.entries_count", Value::U32(entries));
    if importance.chunks > 0 {
        let chunks = Value::U32(importance.chunks);
        metadata.insert("quantize.imatrix.chunks_count", chunks);
    }
}

fn choices(file: &ModelFile, options: &QuantizeOptions) -> Vec<Choice> {
    let keep = |t: &TensorInfo| Choice {
        dtype: t.dtype,
        instead_of: None,
        needs_importance: false,
    };
    let Some(preset) = options.preset else {
        return file.tensors().iter().map(keep).collect();
    };
    let shapes: Vec<Vec<u64>> = file
        .tensors()
        .iter()
        .map(|t| t.shape.iter().rev().map(|&d| d as u64).collect())
        .collect();
    let facts: Vec<TensorFacts<'_>> = file
        .tensors()
        .iter()
        .zip(&shapes)
        .map(|(t, shape)| TensorFacts {
            name: &t.name,
            shape,
            dtype: t.dtype,
        })
        .collect();
    let mut exceptions = options.mix.clone();
    exceptions.has_importance = options.importance.is_some();
    mix(preset, &model_facts(file), &facts, &exceptions)
}

fn model_facts(file: &ModelFile) -> ModelFacts<'_> {
    let architecture = file.architecture().unwrap_or_default();
    let count = |key: &str| {
        let value = file.metadata().get(&format!("{architecture}.{key}"))?;
        let first = value.as_array().and_then(|a| Array::get(a, 0));
        first.as_ref().unwrap_or(value).as_uint()
    };
    let count = |key| count(key).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let n_heads = count("attention.head_count").unwrap_or(0);
    ModelFacts {
        architecture,
        n_layers: count("block_count").unwrap_or(0),
        n_experts: count("expert_count").unwrap_or(0),
        n_heads,
        n_kv_heads: count("attention.head_count_kv").unwrap_or(n_heads),
    }
}

fn target<'a>(
    file: &ModelFile,
    options: &QuantizeOptions,
    source: &'a TensorInfo,
    choice: Choice,
) -> Result<Target<'a>, QuantizeError> {
    let (name, dtype) = (|| file.path().display().to_string(), choice.dtype);
    let mut target = Target {
        source,
        dtype,
        instead_of: choice.instead_of,
        importance: None,
    };
    if !target.changes() {
        return Ok(target);
    }
    let tensor = source.name.clone();
    if source.dtype.is_quantised() && !options.requantize {
        return Err(QuantizeError::Requantize {
            file: name(),
            tensor,
            dtype: source.dtype,
        });
    }
    if let Some((importance, _)) = &options.importance {
        target.importance = columns(importance, source)?;
    }
    if choice.needs_importance && target.importance.is_none() {
        return Err(QuantizeError::NeedsImportance {
            file: name(),
            tensor,
            dtype,
        });
    }
    Ok(target)
}

/// One weight for each column of each expert.
fn columns(
    importance: &Importance,
    tensor: &TensorInfo,
) -> Result<Option<Vec<f32>>, QuantizeError> {
    let Some(inputs) = importance.entries.get(&tensor.name) else {
        return Ok(None);
    };
    let [width, _, experts, _] = tensor.dims_ggml();
    let (found, expected) = (inputs.sums.len(), width * experts);
    if found == expected {
        return Ok(Some(inputs.means()));
    }
    // Embeddings are looked up, not multiplied; what is measured of them is the output matrix's input.
    if tensor.name.ends_with("token_embd.weight") {
        return Ok(None);
    }
    let tensor = tensor.name.clone();
    Err(QuantizeError::ImportanceSize {
        tensor,
        found,
        expected,
    })
}
