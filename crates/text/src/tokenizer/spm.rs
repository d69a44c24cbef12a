//! SentencePiece's byte pair encoding: the adjacent pair whose joined text scores highest is merged.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::vocab::{Blob, BytesIndex, TokenKind, Vocab};

const SPACE: &str = "▁";

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Spm {
    texts: Blob,
    index: BytesIndex,
    scores: Vec<f64>,
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    /// Bytes that some token has just before a `▁`; anywhere else a `▁` begins a part of its own.
    before_space: Box<[bool; 256]>,
}

impl Spm {
    /// Builds the encoder; control, unknown and byte tokens do not come out of merges.
    pub(super) fn new(vocab: &Vocab, bytes: Box<[Option<u32>; 256]>, unk: Option<u32>) -> Self {
        let mergeable = |id: u32| {
            !matches!(
                vocab.kind(id),
                TokenKind::Control | TokenKind::Unknown | TokenKind::Byte
            )
        };
        let index = BytesIndex::build(&vocab.texts, mergeable);
        let mut before_space = Box::new([false; 256]);
        for (_, text) in vocab.texts.iter().filter(|&(id, _)| mergeable(id)) {
            for at in 1..text.len() {
                if text[at..].starts_with(SPACE.as_bytes()) {
                    before_space[text[at - 1] as usize] = true;
                }
            }
        }
        let (texts, scores) = (vocab.texts.clone(), vocab.scores.clone());
        Spm {
            texts,
            index,
            scores,
            bytes,
            unk,
            before_space,
        }
    }

    /// Calls `emit` with parts of `text` that no token crosses.
    pub(super) fn parts<'a>(&self, text: &'a str, emit: &mut dyn FnMut(&'a str)) {
        let mut start = 0;
        for (at, _) in text.match_indices(SPACE) {
            if at > start && !self.before_space[text.as_bytes()[at - 1] as usize] {
                emit(&text[start..at]);
                start = at;
            }
        }
        if start < text.len() {
            emit(&text[start..]);
        }
    }

    /// Appends the tokens of `text`, in which spaces are `▁`.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(id) = self
            .index
            .find(&self.texts, text.as_bytes())
            .filter(|_| text.chars().count() == 1)
        {
            out.push(id);
            return;
        }
        let Scratch { symbols, heap } = scratch;
        symbols.clear();
        heap.clear();
        for (at, c) in text.char_indices() {
            let i = symbols.len() as u32;
            symbols.push(Symbol {
                prev: i.wrapping_sub(1),
                next: i + 1,
                at,
                len: c.len_utf8(),
            });
        }
        let mut work = Work {
            spm: self,
            text,
            symbols,
            heap,
        };
        work.merge();
        work.finish(out);
    }
}

/// Buffers reused from text to text.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    prev: u32,
    next: u32,
    at: usize,
    /// 0 once swallowed by the symbol before.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f64,
    left: u32,
    len: usize,
}

impl Ord for Candidate {
    /// The highest score first, then from left to right.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

struct Work<'a> {
    spm: &'a Spm,
    text: &'a str,
    symbols: &'a mut Vec<Symbol>,
    heap: &'a mut BinaryHeap<Candidate>,
}

impl Work<'_> {
    fn merge(&mut self) {
        for left in 0..(self.symbols.len() as u32).saturating_sub(1) {
            self.add(left);
        }
        while let Some(best) = self.heap.pop() {
            let symbol = self.symbols[best.left as usize];
            let Some(&next) = self.symbols.get(symbol.next as usize) else {
                continue;
            };
            if symbol.len == 0 || symbol.len + next.len != best.len {
                continue;
            }
            self.symbols[symbol.next as usize].len = 0;
            let joined = &mut self.symbols[best.left as usize];
            joined.len = best.len;
            joined.next = next.next;
            if let Some(after) = self.symbols.get_mut(next.next as usize) {
                after.prev = best.left;
            }
            self.add(best.left);
            if symbol.prev < best.left {
                self.add(symbol.prev);
            }
        }
    }

    /// Offers the pair that starts with symbol `left`, if its text is a token.
    fn add(&mut self, left: u32) {
        let symbol = self.symbols[left as usize];
        let Some(next) = self.symbols.get(symbol.next as usize) else {
            return;
        };
        let len = symbol.len + next.len;
        let joined = &self.text.as_bytes()[symbol.at..symbol.at + len];
        if let Some(id) = self.spm.index.find(&self.spm.texts, joined) {
            self.heap.push(Candidate {
                score: self.spm.scores[id as usize],
                left,
                len,
            });
        }
    }

    fn finish(&self, out: &mut Vec<u32>) {
        for symbol in self.symbols.iter().filter(|s| s.len > 0) {
            let piece = &self.text.as_bytes()[symbol.at..symbol.at + symbol.len];
            if let Some(id) = self.spm.index.find(&self.spm.texts, piece) {
                out.push(id);
            } else if piece.iter().all(|&b| self.spm.bytes[b as usize].is_some()) {
                out.extend(piece.iter().filter_map(|&b| self.spm.bytes[b as usize]));
            } else if out.last() != self.spm.unk.as_ref() {
                // A run of unknown characters is one unknown token.
                out.extend(self.spm.unk);
            }
        }
    }
}
