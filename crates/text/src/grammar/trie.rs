//! The vocabulary as grammars see it: bytes per token.

use std::collections::BTreeSet;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};

use super::{GrammarError, first_line};

/// Turns text into the tokens the model's tokenizer would use, special tokens not parsed. The tokens must spell the
/// whole text.
pub type Encoder = Arc<dyn Fn(&str) -> Vec<u32> + Send + Sync>;

/// What a grammar must know of a vocabulary.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The bytes of each token, by id. Tokens without text are empty and never allowed.
    pub tokens: Vec<Vec<u8>>,
    /// Control tokens: their text does not count as text, and only a Lark grammar that names them allows them.
    pub special: Vec<u32>,
    /// The tokens that end a reply; at least one.
    pub eos: Vec<u32>,
}

/// A vocabulary prepared for masks; cloning it is cheap.
#[derive(Clone)]
pub struct TokenTrie {
    factory: Arc<ParserFactory>,
    tokens: Arc<Vec<Vec<u8>>>,
    eos: Arc<Vec<u32>>,
}

impl std::fmt::Debug for TokenTrie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenTrie({} tokens)", self.tokens.len())
    }
}

struct Env {
    trie: TokTrie,
    encoder: Option<Encoder>,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        match &self.encoder {
            Some(encoder) => self.encode(encoder, text),
            None => self.trie.greedy_tokenize(text),
        }
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.encoder.is_some()
    }
}

impl Env {
    /// Forced bytes may begin and end inside a character: those parts become tokens of bytes.
    fn encode(&self, encoder: &Encoder, text: &[u8]) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        for chunk in text.utf8_chunks() {
            if !chunk.valid().is_empty() {
                tokens.extend(encoder(chunk.valid()));
            }
            tokens.extend(self.trie.greedy_tokenize(chunk.invalid()));
        }
        tokens
    }
}

/// Whether every byte of a character of several bytes is a token.
fn spells_parts(tokens: &[Vec<u8>]) -> bool {
    let mut found = [false; 256];
    for token in tokens {
        if let [byte] = token[..] {
            found[usize::from(byte)] = true;
        }
    }
    (0x80..=0xbf)
        .chain(0xc2..=0xf4)
        .all(|byte: usize| found[byte])
}

/// Ways that a grammar may branch at one place: a choice of thousands of tools, not one that explodes.
const ROW_ITEMS: usize = 20_000;
/// Steps of the parser for one mask.
const MASK_ITEMS: usize = 1_000_000;

impl TokenTrie {
    /// Prepares a vocabulary. Without an encoder [`GrammarState::forced`](super::GrammarState::forced) finds nothing.
    ///
    /// # Errors
    /// An id out of range, or no end token.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, GrammarError> {
        Self::build(vocabulary, None)
    }

    /// Prepares a vocabulary with the tokenizer that forced text is to be encoded with. A vocabulary that cannot spell
    /// parts of a character has no forced tokens.
    ///
    /// # Errors
    /// As [`TokenTrie::new`].
    pub fn with_encoder(vocabulary: Vocabulary, encoder: Encoder) -> Result<Self, GrammarError> {
        let encoder = Some(encoder).filter(|_| spells_parts(&vocabulary.tokens));
        Self::build(vocabulary, encoder)
    }

    fn build(vocabulary: Vocabulary, encoder: Option<Encoder>) -> Result<Self, GrammarError> {
        let Vocabulary {
            tokens,
            special,
            eos,
        } = vocabulary;
        let len =
            u32::try_from(tokens.len()).map_err(|_| GrammarError::Vocabulary("too many tokens"))?;
        let Some(&first_eos) = eos.first() else {
            return Err(GrammarError::Vocabulary(
                "it names no token that ends a reply",
            ));
        };
        if eos.iter().chain(&special).any(|&id| id >= len) {
            return Err(GrammarError::Vocabulary("a special token is out of range"));
        }
        let mut words = tokens.clone();
        let control: BTreeSet<u32> = special.iter().chain(&eos).copied().collect();
        for id in control {
            words[id as usize].insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        let trie = TokTrie::from(&TokRxInfo::new(len, first_eos), &words).with_eos_tokens(&eos);
        let ff_tokens = encoder.is_some();
        let env: TokEnv = Arc::new(Env { trie, encoder });
        let caps = InferenceCapabilities {
            ff_tokens,
            ..InferenceCapabilities::default()
        };
        let mut factory = ParserFactory::new(&env, caps, &SlicedBiasComputer::general_slices())
            .map_err(|error| GrammarError::Refused(first_line(&error)))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_items_in_row = ROW_ITEMS;
        limits.step_max_items = MASK_ITEMS;
        Ok(TokenTrie {
            factory: Arc::new(factory),
            tokens: Arc::new(tokens),
            eos: Arc::new(eos),
        })
    }

    /// How many words a mask has: one bit per token.
    pub fn mask_len(&self) -> usize {
        self.tokens.len().div_ceil(32)
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    pub(super) fn tokens(&self) -> &[Vec<u8>] {
        &self.tokens
    }

    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map_or(&[], Vec::as_slice)
    }

    pub(super) fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }
}
