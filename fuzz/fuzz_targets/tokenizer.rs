//! Tokenizer files of every kind, read and used.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/text/tests/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;

fuzz_target!(|data: &[u8]| {
    exercise::tokenizer(data);
});
