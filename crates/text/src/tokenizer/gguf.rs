//! Building a tokenizer from the metadata of a GGUF file.

mod encoder;

use bstr::{BString, ByteSlice};
use tokkata_core::{Array, Metadata};

use super::added::{Added, AddedTokens, Overlap};
use super::bytes::from_alphabet;
use super::error::TokenizerError;
use super::pre::{self, Flags, Pre};
use super::rwkv::unescape;
use super::special::{KEYS, SpecialTokens};
use super::vocab::{Blob, TokenKind, Vocab, byte_of};
use super::{Ends, Tokenizer, Trim};
use encoder::Parts;

pub(super) use encoder::bert_steps;

const PREFIX: &str = "tokenizer.ggml.";
const KNOWN: &str = "gpt2, gemma4, llama, bert, t5, rwkv, plamo2, whitespace";

/// Reads all of `tokenizer.ggml.*`.
pub(super) fn load(meta: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let model = meta.get("tokenizer.ggml.model").and_then(|v| v.as_bytes());
    let kind = match model.map(|m| m.as_bytes()) {
        None | Some(b"none" | b"no_vocab" | b"test") => {
            let model = model.map_or_else(|| "absent".into(), ToOwned::to_owned);
            return Err(TokenizerError::NoTokenizer { model });
        }
        Some(name) => Kind::find(name).ok_or_else(|| TokenizerError::UnknownModel {
            model: name.into(),
            known: KNOWN,
        })?,
    };
    let mut vocab = read_vocab(meta)?;
    let pre = if kind.is_bpe() {
        Some(read_pre(meta, kind)?)
    } else {
        None
    };
    let flags = pre.as_ref().map_or_else(Flags::default, |p| p.flags);
    let mut special = kind.defaults(flags);
    read_roles(meta, &vocab, &mut special);
    read_switches(meta, flags, &mut special)?;
    special.detect(&mut vocab);
    let ends_generation = special.ends(&mut vocab);
    vocab.pieces = pieces(&vocab, kind, flags);
    let added = read_added(meta, &vocab);
    let parts = Parts {
        meta,
        vocab: &vocab,
        special: &special,
        kind,
    };
    let (normalizers, steps, model) = parts.pipeline(pre)?;
    let ends = kind.ends(&special);
    let trim = trim(meta, &special)?;
    Ok(Tokenizer {
        vocab,
        added,
        second: None,
        trim,
        special,
        ends_generation,
        normalizers,
        steps,
        model,
        ends,
    })
}

/// The kinds of vocabularies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bpe,
    Gemma4,
    Spm,
    WordPiece,
    Unigram,
    Rwkv,
    Plamo,
}

impl Kind {
    fn find(name: &[u8]) -> Option<Kind> {
        Some(match name {
            b"gpt2" | b"whitespace" => Kind::Bpe,
            b"gemma4" => Kind::Gemma4,
            b"llama" => Kind::Spm,
            b"bert" => Kind::WordPiece,
            b"t5" => Kind::Unigram,
            b"rwkv" => Kind::Rwkv,
            b"plamo2" => Kind::Plamo,
            _ => return None,
        })
    }

    fn is_bpe(self) -> bool {
        matches!(self, Kind::Bpe | Kind::Gemma4)
    }

    /// The roles that the first file of each kind had, which later files take for granted.
    fn defaults(self, flags: Flags) -> SpecialTokens {
        let none = SpecialTokens::default();
        match self {
            Kind::Bpe => SpecialTokens {
                bos: (!flags.no_default_bos).then_some(11),
                eos: Some(11),
                add_bos: flags.add_bos,
                add_sep: flags.add_sep,
                ..none
            },
            Kind::Gemma4 | Kind::Rwkv => none,
            Kind::Spm => SpecialTokens {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                add_bos: true,
                add_space_prefix: true,
                ..none
            },
            Kind::Plamo => SpecialTokens {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                pad: Some(3),
                ..none
            },
            Kind::WordPiece => SpecialTokens {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                add_bos: true,
                add_sep: true,
                ..none
            },
            Kind::Unigram => SpecialTokens {
                eos: Some(1),
                unk: Some(2),
                pad: Some(0),
                add_eos: true,
                ..none
            },
        }
    }

