//! What each kind of vocabulary does with a text: normalisers, splitting steps and the encoder.

use bstr::ByteSlice;
use tokkata_core::{Array, Metadata};

use super::{Kind, flag, list, strings, wrong_type};
use crate::tokenizer::Model;
use crate::tokenizer::bert::Clean;
use crate::tokenizer::bpe::{Bpe, BpeParts, Start, Unknown, WholeWords};
use crate::tokenizer::bytes::to_alphabet;
use crate::tokenizer::charsmap::Charsmap;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::normalize::{Normalizer, Spaces};
use crate::tokenizer::plamo::Plamo;
use crate::tokenizer::pre::{Flags, Pre};
use crate::tokenizer::rwkv::Rwkv;
use crate::tokenizer::special::SpecialTokens;
use crate::tokenizer::split::runs::Runs;
use crate::tokenizer::split::{Rule, Step};
use crate::tokenizer::spm::Spm;
use crate::tokenizer::unicode::SPACE;
use crate::tokenizer::unigram::{Sums, Unigram, UnigramParts};
use crate::tokenizer::vocab::{Blob, TokenKind, Vocab, byte_tokens};
use crate::tokenizer::wordpiece::WordPiece;

/// What the encoder is built from.
pub(super) struct Parts<'a> {
    pub(super) meta: &'a Metadata,
    pub(super) vocab: &'a Vocab,
    pub(super) special: &'a SpecialTokens,
    pub(super) kind: Kind,
}

pub(super) type Pipeline = (Vec<Normalizer>, Vec<Step>, Model);

