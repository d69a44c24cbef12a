//! GGUF: one header of metadata and tensor places, then the tensors.

mod cursor;
mod encode;
mod header;
mod load;
mod magic;
mod output;
mod shard;
mod split;
mod swap;
mod write;

pub use cursor::Endian;
pub(crate) use header::{sized, tensor_type};
pub(crate) use load::{from_parts, from_ranges, open};
pub use output::GgufOutput;
pub use shard::{ShardLimit, copy_gguf};
pub(crate) use swap::{swap_blocks, swap_rule};
pub use write::GgufWriter;
