//! Answers that follow a grammar.
//!
//! ```no_run
//! use tokkata::grammar::{GrammarSource, Trigger};
//! # fn main() -> tokkata::Result<()> {
//! let mut model = tokkata::Model::open("model.gguf", &tokkata::OpenOptions::default())?;
//! let ids = model.tokenize("The year:", tokkata::EncodeOptions::default())?;
//! let mut request = model.request(ids)?;
//! let grammar = model.checkpoint().grammar(GrammarSource::Regex("[0-9]{4}".into()), Trigger::Now)?;
//! tokkata::grammar::constrain(&mut request, &grammar)?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use tokkata_text::grammar::{Grammar, GrammarError, GrammarSource, GrammarState, Trigger};

use tokkata_engine::{Constraint, Request};
use tokkata_text::grammar::{Encoder, TokenTrie, Vocabulary};
use tokkata_text::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// A character that no token joins with others.
const BORDER: u8 = 2;

impl Checkpoint {
    /// Compiles a grammar for this file's vocabulary.
    ///
    /// # Errors
    /// A file without a tokenizer or without a token that ends an answer; a grammar that cannot be followed.
    pub fn grammar(&self, source: GrammarSource, trigger: Trigger) -> Result<Grammar> {
        let trie = token_trie(self.tokenizer()?, &trigger)?;
        Ok(Grammar::compile_with(source, trigger, &trie)?)
    }
}

/// Makes the answer to a request follow a grammar from its first token on.
///
/// # Errors
/// A grammar that cannot begin.
pub fn constrain(request: &mut Request, grammar: &Grammar) -> Result<()> {
    let words = grammar.mask_len();
    let mut walk = Walk {
        state: grammar.start(),
        mask: vec![0; words],
    };
    walk.state.mask(&mut walk.mask)?;
    request.constraint = Some(Box::new(walk));
    Ok(())
}

/// One answer on its way through a grammar.
struct Walk {
    state: GrammarState,
    /// What may come next.
    mask: Vec<u32>,
}

impl Constraint for Walk {
    fn mask(&mut self) -> Option<Vec<u32>> {
        Some(self.mask.clone())
    }

    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> std::result::Result<(), String> {
        let text = |error: GrammarError| error.to_string();
        self.state.accept(token).map_err(text)?;
        for token in self.state.forced() {
            // The tokenizer may write what is forced in tokens that reach further than it.
            if self.state.accept(token).is_err() {
                break;
            }
            forced.push(token);
        }
        self.state.mask(&mut self.mask).map_err(text)
    }
}

/// The vocabulary as grammars see it. Special tokens that a trigger is made of count as text.
fn token_trie(tokenizer: &Arc<Tokenizer>, trigger: &Trigger) -> Result<TokenTrie> {
    let marker: &[u8] = match trigger {
        Trigger::Once(text) | Trigger::Each(text) => text,
        Trigger::Now => &[],
    };
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let in_marker = |id: u32| {
        let bytes = tokenizer.token_bytes(id);
        !bytes.is_empty() && marker.windows(bytes.len()).any(|part| part == bytes)
    };
    let special = |id: &u32| tokenizer.is_special(*id) && !in_marker(*id);
    let bytes = |id| match tokenizer.token_kind(id) {
        Some(TokenKind::Unused) | None => Vec::new(),
        Some(_) => tokenizer.token_bytes(id).to_vec(),
    };
    let vocabulary = Vocabulary {
        tokens: ids.clone().map(bytes).collect(),
        special: ids.filter(special).collect(),
        eos: tokenizer.eog().to_vec(),
    };
    let tokenizer = tokenizer.clone();
    let encoder: Encoder = Arc::new(move |text| encode(&tokenizer, text));
    Ok(TokenTrie::with_encoder(vocabulary, encoder)?)
}

/// The tokens of forced text, which goes on with other text: of as much of it as is UTF-8.
fn encode(tokenizer: &Tokenizer, text: &[u8]) -> Vec<u32> {
    let whole = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let options = EncodeOptions::default();
    if !tokenizer.special().add_space_prefix {
        return tokenizer.encode(whole, options);
    }
    let ids = tokenizer.encode(&format!("{}{whole}", char::from(BORDER)), options);
    let border = |&id: &u32| tokenizer.token_bytes(id).last() == Some(&BORDER);
    let after = ids.iter().position(border).map_or(ids.len(), |at| at + 1);
    ids[after..].to_vec()
}
