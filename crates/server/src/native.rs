//! llama.cpp's own endpoints: `/completion`, `/infill`, tokens, properties and slots.

pub(crate) mod completion;
pub(crate) mod status;
pub(crate) mod tokens;
