//! Chat templates, parsed and rendered.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

#[path = "../../crates/text/tests/it/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;
#[path = "../../crates/text/tests/it/fuzzed/pieces.rs"]
#[allow(dead_code)]
mod pieces;
#[path = "../structured.rs"]
mod structured;

fuzz_target!(|data: &[u8]| {
    exercise::template(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let text = std::str::from_utf8(&data[..size]).ok();
    let text = text.filter(|_| !seed.is_multiple_of(4));
    let mutant = text.map(|text| pieces::mutate(text, &pieces::TEMPLATES, u64::from(seed)));
    structured::replace(data, size, max_size, mutant.map(String::into_bytes))
});
