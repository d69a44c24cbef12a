//! Building a tokenizer from the files that Hugging Face repositories carry.

mod config;
mod decoders;
mod ends;
mod json;
mod legacy;
mod model;
mod normalizers;
mod pre_tokenizers;
mod sentencepiece;
mod tiktoken;

use std::path::Path;

use serde_json::Value;

use super::added::{Added, AddedTokens, Overlap};
use super::error::TokenizerError;
use super::special::SpecialTokens;
use super::vocab::{Blob, TokenKind, Vocab};
use super::{Second, Tokenizer};
use config::Config;
use json::Node;

/// The bytes of a repository's tokenizer files; what a repository lacks stays `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HfFiles {
    /// `tokenizer.json`: everything, in the format of the `tokenizers` library.
    pub tokenizer_json: Option<Vec<u8>>,
    /// `tokenizer_config.json`: roles of special tokens and a few switches.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `special_tokens_map.json`: roles of special tokens.
    pub special_tokens_map: Option<Vec<u8>>,
    /// `generation_config.json`: tokens that end a generation.
    pub generation_config: Option<Vec<u8>>,
    /// `tokenizer.model`: a SentencePiece model, or ranks as in [`HfFiles::tiktoken`].
    pub tokenizer_model: Option<Vec<u8>>,
    /// `vocab.txt`: WordPiece tokens, one a line.
    pub vocab_txt: Option<Vec<u8>>,
    /// `vocab.json`: byte-level tokens and their ids.
    pub vocab_json: Option<Vec<u8>>,
    /// `merges.txt`: merges of these tokens, one a line.
    pub merges_txt: Option<Vec<u8>>,
    /// `*.tiktoken` or `tiktoken.model`: base64 tokens and their ranks.
    pub tiktoken: Option<Vec<u8>>,
}

impl HfFiles {
    /// Reads what there is in `folder`.
    ///
    /// # Errors
    /// When the folder or a file in it cannot be read.
    pub fn read(folder: &Path) -> std::io::Result<Self> {
        let mut files = HfFiles::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(slot) = files.slot(&name) {
                *slot = Some(std::fs::read(&path)?);
            }
        }
        Ok(files)
    }

    fn slot(&mut self, name: &str) -> Option<&mut Option<Vec<u8>>> {
        Some(match name {
            "tokenizer.json" => &mut self.tokenizer_json,
            "tokenizer_config.json" => &mut self.tokenizer_config,
            "special_tokens_map.json" => &mut self.special_tokens_map,
            "generation_config.json" => &mut self.generation_config,
            "tokenizer.model" | "spiece.model" | "sentencepiece.bpe.model" => {
                &mut self.tokenizer_model
            }
            "vocab.txt" => &mut self.vocab_txt,
            "vocab.json" => &mut self.vocab_json,
            "merges.txt" => &mut self.merges_txt,
            "tiktoken.model" => &mut self.tiktoken,
            name if name.ends_with(".tiktoken") => &mut self.tiktoken,
            _ => return None,
        })
    }
}

/// Builds the tokenizer from the file that says most.
pub(super) fn load(files: &HfFiles) -> Result<Tokenizer, TokenizerError> {
    let config = Config::parse(files)?;
    if let Some(bytes) = &files.tokenizer_json {
        return from_json(&json::parse("tokenizer.json", bytes)?, &config);
    }
    if let Some(bytes) = files.tiktoken.as_ref().or(files.tokenizer_model.as_ref()) {
        if tiktoken::looks_like(bytes) {
            return tiktoken::load(bytes, &config);
        }
        return sentencepiece::load(bytes, &config);
    }
    if let (Some(vocab), Some(merges)) = (&files.vocab_json, &files.merges_txt) {
        return from_json(&legacy::byte_level(vocab, merges)?, &config);
    }
    match &files.vocab_txt {
        Some(bytes) => from_json(&legacy::word_piece(bytes, &config)?, &config),
        None => Err(TokenizerError::NoTokenizer {
            model: "absent".into(),
        }),
    }
}

