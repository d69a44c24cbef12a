//! Text to token ids and back, for every kind of vocabulary that model files carry.
//!
//! A [`Tokenizer`] is built from the file alone and then immutable; what it does is fixed by three
//! stages: tokens cut out of the raw text, normalisers and splitting rules, and one encoder. Reading
//! order: this file, `gguf`, `pre` and `split`, then the encoders `bpe`, `spm`, `wordpiece`,
//! `unigram`, `rwkv`.

mod added;
mod bert;
mod bpe;
mod bytes;
mod charsmap;
mod error;
mod gguf;
mod normalize;
mod pre;
mod rwkv;
mod special;
mod split;
mod spm;
mod trie;
mod unicode;
mod unicode_runs;
mod unigram;
mod vocab;
mod wordpiece;

use std::borrow::Cow;

use tokkata_core::Metadata;

use added::{AddedTokens, Segment};
use normalize::{Before, Normalizer};
use split::Rule;
use vocab::Vocab;

pub use error::TokenizerError;
pub use special::SpecialTokens;
pub use vocab::TokenKind;

/// How a text is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds what the file wants before and after a text (BOS, EOS, CLS, SEP).
    pub add_special: bool,
    /// Reads the spellings of special tokens as these tokens; otherwise they are text.
    pub parse_special: bool,
}

/// How token ids become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Spells special tokens out; otherwise they are left out.
    pub special: bool,
    /// The ids go on with a text, so that the space the encoder puts before a text stays.
    pub continues: bool,
}

/// A vocabulary and the rules to encode with it.
///
/// ```
/// use tokkata_core::{Array, Metadata, Value};
/// use tokkata_text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
///
/// let strings = |texts: &[&str]| Value::Array(Array::Str(texts.iter().map(|&t| t.into()).collect()));
/// let mut meta = Metadata::default();
/// meta.insert("tokenizer.ggml.model", "gpt2".into());
/// meta.insert("tokenizer.ggml.pre", "gpt-2".into());
/// meta.insert("tokenizer.ggml.tokens", strings(&["a", "b", "Ġ", "ab", "Ġab"]));
/// meta.insert("tokenizer.ggml.merges", strings(&["a b", "Ġ ab"]));
/// let tokenizer = Tokenizer::from_metadata(&meta)?;
/// let ids = tokenizer.encode("ab abb", EncodeOptions::default());
/// assert_eq!(ids, [3, 4, 1]);
/// assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()), b"ab abb");
/// # Ok::<(), tokkata_text::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    added: AddedTokens,
    special: SpecialTokens,
    ends_generation: Vec<u32>,
    normalizers: Vec<Normalizer>,
    rules: Vec<Rule>,
    model: Model,
    ends: Ends,
}

/// Tokens around a text.
#[derive(Clone, Debug, Default)]
struct Ends {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// The encoder of one word or text.
#[derive(Clone, Debug)]
enum Model {
    Bpe(bpe::Bpe),
    Spm(spm::Spm),
    WordPiece(wordpiece::WordPiece),
    Unigram(unigram::Unigram),
    Rwkv(rwkv::Rwkv),
}

impl Tokenizer {
    /// Builds the tokenizer that the `tokenizer.ggml.*` keys of a GGUF file describe.
    ///
    /// # Errors
    /// When the file has none, when a key is missing or of the wrong type, or when the kind or the
    /// splitting rules are not known.
    pub fn from_metadata(meta: &Metadata) -> Result<Self, TokenizerError> {
        gguf::load(meta)
    }

    /// The token ids of `text`.
    #[must_use]
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        if options.add_special {
            out.extend(&self.ends.before);
        }
        let mut work = Work::default();
        let mut before = Before::Start;
        self.added
            .split(text, options.parse_special, &mut |segment| match segment {
                Segment::Token(id) => {
                    out.push(id);
                    before = Before::Token;
                }
                Segment::Text(text) => {
                    self.encode_text(text, before, &mut work, &mut out);
                    before = Before::Text;
                }
            });
        if options.add_special {
            out.extend(&self.ends.after);
        }
        out
    }

    /// The token ids of a text that may not be UTF-8.
    ///
    /// # Errors
    /// [`TokenizerError::InvalidUtf8`] with the offset of the first bad byte.
    pub fn encode_bytes(
        &self,
        text: &[u8],
        options: EncodeOptions,
    ) -> Result<Vec<u32>, TokenizerError> {
        let text = std::str::from_utf8(text).map_err(|e| TokenizerError::InvalidUtf8 {
            offset: e.valid_up_to(),
        })?;
        Ok(self.encode(text, options))
    }

    fn encode_text(&self, text: &str, before: Before, work: &mut Work, out: &mut Vec<u32>) {
        let mut text = Cow::Borrowed(text);
        for normalizer in &self.normalizers {
            text = normalizer.apply(text, before);
        }
        let mut emit = |word: &str| self.model.encode(word, work, out);
        match &self.model {
            Model::WordPiece(_) => bert::words(&text, &mut emit),
            Model::Spm(spm) => spm.parts(&text, &mut emit),
            _ => split::split(&self.rules, &text, &mut emit),
        }
    }

    /// The bytes of `ids` as one text; ids outside the vocabulary add nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> Vec<u8> {
        let mut out = Vec::new();
        for &id in ids {
            if options.special || !self.is_special(id) {
                out.extend_from_slice(self.token_bytes(id));
            }
        }
        if self.special.add_space_prefix && !options.continues && out.first() == Some(&b' ') {
            out.remove(0);
        }
        out
    }

    /// The bytes that token `id` adds to a text; special tokens have their spelling, ids outside
    /// the vocabulary nothing.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.pieces.get(id).unwrap_or_default()
    }

    /// The spelling of token `id` in the file.
    #[must_use]
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.vocab.text(id)
    }

    /// What token `id` stands for.
    #[must_use]
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kinds.get(id as usize).copied()
    }

    /// The token that the file spells `text`.
    #[must_use]
    pub fn find_token(&self, text: &[u8]) -> Option<u32> {
        self.vocab.find(text)
    }

    /// The roles of special tokens.
    #[must_use]
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The tokens that end a generation, in order of id.
    #[must_use]
    pub fn eog(&self) -> &[u32] {
        &self.ends_generation
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Whether `id` has no text of its own unless special tokens are spelled out.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        matches!(
            self.token_kind(id),
            Some(TokenKind::Control | TokenKind::Unknown)
        )
    }
}

/// Buffers of one call.
#[derive(Debug, Default)]
struct Work {
    bpe: bpe::Scratch,
    spm: spm::Scratch,
    unigram: unigram::Scratch,
}

impl Model {
    fn encode(&self, word: &str, work: &mut Work, out: &mut Vec<u32>) {
        match self {
            Model::Bpe(bpe) => bpe.encode(word, &mut work.bpe, out),
            Model::Spm(spm) => spm.encode(word, &mut work.spm, out),
            Model::WordPiece(wordpiece) => wordpiece.encode(word, out),
            Model::Unigram(unigram) => unigram.encode(word, &mut work.unigram, out),
            Model::Rwkv(rwkv) => rwkv.encode(word, out),
        }
    }
}
