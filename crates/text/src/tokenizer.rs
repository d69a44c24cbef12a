//! Text to token ids and back, for every kind of vocabulary that model files carry.
//!
//! A [`Tokenizer`] is built from the file alone and then immutable; what it does is fixed by three
//! stages: tokens cut out of the raw text, normalisers and splitting rules, and one encoder. Reading
//! order: this file, `gguf`, `pre` and `split`, then the encoders `bpe`, `spm`, `wordpiece`,
//! `unigram`, `rwkv`, `plamo`; `hf` for the files of Hugging Face repositories.

mod added;
mod base64;
mod bert;
mod bpe;
mod bytes;
mod charsmap;
mod error;
mod gguf;
mod hf;
mod normalize;
mod plamo;
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
use std::ops::Range;

use tokkata_core::Metadata;

use added::{AddedTokens, Segment, Specials};
use normalize::{Before, Normalizer};
use split::{Prepend, Step};
use vocab::Vocab;

pub use error::TokenizerError;
pub use hf::HfFiles;
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
#[derive(Clone)]
pub struct Tokenizer {
    vocab: Vocab,
    added: AddedTokens,
    second: Option<Second>,
    trim: Trim,
    special: SpecialTokens,
    ends_generation: Vec<u32>,
    normalizers: Vec<Normalizer>,
    steps: Vec<Step>,
    model: Model,
    ends: Ends,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let special = &self.special;
        f.debug_struct("Tokenizer")
            .field("tokens", &self.vocab.len())
            .field("special", special)
            .finish_non_exhaustive()
    }
}

/// Tokens cut out of a text after it was normalised.
#[derive(Clone, Debug)]
struct Second {
    added: AddedTokens,
}

/// Spaces at the ends of a decoded text that are not part of it: at most so many.
#[derive(Clone, Copy, Debug, Default)]
struct Trim {
    leading: usize,
    trailing: usize,
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
    Plamo(plamo::Plamo),
    WordLevel { unk: Option<u32> },
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

    /// Builds the tokenizer of a Hugging Face repository, from the file that says most.
    ///
    /// # Errors
    /// When there is no such file, when it cannot be parsed, or when it asks for something that this
    /// engine does not do.
    pub fn from_hf(files: &HfFiles) -> Result<Self, TokenizerError> {
        hf::load(files)
    }

