//! Answers that follow a grammar.
//!
//! ```no_run
//! use tokkata::grammar::{GrammarSource, Trigger};
//! # fn main() -> tokkata::Result<()> {
//! let mut model = tokkata::Model::open("model.gguf", &tokkata::OpenOptions::default())?;
//! let ids = model.tokenize("The year:", tokkata::EncodeOptions::default())?;
//! let mut request = model.request(ids)?;
//! let grammar = model.checkpoint().grammar(GrammarSource::Regex("[0-9]{4}".into()), Trigger::Now)?;
//! tokkata::grammar::constrain(&mut request, &grammar);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use tokkata_text::grammar::{Grammar, GrammarError, GrammarSource, GrammarState, Trigger};

use tokkata_engine::{Constraint, Request};
use tokkata_ir::sample::Mask;
use tokkata_text::grammar::{Encoder, TokenTrie, Vocabulary};
use tokkata_text::parse::OutputFormat;
pub use tokkata_text::parse::ToolChoice;
use tokkata_text::template::ChatTemplate;
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
        let trie = token_trie(self.tokenizer()?, &trigger, "")?;
        Ok(Grammar::compile_with(source, trigger, &trie)?)
    }

    /// Compiles a grammar for calls of these tools as `template` writes them. `close` ends the reasoning that prompts
    /// of this template open, if they do.
    ///
    /// # Errors
    /// A file without a tokenizer; a template without calls that a grammar can follow; schemas that cannot be
    /// followed.
    pub fn tool_grammar(
        &self,
        template: &ChatTemplate,
        tools: &[serde_json::Value],
        choice: ToolChoice,
        close: Option<&str>,
    ) -> Result<Grammar> {
        let grammar = OutputFormat::derive(template).tool_grammar(tools, choice)?;
        let (source, trigger) = grammar.ok_or_else(|| {
            let choice = match choice {
                ToolChoice::Auto => "follow",
                ToolChoice::Required => "require",
            };
            GrammarError::Refused(format!(
                "the chat template shows no tool calls that a grammar can {choice}"
            ))
        })?;
        let first = close.map(|close| close.as_bytes().to_vec());
        let trigger = match (trigger, first) {
            (Trigger::Each(text), Some(first)) => Trigger::EachAfter { first, text },
            (Trigger::Now, Some(first)) => Trigger::Once(first),
            (trigger, _) => trigger,
        };
        let markers = match &source {
            GrammarSource::Lark(source) => source.replace('\\', ""),
            _ => String::new(),
        };
        let trie = token_trie(self.tokenizer()?, &trigger, &markers)?;
        Ok(Grammar::compile_with(source, trigger, &trie)?)
    }
}

/// Makes the answer to a request follow a grammar from its first token on.
pub fn constrain(request: &mut Request, grammar: &Grammar) {
    request.constraint = Some(Box::new(Walk {
        state: grammar.start(),
        words: grammar.mask_len(),
    }));
}

/// One answer on its way through a grammar.
struct Walk {
    state: GrammarState,
    words: usize,
}

impl Walk {
    /// Takes what is forced now.
    fn go_on(&mut self, forced: &mut Vec<u32>) {
        for token in self.state.forced() {
            // The tokenizer may write what is forced in tokens that reach further than it.
            if self.state.accept(token).is_err() {
                break;
            }
            forced.push(token);
        }
    }
}

impl Constraint for Walk {
    fn begin(&mut self, forced: &mut Vec<u32>) -> std::result::Result<(), String> {
        self.go_on(forced);
        Ok(())
    }

    fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> std::result::Result<(), String> {
        self.state
            .accept(token)
            .map_err(|error| error.to_string())?;
        self.go_on(forced);
        Ok(())
    }

    fn mask(&mut self) -> std::result::Result<Option<Mask>, String> {
        let mut words = vec![0; self.words];
        self.state
            .mask(&mut words)
            .map_err(|error| error.to_string())?;
        Ok(Some(Mask::new(words)))
    }

    fn rollback(&mut self, tokens: usize) -> std::result::Result<(), String> {
        self.state
            .rollback(tokens)
            .map_err(|error| error.to_string())
    }

    fn goes_back(&self) -> bool {
        true
    }
}

/// The vocabulary as grammars see it. Special tokens that a trigger is made of, or that occur in `markers`, count as
/// text.
fn token_trie(tokenizer: &Arc<Tokenizer>, trigger: &Trigger, markers: &str) -> Result<TokenTrie> {
    let marker: Vec<&[u8]> = trigger.texts().chain([markers.as_bytes()]).collect();
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let in_marker = |id: u32| {
        let bytes = tokenizer.token_bytes(id);
        let within = |text: &&[u8]| text.windows(bytes.len()).any(|part| part == bytes);
        !bytes.is_empty() && marker.iter().any(within)
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

/// The tokens of forced text, which goes on with other text.
fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let options = EncodeOptions::default();
    if !tokenizer.special().add_space_prefix {
        return tokenizer.encode(text, options);
    }
    let ids = tokenizer.encode(&format!("{}{text}", char::from(BORDER)), options);
    let border = |&id: &u32| tokenizer.token_bytes(id).last() == Some(&BORDER);
    let after = ids.iter().position(border).map_or(ids.len(), |at| at + 1);
    ids[after..].to_vec()
}
