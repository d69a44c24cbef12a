//! Writing GGUF: declare every tensor, then hand over their bytes in the same order.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;

use tokkata_core::{DType, Metadata, Value};

use super::cursor::Endian;
use super::encode::Encoder;
use super::header::{MAX_DIMS, alignment, sized};
use super::output::{Body, GgufOutput};
use super::shard::{ShardLimit, Shards};
use super::swap::swap_rule;
use crate::error::{Fault, FormatError, Quoted, Result};

pub(super) type Checked<T> = std::result::Result<T, Fault>;

/// Longest tensor name that llama.cpp loads.
const MAX_TENSOR_NAME: usize = 63;

/// A GGUF file (version 3) that is still being described.
///
/// `general.alignment` in the metadata sets the alignment.
///
/// ```
/// use tokkata_core::{DType, Metadata};
/// use tokkata_formats::{GgufWriter, ModelFile};
/// # fn main() -> tokkata_formats::Result<()> {
/// let mut writer = GgufWriter::new("tiny.gguf", Metadata::default())?;
/// writer.declare("output.weight", DType::F32, &[1, 2])?;
/// let bytes = writer.to_bytes([&[0, 0, 128, 63, 0, 0, 0, 64][..]])?;
/// assert_eq!(ModelFile::from_bytes(bytes)?.tensors()[0].shape, [1, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufWriter {
    path: PathBuf,
    metadata: Metadata,
    pub(super) endian: Endian,
    pub(super) alignment: u64,
    pub(super) tensors: Vec<Declared>,
    names: HashSet<String>,
    starts_file: bool,
}

/// A tensor that the header announces.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) dtype: DType,
    shape: Vec<usize>,
    pub(super) bytes: u64,
    /// Whether it was announced right after [`GgufWriter::next_file`].
    pub(super) starts_file: bool,
}

/// What one file of the output consists of.
pub(super) struct Shard<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) tensors: Range<usize>,
}

impl GgufWriter {
    /// Starts a file that will be called `path` when it is whole.
    ///
    /// # Errors
    /// A metadata key that is empty or too long, or an alignment that is no power of two.
    pub fn new(path: impl Into<PathBuf>, metadata: Metadata) -> Result<Self> {
        let path = path.into();
        let checked = check_keys(&metadata).and_then(|()| alignment(&metadata));
        let alignment = checked.map_err(|fault| FormatError::at(&path, fault))?;
        let (endian, tensors, names) = (Endian::Little, Vec::new(), HashSet::new());
        Ok(Self {
            path,
            metadata,
            endian,
            alignment,
            tensors,
            names,
            starts_file: false,
        })
    }

    /// Begins another file with the next tensor, if the model is created with [`ShardLimit::Marked`].
    pub fn next_file(&mut self) {
        self.starts_file = true;
    }

    /// Chooses the byte order of the file. Tensor bytes are handed over little-endian all the same.
    #[must_use]
    pub fn with_endian(mut self, endian: Endian) -> Self {
        self.endian = endian;
        self
    }