    /// The token ids of `text`.
    #[must_use]
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_guarded(text, &[], options)
    }

    /// The token ids of `text` in one piece, with the spellings of special tokens left as text where one of their
    /// bytes lies in `untrusted`: sorted, disjoint ranges, as
    /// [`Rendered::untrusted`](crate::template::Rendered::untrusted) gives them.
    #[must_use]
    pub fn encode_guarded(
        &self,
        text: &str,
        untrusted: &[Range<usize>],
        options: EncodeOptions,
    ) -> Vec<u32> {
        let specials = if options.parse_special {
            Specials::Outside(untrusted)
        } else {
            Specials::Nowhere
        };
        let mut run = Run {
            parse_special: options.parse_special,
            ..Run::default()
        };
        if options.add_special {
            run.out.extend(&self.ends.before);
        }
        let mut before = Before::Start;
        self.added
            .split(text, specials, &mut |segment| match segment {
                Segment::Token(id) => {
                    run.out.push(id);
                    before = Before::Token;
                }
                Segment::Text(part) => {
                    let start = part.as_ptr() as usize - text.as_ptr() as usize;
                    run.untrusted = clip(untrusted, start..start + part.len());
                    self.encode_text(part, before, &mut run);
                    before = Before::Text;
                }
            });
        if options.add_special {
            run.out.extend(&self.ends.after);
        }
        run.out
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

    fn encode_text(&self, text: &str, before: Before, run: &mut Run) {
        let before = self.still_first(text, before);
        let raw = text;
        let text = normalize_all(&self.normalizers, text, before);
        let Some(second) = &self.second else {
            return self.encode_words(&text, before, run);
        };
        let untrusted = std::mem::take(&mut run.untrusted);
        // Offsets do not survive normalising: what was guarded and has changed has no special tokens at all.
        let specials = if run.parse_special && (untrusted.is_empty() || text == raw) {
            Specials::Outside(&untrusted)
        } else {
            Specials::Nowhere
        };
        let mut before = before;
        second
            .added
            .split(&text, specials, &mut |segment| match segment {
                Segment::Token(id) => {
                    run.out.push(id);
                    before = Before::Token;
                }
                Segment::Text(text) => self.encode_words(text, before, run),
            });
    }

    /// A text whose first character is normalised away does not begin at its start any more.
    fn still_first(&self, text: &str, before: Before) -> Before {
        let first = text
            .chars()
            .next()
            .filter(|_| before == Before::Start && self.minds_first());
        let gone = first.is_some_and(|c| {
            normalize_all(&self.normalizers, c.encode_utf8(&mut [0; 4]), before).is_empty()
        });
        if gone { Before::Text } else { before }
    }

    fn minds_first(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                step,
                Step::Metaspace {
                    prepend: Prepend::First,
                    ..
                }
            )
        })
    }

    fn encode_words(&self, text: &str, before: Before, run: &mut Run) {
        let mut emit = |word: &str| self.encode_word(word, run);
        match &self.model {
            Model::Spm(spm) => spm.parts(text, &mut emit),
            _ => split::split(&self.steps, text, before == Before::Start, &mut emit),
        }
    }

    fn encode_word(&self, word: &str, run: &mut Run) {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(word, &mut run.bpe, &mut run.out),
            Model::Spm(spm) => spm.encode(word, &mut run.spm, &mut run.out),
            Model::WordPiece(wordpiece) => wordpiece.encode(word, &mut run.out),
            Model::Unigram(unigram) => unigram.encode(word, &mut run.unigram, &mut run.out),
            Model::Rwkv(rwkv) => rwkv.encode(word, &mut run.out),
            Model::Plamo(plamo) => plamo.encode(word, &mut run.plamo, &mut run.out),
            Model::WordLevel { unk } => run.out.extend(self.vocab.find(word.as_bytes()).or(*unk)),
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
        let spaces = |bytes: &mut dyn Iterator<Item = &u8>, most| {
            bytes.take(most).take_while(|&&b| b == b' ').count()
        };
        if !options.continues {
            out.drain(..spaces(&mut out.iter(), self.trim.leading));
        }
        out.truncate(out.len() - spaces(&mut out.iter().rev(), self.trim.trailing));
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

    /// The score of token `id`: a merge is better the higher its result's; 0 where files have none.
    #[must_use]
    pub fn token_score(&self, id: u32) -> f64 {
        self.vocab.scores.get(id as usize).copied().unwrap_or(0.0)
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

    /// How many spaces at the start of a text are the encoder's.
    pub(crate) fn leading_spaces(&self) -> usize {
        self.trim.leading
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

/// The parts of sorted ranges that lie in `window`, counted from its start.
fn clip(ranges: &[Range<usize>], window: Range<usize>) -> Vec<Range<usize>> {
    let first = ranges.partition_point(|range| range.end <= window.start);
    let inside = ranges[first..]
        .iter()
        .take_while(|range| range.start < window.end);
    inside
        .map(|range| {
            let start = range.start.max(window.start) - window.start;
            start..range.end.min(window.end) - window.start
        })
        .collect()
}

fn normalize_all<'a>(normalizers: &[Normalizer], text: &'a str, before: Before) -> Cow<'a, str> {
    let start = Cow::Borrowed(text);
    normalizers
        .iter()
        .fold(start, |text, normalizer| normalizer.apply(text, before))
}

/// The state of one call: buffers and the tokens so far.
#[derive(Debug, Default)]
struct Run {
    parse_special: bool,
    /// Where the current part of the text has no special tokens.
    untrusted: Vec<Range<usize>>,
    out: Vec<u32>,
    bpe: bpe::Scratch,
    spm: spm::Scratch,
    unigram: unigram::Scratch,
    plamo: plamo::Scratch,
}
