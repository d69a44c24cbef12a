//! Readers and writers of model files.
//!
//! A [`ModelFile`] is a checked view of a file: its metadata, and for each tensor its name, type, shape
//! and bytes. The crate knows nothing of architectures, and nothing of networks.
//!
//! Invariants: every count, offset, length and shape is checked against the file's size before it is
//! used; nothing is allocated in proportion to a number that was not checked; a hostile file gives a
//! [`FormatError`] of one line and never a panic.
//!
//! Reading order: [`model`] (what users hold), [`tensor`], [`error`], [`gguf`] and [`safetensors`] (parsers and
//! writers).
//!
//! ```
//! use tokkata_formats::{Fault, ModelFile};
//! let error = ModelFile::from_bytes(*b"PK\x03\x04").unwrap_err();
//! assert!(matches!(*error.fault, Fault::Magic { .. }));
//! assert!(error.to_string().contains("ZIP archive"));
//! ```

pub mod error;
mod ggml;
pub mod gguf;
pub mod model;
mod output;
pub mod packing;
mod part;
pub mod safetensors;
mod source;
pub mod tensor;

pub use error::{Fault, FormatError, Quoted, Result};
pub use gguf::{Endian, GgufOutput, GgufWriter, ShardLimit, copy_gguf};
pub use model::{Container, Layout, ModelFile};
pub use output::{remove_unfinished, write_file};
pub use packing::{GptqZeros, PackedWeight, Piece, Scheme};
pub use part::SharedSpan;
pub use safetensors::{Directory, SafetensorsOutput, SafetensorsWriter};
pub use source::ReadRanges;
pub use tensor::{Storage, StoredTensor, TensorInfo};
