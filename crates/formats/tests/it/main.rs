//! Tests of reading and writing model files.

mod build;
mod faults;
mod round_trip;
mod shared;
mod split;
