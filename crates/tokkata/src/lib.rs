//! Run language models from a file: the Rust API of Tokkata.
