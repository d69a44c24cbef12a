//! Grammars that a reply must follow: JSON Schema, regular expressions, GBNF and Lark.
//!
//! A [`Grammar`] is compiled once per (source, [`TokenTrie`]); each sequence walks it with its own [`GrammarState`],
//! which says which tokens may come next ([`GrammarState::mask`]), which ones must ([`GrammarState::forced`]) and can
//! be rolled back after speculation. A [`Trigger`] lets text run freely until a literal appears.
//!
//! The Earley parser and the lexer are `llguidance`'s. Ours are the token trie built from plain bytes, the refusal of
//! JSON-Schema keywords by name, the translation of GBNF, and triggers.
//!
//! ```
//! use tokkata_text::grammar::{Grammar, GrammarSource, TokenTrie, Vocabulary};
//! let tokens = (0..=255).map(|byte| vec![byte]).chain([b"<end>".to_vec()]).collect();
//! let trie = TokenTrie::new(Vocabulary { tokens, special: vec![256], eos: vec![256] })?;
//! let grammar = Grammar::compile(GrammarSource::Regex("ab+".into()), &trie)?;
//! let mut state = grammar.start();
//! let mut mask = vec![0; trie.mask_len()];
//! state.mask(&mut mask)?;
//! assert_eq!(mask[3], 1 << (b'a' - 96));
//! state.accept(u32::from(b'a'))?;
//! state.accept(u32::from(b'b'))?;
//! assert!(state.is_accepting());
//! # Ok::<(), tokkata_text::grammar::GrammarError>(())
//! ```

mod gbnf;
pub(crate) mod quoted;
pub(crate) mod schema;
mod state;
mod trie;
mod trigger;

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use thiserror::Error;

pub use state::GrammarState;
pub use trie::{Encoder, TokenTrie, Vocabulary};

use trigger::Watch;

/// What a grammar is written in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GrammarSource {
    /// A JSON Schema; `true` allows any JSON value.
    JsonSchema(serde_json::Value),
    /// A regular expression that the whole reply must match (Rust syntax, no look-around).
    Regex(String),
    /// llama.cpp's GBNF, starting at the rule `root`.
    Gbnf(String),
    /// llguidance's dialect of Lark, starting at the rule `start`.
    Lark(String),
}

/// When a grammar begins to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// From the first token on.
    #[default]
    Now,
    /// Once this text has appeared, as after `</think>`.
    Once(Vec<u8>),
    /// Each time this text appears, as at a tool-call marker; what follows a match is free again.
    Each(Vec<u8>),
    /// The same, from the first appearance of another text on, such as the one that closes the reasoning.
    EachAfter {
        /// The other text.
        first: Vec<u8>,
        /// The text.
        text: Vec<u8>,
    },
}

impl Trigger {
    /// The texts that it waits for.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let texts: [&[u8]; 2] = match self {
            Trigger::Now => [&[], &[]],
            Trigger::Once(text) | Trigger::Each(text) => [text, &[]],
            Trigger::EachAfter { first, text } => [first, text],
        };
        texts.into_iter().filter(|text| !text.is_empty())
    }
}

/// Why a grammar could not be compiled or followed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarError {
    /// A JSON-Schema keyword that cannot be enforced.
    #[error("the schema keyword `{keyword}` at {at} is not supported")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// A JSON pointer to the schema that has it.
        at: String,
    },
    /// A GBNF syntax error.
    #[error("GBNF line {line}: {message}")]
    Gbnf {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The grammar is refused as a whole.
    #[error("the grammar is refused: {0}")]
    Refused(String),
    /// The vocabulary cannot be used.
    #[error("the vocabulary cannot be used for grammars: {0}")]
    Vocabulary(&'static str),
    /// A token that the grammar does not allow here.
    #[error("token {0} does not follow the grammar")]
    Token(u32),
    /// The parser gave up, for instance because the grammar is too ambiguous.
    #[error("the grammar cannot go on: {0}")]
    Parser(String),
    /// More tokens are to be rolled back than were accepted.
    #[error("cannot roll back {asked} tokens of {accepted}")]
    Rollback {
        /// How many were asked for.
        asked: usize,
        /// How many were accepted.
        accepted: usize,
    },
}

/// A compiled grammar; cloning it is cheap.
#[derive(Clone)]
pub struct Grammar {
    fresh: Matcher,
    trie: TokenTrie,
    watch: Option<Arc<Watch>>,
    /// What must appear before anything is watched for.
    first: Option<Arc<Watch>>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

impl Grammar {
    /// Compiles a grammar that applies from the first token on.
    ///
    /// # Errors
    /// A keyword, construct or size that is not supported, by name.
    pub fn compile(source: GrammarSource, trie: &TokenTrie) -> Result<Self, GrammarError> {
        Self::compile_with(source, Trigger::Now, trie)
    }

    /// Compiles a grammar that applies once its trigger has been seen.
    ///
    /// # Errors
    /// As [`Grammar::compile`]; an empty trigger text is refused.
    pub fn compile_with(
        source: GrammarSource,
        trigger: Trigger,
        trie: &TokenTrie,
    ) -> Result<Self, GrammarError> {
        let parser = trie.factory().create_parser(lower(source)?);
        let parser = parser.map_err(|error| GrammarError::Refused(first_line(&error)))?;
        let fresh = Matcher::new(Ok(parser));
        if let Some(error) = fresh.get_error() {
            return Err(GrammarError::Refused(error));
        }
        let watch = |text, again| Ok(Some(Arc::new(Watch::new(text, again, trie)?)));
        let (first, watch) = match trigger {
            Trigger::Now => (None, None),
            Trigger::Once(text) => (None, watch(text, false)?),
            Trigger::Each(text) => (None, watch(text, true)?),
            Trigger::EachAfter { first, text } => (watch(first, false)?, watch(text, true)?),
        };
        Ok(Grammar {
            fresh,
            trie: trie.clone(),
            watch,
            first,
        })
    }

    /// How many words its masks have.
    pub fn mask_len(&self) -> usize {
        self.trie.mask_len()
    }

    /// A walk from the beginning.
    pub fn start(&self) -> GrammarState {
        GrammarState::new(self.clone())
    }
}

fn lower(source: GrammarSource) -> Result<TopLevelGrammar, GrammarError> {
    let grammar = match source {
        GrammarSource::JsonSchema(schema) => {
            GrammarWithLexer::from_json_schema(schema::prepare(schema)?)
        }
        GrammarSource::Regex(regex) => GrammarWithLexer::from_regex(&regex),
        GrammarSource::Gbnf(source) => GrammarWithLexer::from_lark(gbnf::to_lark(&source)?),
        GrammarSource::Lark(source) => GrammarWithLexer::from_lark(source),
    };
    Ok(TopLevelGrammar::from_grammar(grammar))
}

/// The first line of an error, and the reason where a later line gives one: the rest repeats the grammar.
fn first_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.trim().strip_prefix("error: ")) {
        Some(reason) => format!("{first} {reason}"),
        None => first.to_owned(),
    }
}
