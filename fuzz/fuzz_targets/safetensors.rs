//! safetensors files: mostly a header whose length is right, sometimes raw bytes.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

#[path = "../../crates/formats/tests/it/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate_json.rs"]
mod mutate_json;
#[path = "../structured.rs"]
mod structured;

/// Values that changes take.
static DONOR: LazyLock<Value> =
    LazyLock::new(|| structured::donor(include_str!("../donors/safetensors.json")));

fuzz_target!(|data: &[u8]| {
    exercise::exercise_safetensors(&exercise::safetensors_input(data));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutant = mutant(&data[..size], seed);
    structured::replace(data, size, max_size, mutant)
});

/// Another header of JSON, three times in four.
fn mutant(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let (head, text) = input.split_at_checked(3)?;
    if seed.is_multiple_of(4) {
        return None;
    }
    let header = mutate_json::mutate(text, &DONOR, u64::from(seed))?;
    Some([head, &header].concat())
}
