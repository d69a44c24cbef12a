//! No calls where no tools are given.

use std::sync::{Arc, OnceLock};

use tokkata_engine::{Constraint, Request};
use tokkata_ir::sample::Mask;
use tokkata_text::parse::{Matched, Opening, Openings, OutputFormat};
use tokkata_text::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use super::set;

/// How the calls of a model begin, for answers that must not hold any.
pub struct CallRule {
    tokenizer: Arc<Tokenizer>,
    /// Special tokens that are markers.
    never: Vec<u32>,
    openings: Option<Openings>,
    tokens: OnceLock<Tokens>,
}

/// The vocabulary by what its tokens could do to a marker.
struct Tokens {
    /// By first byte.
    by_first: Vec<Vec<u32>>,
    /// Those that hold a whole marker.
    whole: Vec<u32>,
}

impl CallRule {
    /// For answers in a format, written in this vocabulary.
    #[must_use]
    pub fn new(format: &OutputFormat, tokenizer: Arc<Tokenizer>) -> Arc<Self> {
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let special = |marker: &str| match tokenizer.encode(marker.trim(), options)[..] {
            [id] if tokenizer.token_kind(id) != Some(TokenKind::Normal) => Some(id),
            _ => None,
        };
        Arc::new(CallRule {
            never: format.call_markers().filter_map(special).collect(),
            openings: Openings::of(format),
            tokens: OnceLock::new(),
            tokenizer,
        })
    }

    /// Keeps calls out of the answer to a request without a grammar, whose prompt is `prompt`. Calls that have no marker
    /// cannot be told from text: they may still come.
    pub fn forbid(self: &Arc<Self>, request: &mut Request, prompt: &str) {
        let never = self.never.iter().map(|&id| (id, f32::NEG_INFINITY));
        request.sampling.bias.extend(never);
        if let Some(rule) = self.after(prompt) {
            request.constraint = Some(Box::new(rule));
        }
    }

    /// The rule for one answer to a prompt; `None` where calls have no marker.
    #[must_use]
    pub fn after(self: &Arc<Self>, prompt: &str) -> Option<NoCalls> {
        let openings = self.openings.as_ref()?;
        Some(NoCalls {
            opening: openings.after(prompt),
            openings: openings.clone(),
            rule: Arc::clone(self),
            before: Vec::new(),
        })
    }

    fn tokens(&self, openings: &Openings) -> &Tokens {
        self.tokens.get_or_init(|| {
            let mut tokens = Tokens {
                by_first: vec![Vec::new(); 256],
                whole: Vec::new(),
            };
            for id in 0..u32::try_from(self.tokenizer.vocab_size()).unwrap_or(u32::MAX) {
                let bytes = self.tokenizer.token_bytes(id);
                let Some(&first) = bytes.first() else {
                    continue;
                };
                tokens.by_first[usize::from(first)].push(id);
                if openings.ends(Matched::default(), bytes).next().is_some() {
                    tokens.whole.push(id);
                }
            }
            tokens
        })
    }
}

/// Keeps an answer from opening a call: a token that would end a marker, where the parser of answers reads it as one, is
/// refused. Tokens that merely begin like a marker are not.
pub struct NoCalls {
    rule: Arc<CallRule>,
    openings: Openings,
    opening: Opening,
    /// Length of the answer, and what was matched, before each token.
    before: Vec<(usize, Matched)>,
}

impl NoCalls {
    /// Tokens that could end a marker now.
    fn candidates(&self) -> Vec<u32> {
        let tokens = self.rule.tokens(&self.openings);
        let matched = self.opening.matched();
        let goes_on = |byte: &u8| self.openings.goes_on(matched, *byte);
        let firsts = (0..=u8::MAX).filter(goes_on);
        let going_on = firsts.flat_map(|byte| &tokens.by_first[usize::from(byte)]);
        going_on.chain(&tokens.whole).copied().collect()
    }
}

impl Constraint for NoCalls {
    fn accept(&mut self, token: u32, _: &mut Vec<u32>) -> Result<(), String> {
        let before = (self.opening.len(), self.opening.matched());
        self.before.push(before);
        self.opening.push(self.rule.tokenizer.token_bytes(token));
        Ok(())
    }

    fn mask(&mut self) -> Result<Option<Mask>, String> {
        let mut refused = self.candidates();
        refused.retain(|&id| self.refuses(id));
        if refused.is_empty() {
            return Ok(None);
        }
        let words = self.rule.tokenizer.vocab_size().div_ceil(32);
        let mut allowed = vec![u32::MAX; words];
        refused.iter().for_each(|&id| set(&mut allowed, id, false));
        Ok(Some(Mask::new(allowed)))
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), String> {
        let left = self.before.len().checked_sub(tokens);
        let left = left.ok_or("fewer tokens were taken")?;
        if let Some(&(len, matched)) = self.before.get(left) {
            self.opening.go_back(len, matched);
        }
        self.before.truncate(left);
        Ok(())
    }

    fn goes_back(&self) -> bool {
        true
    }

    fn free(&self) -> bool {
        true
    }

    fn refuses(&mut self, token: u32) -> bool {
        self.opening.opens(self.rule.tokenizer.token_bytes(token))
    }
}
