//! The tokenizer of a directory as the metadata of a GGUF file.

mod pre;

use serde_json::Value as Json;
use tokkata_core::{Array, Metadata, Value};
use tokkata_formats::Directory;
use tokkata_text::tokenizer::{TokenKind, Tokenizer};

use crate::checkpoint::{Checkpoint, directory_template};
use crate::error::{Error, Result};

/// How a tokenizer works, as `tokenizer.ggml.model` names it.
#[derive(Clone, Copy, PartialEq)]
enum Model {
    /// Byte-level merges.
    Gpt2,
    /// Merges by score.
    Spm,
    WordPiece,
    Unigram,
}

/// Adds the tokenizer and the chat template of a directory; without tokenizer files it says that there is none.
pub(crate) fn describe(
    checkpoint: &Checkpoint,
    vocabulary: Option<u64>,
    out: &mut Metadata,
) -> Result<()> {
    let Some(directory) = checkpoint.file().directory() else {
        return Ok(());
    };
    let names = [
        "tokenizer.json",
        "tokenizer.model",
        "vocab.txt",
        "vocab.json",
        "spiece.model",
    ];
    if !names.iter().any(|n| directory.path().join(n).is_file()) {
        out.insert("tokenizer.ggml.model", Value::from("none"));
        return Ok(());
    }
    let tokenizer = checkpoint.tokenizer()?;
    let json = tokenizer_json(directory)?;
    let model = kind(directory, json.as_ref());
    let name = match model {
        Model::Gpt2 => "gpt2",
        Model::Spm => "llama",
        Model::WordPiece => "bert",
        Model::Unigram => "t5",
    };
    out.insert("tokenizer.ggml.model", Value::from(name));
    let cut = match model {
        Model::Gpt2 | Model::WordPiece => pre::name(tokenizer),
        Model::Spm | Model::Unigram => Some("default"),
    };
    let named = cut.is_some();
    let cut = cut.unwrap_or("default");
    let whole = json.as_ref().map(|j| &j["model"]["ignore_merges"]);
    let whole = whole.and_then(serde_json::Value::as_bool) == Some(true);
    out.insert("tokenizer.ggml.pre", Value::from(pre::named(cut, whole)));
    tokens(tokenizer, model, vocabulary, out);
    if model == Model::Gpt2 {
        let merges = merges(directory, json.as_ref())?;
        out.insert("tokenizer.ggml.merges", Value::Array(Array::Str(merges)));
    }
    roles(tokenizer, model, out);
    let lower = json
        .as_ref()
        .and_then(|j| j["normalizer"]["lowercase"].as_bool());
    if let Some(lower) = lower {
        out.insert("tokenizer.ggml.normalizer.lowercase", Value::Bool(lower));
    }
    if let Some(template) = directory_template(directory)? {
        out.insert("tokenizer.chat_template", Value::from(template.as_str()));
    }
    let alike = |again: Tokenizer| pre::ids(&again, false) == pre::ids(tokenizer, false);
    let reads = |out: &Metadata| Tokenizer::from_metadata(out).is_ok_and(alike);
    let settled = match model {
        // What puts a space before a text when it is encoded need not take it away again.
        Model::Spm if json.is_some() => settle_space(tokenizer, out, reads),
        _ => named || reads(out),
    };
    if settled {
        return Ok(());
    }
    Err(Error::Unnamed {
        file: directory.path().display().to_string(),
    })
}

/// Finds whether texts get a space before them, so that the file gives the ids that the tokenizer gives.
fn settle_space(
    tokenizer: &Tokenizer,
    out: &mut Metadata,
    reads: impl Fn(&Metadata) -> bool,
) -> bool {
    let usual = tokenizer.special().add_space_prefix;
    [usual, !usual].into_iter().any(|space| {
        out.insert("tokenizer.ggml.add_space_prefix", Value::Bool(space));
        reads(out)
    })
}

fn tokenizer_json(directory: &Directory) -> Result<Option<Json>> {
    let bytes = directory.read("tokenizer.json")?;
    Ok(bytes.and_then(|b| serde_json::from_slice(&b).ok()))
}

