//! Tests of reading and writing model files.

mod build;
mod exercise;
mod faults;
mod hostile;
mod mutate;
mod round_trip;
mod safetensors;
mod shared;
mod split;
mod upstream;
