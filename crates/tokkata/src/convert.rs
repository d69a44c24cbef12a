//! Writing a model in another container: a directory as GGUF, a GGUF file as safetensors.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tokkata_archs::ArchError;
use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::safetensors::metadata_pairs;
use tokkata_formats::{FormatError, GgufWriter, SafetensorsWriter, ShardLimit};
use tokkata_ir::BackendError;
use tokkata_quant::mix::Preset;

use crate::checkpoint::Checkpoint;
use crate::recast::{Recast, Target};
use crate::vocabulary;

/// Elements that are converted at a time.
const CHUNK: usize = 1 << 20;
/// Version of the block layouts, which files name.
const QUANTIZATION_VERSION: u32 = 2;

/// Why a model could not be converted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConvertError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("{file}: {source}")]
    Arch { file: String, source: ArchError },
    #[error("{file}: {source}")]
    Read { file: String, source: BackendError },
    #[error(transparent)]
    Other(#[from] crate::error::Error),
    #[error("{file}: stopped; nothing was written")]
    Stopped { file: String },
    #[error(
        "{file}: found the type {dtype}, expected f32, f16 or bf16 for safetensors; give one with --outtype f16"
    )]
    Blocks { file: String, dtype: DType },
}

/// The types to write.
#[derive(Clone, Copy, Debug)]
pub enum OutType {
    /// The type that most of the model's matrices have; of a packed model each matrix's own.
    Auto,
    /// This type.
    Plain(DType),
    /// A mix of quantised types.
    Mix(&'static Preset),
}

/// A model about to be written in another container.
pub struct Conversion<'a> {
    checkpoint: &'a Checkpoint,
    recast: Recast<'a>,
    file_type: u32,
}

impl<'a> Conversion<'a> {
    /// Finds every tensor and decides its type.
    ///
    /// # Errors
    /// A model that no descriptor reads.
    pub fn plan(checkpoint: &'a Checkpoint, out: OutType) -> Result<Self, ConvertError> {
        let arch = |source| ConvertError::Arch {
            file: checkpoint.path().display().to_string(),
            source,
        };
        let new = |target| Recast::new(checkpoint.registry(), checkpoint.file(), target);
        let (target, file_type) = match out {
            OutType::Auto => {
                let usual = new(Target::Keep).map_err(arch)?.usual_type();
                match checkpoint.file().packed().is_empty() {
                    true => (Target::Matrices(usual), file_type(usual)),
                    false => (Target::OwnMatrices, file_type(usual)),
                }
            }
            OutType::Mix(preset) => (Target::Preset(preset), preset.file_type),
            OutType::Plain(dtype) => (Target::Matrices(dtype), file_type(dtype)),
        };
        Ok(Conversion {
            checkpoint,
            recast: new(target).map_err(arch)?,
            file_type,
        })
    }

    /// Names, types and shapes of what will be written.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        self.recast.tensors()
    }

    /// The metadata of a GGUF file.
    ///
    /// # Errors
    /// Tokenizer files that cannot be read.
    pub fn metadata(&self) -> Result<Metadata, ConvertError> {
        let mut metadata = Metadata::default();
        let own = self.recast.metadata();
        let arch = own
            .str("general.architecture")
            .unwrap_or_default()
            .to_owned();
        metadata.insert("general.architecture", Value::from(arch.as_str()));
        metadata.insert("general.type", Value::from("model"));
        metadata.insert("general.name", Value::from(self.name().as_str()));
        for (key, value) in own.iter().filter(|(key, _)| *key != "general.architecture") {
            metadata.insert(key, value.clone());
        }
        metadata.insert("general.file_type", Value::U32(self.file_type));
        let version = Value::U32(QUANTIZATION_VERSION);
        metadata.insert("general.quantization_version", version);
        if self.checkpoint.file().directory().is_some() {
            // What the configuration counts, as far as the embedding has rows for it.
            let table = self.tensors().find(|t| t.0 == "token_embd.weight");
            let rows = table.and_then(|t| t.2.first()).map(|&n| n as u64);
            let counted = own.uint(&format!("{arch}.vocab_size"));
            let vocabulary = counted.zip(rows).map(|(counted, rows)| counted.min(rows));
            vocabulary::describe(self.checkpoint, vocabulary, &mut metadata)?;
        }
        Ok(metadata)
    }

    /// The name of the directory.
    fn name(&self) -> String {
        let path = self.checkpoint.path();
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Writes a GGUF file, which exists only when it is whole; `on_tensor` hears now and then of tensors done and may stop.
    ///
    /// # Errors
    /// Failed reads and writes, and being stopped; nothing is left then.
    pub fn write_gguf(
        &self,
        path: &Path,
        on_tensor: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<PathBuf>, ConvertError> {
        let mut writer = GgufWriter::new(path, self.metadata()?)?;
        for (name, dtype, shape) in self.recast.tensors() {
            writer.declare(name, dtype, shape)?;
        }
        let mut out = writer.create(ShardLimit::Whole)?;
        self.stream(|bytes| out.write(bytes), on_tensor)?;
        Ok(out.finish()?)
    }

    /// Writes one safetensors file of canonical names, with the texts and numbers of the metadata in its header.
    ///
    /// # Errors
    /// As [`Conversion::write_gguf`], and block types.
    pub fn write_safetensors(
        &self,
        path: &Path,
        on_tensor: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<PathBuf>, ConvertError> {
        if let Some((_, dtype, _)) = self.tensors().find(|t| t.1.is_quantised()) {
            let file = self.checkpoint.path().display().to_string();
            return Err(ConvertError::Blocks { file, dtype });
        }
        let pairs = metadata_pairs(self.recast.metadata());
        let pairs = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let mut writer = SafetensorsWriter::new(path, pairs);
        for (name, dtype, shape) in self.recast.tensors() {
            writer.declare(name, dtype, shape)?;
        }
        let mut out = writer.create()?;
        self.stream(|bytes| out.write(bytes), on_tensor)?;
        Ok(vec![out.finish()?])
    }

    fn stream(
        &self,
        mut write: impl FnMut(&[u8]) -> Result<(), FormatError>,
        mut on_tensor: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ConvertError> {
        let file = || self.checkpoint.path().display().to_string();
        let total = self.recast.tensors().count() as u64;
        for (done, (name, _, shape)) in self.recast.tensors().enumerate() {
            let rows: usize = shape.iter().rev().skip(1).product();
            let cols = shape.last().copied().unwrap_or(1).max(1);
            let run = (CHUNK / cols).max(1);
            for first in (0..rows).step_by(run) {
                let bytes = self.recast.rows(name, first, run.min(rows - first));
                let wrong = |source| ConvertError::Read {
                    file: file(),
                    source,
                };
                write(&bytes.map_err(wrong)?)?;
                if on_tensor(done as u64, total).is_break() {
                    return Err(ConvertError::Stopped { file: file() });
                }
            }
        }
        Ok(())
    }
}

/// The number that files give to a type of all their matrices.
fn file_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        other => Preset::from_name(other.name()).map_or(1, |p| p.file_type),
    }
}