fn kind(directory: &Directory, json: Option<&Json>) -> Model {
    let word = json.and_then(|j| j["model"]["type"].as_str());
    let bytes = json.is_some_and(|j| !j["model"]["byte_fallback"].as_bool().unwrap_or(false));
    match word {
        Some("WordPiece") => Model::WordPiece,
        Some("Unigram") => Model::Unigram,
        Some("BPE") if bytes => Model::Gpt2,
        Some(_) => Model::Spm,
        None if directory.path().join("vocab.txt").is_file() => Model::WordPiece,
        None if directory.path().join("vocab.json").is_file() => Model::Gpt2,
        None if directory.path().join("spiece.model").is_file() => Model::Unigram,
        None => Model::Spm,
    }
}

/// Texts, scores and kinds of all tokens, filled up to the rows of the embedding.
fn tokens(tokenizer: &Tokenizer, model: Model, vocabulary: Option<u64>, out: &mut Metadata) {
    let own = tokenizer.vocab_size();
    let len = vocabulary.map_or(own, |n| n as usize).max(own);
    let (mut texts, mut scores, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..len as u32 {
        let kind = tokenizer.token_kind(id).unwrap_or(TokenKind::Unused);
        let text = match (kind, model) {
            (TokenKind::Unused, _) if tokenizer.token_text(id).is_empty() => {
                format!("[PAD{id}]").into_bytes()
            }
            (TokenKind::Normal, Model::WordPiece) => phantom(tokenizer.token_text(id)),
            _ => tokenizer.token_text(id).to_vec(),
        };
        texts.push(text.into());
        scores.push(tokenizer.token_score(id) as f32);
        kinds.push(match (kind, model) {
            // Only tokenizers with scores tell an unknown token from other special ones.
            (TokenKind::Unknown, Model::Gpt2 | Model::WordPiece) => number(TokenKind::Control),
            _ => number(kind),
        });
    }
    out.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(texts)));
    if matches!(model, Model::Spm | Model::Unigram) {
        out.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    }
    out.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
}

/// A word begins with a mark, and what goes on with one has none.
fn phantom(text: &[u8]) -> Vec<u8> {
    match text.strip_prefix(b"##") {
        Some(rest) => rest.to_vec(),
        None => ["\u{2581}".as_bytes(), text].concat(),
    }
}

fn number(kind: TokenKind) -> i32 {
    match kind {
        TokenKind::Normal => 1,
        TokenKind::Unknown => 2,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => 5,
        TokenKind::Byte => 6,
    }
}

/// Merges as `left right`; a space inside a part is written as the byte-level alphabet does.
fn merges(directory: &Directory, json: Option<&Json>) -> Result<Vec<bstr::BString>> {
    let part = |v: &Json| v.as_str().unwrap_or_default().replace(' ', "\u{120}");
    let entry = |v: &Json| match v.as_array() {
        Some(pair) => pair.iter().map(part).collect::<Vec<_>>().join(" "),
        None => v.as_str().unwrap_or_default().to_owned(),
    };
    if let Some(list) = json.and_then(|j| j["model"]["merges"].as_array()) {
        return Ok(list.iter().map(|v| entry(v).into()).collect());
    }
    let text = directory.read("merges.txt")?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with("#version"));
    Ok(lines.map(Into::into).collect())
}

fn roles(tokenizer: &Tokenizer, model: Model, out: &mut Metadata) {
    let special = tokenizer.special();
    let bos = special
        .bos
        .or(special.cls.filter(|_| model == Model::WordPiece));
    let eos = special
        .eos
        .or(special.sep.filter(|_| model == Model::WordPiece));
    let ids = [
        ("bos", bos),
        ("eos", eos),
        ("unknown", special.unk),
        ("seperator", special.sep),
        ("padding", special.pad),
        ("mask", special.mask),
    ];
    for (role, id) in ids {
        if let Some(id) = id {
            out.insert(format!("tokenizer.ggml.{role}_token_id"), Value::U32(id));
        }
    }
    let word_piece = model == Model::WordPiece;
    let (first, last) = (special.add_bos || word_piece, special.add_eos || word_piece);
    out.insert("tokenizer.ggml.add_bos_token", Value::Bool(first));
    if last {
        out.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    }
    if word_piece {
        let separate = Value::Bool(special.add_sep);
        out.insert("tokenizer.ggml.add_sep_token", separate);
    }
    if model == Model::Spm {
        let space = Value::Bool(special.add_space_prefix);
        out.insert("tokenizer.ggml.add_space_prefix", space);
    }
}
