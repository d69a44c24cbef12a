//! Waiting for the text that switches a grammar on.

use super::{GrammarError, TokenTrie};

/// A trigger text and the tokens that would run past its end.
#[derive(Debug)]
pub(super) struct Watch {
    text: Vec<u8>,
    /// For each matched length, the length that remains matched when the next byte does not fit.
    fallback: Vec<usize>,
    /// Tokens, with the matched lengths at which they complete the text and go on past it.
    overshoot: Vec<(usize, u32)>,
    pub(super) again: bool,
}

/// How far a token brings the match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// So many bytes of the text are matched at the end of the token.
    Matched(usize),
    /// The text ends inside the token, with so many bytes of it left over.
    Complete { left_over: usize },
}

impl Watch {
    pub(super) fn new(text: Vec<u8>, again: bool, trie: &TokenTrie) -> Result<Self, GrammarError> {
        if text.is_empty() {
            return Err(GrammarError::Refused("the trigger text is empty".into()));
        }
        let mut watch = Watch {
            fallback: fallback(&text),
            text,
            overshoot: Vec::new(),
            again,
        };
        for (token, bytes) in (0u32..).zip(trie.tokens()) {
            watch.find_overshoot(token, bytes);
        }
        Ok(watch)
    }

    fn find_overshoot(&mut self, token: u32, bytes: &[u8]) {
        for matched in 0..self.text.len() {
            let rest = &self.text[matched..];
            let continues = bytes.len() > rest.len() && bytes.starts_with(rest);
            let contains = matched == 0 && bytes.len() > rest.len();
            if (continues || contains)
                && matches!(
                    self.advance(matched, bytes),
                    Progress::Complete { left_over: 1.. }
                )
            {
                self.overshoot.push((matched, token));
            }
        }
    }

    fn step(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.text[matched] != byte {
            matched = self.fallback[matched - 1];
        }
        if self.text[matched] == byte {
            matched + 1
        } else {
            0
        }
    }

    /// Feeds a token's bytes; stops at the first complete match.
    pub(super) fn advance(&self, mut matched: usize, bytes: &[u8]) -> Progress {
        for (at, &byte) in bytes.iter().enumerate() {
            matched = self.step(matched, byte);
            if matched == self.text.len() {
                return Progress::Complete {
                    left_over: bytes.len() - at - 1,
                };
            }
        }
        Progress::Matched(matched)
    }

    /// Clears the tokens that would carry text past the trigger before the grammar could look at it.
    pub(super) fn mask(&self, matched: usize, mask: &mut [u32]) {
        let mut lengths = vec![matched];
        let mut length = matched;
        while length > 0 {
            length = self.fallback[length - 1];
            lengths.push(length);
        }
        for &(at, token) in &self.overshoot {
            if lengths.contains(&at) {
                mask[token as usize / 32] &= !(1 << (token % 32));
            }
        }
    }
}

/// Knuth, Morris and Pratt's table.
fn fallback(text: &[u8]) -> Vec<usize> {
    let mut table = vec![0; text.len()];
    let mut matched = 0;
    for at in 1..text.len() {
        while matched > 0 && text[matched] != text[at] {
            matched = table[matched - 1];
        }
        if text[matched] == text[at] {
            matched += 1;
        }
        table[at] = matched;
    }
    table
}
