//! safetensors files: mostly a header whose length is right, sometimes raw bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/formats/tests/it/exercise.rs"]
#[allow(dead_code)]
mod exercise;

fuzz_target!(|data: &[u8]| {
    exercise::exercise_safetensors(&exercise::safetensors_input(data));
});
