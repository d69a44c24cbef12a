//! A model file of any container, opened and checked.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokkata_core::Metadata;

use crate::error::{Fault, FormatError, Quoted, Result};
use crate::ggml;
use crate::gguf::{self, Endian, swap_blocks, swap_rule};
use crate::packing::PackedWeight;
use crate::part::{Part, SharedSpan};
use crate::safetensors::{self, Directory};
use crate::source::ReadRanges;
use crate::tensor::{Span, StoredTensor, TensorInfo};

/// Which kind of file a model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// One GGUF file, or several of one model.
    Gguf,
    /// safetensors files, as in a Hugging Face directory.
    Safetensors,
    /// safetensors files written by MLX.
    Mlx,
    /// The file of whisper.cpp.
    Ggml,
}

/// An opened model: metadata, tensor places and their bytes, whatever the container.
///
/// Every place was checked against the file's length, so tensors neither overlap nor leave the file.
/// Bytes are always handed out little-endian. All methods may be called from many threads at once.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    contents: Contents,
    index: HashMap<String, usize>,
    packed: HashMap<String, usize>,
    /// Little-endian copies of a big-endian file's tensors, made when first asked for.
    swapped: Vec<OnceLock<Box<[u8]>>>,
}

/// What a container's reader found.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) container: Container,
    pub(crate) layout: Option<Layout>,
    pub(crate) parts: Vec<Part>,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) packed: Vec<PackedWeight>,
    pub(crate) other: Vec<StoredTensor>,
    pub(crate) directory: Option<Directory>,
}

/// How a GGUF file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Version of the container.
    pub version: u32,
    /// Byte order of numbers and block fields.
    pub endian: Endian,
    /// Tensors start at multiples of this many bytes.
    pub alignment: u64,
}

