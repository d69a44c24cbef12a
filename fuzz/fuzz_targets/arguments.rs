//! Command lines, an argument in each line: read, not run.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

#[path = "../../crates/cli/tests/it/arguments/exercise.rs"]
mod exercise;
#[path = "../../crates/text/tests/it/fuzzed/pieces.rs"]
#[allow(dead_code)]
mod pieces;
#[path = "../structured.rs"]
mod structured;

fuzz_target!(|data: &[u8]| {
    exercise::arguments(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let text = std::str::from_utf8(&data[..size]).ok();
    let text = text.filter(|_| !seed.is_multiple_of(4));
    let mutant = text.map(|text| pieces::mutate(text, &exercise::WORDS, u64::from(seed)));
    structured::replace(data, size, max_size, mutant.map(String::into_bytes))
});
