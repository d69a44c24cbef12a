//! Tests of reading and writing model files.

mod build;
mod corpus;
#[cfg(target_os = "linux")]
mod disk_full;
mod exercise;
mod faults;
mod hostile;
mod mutate;
mod mutate_json;
mod packed_values;
mod packing;
mod round_trip;
mod safetensors;
mod shared;
mod split;
mod upstream;
