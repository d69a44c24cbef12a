//! Finding the shared test data and opening the vocabularies in it.

use std::path::PathBuf;

use tokkata_formats::ModelFile;
use tokkata_text::tokenizer::{HfFiles, Tokenizer};

/// The folder `name` of the shared test data; `None`, said out loud, where there is none.
pub(crate) fn test_data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{} is needed",
        folder.display()
    );
    eprintln!("skipped: no {}", folder.display());
    None
}

/// The tokenizer of a GGUF file, a `tokenizer.json` or a SentencePiece model.
pub(crate) fn open(path: &std::path::Path) -> Tokenizer {
    let read = || Some(std::fs::read(path).unwrap());
    let files = match path.extension().and_then(|e| e.to_str()) {
        Some("json") => HfFiles {
            tokenizer_json: read(),
            ..HfFiles::default()
        },
        Some("model") => HfFiles {
            tokenizer_model: read(),
            ..HfFiles::default()
        },
        _ => return open_gguf(path),
    };
    Tokenizer::from_hf(&files).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn open_gguf(path: &std::path::Path) -> Tokenizer {
    let file = ModelFile::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Tokenizer::from_metadata(file.metadata()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every vocabulary of the shared test data.
pub(crate) fn vocabularies() -> Vec<PathBuf> {
    let Some(folder) = test_data("vocab") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    files.sort();
    files
}
