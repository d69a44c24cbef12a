//! Committed inputs of the fuzz target that reads settings: seeds, and what earlier runs found.

mod exercise;

use std::path::{Path, PathBuf};

use exercise::Checkpoints;

/// Families whose settings differ most.
const SEEDS: [&str; 12] = [
    "afmoe",
    "bert",
    "deepseek2",
    "falcon",
    "gemma3",
    "gpt-oss",
    "lfm2",
    "llama+llama3",
    "mamba2",
    "mpt",
    "qwen3next",
    "t5",
];

fn folder(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

fn files(of: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder(of)).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .map(|path| (path.clone(), std::fs::read(path).expect("a file")))
        .collect()
}

#[test]
fn settings_replay() {
    let checkpoints = Checkpoints::new();
    let seeds = files("../../fuzz/seeds/config");
    assert_eq!(seeds.len(), SEEDS.len());
    for (path, seed) in seeds {
        assert!(
            checkpoints.exercise(&seed),
            "{} is not read",
            path.display()
        );
    }
    for (_, input) in files("tests/corpus/config") {
        checkpoints.exercise(&input);
    }
}

#[test]
#[ignore = "writes the committed seeds of the fuzz target"]
fn write_seeds() {
    let checkpoints = Checkpoints::new();
    let to = folder("../../fuzz/seeds/config");
    std::fs::create_dir_all(&to).expect("a folder");
    for name in SEEDS {
        let text = format!("{name}\0{}", checkpoints.configs[name]);
        std::fs::write(to.join(name), text).expect("a file");
    }
}
