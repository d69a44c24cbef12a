//! Identifiers, element types and metadata values shared by every Tokkata crate.
//!
//! Nothing here knows about files, models or devices. Reading order: [`dtype`] (element types and
//! their block sizes), [`metadata`] (typed key–value pairs of a model file).
//!
//! ```
//! use tokkata_core::{DType, Metadata, Value};
//! assert_eq!(DType::Q4_0.row_bytes(64), Some(36));
//! let mut meta = Metadata::default();
//! meta.insert("llama.block_count", Value::U32(2));
//! assert_eq!(meta.uint("llama.block_count"), Some(2));
//! ```

pub mod dtype;
pub mod metadata;

pub use dtype::DType;
pub use metadata::{Array, Metadata, Value};
