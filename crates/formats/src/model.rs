//! A model file of any container, opened and checked.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokkata_core::Metadata;

use crate::error::{Fault, FormatError, Quoted, Result};
use crate::gguf::{Endian, Header, Split, sibling_paths, swap_blocks, swap_rule};
use crate::source::Source;
use crate::tensor::TensorInfo;

/// Which kind of file a model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Container {
    Gguf,
}

/// An opened model: metadata, tensor places and their bytes, whatever the container.
///
/// Every place was checked against the file's length, so tensors neither overlap nor leave the file.
/// Bytes are always handed out little-endian. All methods may be called from many threads at once.
#[derive(Debug)]
pub struct ModelFile {
    container: Container,
    path: PathBuf,
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    layout: Layout,
    /// Little-endian copies of a big-endian file's tensors, made when first asked for.
    swapped: Vec<OnceLock<Box<[u8]>>>,
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

#[derive(Debug)]
struct Part {
    name: String,
    source: Source,
}

impl Part {
    fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path).map_err(|fault| FormatError::at(path, fault))?;
        Ok(Self {
            name: path.display().to_string(),
            source,
        })
    }

    fn fail(&self, fault: Fault) -> FormatError {
        FormatError::new(self.name.clone(), fault)
    }

    fn header(&self, index: usize) -> Result<(Header, Split)> {
        let parsed = Header::parse(self.source.bytes(), index)
            .and_then(|header| Split::read(&header.metadata).map(|split| (header, split)));
        parsed.map_err(|fault| self.fail(fault))
    }
}

