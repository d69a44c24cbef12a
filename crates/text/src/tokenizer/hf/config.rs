//! `tokenizer_config.json` and its neighbours: roles of special tokens.

use serde_json::Value;

use super::{HfFiles, json};
use crate::tokenizer::Ends;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::special::SpecialTokens;
use crate::tokenizer::vocab::Vocab;

/// What the small files say.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    tokenizer: Value,
    map: Value,
    generation: Value,
}

impl Config {
    pub(super) fn parse(files: &HfFiles) -> Result<Self, TokenizerError> {
        let read = |name: &str, bytes: &Option<Vec<u8>>| match bytes {
            None => Ok(Value::Null),
            Some(bytes) => json::parse(name, bytes),
        };
        Ok(Config {
            tokenizer: read("tokenizer_config.json", &files.tokenizer_config)?,
            map: read("special_tokens_map.json", &files.special_tokens_map)?,
            generation: read("generation_config.json", &files.generation_config)?,
        })
    }

    /// A switch of `tokenizer_config.json`.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.tokenizer.get(name)?.as_bool()
    }

    /// The text of the token with role `name`.
    pub(super) fn role(&self, name: &str) -> Option<&str> {
        [&self.tokenizer, &self.map].into_iter().find_map(|file| {
            let entry = file.get(name)?;
            entry.as_str().or_else(|| entry.get("content")?.as_str())
        })
    }

    /// Whether `text` has a role.
    pub(super) fn is_role(&self, text: &[u8]) -> bool {
        ROLES
            .iter()
            .any(|(name, _)| self.role(name).is_some_and(|role| role.as_bytes() == text))
    }

    /// The tokens that `added_tokens_decoder` lists, as (id, text, special).
    pub(super) fn added_tokens(&self) -> Vec<(u32, &str, bool)> {
        let Some(Value::Object(map)) = self.tokenizer.get("added_tokens_decoder") else {
            return Vec::new();
        };
        map.iter()
            .filter_map(|(id, token)| {
                let special = token
                    .get("special")
                    .and_then(Value::as_bool)
                    .unwrap_or(true);
                Some((id.parse().ok()?, token.get("content")?.as_str()?, special))
            })
            .collect()
    }

    /// The roles of tokens.
    pub(super) fn roles(&self, vocab: &Vocab) -> SpecialTokens {
        let mut special = super::no_roles();
        for (name, slot) in ROLES {
            *slot(&mut special) = self.role(name).and_then(|text| vocab.find(text.as_bytes()));
        }
        special
    }

    /// What stands around a text when no post-processor says so.
    pub(super) fn ends(&self, special: &SpecialTokens) -> Ends {
        let wanted = |name: &str, id: Option<u32>| id.filter(|_| self.flag(name) == Some(true));
        Ends {
            before: wanted("add_bos_token", special.bos).into_iter().collect(),
            after: wanted("add_eos_token", special.eos).into_iter().collect(),
        }
    }

    /// The tokens that end a generation.
    pub(super) fn ends_generation(&self, special: &SpecialTokens, vocab: &mut Vocab) -> Vec<u32> {
        let mut ends = special.ends(vocab);
        let listed = match self.generation.get("eos_token_id") {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
            Some(value) => value.as_u64().into_iter().collect::<Vec<_>>(),
            None => Vec::new(),
        };
        let in_range = |id: u64| {
            u32::try_from(id)
                .ok()
                .filter(|&id| (id as usize) < vocab.len())
        };
        ends.extend(listed.into_iter().filter_map(in_range));
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

type Slot = fn(&mut SpecialTokens) -> &mut Option<u32>;

const ROLES: &[(&str, Slot)] = &[
    ("bos_token", |s| &mut s.bos),
    ("eos_token", |s| &mut s.eos),
    ("unk_token", |s| &mut s.unk),
    ("sep_token", |s| &mut s.sep),
    ("pad_token", |s| &mut s.pad),
    ("cls_token", |s| &mut s.cls),
    ("mask_token", |s| &mut s.mask),
];
