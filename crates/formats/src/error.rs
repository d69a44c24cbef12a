//! What can be wrong with a model file, each with what was found, what was expected and what to do.

use std::path::Path;

use tokkata_core::DType;

/// Result of reading or writing a model file.
pub type Result<T> = std::result::Result<T, FormatError>;

/// A fault, and the file that has it. `Display` is one line.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct FormatError {
    /// The file as the user named it, or `<memory>`.
    pub file: String,
    /// What is wrong with it.
    #[source]
    pub fault: Box<Fault>,
}

impl FormatError {
    pub(crate) fn new(file: &str, fault: impl Into<Box<Fault>>) -> Self {
        // An index names files; a line break in a name must not break the message.
        let escape = |c: char| {
            if c.is_control() {
                c.escape_default().to_string()
            } else {
                c.into()
            }
        };
        let file = file.chars().map(escape).collect();
        Self {
            file,
            fault: fault.into(),
        }
    }

    pub(crate) fn at(path: &Path, fault: impl Into<Box<Fault>>) -> Self {
        Self::new(&path.display().to_string(), fault)
    }
}

/// Text from a file, quoted, with control characters escaped and long text cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted(String);

impl Quoted {
    pub(crate) fn new(bytes: impl AsRef<[u8]>) -> Self {
        const SHOWN: usize = 96;
        let bytes = bytes.as_ref();
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
        let more = if bytes.len() > SHOWN { "…" } else { "" };
        Self(format!("{head:?}{more}"))
    }
}

