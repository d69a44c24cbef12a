//! Committed inputs of the fuzz targets that parse text: seeds, and what earlier runs found.

#[path = "fuzzed/exercise.rs"]
mod exercise;

use std::path::{Path, PathBuf};

fn files(dir: PathBuf) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Every file runs through, and every seed is read.
fn replay(target: &str, run: impl Fn(&[u8]) -> bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seeds = files(root.join("../../fuzz/seeds").join(target));
    assert!(!seeds.is_empty());
    for (path, bytes) in seeds {
        assert!(run(&bytes), "{} is not read", path.display());
    }
    for (_, bytes) in files(root.join("tests/corpus").join(target)) {
        run(&bytes);
    }
}

#[test]
fn grammars_replay() {
    replay("grammar", exercise::grammar);
}

#[test]
fn templates_replay() {
    replay("template", exercise::template);
}

#[test]
fn answers_replay() {
    replay("answer", exercise::answer);
}

#[test]
fn tokenizers_replay() {
    replay("tokenizer", exercise::tokenizer);
}
