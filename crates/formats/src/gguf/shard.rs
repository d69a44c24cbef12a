//! Cutting a model into several files and putting it together again.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use tokkata_core::{Metadata, Value};

use super::output::GgufOutput;
use super::write::{Declared, GgufWriter, Shard, without_split};
use crate::error::{Fault, FormatError, Result};
use crate::model::ModelFile;

/// Bytes moved at a time when a model is copied.
const COPY_BYTES: usize = 1 << 20;
/// `split.count` is a 16-bit number.
const MAX_FILES: usize = 65_535;

/// How much one file of the output may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLimit {
    /// One file for everything.
    Whole,
    /// At most this many tensors per file.
    Tensors(std::num::NonZeroUsize),
    /// At most this many tensor bytes per file, unless one tensor alone has more.
    Bytes(std::num::NonZeroU64),
    /// New files where [`GgufWriter::next_file`] was called.
    Marked,
}

/// The files that a model is cut into.
#[derive(Debug)]
pub(super) struct Shards {
    files: Vec<(PathBuf, Metadata, Range<usize>)>,
}

impl Shards {
    pub(super) fn plan(
        path: &Path,
        metadata: &Metadata,
        tensors: &[Declared],
        limit: ShardLimit,
    ) -> std::result::Result<Self, Fault> {
        let metadata = without_split(metadata);
        if limit == ShardLimit::Whole {
            return Ok(Self {
                files: vec![(path.to_owned(), metadata, 0..tensors.len())],
            });
        }
        let ranges = cut(tensors, limit);
        if ranges.len() > MAX_FILES {
            let (what, found, limit) = ("files", ranges.len() as u64, MAX_FILES as u64);
            return Err(Fault::Count { what, found, limit });
        }
        let count = ranges.len();
        let file = |(number, range)| {
            let total = tensors.len();
            let keys = split_keys(
                &metadata,
                Place {
                    number,
                    count,
                    total,
                },
            );
            (shard_path(path, number, count), keys, range)
        };
        Ok(Self {
            files: ranges.into_iter().enumerate().map(file).collect(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn path(&self, number: usize) -> &Path {
        &self.files[number].0
    }

    pub(super) fn shard(&self, number: usize) -> Shard<'_> {
        let (_, metadata, tensors) = &self.files[number];
        Shard {
            metadata,
            tensors: tensors.clone(),
        }
    }
}

/// Runs of tensors that keep to the limit; one empty run if there is no tensor.
fn cut(tensors: &[Declared], limit: ShardLimit) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (i, tensor) in tensors.iter().enumerate() {
        let full = match limit {
            ShardLimit::Whole => false,
            ShardLimit::Tensors(most) => i - start == most.get(),
            ShardLimit::Bytes(most) => bytes.saturating_add(tensor.bytes) > most.get(),
            ShardLimit::Marked => tensor.starts_file,
        };
        if full && i > start {
            ranges.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(tensor.bytes);
    }
    ranges.push(start..tensors.len());
    ranges
}

/// A file's place in a split model of `total` tensors.
#[derive(Clone, Copy)]
struct Place {
    number: usize,
    count: usize,
    total: usize,
}

/// The metadata of one file: everything in the first, the alignment in all.
fn split_keys(metadata: &Metadata, place: Place) -> Metadata {
    let mut keys = if place.number == 0 {
        metadata.clone()
    } else {
        Metadata::default()
    };
    if let Some(alignment) = metadata.get("general.alignment") {
        keys.insert("general.alignment", alignment.clone());
    }
    keys.insert("split.no", Value::U16(place.number as u16));
    keys.insert("split.count", Value::U16(place.count as u16));
    keys.insert("split.tensors.count", Value::I32(place.total as i32));
    keys
}

fn shard_path(path: &Path, number: usize, count: usize) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = name.strip_suffix(".gguf").unwrap_or(&name);
    path.with_file_name(format!("{prefix}-{:05}-of-{count:05}.gguf", number + 1))
}

/// Writes `model` to `path` as GGUF, cut to the limit or put together, and returns the files' names.
///
/// `on_bytes` hears how many tensor bytes each step has copied, and may stop the copy.
///
/// # Errors
/// A failed read or write, or [`Fault::Stopped`]; nothing is left beside or under the target's name then.
pub fn copy_gguf(
    model: &ModelFile,
    path: &Path,
    limit: ShardLimit,
    mut on_bytes: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<PathBuf>> {
    let mut writer = GgufWriter::new(path, model.metadata().clone())?;
    for tensor in model.tensors() {
        writer.declare(&tensor.name, tensor.dtype, &tensor.shape)?;
    }
    let mut output = writer.create(limit)?;
    let mut buf = vec![0; COPY_BYTES];
    for tensor in model.tensors() {
        copy_tensor(model, tensor, &mut output, &mut buf, &mut on_bytes)?;
    }
    output.finish()
}

fn copy_tensor(
    model: &ModelFile,
    tensor: &crate::TensorInfo,
    output: &mut GgufOutput,
    buf: &mut [u8],
    on_bytes: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<()> {
    let mut at = 0;
    while at < tensor.bytes {
        let now = (tensor.bytes - at).min(buf.len() as u64);
        let chunk = &mut buf[..now as usize];
        model.read_at(tensor, at, chunk)?;
        output.write(chunk)?;
        if on_bytes(now).is_break() {
            return Err(FormatError::at(output.path(), Fault::Stopped));
        }
        at += now;
    }
    Ok(())
}
