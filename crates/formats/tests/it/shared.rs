//! Real files from the shared test data.

use std::path::PathBuf;

use tokkata_formats::ModelFile;

/// The shared file, or `None` after saying that the test is skipped.
pub(crate) fn shared(test: &str, file: &str) -> Option<PathBuf> {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into();
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(default, PathBuf::from);
    let path = root.join(file);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var("CI").is_err(),
        "{test}: {file} is missing from TOKKATA_TESTDATA"
    );
    eprintln!("skipped: {test} ({file} is missing from TOKKATA_TESTDATA)");
    None
}

#[test]
fn a_real_model_reads() {
    let Some(path) = shared("a_real_model_reads", "models/dreams-260k.gguf") else {
        return;
    };
    let model = ModelFile::open(&path).unwrap();
    assert_eq!(model.architecture(), Some("llama"));
    let embd = model.tensor("token_embd.weight").unwrap();
    assert_eq!(embd.shape, [512, 64]);
    assert_eq!(embd.dims_ggml(), [64, 512, 1, 1]);
    let mut read = vec![0; embd.bytes as usize - 5];
    model.read_at(embd, 5, &mut read).unwrap();
    assert_eq!(read, model.data(embd).unwrap()[5..]);
    assert_eq!(model.size_bytes(), std::fs::metadata(path).unwrap().len());
}

#[test]
fn every_shared_vocabulary_reads() {
    let Some(dir) = shared("every_shared_vocabulary_reads", "vocab") else {
        return;
    };
    let paths = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let ggufs: Vec<_> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    assert!(!ggufs.is_empty());
    for path in ggufs {
        let model = ModelFile::open(&path).unwrap();
        assert!(
            !model
                .metadata()
                .strings("tokenizer.ggml.tokens")
                .unwrap()
                .is_empty()
        );
    }
}
