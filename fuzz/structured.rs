//! What targets with a mutator of their own share.
#![allow(dead_code)]

use libfuzzer_sys::fuzzer_mutate;
use serde_json::Value;

/// The values of a donor's file, which changes take.
pub fn donor(text: &str) -> Value {
    serde_json::from_str(text).expect("donors are JSON")
}

/// Puts a mutant in the place of `data`, whose first `size` bytes count, or leaves it to libFuzzer where there is none
/// that fits; gives the new size.
pub fn replace(data: &mut [u8], size: usize, max_size: usize, mutant: Option<Vec<u8>>) -> usize {
    match mutant {
        Some(bytes) if bytes.len() <= max_size => {
            data[..bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
}