impl Parts<'_> {
    /// The three stages after tokens were cut out.
    pub(super) fn pipeline(&self, pre: Option<Pre>) -> Result<Pipeline, TokenizerError> {
        let vocab = self.vocab;
        Ok(match (self.kind, pre) {
            (_, Some(pre)) => self.bpe(pre)?,
            (Kind::WordPiece, _) => self.wordpiece()?,
            (Kind::Unigram, _) => self.unigram()?,
            (Kind::Rwkv, _) => (
                vec![],
                vec![],
                Model::Rwkv(Rwkv::new(&vocab.pieces, self.special.unk)),
            ),
            (Kind::Plamo, _) => (
                vec![],
                vec![],
                Model::Plamo(Plamo::new(vocab, byte_tokens(vocab))),
            ),
            _ => self.spm()?,
        })
    }

    fn bpe(&self, pre: Pre) -> Result<Pipeline, TokenizerError> {
        let flags = pre.flags;
        let byte_level = !(flags.characters || flags.dropped_spaces);
        let (mut tokens, mut merges) = (Blob::default(), Blob::default());
        let mut reachable = Vec::with_capacity(self.vocab.len());
        for (id, text) in self.vocab.texts.iter() {
            let spelled = tokens.push_word(text, byte_level);
            reachable.push(spelled.is_some() && self.vocab.kind(id) != TokenKind::Control);
            spelled.unwrap_or_else(|| tokens.push(b""));
        }
        for merge in strings(self.meta, "merges")? {
            if let Some((left, right)) = split_merge(merge) {
                merges.push_pair(left, right, byte_level);
            }
        }
        let parts = BpeParts {
            tokens,
            reachable: &|id| reachable[id as usize],
            merges,
            prefix_len: 0,
        };
        let mut bpe = Bpe::new(parts, |find| start(self.vocab, byte_level, find));
        bpe.whole = whole_words(flags);
        bpe.unknown = Unknown::Dropped;
        let mut normalizers = Vec::new();
        if flags.characters {
            normalizers.push(Normalizer::EscapeSpaces);
        }
        if flags.dropped_spaces && flag(self.meta, "normalizer.lowercase")?.unwrap_or(false) {
            normalizers.push(Normalizer::Lowercase);
        }
        Ok((normalizers, pre.steps, Model::Bpe(bpe)))
    }

    fn spm(&self) -> Result<Pipeline, TokenizerError> {
        let mut bytes = byte_tokens(self.vocab);
        for (b, token) in (0..=255_u8).zip(bytes.iter_mut()) {
            *token = token.or_else(|| self.vocab.find(&[b]));
        }
        let model = Model::Spm(Spm::new(self.vocab, bytes, self.special.unk));
        if self.is_sentencepiece()? {
            return Ok((vec![Normalizer::Spaces(self.spaces()?)], vec![], model));
        }
        let mut normalizers = Vec::new();
        if self.special.add_space_prefix {
            normalizers.push(Normalizer::SpacePrefix);
        }
        normalizers.push(Normalizer::EscapeSpaces);
        Ok((normalizers, vec![], model))
    }

    /// Whether the keys come from a SentencePiece model, which says more than a GGUF file.
    fn is_sentencepiece(&self) -> Result<bool, TokenizerError> {
        Ok(flag(self.meta, "sentencepiece")?.unwrap_or(false))
    }

    fn spaces(&self) -> Result<Spaces, TokenizerError> {
        let charsmap = match list(self.meta, "precompiled_charsmap")? {
            None => None,
            Some(Array::U8(bytes)) => Some(Charsmap::parse(bytes)?),
            Some(Array::I8(bytes)) => Some(Charsmap::parse(
                &bytes.iter().map(|&b| b as u8).collect::<Vec<_>>(),
            )?),
            Some(_) => return Err(wrong_type("precompiled_charsmap", "an array of bytes")),
        };
        let merge = flag(self.meta, "remove_extra_whitespaces")?.unwrap_or(false);
        let only_first = self.is_sentencepiece()?;
        // In a GGUF file merged spaces begin every word, the first one too.
        let prefix = self.special.add_space_prefix || (merge && !only_first);
        Ok(Spaces {
            charsmap,
            prefix,
            only_first,
            merge,
        })
    }

    fn wordpiece(&self) -> Result<Pipeline, TokenizerError> {
        const MARK: &str = "▁";
        let vocab = self.vocab;
        let texts = || {
            vocab
                .texts
                .iter()
                .filter(|&(id, _)| vocab.kind(id) != TokenKind::Control)
        };
        let starts = texts().filter_map(|(id, t)| Some((t.strip_prefix(MARK.as_bytes())?, id)));
        let rest = texts()
            .filter(|(_, t)| !t.starts_with(MARK.as_bytes()))
            .map(|(id, t)| (t, id));
        let model = WordPiece::new(starts, rest, self.special.unk, MAX_WORD_CHARS);
        let lowercase = flag(self.meta, "normalizer.lowercase")?.unwrap_or(true);
        let accents = flag(self.meta, "normalizer.strip_accents")?.unwrap_or(lowercase);
        let clean = Clean {
            controls: true,
            ideographs: true,
            accents,
            lowercase,
        };
        Ok((
            vec![Normalizer::Bert(clean)],
            bert_steps(),
            Model::WordPiece(model),
        ))
    }

    fn unigram(&self) -> Result<Pipeline, TokenizerError> {
        let bytes = byte_tokens(self.vocab);
        let all = bytes.iter().all(Option::is_some);
        let bytes = all.then(|| Box::new(bytes.map(Option::unwrap_or_default)));
        let sums = if self.is_sentencepiece()? {
            Sums::Single
        } else {
            Sums::Double
        };
        let vocab = self.vocab;
        let wanted = |id| {
            let kind = vocab.kind(id);
            matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            )
        };
        let score = |id: u32| match vocab.kind(id) {
            // Always better than the log probability of any other cover.
            TokenKind::UserDefined => 0.0,
            _ => vocab.scores[id as usize],
        };
        let parts = UnigramParts {
            wanted: &wanted,
            score: &score,
            unk: self.special.unk,
            bytes,
            sums,
        };
        let model = Unigram::new(vocab, parts);
        Ok((
            vec![Normalizer::Spaces(self.spaces()?)],
            vec![],
            Model::Unigram(model),
        ))
    }
}

/// Words lie between white space; punctuation stands alone.
pub(in crate::tokenizer) fn bert_steps() -> Vec<Step> {
    let space = Rule::Runs(Runs::Class(SPACE, 1));
    vec![
        Step::removed(space),
        Step::isolated(Rule::Runs(Runs::OnePunctOrAscii)),
    ]
}

/// Words longer than this are unknown to BERT.
const MAX_WORD_CHARS: usize = 100;

/// A merge is two symbols and a space; the first symbol may be a space itself.
fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = 1 + merge.get(1..)?.find_byte(b' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}

fn start(vocab: &Vocab, byte_level: bool, find: &dyn Fn(&[u8]) -> Option<u32>) -> Start {
    if !byte_level {
        let bytes = byte_tokens(vocab);
        return Start::Chars {
            bytes,
            prefix: String::new(),
            suffix: String::new(),
        };
    }
    // A byte may be spelled by a control token, which the index leaves out.
    let byte = |b| find(&[b]).or_else(|| vocab.find(to_alphabet(&[b]).as_bytes()));
    Start::Bytes(Box::new(std::array::from_fn(|b| {
        byte(b as u8).unwrap_or(Bpe::NONE)
    })))
}

fn whole_words(flags: Flags) -> WholeWords {
    match flags {
        Flags {
            whole_words: true, ..
        } => WholeWords::Kept,
        Flags {
            whole_line_feeds: true,
            ..
        } => WholeWords::LineFeedsKept,
        _ => WholeWords::Merged,
    }
}
