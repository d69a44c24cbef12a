//! What happens to a text before it is split.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::bert::Clean;
use super::bytes::to_alphabet;
use super::charsmap::Charsmap;
use super::split::Rule;
use super::unicode::MARK;

/// What stands before a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing: the text begins here.
    Start,
    /// A token cut out of the text.
    Token,
    /// More text.
    Text,
}

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Normalizer {
    /// Puts a space before a text that begins or follows a token.
    SpacePrefix,
    /// Writes spaces as `▁`.
    EscapeSpaces,
    /// BERT's clean-up.
    Bert(Clean),
    /// SentencePiece's replacements and its rules for spaces.
    Spaces(Spaces),
    /// SentencePiece's replacements alone.
    Precompiled(Charsmap),
    /// A Unicode normalisation form.
    Form(Form),
    /// Small letters.
    Lowercase,
    /// Drops every mark.
    StripMarks,
    /// Drops white space at the ends.
    Strip {
        /// At the beginning.
        left: bool,
        /// At the end.
        right: bool,
    },
    /// Puts a text before any text that is not empty.
    Prepend(String),
    /// Replaces the matches of a rule.
    Replace {
        /// Finds the matches.
        rule: Rule,
        /// Stands in their place.
        content: String,
    },
    /// Drops control characters and makes odd spaces spaces.
    Nmt,
    /// Writes bytes in the byte alphabet.
    ByteLevel,
}

/// Unicode's normalisation forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Normalizer {
    /// The text after this step.
    pub(super) fn apply<'a>(&self, text: Cow<'a, str>, before: Before) -> Cow<'a, str> {
        match self {
            Normalizer::SpacePrefix if before == Before::Text => text,
            Normalizer::SpacePrefix => format!(" {text}").into(),
            Normalizer::EscapeSpaces if text.contains(' ') => text.replace(' ', "▁").into(),
            Normalizer::EscapeSpaces => text,
            Normalizer::Bert(clean) => clean.apply(&text).into(),
            Normalizer::Spaces(spaces) => spaces.apply(&text, before).into(),
            Normalizer::Precompiled(map) => map.apply(&text).into(),
            Normalizer::Form(form) => form.apply(text),
            Normalizer::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Normalizer::StripMarks => text.chars().filter(|&c| !MARK.has(c)).collect(),
            Normalizer::Strip { left, right } => strip(&text, *left, *right).to_owned().into(),
            Normalizer::Prepend(prefix) if !text.is_empty() => format!("{prefix}{text}").into(),
            Normalizer::Prepend(_) => text,
            Normalizer::Replace { rule, content } => replace(&text, rule, content).into(),
            Normalizer::Nmt => text.chars().filter_map(nmt).collect(),
            Normalizer::ByteLevel => to_alphabet(text.as_bytes()).into(),
        }
    }
}

fn strip(text: &str, left: bool, right: bool) -> &str {
    let text = if left { text.trim_start() } else { text };
    if right { text.trim_end() } else { text }
}

fn replace(text: &str, rule: &Rule, content: &str) -> String {
    let mut out = String::with_capacity(text.len());
    rule.pieces(text, &mut |piece, found| {
        out.push_str(if found { content } else { piece });
    });
    out
}

/// The clean-up of neural machine translation: what `c` becomes.
fn nmt(c: char) -> Option<char> {
    match c as u32 {
        0x1..=0x8 | 0xB | 0xE..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x9
        | 0xA
        | 0xC
        | 0xD
        | 0x1680
        | 0x200B..=0x200F
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xFEFF
        | 0xFFFD => Some(' '),
        _ => Some(c),
    }
}

impl Form {
    fn apply(self, text: Cow<'_, str>) -> Cow<'_, str> {
        if text.is_ascii() {
            return text;
        }
        match self {
            Form::Nfc => text.nfc().collect(),
            Form::Nfd => text.nfd().collect(),
            Form::Nfkc => text.nfkc().collect(),
            Form::Nfkd => text.nfkd().collect(),
        }
    }
}

/// Compiled replacements, then what happens to spaces, which become `▁`.
#[derive(Clone, Debug, Default)]
pub(super) struct Spaces {
    pub(super) charsmap: Option<Charsmap>,
    /// Begins the text with a space.
    pub(super) prefix: bool,
    /// Only where the whole text begins, not after a token.
    pub(super) only_first: bool,
    /// Drops spaces at the ends and doubled ones.
    pub(super) merge: bool,
}

impl Spaces {
    fn apply(&self, text: &str, before: Before) -> String {
        let text = self
            .charsmap
            .as_ref()
            .map_or(Cow::Borrowed(text), |map| map.apply(text).into());
        let mut out = String::with_capacity(text.len() + 8);
        let mut prefix = self.prefix && !(self.only_first && before != Before::Start);
        if prefix && !self.merge && !text.is_empty() {
            out.push('▁');
            prefix = false;
        }
        let (mut in_word, mut begun) = (false, false);
        for c in text.chars() {
            if c == ' ' {
                in_word = false;
                if !self.merge {
                    out.push('▁');
                }
                continue;
            }
            if !in_word && (prefix || (self.merge && begun)) {
                out.push('▁');
                prefix = false;
            }
            (in_word, begun) = (true, true);
            out.push(c);
        }
        if self.merge && self.only_first {
            // SentencePiece cannot tell these from spaces here.
            out.truncate(out.trim_end_matches('▁').len());
        }
        out
    }
}
