//! Chat templates, parsed and rendered.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/text/tests/fuzzed/exercise.rs"]
#[allow(dead_code)]
mod exercise;

fuzz_target!(|data: &[u8]| {
    exercise::template(data);
});