fn from_json(root: &Value, config: &Config) -> Result<Tokenizer, TokenizerError> {
    let root = Node::root("tokenizer.json", root);
    let added = read_added(&root)?;
    let normalizers = normalizers::read(&root.get("normalizer"))?;
    let pre = pre_tokenizers::read(&root.get("pre_tokenizer"))?;
    let model = root.need("model")?;
    let mut vocab = read_vocab(&model, &added, config)?;
    let byte_level = pre.byte_level || normalizers::is_byte_level(&normalizers);
    let mut special = config.roles(&vocab);
    special.detect(&mut vocab);
    let ends_generation = config.ends_generation(&special, &mut vocab);
    let decoder = decoders::read(&root.get("decoder"))?;
    vocab.pieces = decoder.pieces(&vocab);
    special.add_space_prefix = decoder.strips_first_space;
    let trim = decoder.trim();
    let ends = match root.get("post_processor") {
        node if node.is_null() => config.ends(&special),
        node => ends::read(&node, &vocab)?,
    };
    special.add_bos = special
        .bos
        .is_some_and(|bos| ends.before.first() == Some(&bos));
    special.add_eos = special
        .eos
        .is_some_and(|eos| ends.after.last() == Some(&eos));
    let model = model::read(&model, &vocab, byte_level, &mut special)?;
    let (first, second): (Vec<_>, Vec<_>) = added.into_iter().partition(|a| !a.normalized);
    let matcher =
        |tokens: Vec<Added>| AddedTokens::new(tokens, Overlap::Leftmost, char::is_whitespace);
    let second = normalized(second, &normalizers);
    let second = (!second.is_empty()).then(|| Second {
        added: matcher(second),
    });
    let first = matcher(first.into_iter().map(|a| a.token).collect());
    Ok(Tokenizer {
        vocab,
        added: first,
        second,
        trim,
        special,
        ends_generation,
        normalizers: normalizers::without_byte_level(normalizers),
        steps: pre.steps,
        model,
        ends,
    })
}

/// A token cut out of the text, before or after the text is normalised.
struct AddedEntry {
    token: Added,
    normalized: bool,
    special: bool,
}

fn read_added(root: &Node<'_>) -> Result<Vec<AddedEntry>, TokenizerError> {
    let Some(list) = root.get("added_tokens").array() else {
        return Ok(Vec::new());
    };
    list.iter()
        .map(|node| {
            let flag = |name: &str| node.get(name).bool().unwrap_or(false);
            let text = node.need("content")?.need_str()?.to_owned();
            let id = node.need("id")?.need_u32()?;
            let special = flag("special");
            let mut token = Added::plain(id, text.as_bytes(), special);
            token.lstrip = flag("lstrip");
            token.rstrip = flag("rstrip");
            token.single_word = flag("single_word");
            Ok(AddedEntry {
                token,
                normalized: flag("normalized"),
                special,
            })
        })
        .collect()
}

/// Tokens that are looked for in normalised text are normalised themselves.
fn normalized(
    entries: Vec<AddedEntry>,
    normalizers: &[super::normalize::Normalizer],
) -> Vec<Added> {
    entries
        .into_iter()
        .map(|mut entry| {
            let text = String::from_utf8_lossy(&entry.token.text).into_owned();
            let text = super::normalize_all(normalizers, &text, super::normalize::Before::Start);
            entry.token.text = text.into_owned().into_bytes();
            entry.token
        })
        .collect()
}

/// All tokens in order of id: the model's, then the added ones.
fn read_vocab(
    model: &Node<'_>,
    added: &[AddedEntry],
    config: &Config,
) -> Result<Vocab, TokenizerError> {
    let mut tokens: Vec<(u32, String, f64)> = model::tokens(model)?;
    let byte_fallback = model.get("byte_fallback").bool().unwrap_or(false);
    tokens.extend(added.iter().map(|a| {
        (
            a.token.id,
            String::from_utf8_lossy(&a.token.text).into_owned(),
            0.0,
        )
    }));
    let n = tokens.iter().map(|t| t.0 as usize + 1).max().unwrap_or(0);
    if n > tokens.len().saturating_mul(4).saturating_add(1 << 16) {
        return Err(TokenizerError::malformed(
            "tokenizer.json",
            format!("a token has id {}", n - 1),
        ));
    }
    let mut table: Vec<Option<(String, f64)>> = vec![None; n];
    for (id, text, score) in tokens {
        table[id as usize].get_or_insert((text, score));
    }
    let unk = model::unknown(model, &table);
    let mut texts = Blob::default();
    let (mut kinds, mut scores) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for entry in &table {
        let (text, score) = entry.as_ref().map_or(("", 0.0), |(t, s)| (t.as_str(), *s));
        texts.push(text.as_bytes());
        scores.push(score);
        kinds.push(match entry {
            None => TokenKind::Unused,
            Some(_) if byte_fallback && super::vocab::byte_of(text.as_bytes()).is_some() => {
                TokenKind::Byte
            }
            Some(_) => TokenKind::Normal,
        });
    }
    for entry in added {
        let special = entry.special || config.is_role(&entry.token.text);
        kinds[entry.token.id as usize] = if special {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
    }
    if let Some(unk) = unk {
        kinds[unk as usize] = TokenKind::Unknown;
    }
    Ok(Vocab::new(texts, kinds, scores))
}

/// The roles that stand for nothing the files say.
fn no_roles() -> SpecialTokens {
    SpecialTokens::default()
}
