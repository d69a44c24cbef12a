//! The `normalizer` of `tokenizer.json`.

use super::json::Node;
use crate::tokenizer::base64;
use crate::tokenizer::bert::Clean;
use crate::tokenizer::charsmap::Charsmap;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::normalize::{Form, Normalizer};
use crate::tokenizer::split::{Rule, known};

/// Reads a normaliser, a sequence of them or none.
pub(super) fn read(node: &Node<'_>) -> Result<Vec<Normalizer>, TokenizerError> {
    if node.is_null() {
        return Ok(Vec::new());
    }
    let flag = |name: &str| node.get(name).bool();
    let one = match node.kind()? {
        "Sequence" => {
            let lists: Result<Vec<_>, _> = node
                .need("normalizers")?
                .need_array()?
                .iter()
                .map(read)
                .collect();
            return Ok(lists?.concat());
        }
        "BertNormalizer" => {
            let lowercase = flag("lowercase").unwrap_or(true);
            Normalizer::Bert(Clean {
                controls: flag("clean_text").unwrap_or(true),
                ideographs: flag("handle_chinese_chars").unwrap_or(true),
                accents: flag("strip_accents").unwrap_or(lowercase),
                lowercase,
            })
        }
        "NFC" => Normalizer::Form(Form::Nfc),
        "NFD" => Normalizer::Form(Form::Nfd),
        "NFKC" => Normalizer::Form(Form::Nfkc),
        "NFKD" => Normalizer::Form(Form::Nfkd),
        "Lowercase" => Normalizer::Lowercase,
        "StripAccents" => Normalizer::StripMarks,
        "Strip" => Normalizer::Strip {
            left: flag("strip_left").unwrap_or(true),
            right: flag("strip_right").unwrap_or(true),
        },
        "Prepend" => Normalizer::Prepend(node.need("prepend")?.need_str()?.to_owned()),
        "Replace" => Normalizer::Replace {
            rule: pattern(&node.need("pattern")?)?,
            content: node.need("content")?.need_str()?.to_owned(),
        },
        "Nmt" => Normalizer::Nmt,
        "Precompiled" => {
            let map = node.need("precompiled_charsmap")?;
            let bytes = base64::decode(map.need_str()?.as_bytes());
            let bytes = bytes.ok_or_else(|| map.wrong("base64"))?;
            if bytes.is_empty() {
                return Ok(Vec::new());
            }
            Normalizer::Precompiled(Charsmap::parse(&bytes)?)
        }
        "ByteLevel" => Normalizer::ByteLevel,
        other => return Err(node.unsupported(format!("normalizer `{other}`"))),
    };
    Ok(vec![one])
}

/// A fixed text or an expression.
pub(super) fn pattern(node: &Node<'_>) -> Result<Rule, TokenizerError> {
    if let Some(text) = node.get("String").str() {
        return Ok(Rule::Literal(text.to_owned()));
    }
    known::rule(node.need("Regex")?.need_str()?)
}

/// Whether the last normaliser writes bytes in the byte alphabet, which the encoder does by itself.
pub(super) fn is_byte_level(normalizers: &[Normalizer]) -> bool {
    matches!(normalizers.last(), Some(Normalizer::ByteLevel))
}

/// The normalisers before that one.
pub(super) fn without_byte_level(mut normalizers: Vec<Normalizer>) -> Vec<Normalizer> {
    if is_byte_level(&normalizers) {
        normalizers.pop();
    }
    normalizers
}
