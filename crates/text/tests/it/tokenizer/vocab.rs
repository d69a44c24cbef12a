//! Every vocabulary of the shared data against the ids that came with it.

use std::fs;
use std::path::Path;

use super::common::{open, vocabularies};
use tokkata_text::detokenize::Detokenizer;
use tokkata_text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn pairs(vocabulary: &Path) -> Option<Vec<(String, Vec<u32>)>> {
    let read = |end: &str| fs::read_to_string(format!("{}.{end}", vocabulary.display())).ok();
    let (texts, ids) = (read("inp")?, read("out")?);
    let ids = ids
        .lines()
        .map(|l| l.split_whitespace().map(|id| id.parse().unwrap()).collect());
    Some(texts.split(SEPARATOR).map(str::to_owned).zip(ids).collect())
}

#[test]
fn pairs_match() {
    let mut checked = 0;
    for file in vocabularies() {
        let Some(pairs) = pairs(&file) else { continue };
        let tokenizer = open(&file);
        assert!(
            pairs.len() > 40,
            "{} has {} pairs",
            file.display(),
            pairs.len()
        );
        for (text, ids) in pairs {
            let found = tokenizer.encode(&text, EncodeOptions::default());
            assert_eq!(found, ids, "{} encodes {text:?}", file.display());
            checked += 1;
        }
    }
    println!("{checked} pairs");
}

#[test]
fn round_trips() {
    for file in vocabularies() {
        let Some(pairs) = pairs(&file) else { continue };
        let tokenizer = open(&file);
        if tokenizer.special().cls.is_some() {
            continue; // WordPiece drops case, accents and spaces.
        }
        for (text, _) in pairs {
            let ids = tokenizer.encode(&text, EncodeOptions::default());
            let whole = tokenizer.decode(&ids, DecodeOptions::default());
            assert_eq!(String::from_utf8_lossy(&whole), text, "{}", file.display());
            assert_eq!(streamed(&tokenizer, &ids), text, "{}", file.display());
        }
    }
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(DecodeOptions::default());
    let mut text = String::new();
    for &id in ids {
        detokenizer.push(tokenizer, id, &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

#[test]
fn special_tokens_are_text_unless_asked_for() {
    for file in vocabularies() {
        let tokenizer = open(&file);
        let Some(eos) = tokenizer.special().eos else {
            continue;
        };
        let text = String::from_utf8_lossy(tokenizer.token_text(eos)).into_owned();
        let parse = EncodeOptions {
            parse_special: true,
            ..EncodeOptions::default()
        };
        let plain = tokenizer.encode(&text, EncodeOptions::default());
        assert!(
            tokenizer.encode(&text, parse).contains(&eos),
            "{}",
            file.display()
        );
        if tokenizer.is_special(eos) {
            assert!(!plain.contains(&eos), "{}: {plain:?}", file.display());
        }
    }
}