impl ModelFile {
    /// Opens the model at `path`: a GGUF file, any file of a split one, beside which the others are found,
    /// a file of whisper.cpp, a safetensors file, or a directory of `config.json` and safetensors files.
    ///
    /// # Errors
    /// A [`FormatError`] that names the file, what was found, what was expected and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let contents = if path.is_dir() {
            safetensors::open_directory(path)
        } else if path.extension().is_some_and(|e| e == "safetensors") {
            safetensors::open_file(path)
        } else {
            open_file(path)
        };
        Self::new(path, contents?)
    }

    /// Reads a GGUF model from memory: an `Arc<[u8]>`, a vector, static bytes; nothing is copied.
    ///
    /// # Errors
    /// As [`ModelFile::open`]; one file of a split model is refused.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        Self::from_bytes_parts([bytes])
    }

    /// The same under a name, which takes the place of a path in messages.
    ///
    /// # Errors
    /// As [`ModelFile::open`].
    pub fn from_named_bytes(
        name: &str,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let part = Part::memory(name.to_owned(), bytes);
        let contents = if ggml::is_one(part.bytes()) {
            ggml::from_part(part)
        } else {
            gguf::from_parts(vec![part])
        };
        Self::new(Path::new(name), contents?)
    }

    /// Reads the header of a GGUF model that can only be read in ranges, and of which no more than that is kept.
    ///
    /// # Errors
    /// As [`ModelFile::open`]; one file of a split model is refused, and a file of another kind.
    pub fn from_ranges(name: &str, file: Box<dyn ReadRanges>) -> Result<Self> {
        Self::new(Path::new(name), gguf::from_ranges(name, file)?)
    }

    /// Reads a split GGUF model from memory, its files in order.
    ///
    /// # Errors
    /// As [`ModelFile::open`].
    pub fn from_bytes_parts<B: AsRef<[u8]> + Send + Sync + 'static>(
        parts: impl IntoIterator<Item = B>,
    ) -> Result<Self> {
        let name = |i: usize| match i {
            0 => "<memory>".to_owned(),
            _ => format!("<memory {}>", i + 1),
        };
        let parts = parts.into_iter().enumerate();
        let parts = parts
            .map(|(i, bytes)| Part::memory(name(i), bytes))
            .collect();
        Self::new(Path::new("<memory>"), gguf::from_parts(parts)?)
    }

    /// Reads one safetensors file from memory.
    ///
    /// # Errors
    /// As [`ModelFile::open`].
    pub fn from_safetensors_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let part = Part::memory("<memory>".to_owned(), bytes);
        Self::new(Path::new("<memory>"), safetensors::from_part(part)?)
    }

    fn new(path: &Path, contents: Contents) -> Result<Self> {
        let index = index(&contents).map_err(|fault| FormatError::at(path, fault))?;
        let packed = contents.packed.iter().enumerate();
        let packed = packed.map(|(i, weight)| (weight.name.clone(), i)).collect();
        let copies = if big_endian(&contents) {
            contents.tensors.len()
        } else {
            0
        };
        let swapped = std::iter::repeat_with(OnceLock::new).take(copies).collect();
        Ok(Self {
            path: path.to_owned(),
            contents,
            index,
            packed,
            swapped,
        })
    }

    /// This model, and beside it a GGUF file of the same byte order: its metadata and tensors with `prefix` before their
    /// names.
    ///
    /// # Errors
    /// A name that both have.
    pub fn beside(self, prefix: &str, other: ModelFile) -> Result<Self> {
        let mut contents = self.contents;
        let parts = contents.parts.len();
        for (key, value) in other.contents.metadata.iter() {
            let key = format!("{prefix}{key}");
            contents.metadata.insert(key, value.clone());
        }
        let tensors = other.contents.tensors.into_iter();
        contents.tensors.extend(tensors.map(|mut tensor| {
            tensor.name.insert_str(0, prefix);
            tensor.part += parts;
            tensor
        }));
        contents.parts.extend(other.contents.parts);
        Self::new(&self.path, contents)
    }

    /// This model without what was put [beside](Self::beside) it.
    ///
    /// # Errors
    /// None, in fact.
    pub fn alone(self, prefix: &str) -> Result<Self> {
        let mut contents = self.contents;
        let mut metadata = Metadata::default();
        for (key, value) in contents.metadata.iter() {
            if !key.starts_with(prefix) {
                metadata.insert(key, value.clone());
            }
        }
        contents.metadata = metadata;
        contents.tensors.retain(|t| !t.name.starts_with(prefix));
        Self::new(&self.path, contents)
    }

    /// Which kind of file this is.
    #[must_use]
    pub fn container(&self) -> Container {
        self.contents.container
    }

    /// The path it was opened with; `<memory>` when there was none.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the files that hold its tensors, in order.
    pub fn part_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.contents.parts.iter().map(|part| part.name.as_str())
    }

    /// Bytes of all these files together.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.contents.parts.iter().map(Part::size).sum()
    }

    /// Version, byte order and alignment of a GGUF file.
    #[must_use]
    pub fn layout(&self) -> Option<Layout> {
        self.contents.layout
    }

    /// The metadata: of a split GGUF model, that of its first file; of safetensors, `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.contents.metadata
    }

    /// The directory's `config.json`, tokenizer and template files, of a model in safetensors.
    #[must_use]
    pub fn directory(&self) -> Option<&Directory> {
        self.contents.directory.as_ref()
    }

    /// The value of `general.architecture`, or `model_type` of a directory's configuration.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        match &self.contents.directory {
            Some(directory) => directory.config().get("model_type")?.as_str(),
            None => self.contents.metadata.str("general.architecture"),
        }
    }

    /// All tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.contents.tensors[i])
    }

    /// Weights that a quantised directory stores as several tensors, which the other lists leave out.
    #[must_use]
    pub fn packed(&self) -> &[PackedWeight] {
        &self.contents.packed
    }

    /// Tensors of types that no computation takes as they are, such as masks of booleans, and that belong to
    /// no packed weight. GGUF files have none.
    #[must_use]
    pub fn other_tensors(&self) -> &[StoredTensor] {
        &self.contents.other
    }

    /// All bytes of `tensor`, which must come from this model, out of the map.
    ///
    /// A tensor of a big-endian file is copied once and kept.
    ///
    /// # Errors
    /// A big-endian tensor of a type whose byte order has no rule.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8]> {
        let part = self.part(tensor.part)?;
        let raw = part
            .slice(tensor.span())
            .map_err(|fault| part.fail(fault))?;
        let slot = self
            .index
            .get(&tensor.name)
            .and_then(|&i| self.swapped.get(i));
        let Some(slot) = slot else { return Ok(raw) };
        let rule = rule(tensor).map_err(|fault| part.fail(fault))?;
        Ok(slot.get_or_init(|| {
            let mut bytes: Box<[u8]> = raw.into();
            swap_blocks(tensor.dtype, rule, &mut bytes);
            bytes
        }))
    }

    /// Fills `buf` with the bytes of `tensor` from `offset` on, read from the file and not the map.
    ///
    /// # Errors
    /// A range that leaves the tensor, a failed read, or a big-endian type whose byte order has no rule.
    pub fn read_at(&self, tensor: &TensorInfo, offset: u64, buf: &mut [u8]) -> Result<()> {
        let part = self.part(tensor.part)?;
        let read = if big_endian(&self.contents) {
            read_swapped(part, tensor, offset, buf)
        } else {
            part.read(tensor.span(), offset, buf)
        };
        read.map_err(|fault| part.fail(fault))
    }

    /// The data of `tensor` in the map, which outlives this value with its owner; `None` where the file's byte order
    /// is not the machine's.
    ///
    /// # Errors
    /// Data that leave the file.
    pub fn shared(&self, tensor: &TensorInfo) -> Result<Option<SharedSpan>> {
        if big_endian(&self.contents) || cfg!(target_endian = "big") {
            return Ok(None);
        }
        let part = self.part(tensor.part)?;
        let span = part.shared(tensor.span());
        span.map(Some).map_err(|fault| part.fail(fault))
    }

    /// [`ModelFile::read_at`] for a piece of a packed weight or one of [`ModelFile::other_tensors`].
    ///
    /// # Errors
    /// A range that leaves the tensor, or a failed read.
    pub fn read_stored_at(&self, tensor: &StoredTensor, offset: u64, buf: &mut [u8]) -> Result<()> {
        let part = self.part(tensor.part)?;
        part.read(tensor.span(), offset, buf)
            .map_err(|fault| part.fail(fault))
    }

    pub(crate) fn span_bytes(&self, part: usize, span: Span<'_>) -> Result<&[u8]> {
        let part = self.part(part)?;
        part.slice(span).map_err(|fault| part.fail(fault))
    }

    /// The packed weight called `name`.
    #[must_use]
    pub fn packed_weight(&self, name: &str) -> Option<&PackedWeight> {
        let place = *self.packed.get(name)?;
        self.contents.packed.get(place)
    }

    fn part(&self, number: usize) -> Result<&Part> {
        let (parts, found) = (self.contents.parts.len(), number);
        let fault = || FormatError::at(&self.path, Fault::ForeignTensor { found, parts });
        self.contents.parts.get(number).ok_or_else(fault)
    }
}

