//! Ids of special tokens, and texts of the others.

use std::sync::Arc;

use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

use crate::language;

/// Timestamps of a window, from 0 to 30 seconds.
const TIMES: u32 = 1501;

/// The special tokens of a model, whose ids follow from the size of its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Ends a text; the first special token.
    pub eot: u32,
    /// Begins a transcript.
    pub sot: u32,
    /// The first language.
    pub language: u32,
    /// Languages.
    pub languages: u32,
    /// Asks for English.
    pub translate: u32,
    /// Asks for the language spoken.
    pub transcribe: u32,
    /// Marks a language model's use.
    pub sot_lm: u32,
    /// Begins the text before.
    pub sot_prev: u32,
    /// Nobody speaks.
    pub no_speech: u32,
    /// Asks for no timestamps.
    pub no_timestamps: u32,
    /// The timestamp 0.00.
    pub times: u32,
    /// All tokens.
    pub vocab: u32,
}

impl Tokens {
    /// Of a vocabulary of this size; `None` for a size that no such model has.
    #[must_use]
    pub fn of_vocab(vocab: u32) -> Option<Self> {
        let many = vocab >= 51_865;
        let eot = if many { 50_257 } else { 50_256 };
        let languages = vocab.checked_sub(eot + 8 + TIMES)?;
        if !(99..=100).contains(&languages) {
            return None;
        }
        let first = eot + 2 + languages;
        Some(Tokens {
            eot,
            sot: eot + 1,
            language: eot + 2,
            languages,
            translate: first,
            transcribe: first + 1,
            sot_lm: first + 2,
            sot_prev: first + 3,
            no_speech: first + 4,
            no_timestamps: first + 5,
            times: first + 6,
            vocab,
        })
    }

    /// Whether the model knows more than English.
    #[must_use]
    pub fn is_multilingual(&self) -> bool {
        self.eot == 50_257
    }

    /// The token of a language by its code, if the model knows it.
    #[must_use]
    pub fn of_language(&self, code: &str) -> Option<u32> {
        let known = &language::ALL[..self.languages as usize];
        let place = known.iter().position(|l| l.0 == code)?;
        Some(self.language + place as u32)
    }

    /// What a transcript begins with.
    #[must_use]
    pub fn start(&self, code: &str, translate: bool) -> Vec<u32> {
        let task = if translate {
            self.translate
        } else {
            self.transcribe
        };
        match self.of_language(code) {
            Some(language) if self.is_multilingual() => vec![self.sot, language, task],
            _ => vec![self.sot],
        }
    }

    /// The likeliest language by the logits after [`Tokens::sot`], and the probability of each.
    #[must_use]
    pub fn detect(&self, logits: &[f32]) -> (&'static str, Vec<f32>) {
        let range = self.language as usize..(self.language + self.languages) as usize;
        let probabilities = softmax(&logits[range]);
        let best = (0..probabilities.len()).max_by(|&a, &b| {
            let order = probabilities[a].total_cmp(&probabilities[b]);
            order.then(b.cmp(&a))
        });
        (language::ALL[best.unwrap_or(0)].0, probabilities)
    }
}

/// The softmax of logits.
#[must_use]
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|l| f64::from(l - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| (p / sum) as f32).collect()
}

/// Ids and texts of a model.
#[derive(Clone)]
pub struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    /// Its special tokens.
    pub tokens: Tokens,
}

impl Vocabulary {
    /// A tokenizer with the special tokens that a vocabulary of this size has.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, tokens: Tokens) -> Self {
        Vocabulary { tokenizer, tokens }
    }

    /// Ids of a text, without special ones.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        self.tokenizer.encode(text, plain)
    }

    /// Bytes of ids; special tokens have none.
    #[must_use]
    pub fn bytes(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        for &id in ids.iter().filter(|&&id| id < self.tokens.eot) {
            out.extend_from_slice(self.tokenizer.token_bytes(id));
        }
        out
    }

    /// The text of ids; what is no UTF-8 becomes a replacement character.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.bytes(ids)).into_owned()
    }

    /// The tokens that are suppressed unless one asks otherwise: brackets, notes, and what else is no speech.
    #[must_use]
    pub fn non_speech(&self) -> Vec<u32> {
        const SINGLE: &str = "\"#()*+/:;<=>@[\\]^_`{|}~「」『』";
        const LONGER: &str = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
        const NOTES: &str = "♩♪♫♬♭♮♯";
        let single = SINGLE.chars().map(String::from);
        let symbols = single.chain(LONGER.split_whitespace().map(str::to_owned));
        let notes = NOTES.chars().map(String::from);
        let mut found: Vec<u32> = [" -", " '"]
            .iter()
            .filter_map(|t| self.encode(t).first().copied())
            .collect();
        let all = symbols.map(|s| (s, false)).chain(notes.map(|n| (n, true)));
        for (symbol, note) in all {
            for text in [symbol.clone(), format!(" {symbol}")] {
                let ids = self.encode(&text);
                if ids.len() == 1 || note {
                    found.extend(ids.first());
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}
