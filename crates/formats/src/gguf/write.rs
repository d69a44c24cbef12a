//! Writing GGUF: declare every tensor, then hand over their bytes in the same order.

use std::collections::HashSet;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tokkata_core::{DType, Metadata, Value};

use super::cursor::Endian;
use super::encode::Encoder;
use super::header::{MAX_DIMS, alignment, sized};
use super::shard::{ShardLimit, Shards};
use super::swap::{swap_blocks, swap_rule};
use crate::error::{Fault, FormatError, Quoted, Result};
use crate::output::{PendingFile, write_fault};

type Checked<T> = std::result::Result<T, Fault>;

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
    endian: Endian,
    alignment: u64,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

/// A tensor that the header announces.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    pub(super) bytes: u64,
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
        })
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
        let mut output = GgufOutput {
            writer: self,
            shards,
            done: Vec::new(),
            body: None,
            current: 0,
            written: 0,
        };
        output.open().map_err(|fault| output.writer.fail(fault))?;
        Ok(output)
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

    fn header(&self, shard: &Shard<'_>) -> Vec<u8> {
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

    fn fail(&self, fault: Fault) -> FormatError {
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

fn expect_bytes(tensor: &Declared, found: u64) -> Checked<()> {
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

/// A GGUF file, or the files of a split one, being written under temporary names.
///
/// Nothing stands under a final name before [`GgufOutput::finish`]; dropping it removes what was written.
#[derive(Debug)]
pub struct GgufOutput {
    writer: GgufWriter,
    shards: Shards,
    done: Vec<crate::output::Place>,
    body: Option<Body<PendingFile>>,
    /// The tensor being written, and its bytes so far.
    current: usize,
    written: u64,
}

impl GgufOutput {
    /// Appends bytes, little-endian, to the current tensor, and moves on when it is whole. A big-endian
    /// file takes whole blocks only.
    ///
    /// # Errors
    /// More bytes than the tensor has, or a failed write.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes).map_err(|fault| self.writer.fail(fault))
    }

    fn append(&mut self, bytes: &[u8]) -> Checked<()> {
        let Some(tensor) = self.writer.tensors.get(self.current) else {
            let tensor = Quoted::new("");
            return Err(Fault::Given {
                tensor,
                found: bytes.len() as u64,
                expected: 0,
            });
        };
        let after = self.written + bytes.len() as u64;
        if after > tensor.bytes {
            return expect_bytes(tensor, after);
        }
        let body = self
            .body
            .as_mut()
            .expect("a file is open while tensors are left");
        body.put(&self.writer, tensor, bytes)?;
        self.written = after;
        if after == tensor.bytes {
            body.pad(self.writer.alignment)?;
            (self.current, self.written) = (self.current + 1, 0);
            self.next_shard()?;
        }
        Ok(())
    }

    /// The tensor whose bytes come next.
    #[must_use]
    pub fn current(&self) -> Option<&str> {
        self.writer
            .tensors
            .get(self.current)
            .map(|t| t.name.as_str())
    }

    fn open(&mut self) -> Checked<()> {
        let number = self.done.len();
        let file = PendingFile::create(self.shards.path(number))?;
        let shard = self.shards.shard(number);
        self.body = Some(Body::start(file, &self.writer, &shard)?);
        self.next_shard()
    }

    /// Closes the file whose last tensor is whole, and opens the next.
    fn next_shard(&mut self) -> Checked<()> {
        let end = self.shards.shard(self.done.len()).tensors.end;
        if self.current < end {
            return Ok(());
        }
        let body = self.body.take().expect("a file is open until it is closed");
        self.done.push(body.out.close()?);
        if self.done.len() < self.shards.len() {
            self.open()
        } else {
            Ok(())
        }
    }

    /// Gives the files their names, the first file last so that a split model shows up whole.
    ///
    /// # Errors
    /// Tensors without all their bytes, or a failed rename.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        if let Some(tensor) = self.writer.tensors.get(self.current) {
            let fault = expect_bytes(tensor, self.written).unwrap_err();
            return Err(self.writer.fail(fault));
        }
        let places = std::mem::take(&mut self.done).into_iter().rev();
        let paths: Checked<Vec<_>> = places.map(crate::output::Place::rename).collect();
        let mut paths = paths.map_err(|fault| self.writer.fail(fault))?;
        paths.reverse();
        Ok(paths)
    }

    /// The name that the first or only file will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shards.path(0)
    }
}

/// The bytes of one file after its header.
#[derive(Debug)]
struct Body<W> {
    out: W,
    at: u64,
}

impl<W: Write> Body<W> {
    fn start(out: W, writer: &GgufWriter, shard: &Shard<'_>) -> Checked<Self> {
        let header = writer.header(shard);
        let mut body = Self { out, at: 0 };
        body.raw(&header)?;
        body.pad(writer.alignment)?;
        Ok(body)
    }

    fn put(&mut self, writer: &GgufWriter, tensor: &Declared, bytes: &[u8]) -> Checked<()> {
        if writer.endian == Endian::Little {
            return self.raw(bytes);
        }
        let block = tensor.dtype.block_bytes();
        if !bytes.len().is_multiple_of(block) {
            let expected = bytes.len().next_multiple_of(block) as u64;
            let (tensor, found) = (Quoted::new(&tensor.name), bytes.len() as u64);
            return Err(Fault::Given {
                tensor,
                found,
                expected,
            });
        }
        let rule = swap_rule(tensor.dtype).expect("declaring refuses types without a rule");
        let mut swapped = bytes.to_vec();
        swap_blocks(tensor.dtype, rule, &mut swapped);
        self.raw(&swapped)
    }

    fn pad(&mut self, alignment: u64) -> Checked<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut left = self.at.next_multiple_of(alignment) - self.at;
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            self.raw(&ZEROS[..now as usize])?;
            left -= now;
        }
        Ok(())
    }

    fn raw(&mut self, bytes: &[u8]) -> Checked<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(write_fault)
    }
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
