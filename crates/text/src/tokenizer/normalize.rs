//! What happens to a text before it is split.

use std::borrow::Cow;

use super::bert::Clean;
use super::charsmap::Charsmap;

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
    /// SentencePiece's rules for Unigram models.
    Unigram(UnigramSpaces),
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
            Normalizer::Unigram(spaces) => spaces.apply(&text).into(),
        }
    }
}

/// Compiled replacements, then what happens to spaces.
#[derive(Clone, Debug)]
pub(super) struct UnigramSpaces {
    pub(super) charsmap: Option<Charsmap>,
    /// Begins the text with a space.
    pub(super) prefix: bool,
    /// Drops spaces at the ends and doubled ones.
    pub(super) merge: bool,
}

impl UnigramSpaces {
    fn apply(&self, text: &str) -> String {
        let text = self
            .charsmap
            .as_ref()
            .map_or(Cow::Borrowed(text), |map| map.apply(text).into());
        let mut out = String::with_capacity(text.len() + 8);
        let (mut in_word, mut begun) = (false, false);
        for c in text.chars() {
            if c == ' ' {
                in_word = false;
                if !self.merge {
                    out.push('▁');
                }
                continue;
            }
            if !in_word && (self.merge || (self.prefix && !begun)) {
                out.push('▁');
                begun = true;
            }
            in_word = true;
            out.push(c);
        }
        out
    }
}
