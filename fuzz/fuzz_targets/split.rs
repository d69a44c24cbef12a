//! Models in two files: both are changed, mostly within their structure.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

#[path = "../../crates/formats/tests/it/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate.rs"]
mod mutate;

use mutate::{Edit, mutate};

fuzz_target!(|data: &[u8]| {
    exercise::exercise_split(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let [low, high, parts @ ..] = &data[..size] else {
        return fuzzer_mutate(data, size, max_size);
    };
    if seed.is_multiple_of(4) {
        return fuzzer_mutate(data, size, max_size);
    }
    let cut = usize::from(u16::from_le_bytes([*low, *high])).min(parts.len());
    let (mut first, mut second) = (parts[..cut].to_vec(), parts[cut..].to_vec());
    let edit = Edit {
        place: (seed >> 16) as u16,
        action: u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    let changed = if seed.is_multiple_of(2) {
        &mut first
    } else {
        &mut second
    };
    mutate(changed, &[edit], max_size / 2);
    let mut bytes = (first.len() as u16).to_le_bytes().to_vec();
    bytes.append(&mut first);
    bytes.append(&mut second);
    bytes.truncate(max_size);
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
});