    /// What stands around a text.
    fn ends(self, special: &SpecialTokens) -> Ends {
        match self {
            Kind::Rwkv | Kind::Plamo => Ends::default(),
            Kind::WordPiece => Ends {
                before: special.bos.or(special.cls).into_iter().collect(),
                after: special.sep.into_iter().collect(),
            },
            _ => Ends {
                before: special
                    .bos
                    .filter(|_| special.add_bos)
                    .into_iter()
                    .collect(),
                after: special
                    .eos
                    .filter(|_| special.add_eos)
                    .into_iter()
                    .collect(),
            },
        }
    }
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn read_vocab(meta: &Metadata) -> Result<Vocab, TokenizerError> {
    let texts = strings(meta, "tokens")?;
    let n = texts.len();
    let scores = match list(meta, "scores")? {
        None => vec![0.0; n],
        Some(Array::F32(scores)) => scores.iter().map(|&s| s.into()).collect(),
        Some(Array::I32(scores)) => scores.iter().map(|&s| s.into()).collect(),
        Some(_) => return Err(wrong_type("scores", "an array of numbers")),
    };
    let kinds = match list(meta, "token_type")? {
        None => vec![TokenKind::Normal; n],
        Some(Array::I32(kinds)) => kinds.iter().map(|&k| kind_of(k)).collect(),
        Some(Array::U32(kinds)) => kinds.iter().map(|&k| kind_of(k as i32)).collect(),
        Some(_) => return Err(wrong_type("token_type", "an array of integers")),
    };
    for (name, found) in [("scores", scores.len()), ("token_type", kinds.len())] {
        if found < n {
            return Err(TokenizerError::Length {
                key: key(name),
                expected: n,
                found,
            });
        }
    }
    let mut blob = Blob::default();
    texts.iter().for_each(|text| blob.push(text));
    Ok(Vocab::new(blob, kinds, scores))
}

fn list<'a>(meta: &'a Metadata, name: &str) -> Result<Option<&'a Array>, TokenizerError> {
    match meta.get(&key(name)) {
        None => Ok(None),
        Some(value) => value
            .as_array()
            .map(Some)
            .ok_or_else(|| wrong_type(name, "an array of numbers")),
    }
}

fn strings<'a>(meta: &'a Metadata, name: &str) -> Result<&'a [BString], TokenizerError> {
    match meta.get(&key(name)) {
        None => Err(TokenizerError::Missing { key: key(name) }),
        Some(_) => meta
            .strings(&key(name))
            .ok_or_else(|| wrong_type(name, "an array of strings")),
    }
}

fn wrong_type(name: &str, expected: &'static str) -> TokenizerError {
    TokenizerError::WrongType {
        key: key(name),
        expected,
    }
}

/// The numbers that SentencePiece's file format gives the kinds.
fn kind_of(number: i32) -> TokenKind {
    match number {
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => TokenKind::Normal,
    }
}

fn read_pre(meta: &Metadata, kind: Kind) -> Result<Pre, TokenizerError> {
    let name = match meta.get(&key("pre")) {
        _ if kind == Kind::Gemma4 => b"gemma4".into(),
        None => b"default".as_bstr(),
        Some(value) => value
            .as_bytes()
            .ok_or_else(|| wrong_type("pre", "a string"))?,
    };
    let known = name.to_str().ok().and_then(pre::find);
    known.ok_or_else(|| TokenizerError::UnknownPre {
        pre: name.to_owned(),
    })
}

fn read_roles(meta: &Metadata, vocab: &Vocab, special: &mut SpecialTokens) {
    let in_range = |id: u64| {
        u32::try_from(id)
            .ok()
            .filter(|&id| (id as usize) < vocab.len())
    };
    for (name, role) in KEYS {
        let slot = role(special);
        *slot = slot.filter(|&id| (id as usize) < vocab.len());
        if let Some(id) = meta.uint(&key(name)).and_then(in_range) {
            *slot = Some(id);
        }
    }
}

