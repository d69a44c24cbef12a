//! Importance matrices in both formats, read, written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tokkata/tests/it/fuzzed/exercise.rs"]
mod exercise;

fuzz_target!(|data: &[u8]| {
    exercise::importance(data);
});
