//! Committed inputs of the fuzz target of importance matrices: seeds, and what earlier runs reached.

mod exercise;

use std::path::Path;

fn files(of: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(of);
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .map(|path| std::fs::read(path).expect("a file"))
        .collect()
}

#[test]
fn importance_matrices_replay() {
    let seeds = files("../../fuzz/seeds/imatrix");
    assert_eq!(seeds.len(), 2);
    assert!(seeds.iter().all(|seed| exercise::importance(seed)));
    for input in files("tests/corpus/imatrix") {
        exercise::importance(&input);
    }
}
