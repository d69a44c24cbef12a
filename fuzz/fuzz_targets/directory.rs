//! Model directories: a configuration and an index beside two fixed files of tensors.

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

static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, header: &str, data: &[u8]| {
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(
            dir.path().join(name),
            [&length[..], header.as_bytes(), data].concat(),
        )
        .unwrap();
    };
    let one = r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]}}"#;
    put("one.safetensors", one, &[1; 16]);
    put(
        "two.safetensors",
        r#"{"c":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
        &[1; 2],
    );
    dir
});

/// Values that changes take.
static DONOR: LazyLock<Value> =
    LazyLock::new(|| structured::donor(include_str!("../donors/directory.json")));

fuzz_target!(|data: &[u8]| {
    exercise::exercise_directory(DIRECTORY.path(), data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mutant = mutant(&data[..size], seed);
    structured::replace(data, size, max_size, mutant)
});

/// Another configuration or another index, three times in four.
fn mutant(input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let cut = input.iter().position(|&b| b == 0)?;
    let (config, index) = (&input[..cut], &input[cut + 1..]);
    let seed = u64::from(seed);
    let (config, index) = match seed % 4 {
        0 => return None,
        1 => (config.to_vec(), mutate_json::mutate(index, &DONOR, seed)?),
        _ => (mutate_json::mutate(config, &DONOR, seed)?, index.to_vec()),
    };
    Some([&config[..], b"\0", &index].concat())
}