impl std::fmt::Display for Quoted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("cannot {action}: {source}")]
    Io {
        action: &'static str,
        source: std::io::Error,
    },
    #[error(
        "found nothing under this name, expected a file; check the name, or download what is missing"
    )]
    Missing,
    #[error("writing was stopped, nothing is left of it; start again for the whole file")]
    Stopped,
    #[error("found a file that may not be read, expected one that may; change its permissions")]
    Forbidden,
    #[error("found {found}, expected a model file; {advice}")]
    NotAFile {
        found: &'static str,
        advice: &'static str,
    },
    #[error("the file is empty, expected a GGUF header; copy or download it again")]
    Empty,
    #[error("found {found} at the start, expected \"GGUF\"; {advice}")]
    Magic { found: String, advice: &'static str },
    #[error(
        "found GGUF version {found}, expected 2 or 3; convert the model again with a current converter"
    )]
    Version { found: u32 },
    #[error(
        "found {have} bytes left for {what} at byte {at}, expected {need}; the file is cut short or damaged, copy it again"
    )]
    Truncated {
        what: &'static str,
        at: u64,
        need: u64,
        have: u64,
    },
    #[error("found {found} {what}, expected at most {limit}; the file is damaged, copy it again")]
    Count {
        what: &'static str,
        found: u64,
        limit: u64,
    },
    #[error(
        "found the {what} {found}, expected non-empty UTF-8 of at most 65535 bytes; convert the model again"
    )]
    Name { what: &'static str, found: Quoted },
    #[error("found metadata key {key} twice, expected unique keys; convert the model again")]
    DuplicateKey { key: Quoted },
    #[error(
        "found value type {code} for metadata key {key}, expected 0 to 12; the file is damaged or newer than this program"
    )]
    ValueType { key: Quoted, code: u32 },
    #[error(
        "found an array of arrays for metadata key {key}, expected an array of plain values; convert the model again"
    )]
    NestedArray { key: Quoted },
    #[error("found {found} for metadata key {key}, expected {expected}; convert the model again")]
    KeyValue {
        key: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("found tensor {tensor} twice, expected unique names; convert the model again")]
    DuplicateTensor { tensor: Quoted },
    #[error(
        "found {found} dimensions for tensor {tensor}, expected at most {limit}; the file is damaged, copy it again"
    )]
    Dims {
        tensor: Quoted,
        found: u64,
        limit: u64,
    },
    #[error(
        "found shape {shape:?} for tensor {tensor}, expected non-zero sizes whose product fits; the file is damaged, copy it again"
    )]
    Shape { tensor: Quoted, shape: Vec<u64> },
    #[error("found type code {code} for tensor {tensor}, which {why}; {advice}")]
    TensorType {
        tensor: Quoted,
        code: u32,
        why: &'static str,
        advice: &'static str,
    },
    #[error(
        "found rows of {row} elements for tensor {tensor}, expected a multiple of {block} for {dtype}; convert the model again"
    )]
    RowBlocks {
        tensor: Quoted,
        dtype: DType,
        row: u64,
        block: usize,
    },
    #[error(
        "found tensor {tensor} at data offset {offset}, expected a multiple of the alignment {alignment}; convert the model again"
    )]
    Misaligned {
        tensor: Quoted,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "found tensor {tensor} at bytes {start} to {end}, expected it to end by {size}; the file is cut short or damaged, copy it again"
    )]
    OutOfRange {
        tensor: Quoted,
        start: u64,
        end: u128,
        size: u64,
    },
    #[error(
        "found tensor {second} starting inside tensor {first}, expected separate bytes; the file is damaged, copy it again"
    )]
    Overlap { first: Quoted, second: Quoted },
    #[error(
        "found {found} bytes for tensor {tensor}, expected {expected} of type {dtype}; they are as many as {likely} takes, so its type is not what was written, convert the model again"
    )]
    Gap {
        tensor: Quoted,
        dtype: DType,
        expected: u64,
        found: u64,
        likely: DType,
    },
    #[error("found {found}, which cannot be written as a file; {advice}")]
    Special {
        found: &'static str,
        advice: &'static str,
    },
    #[error("found {found}, expected {expected}; {advice}")]
    Split {
        found: String,
        expected: String,
        advice: &'static str,
    },
    #[error(
        "found the big-endian tensor {tensor} of type {dtype}, whose byte order has no written rule; convert the model to little-endian"
    )]
    BigEndian { tensor: Quoted, dtype: DType },
    #[error(
        "found tensor name {tensor}, expected 1 to {limit} bytes as llama.cpp loads them; rename the tensor"
    )]
    TensorName { tensor: Quoted, limit: usize },
    #[error("{found} bytes were given for tensor {tensor}, expected {expected}")]
    Given {
        tensor: Quoted,
        found: u64,
        expected: u64,
    },
    #[error(
        "the disk is full, expected room for the whole file; free some space or write elsewhere"
    )]
    DiskFull,
    #[error(
        "found file number {found} for a tensor, expected below {parts}; the tensor is of another model"
    )]
    ForeignTensor { found: usize, parts: usize },
    #[error(
        "found a {what} that does not parse ({reason}), expected JSON of the known form; copy the file again"
    )]
    Json { what: &'static str, reason: Quoted },
    #[error(
        "found a safetensors header of {found} bytes, expected at most {limit}; the file is damaged or no safetensors file"
    )]
    HeaderLength { found: u64, limit: u64 },
    #[error(
        "found type {found} for tensor {tensor}, expected a type of safetensors; convert the model again"
    )]
    StorageType { tensor: Quoted, found: Quoted },
    #[error(
        "found data offsets {start} to {end} for tensor {tensor}, expected {expected}; the file is cut short or damaged, copy it again"
    )]
    DataOffsets {
        tensor: Quoted,
        start: u64,
        end: u64,
        expected: String,
    },
    #[error(
        "found {found} bytes of tensor data, expected {expected}; the file is damaged, copy it again"
    )]
    DataLength { found: u64, expected: u64 },
    #[error(
        "found {found} for the quantisation setting {key}, expected {expected}; use the model unquantised or as GGUF"
    )]
    Quantisation {
        key: Quoted,
        found: String,
        expected: &'static str,
    },
    #[error(
        "found {found} for the packed weight {tensor}, expected {expected}; download the model again"
    )]
    Packed {
        tensor: Quoted,
        found: String,
        expected: &'static str,
    },
    #[error("a read of {len} bytes at {offset} leaves tensor {tensor} of {size} bytes")]
    ReadRange {
        tensor: Quoted,
        offset: u64,
        len: u64,
        size: u64,
    },
}

impl Fault {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Fault::Io { action, source }
    }

    pub(crate) fn open(source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::NotFound => Fault::Missing,
            std::io::ErrorKind::PermissionDenied => Fault::Forbidden,
            _ => Fault::Io {
                action: "open the file",
                source,
            },
        }
    }
}
