//! safetensors: a JSON header, then the tensors; and the directories that Hugging Face and MLX make of it.

mod directory;
mod header;
mod index;
mod load;
mod typed;
mod write;

pub use directory::Directory;
pub(crate) use load::{from_part, open_directory, open_file};
pub use typed::metadata_pairs;
pub use write::{SafetensorsOutput, SafetensorsWriter};