impl ModelFile {
    /// Opens the model at `path`: a GGUF file, or any file of a split one, beside which the others are found.
    ///
    /// # Errors
    /// A [`FormatError`] that names the file, what was found, what was expected and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let part = Part::open(path)?;
        let (header, split) = part.header(0)?;
        if split.count == 1 {
            return Self::assemble(path, vec![part], (header, split));
        }
        let paths = sibling_paths(path, &split).map_err(|fault| FormatError::at(path, fault))?;
        let parts = paths.iter().map(|p| Part::open(p)).collect::<Result<_>>()?;
        Self::from_parts(path, parts)
    }

    /// Reads a GGUF model from memory: an `Arc<[u8]>`, a vector, static bytes; nothing is copied.
    ///
    /// # Errors
    /// As [`ModelFile::open`]; one file of a split model is refused.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        Self::from_bytes_parts([bytes])
    }

    /// Reads a split GGUF model from memory, its files in order.
    ///
    /// # Errors
    /// As [`ModelFile::open`].
    pub fn from_bytes_parts<B: AsRef<[u8]> + Send + Sync + 'static>(
        parts: impl IntoIterator<Item = B>,
    ) -> Result<Self> {
        let name = |i: usize| {
            if i == 0 {
                "<memory>".to_owned()
            } else {
                format!("<memory {}>", i + 1)
            }
        };
        let part = |(i, bytes): (usize, B)| Part {
            name: name(i),
            source: Source::Memory(Box::new(bytes)),
        };
        Self::from_parts(
            Path::new("<memory>"),
            parts.into_iter().enumerate().map(part).collect(),
        )
    }

    fn from_parts(path: &Path, parts: Vec<Part>) -> Result<Self> {
        let Some(first) = parts.first() else {
            return Err(FormatError::at(path, Fault::Empty));
        };
        let head = first.header(0)?;
        Self::assemble(path, parts, head)
    }

    /// Joins files, of which the first was parsed already.
    fn assemble(path: &Path, parts: Vec<Part>, (mut head, split): (Header, Split)) -> Result<Self> {
        let first = &parts[0];
        expect_parts(&split, parts.len()).map_err(|fault| first.fail(fault))?;
        for (i, part) in parts.iter().enumerate().skip(1) {
            let (header, own) = part.header(i)?;
            split.expect(&own, i).map_err(|fault| part.fail(fault))?;
            same_order(head.endian, header.endian).map_err(|fault| part.fail(fault))?;
            head.tensors.extend(header.tensors);
        }
        expect_tensors(&split, head.tensors.len()).map_err(|fault| first.fail(fault))?;
        let index = index(&head.tensors).map_err(|fault| first.fail(fault))?;
        let swapped = match head.endian {
            Endian::Little => Vec::new(),
            Endian::Big => head.tensors.iter().map(|_| OnceLock::new()).collect(),
        };
        let Header {
            version,
            endian,
            alignment,
            metadata,
            tensors,
        } = head;
        let layout = Layout {
            version,
            endian,
            alignment,
        };
        let (container, path) = (Container::Gguf, path.to_owned());
        Ok(Self {
            container,
            path,
            parts,
            metadata,
            tensors,
            index,
            layout,
            swapped,
        })
    }

    /// Which kind of file this is.
    #[must_use]
    pub fn container(&self) -> Container {
        self.container
    }

    /// The path it was opened with; `<memory>` when there was none.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the files it consists of, in order.
    pub fn part_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Bytes of all its files together.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| part.source.bytes().len() as u64)
            .sum()
    }

    /// Version, byte order and alignment of the file.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The metadata; of a split model, that of its first file.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The value of `general.architecture`.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        self.metadata.str("general.architecture")
    }

    /// All tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// All bytes of `tensor`, which must come from this model, out of the map.
    ///
    /// A tensor of a big-endian file is copied once and kept.
    ///
    /// # Errors
    /// A big-endian tensor of a type whose byte order has no rule.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8]> {
        let part = self.part(tensor)?;
        let range = || self.checked(tensor, 0, tensor.bytes);
        let (start, end) = range().map_err(|fault| part.fail(fault))?;
        let raw = &part.source.bytes()[start as usize..end as usize];
        let slot = self
            .index
            .get(&tensor.name)
            .and_then(|&i| self.swapped.get(i));
        let Some(slot) = slot else { return Ok(raw) };
        let rule = self.rule(tensor).map_err(|fault| part.fail(fault))?;
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
        let part = self.part(tensor)?;
        let mut read = || {
            let (start, _) = self.checked(tensor, offset, buf.len() as u64)?;
            match self.layout.endian {
                Endian::Little => part
                    .source
                    .read_at(start, buf)
                    .map_err(Fault::io("read the file")),
                Endian::Big => self.read_swapped(&part.source, tensor, offset, buf),
            }
        };
        read().map_err(|fault| part.fail(fault))
    }

    /// Reads through whole blocks, since the range may begin or end inside one.
    fn read_swapped(
        &self,
        source: &Source,
        tensor: &TensorInfo,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), Fault> {
        const CHUNK_BLOCKS: usize = 256;
        let rule = self.rule(tensor)?;
        let block = tensor.dtype.block_bytes() as u64;
        let mut chunk = vec![0; CHUNK_BLOCKS * block as usize];
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let skip = (at % block) as usize;
            let left = (tensor.bytes - (at - skip as u64)) as usize;
            let want = (skip + rest.len()).next_multiple_of(block as usize);
            let whole = &mut chunk[..want.min(CHUNK_BLOCKS * block as usize).min(left)];
            let start = tensor.offset + at - skip as u64;
            source
                .read_at(start, whole)
                .map_err(Fault::io("read the file"))?;
            swap_blocks(tensor.dtype, rule, whole);
            let (now, later) = rest.split_at_mut(rest.len().min(whole.len() - skip));
            now.copy_from_slice(&whole[skip..skip + now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn part(&self, tensor: &TensorInfo) -> Result<&Part> {
        self.parts.get(tensor.part).ok_or_else(|| {
            let (tensor, size) = (Quoted::new(&tensor.name), 0);
            FormatError::at(
                &self.path,
                Fault::ReadRange {
                    tensor,
                    offset: 0,
                    len: 0,
                    size,
                },
            )
        })
    }

    /// First and last file byte of a range of `tensor`, checked against tensor and file.
    fn checked(
        &self,
        tensor: &TensorInfo,
        offset: u64,
        len: u64,
    ) -> std::result::Result<(u64, u64), Fault> {
        let file = self.parts[tensor.part].source.bytes().len() as u64;
        let end = offset.checked_add(len).filter(|&end| end <= tensor.bytes);
        let end = end
            .and_then(|end| end.checked_add(tensor.offset))
            .filter(|&end| end <= file);
        match end {
            Some(end) => Ok((tensor.offset + offset, end)),
            None => {
                let (tensor, size) = (Quoted::new(&tensor.name), tensor.bytes);
                Err(Fault::ReadRange {
                    tensor,
                    offset,
                    len,
                    size,
                })
            }
        }
    }

    fn rule(&self, tensor: &TensorInfo) -> std::result::Result<&'static [(usize, usize)], Fault> {
        swap_rule(tensor.dtype).ok_or_else(|| {
            let (dtype, tensor) = (tensor.dtype, Quoted::new(&tensor.name));
            Fault::BigEndian { tensor, dtype }
        })
    }
}

fn expect_parts(split: &Split, given: usize) -> std::result::Result<(), Fault> {
    if split.number == 0 && split.count == given as u64 {
        return Ok(());
    }
    Err(Fault::Split {
        found: format!(
            "file {} of {} and {given} given",
            split.number + 1,
            split.count
        ),
        expected: "all files of the split model, the first one first".to_owned(),
        advice: "open the model by path, or hand over every file",
    })
}

fn expect_tensors(split: &Split, found: usize) -> std::result::Result<(), Fault> {
    match split.tensors {
        Some(expected) if expected != found as u64 => Err(Fault::Split {
            found: format!("{found} tensors in all files"),
            expected: format!("{expected}, as split.tensors.count says"),
            advice: "copy the files of the split model again",
        }),
        _ => Ok(()),
    }
}

fn same_order(first: Endian, own: Endian) -> std::result::Result<(), Fault> {
    if first == own {
        return Ok(());
    }
    let name = |e| {
        Cow::from(if e == Endian::Big {
            "big-endian"
        } else {
            "little-endian"
        })
    };
    Err(Fault::Split {
        found: format!("a {} file", name(own)),
        expected: format!("the {} order of the first file", name(first)),
        advice: "copy the files of the split model again",
    })
}

fn index(tensors: &[TensorInfo]) -> std::result::Result<HashMap<String, usize>, Fault> {
    let mut index = HashMap::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        if index.insert(tensor.name.clone(), i).is_some() {
            return Err(Fault::DuplicateTensor {
                tensor: Quoted::new(&tensor.name),
            });
        }
    }
    Ok(index)
}
