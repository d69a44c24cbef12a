//! Tokenizers trained with other libraries, and what those libraries make of tricky texts.
//!
//! `goldens/make.py` writes the files; `TOKKATA_TOKENIZER_GOLDENS` names another folder of them.

use std::path::PathBuf;

use serde_json::Value;
use tokkata_text::tokenizer::{DecodeOptions, EncodeOptions, HfFiles, Tokenizer};

fn folder() -> PathBuf {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer/goldens");
    std::env::var_os("TOKKATA_TOKENIZER_GOLDENS").map_or_else(own, PathBuf::from)
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c| {
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            .iter()
            .position(|&d| d == c)
    };
    let digits: Vec<usize> = text.bytes().filter_map(digit).collect();
    let word = |chunk: &[usize]| chunk.iter().fold(0, |w, d| w << 6 | d) << (6 * (4 - chunk.len()));
    let bytes = |chunk: &[usize]| (word(chunk) as u32).to_be_bytes()[1..chunk.len()].to_vec();
    digits.chunks(4).flat_map(bytes).collect()
}

fn tokenizer(golden: &Value) -> Tokenizer {
    let files = &golden["files"];
    let files = HfFiles {
        tokenizer_json: files["tokenizer_json"]
            .is_object()
            .then(|| files["tokenizer_json"].to_string().into_bytes()),
        tokenizer_model: files["tokenizer_model"].as_str().map(base64),
        ..HfFiles::default()
    };
    Tokenizer::from_hf(&files).unwrap()
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    Some(
        value
            .as_array()?
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect(),
    )
}

/// Checks one case; returns what is wrong.
fn check(tokenizer: &Tokenizer, case: &Value) -> Vec<String> {
    let text = case["text"].as_str().unwrap();
    let mut wrong = Vec::new();
    let mut compare = |what: &str, options: EncodeOptions| {
        let Some(theirs) = ids(&case[what]) else {
            return;
        };
        let ours = tokenizer.encode(text, options);
        if ours != theirs {
            wrong.push(format!(
                "{what} {text:?}\n    ours   {ours:?}\n    theirs {theirs:?}"
            ));
        }
    };
    compare("plain", EncodeOptions::default());
    compare(
        "parsed",
        EncodeOptions {
            add_special: true,
            parse_special: true,
        },
    );
    if let Some(theirs) = case["decoded"].as_str() {
        let fed = ids(&case["parsed"])
            .or_else(|| ids(&case["plain"]))
            .unwrap();
        let ours = tokenizer.decode(&fed, DecodeOptions::default());
        let ours = String::from_utf8_lossy(&ours);
        if ours != theirs {
            wrong.push(format!(
                "decoded {fed:?}\n    ours   {ours:?}\n    theirs {theirs:?}"
            ));
        }
    }
    wrong
}

#[test]
fn trained_tokenizers_agree() {
    let mut failed = 0;
    let mut names: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    names.retain(|p| p.extension().is_some_and(|e| e == "json"));
    assert!(names.len() > 10);
    for path in names {
        let golden: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let tokenizer = tokenizer(&golden);
        let cases = golden["cases"].as_array().unwrap();
        let wrong: Vec<String> = cases
            .iter()
            .flat_map(|case| check(&tokenizer, case))
            .collect();
        println!(
            "{}: {} cases, {} wrong",
            path.file_stem().unwrap().display(),
            cases.len(),
            wrong.len()
        );
        wrong.iter().take(4).for_each(|w| println!("  {w}"));
        failed += wrong.len();
    }
    assert_eq!(failed, 0);
}
