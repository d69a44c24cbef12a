//! WordPiece: a word is covered from the left by the longest tokens, or it is unknown.

use super::trie::Trie;

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct WordPiece {
    /// Tokens that start a word.
    starts: Trie,
    /// Tokens that go on with one, without their mark.
    rest: Trie,
    unk: Option<u32>,
    max_chars: usize,
}

impl WordPiece {
    /// Builds the encoder from the texts of the two kinds of tokens.
    pub(super) fn new<'a>(
        starts: impl IntoIterator<Item = (&'a [u8], u32)>,
        rest: impl IntoIterator<Item = (&'a [u8], u32)>,
        unk: Option<u32>,
        max_chars: usize,
    ) -> Self {
        WordPiece {
            starts: Trie::build(starts),
            rest: Trie::build(rest),
            unk,
            max_chars,
        }
    }

    /// Appends the tokens of `word`.
    pub(super) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        let before = out.len();
        if word.chars().count() > self.max_chars || !self.cover(word.as_bytes(), out) {
            out.truncate(before);
            out.extend(self.unk);
        }
    }

    fn cover(&self, mut word: &[u8], out: &mut Vec<u32>) -> bool {
        let mut tokens = &self.starts;
        while !word.is_empty() {
            let Some((length, id)) = tokens.longest(word) else {
                return false;
            };
            out.push(id);
            word = &word[length..];
            tokens = &self.rest;
        }
        true
    }
}
