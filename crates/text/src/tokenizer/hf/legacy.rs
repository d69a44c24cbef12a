//! Vocabularies from before `tokenizer.json`, written as one.

use serde_json::{Value, json};

use super::config::Config;
use super::json::parse;
use crate::tokenizer::error::TokenizerError;

/// `vocab.json` and `merges.txt`: the byte-level encoder of GPT-2.
pub(super) fn byte_level(vocab: &[u8], merges: &[u8]) -> Result<Value, TokenizerError> {
    let merges = text("merges.txt", merges)?;
    let merges = merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merges: Vec<&str> = merges.collect();
    Ok(json!({
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": parse("vocab.json", vocab)?, "merges": merges },
    }))
}

/// `vocab.txt`: BERT's encoder, its special tokens in brackets.
pub(super) fn word_piece(bytes: &[u8], config: &Config) -> Result<Value, TokenizerError> {
    let lines = text("vocab.txt", bytes)?;
    let tokens: Vec<&str> = lines
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .collect();
    let ids = (0_u32..).zip(&tokens);
    let vocab: serde_json::Map<_, _> = ids
        .clone()
        .map(|(id, &t)| (t.to_owned(), id.into()))
        .collect();
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let added: Vec<Value> = ids
        .filter(|(_, t)| specials.contains(t))
        .map(|(id, t)| json!({ "id": id, "content": t, "special": true }))
        .collect();
    let around = |name: &str| json!([name, vocab.get(name).cloned().unwrap_or(Value::Null)]);
    let lowercase = config.flag("do_lower_case").unwrap_or(true);
    let processor =
        json!({ "type": "BertProcessing", "cls": around("[CLS]"), "sep": around("[SEP]") });
    Ok(json!({
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "lowercase": lowercase,
            "strip_accents": config.flag("strip_accents"),
            "handle_chinese_chars": config.flag("tokenize_chinese_chars").unwrap_or(true),
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": processor,
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab },
    }))
}

fn text<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, TokenizerError> {
    std::str::from_utf8(bytes).map_err(|e| TokenizerError::malformed(name, e))
}