fn read_switches(
    meta: &Metadata,
    flags: Flags,
    special: &mut SpecialTokens,
) -> Result<(), TokenizerError> {
    let switches: [(&str, &mut bool); 4] = [
        ("add_bos_token", &mut special.add_bos),
        ("add_eos_token", &mut special.add_eos),
        ("add_sep_token", &mut special.add_sep),
        ("add_space_prefix", &mut special.add_space_prefix),
    ];
    for (name, switch) in switches {
        if let Some(value) = flag(meta, name)? {
            *switch = value;
        }
    }
    special.add_bos |= flags.force_bos;
    Ok(())
}

fn flag(meta: &Metadata, name: &str) -> Result<Option<bool>, TokenizerError> {
    match meta.get(&key(name)) {
        None => Ok(None),
        Some(value) => value
            .as_bool()
            .map(Some)
            .ok_or_else(|| wrong_type(name, "true or false")),
    }
}

/// What of a text's ends the encoder has put there.
fn trim(meta: &Metadata, special: &SpecialTokens) -> Result<Trim, TokenizerError> {
    let merged = flag(meta, "sentencepiece")? == Some(true)
        && flag(meta, "remove_extra_whitespaces")? == Some(true);
    let leading = if merged {
        usize::MAX
    } else {
        usize::from(special.add_space_prefix)
    };
    Ok(Trim {
        leading,
        trailing: 0,
    })
}

/// The bytes each token adds to an output.
fn pieces(vocab: &Vocab, kind: Kind, flags: Flags) -> Blob {
    let mut pieces = Blob::default();
    let spaces = |text: &[u8]| text.replace("▁", " ");
    for (id, text) in vocab.texts.iter() {
        let piece = match (vocab.kind(id), kind) {
            (_, Kind::Rwkv) => unescape(text),
            (TokenKind::Unused, _) => Vec::new(),
            (TokenKind::Byte, _) => byte_of(text).map_or_else(|| text.to_vec(), |b| vec![b]),
            (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => text.to_vec(),
            (TokenKind::Normal, Kind::Bpe) if flags.dropped_spaces => text.to_vec(),
            (TokenKind::Normal, Kind::Bpe) if !flags.characters => {
                from_alphabet(text).unwrap_or_else(|| text.to_vec())
            }
            (TokenKind::Normal, Kind::Plamo) => text.to_vec(),
            (TokenKind::Normal, _) => spaces(text),
        };
        pieces.push(&piece);
    }
    pieces
}

/// Tokens that are cut out of a text. The format has no place for their strip rules, so they follow
/// from what else the file says, as in the reference implementation.
fn read_added(meta: &Metadata, vocab: &Vocab) -> AddedTokens {
    let mut tokens = Vec::new();
    for (id, text) in vocab.texts.iter() {
        let special = match vocab.kind(id) {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            _ => continue,
        };
        tokens.push(Added::plain(id, text, special));
    }
    set_strips(meta, &mut tokens);
    AddedTokens::new(tokens, Overlap::Longest, |c| matches!(c, ' ' | '\t'..='\r'))
}

fn set_strips(meta: &Metadata, tokens: &mut [Added]) {
    let pre = meta.str("tokenizer.ggml.pre").unwrap_or_default();
    let name = meta.str("general.name").unwrap_or_default().to_lowercase();
    let strips_mask = ["jina-v2-de", "jina-v2-es", "jina-v2-code"]
        .iter()
        .any(|p| pre.contains(p));
    let keeps_space: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    for token in tokens {
        token.lstrip = (strips_mask && token.text == b"<mask>")
            || (name.contains("modern-bert") && token.text == b"[MASK]");
        token.rstrip = phi3 && !keeps_space.contains(&&token.text[..]);
    }
}
