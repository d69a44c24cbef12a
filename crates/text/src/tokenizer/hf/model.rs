//! The `model` of `tokenizer.json`.

use serde_json::Value;

use super::json::Node;
use crate::tokenizer::Model;
use crate::tokenizer::bpe::{Bpe, BpeParts, Start, Unknown, WholeWords};
use crate::tokenizer::bytes::to_alphabet;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::special::SpecialTokens;
use crate::tokenizer::unigram::{Sums, Unigram, UnigramParts};
use crate::tokenizer::vocab::{Blob, TokenKind, Vocab, byte_tokens};
use crate::tokenizer::wordpiece::WordPiece;

/// The kind; old files do not name it.
fn kind<'a>(model: &Node<'a>) -> &'a str {
    model.get("type").str().unwrap_or_else(|| {
        if model.value().get("merges").is_some() {
            "BPE"
        } else if model.value().get("unk_id").is_some() {
            "Unigram"
        } else if model.value().get("max_input_chars_per_word").is_some() {
            "WordPiece"
        } else {
            "WordLevel"
        }
    })
}

/// The tokens as (id, text, score).
pub(super) fn tokens(model: &Node<'_>) -> Result<Vec<(u32, String, f64)>, TokenizerError> {
    let vocab = model.need("vocab")?;
    match vocab.value() {
        Value::Object(map) => map
            .iter()
            .map(|(text, id)| {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                Ok((
                    id.ok_or_else(|| vocab.wrong("a map to token ids"))?,
                    text.clone(),
                    0.0,
                ))
            })
            .collect(),
        Value::Array(list) => (0..)
            .zip(list)
            .map(|(id, entry)| {
                let text = entry.get(0).and_then(Value::as_str);
                let score = entry.get(1).and_then(Value::as_f64);
                let (text, score) = text
                    .zip(score)
                    .ok_or_else(|| vocab.wrong("a list of [text, score]"))?;
                Ok((id, text.to_owned(), score))
            })
            .collect(),
        _ => Err(vocab.wrong("a map or a list")),
    }
}

/// The unknown token.
pub(super) fn unknown(model: &Node<'_>, table: &[Option<(String, f64)>]) -> Option<u32> {
    if let Some(id) = model.get("unk_id").value().as_u64() {
        return u32::try_from(id)
            .ok()
            .filter(|&id| (id as usize) < table.len());
    }
    let text = model.get("unk_token").str()?;
    let at = table
        .iter()
        .position(|entry| entry.as_ref().is_some_and(|(t, _)| t == text))?;
    u32::try_from(at).ok()
}

/// Builds the encoder.
pub(super) fn read(
    model: &Node<'_>,
    vocab: &Vocab,
    byte_level: bool,
    special: &mut SpecialTokens,
) -> Result<Model, TokenizerError> {
    let listed = own(model, vocab)?;
    let own = |id: u32| listed[id as usize] && vocab.kind(id) != TokenKind::Control;
    let unk = (0..vocab.len() as u32).find(|&id| vocab.kind(id) == TokenKind::Unknown);
    special.unk = special.unk.or(unk);
    match kind(model) {
        "BPE" => bpe(model, (vocab, &own), byte_level, unk),
        "WordPiece" => word_piece(model, (vocab, &own), unk),
        "Unigram" => Ok(Model::Unigram(unigram(model, (vocab, &own), unk)?)),
        "WordLevel" => Ok(Model::WordLevel { unk }),
        other => Err(model.unsupported(format!("model `{other}`"))),
    }
}

/// The vocabulary, and which of its tokens the model itself lists and may give.
type Own<'a> = (&'a Vocab, &'a dyn Fn(u32) -> bool);

/// Which tokens are the model's own; the others are only cut out of texts.
fn own(model: &Node<'_>, vocab: &Vocab) -> Result<Vec<bool>, TokenizerError> {
    let mut own = vec![false; vocab.len()];
    for (id, ..) in tokens(model)? {
        own[id as usize] = true;
    }
    Ok(own)
}

