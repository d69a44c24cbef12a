//! GGUF: one header of metadata and tensor places, then the tensors.

mod cursor;
mod header;
mod magic;
mod split;
mod swap;

pub use cursor::Endian;
pub(crate) use header::Header;
pub(crate) use split::{Split, sibling_paths};
pub(crate) use swap::{swap_blocks, swap_rule};
