//! Answers in the format that a template shows.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/text/tests/it/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;

fuzz_target!(|data: &[u8]| {
    exercise::answer(data);
});
