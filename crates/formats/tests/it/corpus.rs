//! Committed files of the fuzz targets: seeds, and findings of earlier runs.

use std::path::{Path, PathBuf};

use crate::exercise::{
    exercise, exercise_directory, exercise_safetensors, exercise_split, safetensors_input,
};
use crate::hostile::seeds;
use crate::safetensors::{TWO, directory};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Seeds of a target and findings, as bytes; says how many are seeds.
fn committed(target: &str) -> (Vec<Vec<u8>>, usize) {
    let list = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries
            .map(|e| std::fs::read(e.unwrap().path()).unwrap())
            .collect::<Vec<_>>()
    };
    let seeds = list(root().join("../../fuzz/seeds").join(target));
    assert!(!seeds.is_empty());
    let count = seeds.len();
    (
        seeds
            .into_iter()
            .chain(list(root().join("tests/corpus").join(target)))
            .collect(),
        count,
    )
}

/// Every file runs through, and every seed opens.
fn replay(target: &str, run: impl Fn(&[u8]) -> bool) {
    let (files, seeds) = committed(target);
    let opened: Vec<bool> = files.iter().map(|file| run(file)).collect();
    assert!(opened[..seeds].iter().all(|&ok| ok), "{target}: {opened:?}");
}

#[test]
fn gguf_files_replay() {
    replay("gguf", exercise);
}

#[test]
fn safetensors_files_replay() {
    replay("safetensors", |input| {
        exercise_safetensors(&safetensors_input(input))
    });
}

#[test]
fn split_files_replay() {
    replay("split", exercise_split);
}

#[test]
fn directories_replay() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    replay("directory", |input| exercise_directory(dir.path(), input));
}

#[test]
#[ignore = "writes the committed seeds of the fuzz targets"]
fn write_seeds() {
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let dir = root().join("../../fuzz/seeds").join(target);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), bytes).unwrap();
    };
    for (name, bytes) in ["tensors", "values", "every-type", "big-endian"]
        .iter()
        .zip(seeds())
    {
        put("gguf", name, &bytes);
    }
    for name in ["upstream-le", "upstream-be"] {
        let from = root().join("tests/data").join(name).with_extension("gguf");
        put("gguf", name, &std::fs::read(from).unwrap());
    }
    put(
        "safetensors",
        "wrapped",
        &[&[1, 16, 0][..], TWO.as_bytes()].concat(),
    );
    put(
        "safetensors",
        "raw",
        &[&[0][..], &crate::safetensors::file(TWO, 16)].concat(),
    );
    let packed = br#"{"w":{"dtype":"U32","shape":[1,4],"data_offsets":[0,16]},"s":{"dtype":"F16","shape":[1,1],"data_offsets":[16,18]}}"#;
    put("safetensors", "packed", &[&[1, 18, 0][..], packed].concat());
    let index = br#"{"metadata":{"total_size":18},"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}}"#;
    put(
        "directory",
        "plain",
        &[&b"{\"model_type\":\"llama\"}\0"[..], index].concat(),
    );
    let parts = crate::split::two_parts();
    let length = (parts[0].len() as u16).to_le_bytes();
    put(
        "split",
        "two",
        &[&length[..], &parts[0], &parts[1]].concat(),
    );
    let mlx =
        br#"{"model_type":"llama","quantization":{"group_size":64,"bits":4,"mode":"affine"}}"#;
    put("directory", "mlx", &[&mlx[..], b"\0", index].concat());
}
