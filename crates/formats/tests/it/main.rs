//! Tests of reading and writing model files.

mod shared;
