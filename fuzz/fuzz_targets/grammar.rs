//! Grammars in every notation, compiled and walked through.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

#[path = "../../crates/text/tests/it/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/formats/tests/it/mutate_json.rs"]
mod mutate_json;
#[path = "../../crates/text/tests/it/fuzzed/pieces.rs"]
#[allow(dead_code)]
mod pieces;
#[path = "../structured.rs"]
mod structured;

/// Values that changes take.
static DONOR: LazyLock<Value> =
    LazyLock::new(|| structured::donor(include_str!("../donors/grammar.json")));

fuzz_target!(|data: &[u8]| {
    exercise::grammar(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutant = mutant(&data[..size], seed);
    structured::replace(data, size, max_size, mutant)
});

/// Other JSON, where it is JSON, and other pieces where it is text, three times in four.
fn mutant(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let ([kind, choice], text) = input.split_at_checked(2)? else {
        return None;
    };
    let head = [*kind, *choice];
    if seed.is_multiple_of(4) {
        return None;
    }
    let changed = match kind % 4 {
        3 => mutate_json::mutate(text, &DONOR, u64::from(seed))?,
        _ => pieces::mutate(
            std::str::from_utf8(text).ok()?,
            &pieces::GRAMMARS,
            u64::from(seed),
        )
        .into_bytes(),
    };
    Some([&head, &changed[..]].concat())
}