    /// Announces the next tensor; `shape` has its slowest dimension first.
    ///
    /// # Errors
    /// A name that is used already or too long for llama.cpp, or a shape that blocks do not divide.
    pub fn declare(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<()> {
        let declared = self
            .check(name, dtype, shape)
            .map_err(|fault| self.fail(fault))?;
        self.names.insert(name.to_owned());
        self.tensors.push(declared);
        self.starts_file = false;
        Ok(())
    }

    fn check(&self, name: &str, dtype: DType, shape: &[usize]) -> Checked<Declared> {
        let tensor = || Quoted::new(name);
        if name.is_empty() || name.len() > MAX_TENSOR_NAME {
            return Err(Fault::TensorName {
                tensor: tensor(),
                limit: MAX_TENSOR_NAME,
            });
        }
        if self.names.contains(name) {
            return Err(Fault::DuplicateTensor { tensor: tensor() });
        }
        if shape.len() > MAX_DIMS as usize {
            let (found, limit) = (shape.len() as u64, MAX_DIMS.into());
            return Err(Fault::Dims {
                tensor: tensor(),
                found,
                limit,
            });
        }
        if self.endian == Endian::Big && swap_rule(dtype).is_none() {
            return Err(Fault::BigEndian {
                tensor: tensor(),
                dtype,
            });
        }
        let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        let (shape, bytes) = sized(name, dtype, &dims)?;
        Ok(Declared {
            name: name.to_owned(),
            dtype,
            shape,
            bytes,
            starts_file: self.starts_file,
        })
    }

    /// Bytes of all declared tensors together, without padding.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Writes the header; the tensors follow. With a limit the model is cut into files called
    /// `<path without .gguf>-00001-of-0000N.gguf`.
    ///
    /// # Errors
    /// A file that cannot be made or written.
    pub fn create(self, limit: ShardLimit) -> Result<GgufOutput> {
        let shards = Shards::plan(&self.path, &self.metadata, &self.tensors, limit)
            .map_err(|fault| self.fail(fault))?;
        GgufOutput::start(self, shards)
    }

    /// The whole file in memory, from the bytes of each tensor.
    ///
    /// # Errors
    /// Bytes that do not have the declared length.
    pub fn to_bytes<'a>(&self, data: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>> {
        let shard = Shard {
            metadata: &self.metadata,
            tensors: 0..self.tensors.len(),
        };
        let build = || {
            let mut body = Body::start(Vec::new(), self, &shard)?;
            let mut data = data.into_iter();
            for tensor in &self.tensors {
                let bytes = data.next().unwrap_or_default();
                expect_bytes(tensor, bytes.len() as u64)?;
                body.put(self, tensor, bytes)?;
                body.pad(self.alignment)?;
            }
            Ok(body.out)
        };
        build().map_err(|fault| self.fail(fault))
    }

    pub(super) fn header(&self, shard: &Shard<'_>) -> Vec<u8> {
        let tensors = &self.tensors[shard.tensors.clone()];
        let mut out = Encoder::new(self.endian);
        out.bytes.extend(b"GGUF");
        out.u32(3);
        out.u64(tensors.len() as u64);
        out.u64(shard.metadata.len() as u64);
        out.pairs(shard.metadata);
        let mut offset = 0;
        for tensor in tensors {
            out.string(tensor.name.as_bytes());
            out.u32(tensor.shape.len() as u32);
            tensor.shape.iter().rev().for_each(|&d| out.u64(d as u64));
            out.u32(tensor.dtype.ggml());
            out.u64(offset);
            offset += tensor.bytes.next_multiple_of(self.alignment);
        }
        out.bytes
    }

    pub(super) fn fail(&self, fault: Fault) -> FormatError {
        FormatError::at(&self.path, fault)
    }
}

fn check_keys(metadata: &Metadata) -> Checked<()> {
    match metadata
        .iter()
        .find(|(key, _)| key.is_empty() || key.len() > 65_535)
    {
        None => Ok(()),
        Some((key, _)) => Err(Fault::Name {
            what: "metadata key",
            found: Quoted::new(key),
        }),
    }
}

pub(super) fn expect_bytes(tensor: &Declared, found: u64) -> Checked<()> {
    if found == tensor.bytes {
        return Ok(());
    }
    let (tensor, expected) = (Quoted::new(&tensor.name), tensor.bytes);
    Err(Fault::Given {
        tensor,
        found,
        expected,
    })
}

/// The pairs of `metadata` that do not speak of a split.
pub(super) fn without_split(metadata: &Metadata) -> Metadata {
    let mut whole = Metadata::default();
    for (key, value) in metadata
        .iter()
        .filter(|(key, _)| !key.starts_with("split."))
    {
        whole.insert(key, Value::clone(value));
    }
    whole
}
