//! Model directories: a configuration and an index beside two fixed files of tensors.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/formats/tests/it/exercise.rs"]
#[allow(dead_code)]
mod exercise;

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

fuzz_target!(|data: &[u8]| {
    exercise::exercise_directory(DIRECTORY.path(), data);
});
