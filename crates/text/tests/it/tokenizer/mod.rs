//! Tokenizers against what other implementations make of the same files and texts.

mod common;
mod differential;
mod files;
mod goldens;
mod strings;
mod vocab;