fn bpe(
    model: &Node<'_>,
    (vocab, own): Own<'_>,
    byte_level: bool,
    unk: Option<u32>,
) -> Result<Model, TokenizerError> {
    let flag = |name: &str| model.get(name).bool().unwrap_or(false);
    if model
        .get("dropout")
        .value()
        .as_f64()
        .is_some_and(|d| d > 0.0)
    {
        return Err(model.get("dropout").unsupported("random dropout"));
    }
    let affix = |name: &str| model.get(name).str().unwrap_or_default().to_owned();
    let (prefix, suffix) = (
        affix("continuing_subword_prefix"),
        affix("end_of_word_suffix"),
    );
    // A suffix is no byte, so such a vocabulary stays in the byte alphabet.
    if byte_level && !(prefix.is_empty() && suffix.is_empty()) {
        return Err(model.unsupported("a byte-level model with marks at words' ends"));
    }
    let (mut tokens, mut merges) = (Blob::default(), Blob::default());
    let mut reachable = Vec::with_capacity(vocab.len());
    for (id, text) in vocab.texts.iter() {
        let spelled = tokens.push_word(text, byte_level);
        reachable.push(spelled.is_some() && own(id));
        spelled.unwrap_or_else(|| tokens.push(b""));
    }
    for node in model.need("merges")?.need_array()? {
        let (left, right) = merge(&node)?;
        merges.push_pair(left.as_bytes(), right.as_bytes(), byte_level);
    }
    let reachable = |id: u32| reachable[id as usize];
    let parts = BpeParts {
        tokens,
        reachable: &reachable,
        merges,
        prefix_len: prefix.len(),
    };
    let mut bpe = Bpe::new(parts, |find| {
        if byte_level {
            let byte = |b| find(&[b]).or_else(|| vocab.find(to_alphabet(&[b]).as_bytes()));
            return Start::Bytes(Box::new(std::array::from_fn(|b| {
                byte(b as u8).unwrap_or(Bpe::NONE)
            })));
        }
        let bytes = if flag("byte_fallback") {
            byte_tokens(vocab)
        } else {
            Box::new([None; 256])
        };
        Start::Chars {
            bytes,
            prefix,
            suffix,
        }
    });
    if flag("ignore_merges") {
        bpe.whole = WholeWords::Kept;
    }
    bpe.unknown = match unk {
        None => Unknown::Dropped,
        Some(unk) if flag("fuse_unk") => Unknown::Fused(unk),
        Some(unk) => Unknown::Each(unk),
    };
    Ok(Model::Bpe(bpe))
}

/// A merge is a pair of texts, or in old files one text with a space between.
fn merge<'a>(node: &Node<'a>) -> Result<(&'a str, &'a str), TokenizerError> {
    let pair = match node.value() {
        Value::String(text) => text.split_once(' '),
        value => {
            let part = |i: usize| value.get(i).and_then(Value::as_str);
            part(0).zip(part(1))
        }
    };
    pair.ok_or_else(|| node.wrong("a pair of texts"))
}

fn word_piece(
    model: &Node<'_>,
    (vocab, own): Own<'_>,
    unk: Option<u32>,
) -> Result<Model, TokenizerError> {
    let prefix = model.get("continuing_subword_prefix").str().unwrap_or("##");
    let most = model.get("max_input_chars_per_word");
    let most = if most.is_null() {
        100
    } else {
        most.need_usize()?
    };
    let texts = || {
        vocab
            .texts
            .iter()
            .filter(|&(id, _)| own(id) && vocab.kind(id) != TokenKind::Unknown)
    };
    let rest = texts().filter_map(|(id, t)| Some((t.strip_prefix(prefix.as_bytes())?, id)));
    Ok(Model::WordPiece(WordPiece::new(
        texts().map(|(id, t)| (t, id)),
        rest,
        unk,
        most,
    )))
}

fn unigram(
    model: &Node<'_>,
    (vocab, own): Own<'_>,
    unk: Option<u32>,
) -> Result<Unigram, TokenizerError> {
    let fallback = model.get("byte_fallback").bool().unwrap_or(false);
    let bytes = byte_tokens(vocab);
    let all = fallback && bytes.iter().all(Option::is_some);
    let bytes = all.then(|| Box::new(bytes.map(Option::unwrap_or_default)));
    let wanted = |id| own(id) && vocab.kind(id) != TokenKind::Unknown;
    let score = |id: u32| vocab.scores[id as usize];
    let parts = UnigramParts {
        wanted: &wanted,
        score: &score,
        unk,
        bytes,
        sums: Sums::Double,
    };
    Ok(Unigram::new(vocab, parts))
}
