//! Tokenizer files of every kind, read and used.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

#[path = "../../crates/text/tests/it/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate_json.rs"]
mod mutate_json;
#[path = "../structured.rs"]
mod structured;

/// Values that changes take.
static DONOR: LazyLock<Value> =
    LazyLock::new(|| structured::donor(include_str!("../donors/tokenizer.json")));

fuzz_target!(|data: &[u8]| {
    exercise::tokenizer(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutant = mutant(&data[..size], seed);
    structured::replace(data, size, max_size, mutant)
});

/// Other JSON, where it is JSON, three times in four.
fn mutant(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let ([kind], text) = input.split_at_checked(1)? else {
        return None;
    };
    let head = [*kind];
    if kind % 4 != 0 || seed.is_multiple_of(4) {
        return None;
    }
    let changed = mutate_json::mutate(text, &DONOR, u64::from(seed))?;
    Some([&head, &changed[..]].concat())
}
