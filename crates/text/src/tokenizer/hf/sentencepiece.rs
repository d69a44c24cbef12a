//! SentencePiece models: a protocol buffer, read field by field.

use bstr::BString;
use tokkata_core::{Array, Metadata, Value};

use super::config::Config;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::gguf;

/// Builds the tokenizer.
pub(super) fn load(bytes: &[u8], config: &Config) -> Result<Tokenizer, TokenizerError> {
    let mut meta = ModelProto::parse(bytes)?.metadata()?;
    for (role, key) in [("bos_token", "bos_token_id"), ("eos_token", "eos_token_id")] {
        let Some(text) = config.role(role) else {
            continue;
        };
        let tokens = meta.strings("tokenizer.ggml.tokens").unwrap_or_default();
        if let Some(id) = tokens.iter().position(|t| t == text) {
            meta.insert(format!("tokenizer.ggml.{key}"), Value::U32(id as u32));
        }
    }
    for name in ["add_bos_token", "add_eos_token"] {
        meta.insert(
            format!("tokenizer.ggml.{name}"),
            Value::Bool(config.flag(name).unwrap_or(false)),
        );
    }
    gguf::load(&meta)
}

/// The parts of a model that matter; numbers are protocol buffer field numbers.
#[derive(Debug)]
struct ModelProto {
    tokens: Vec<BString>,
    scores: Vec<f32>,
    kinds: Vec<i32>,
    /// 1 Unigram, 2 BPE.
    model_type: u64,
    /// Of unknown, begin, end and padding; negative where there is none.
    ids: [i32; 4],
    charsmap: Vec<u8>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    suffix_spaces: bool,
}

impl ModelProto {
    fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut model = ModelProto {
            tokens: Vec::new(),
            scores: Vec::new(),
            kinds: Vec::new(),
            model_type: 1,
            ids: [0, 1, 2, -1],
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            suffix_spaces: false,
        };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => model.add_piece(piece)?,
                (2, Field::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Field::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        if model.tokens.is_empty() {
            return Err(bad("it holds no tokens"));
        }
        Ok(model)
    }

    fn add_piece(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        let (mut text, mut score, mut kind) = (BString::default(), 0.0, 1);
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => text = piece.into(),
                (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
                (3, Field::Number(number)) => kind = number as i32,
                _ => {}
            }
        }
        self.tokens.push(text);
        self.scores.push(score);
        self.kinds.push(kind);
        Ok(())
    }

    fn read_trainer(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields(bytes) {
            match field? {
                (3, Field::Number(model_type)) => self.model_type = model_type,
                (24, Field::Number(n)) => self.suffix_spaces = n != 0,
                (n @ 40..=43, Field::Number(id)) => self.ids[n as usize - 40] = id as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields(bytes) {
            match field? {
                (2, Field::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Field::Number(n)) => self.add_dummy_prefix = n != 0,
                (4, Field::Number(n)) => self.remove_extra_whitespaces = n != 0,
                (5, Field::Number(0)) => {
                    return Err(TokenizerError::unsupported(
                        "SentencePiece model",
                        "spaces that stay spaces",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The same as the metadata of a GGUF file.
    fn metadata(self) -> Result<Metadata, TokenizerError> {
        let kind = match self.model_type {
            1 => "t5",
            2 => "llama",
            other => {
                return Err(TokenizerError::unsupported(
                    "SentencePiece model",
                    format!("model type {other}"),
                ));
            }
        };
        if self.suffix_spaces {
            return Err(TokenizerError::unsupported(
                "SentencePiece model",
                "spaces at the end of words",
            ));
        }
        let mut meta = Metadata::default();
        let mut set = |key: &str, value: Value| {
            meta.insert(format!("tokenizer.ggml.{key}"), value);
        };
        set("model", kind.into());
        set("sentencepiece", Value::Bool(true));
        set("tokens", Value::Array(Array::Str(self.tokens)));
        set("scores", Value::Array(Array::F32(self.scores)));
        set("token_type", Value::Array(Array::I32(self.kinds)));
        set("add_space_prefix", Value::Bool(self.add_dummy_prefix));
        set(
            "remove_extra_whitespaces",
            Value::Bool(self.remove_extra_whitespaces),
        );
        if !self.charsmap.is_empty() {
            set(
                "precompiled_charsmap",
                Value::Array(Array::U8(self.charsmap)),
            );
        }
        let keys = [
            "unknown_token_id",
            "bos_token_id",
            "eos_token_id",
            "padding_token_id",
        ];
        for (key, id) in keys.into_iter().zip(self.ids) {
            if let Ok(id) = u32::try_from(id) {
                set(key, Value::U32(id));
            }
        }
        Ok(meta)
    }
}

fn bad(reason: &str) -> TokenizerError {
    TokenizerError::malformed("SentencePiece model", reason)
}

/// The value of a field.
#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    Fixed64,
}

/// The fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), TokenizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| bad("a field is cut off")))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, field))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