/// A file of one of the two containers that a file's first bytes tell apart.
fn open_file(path: &Path) -> Result<Contents> {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut magic));
    match read {
        Ok(()) if ggml::is_one(&magic) => ggml::from_part(Part::open(path)?),
        _ => gguf::open(path),
    }
}

fn big_endian(contents: &Contents) -> bool {
    contents
        .layout
        .is_some_and(|layout| layout.endian == Endian::Big)
}

/// Reads through whole blocks, since the range may begin or end inside one.
fn read_swapped(
    part: &Part,
    tensor: &TensorInfo,
    offset: u64,
    buf: &mut [u8],
) -> std::result::Result<(), Fault> {
    const CHUNK_BLOCKS: usize = 256;
    let rule = rule(tensor)?;
    let block = tensor.dtype.block_bytes();
    let mut chunk = vec![0; CHUNK_BLOCKS * block];
    let (mut at, mut rest) = (offset, buf);
    while !rest.is_empty() {
        let skip = (at % block as u64) as usize;
        let want = (skip + rest.len()).next_multiple_of(block);
        let whole = &mut chunk[..want.min(CHUNK_BLOCKS * block)];
        part.read(tensor.span(), at - skip as u64, whole)?;
        swap_blocks(tensor.dtype, rule, whole);
        let (now, later) = rest.split_at_mut(rest.len().min(whole.len() - skip));
        now.copy_from_slice(&whole[skip..skip + now.len()]);
        at += now.len() as u64;
        rest = later;
    }
    Ok(())
}

fn rule(tensor: &TensorInfo) -> std::result::Result<&'static [(usize, usize)], Fault> {
    let (dtype, name) = (tensor.dtype, &tensor.name);
    swap_rule(dtype).ok_or_else(|| Fault::BigEndian {
        tensor: Quoted::new(name),
        dtype,
    })
}

/// Places by name of the tensors, refusing any name that the model has twice.
fn index(contents: &Contents) -> std::result::Result<HashMap<String, usize>, Fault> {
    let mut index = HashMap::with_capacity(contents.tensors.len());
    let twice = |name: &str| Fault::DuplicateTensor {
        tensor: Quoted::new(name),
    };
    for (i, tensor) in contents.tensors.iter().enumerate() {
        if index.insert(tensor.name.clone(), i).is_some() {
            return Err(twice(&tensor.name));
        }
    }
    let packed = contents.packed.iter().map(|weight| &weight.name);
    let other = contents.other.iter().map(|tensor| &tensor.name);
    let mut seen = HashSet::new();
    match packed
        .chain(other)
        .find(|name| index.contains_key(*name) || !seen.insert(*name))
    {
        Some(name) => Err(twice(name)),
        None => Ok(index),
    }
}
