//! Unigram: of all ways to cover a text with tokens, the one with the highest sum of scores (Viterbi).

use super::trie::Trie;
use super::vocab::{TokenKind, Vocab};

/// What an unknown character costs below the worst token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Unigram {
    tokens: Trie,
    scores: Vec<f64>,
    unknown_score: f64,
    unk: Option<u32>,
    /// Tokens of single bytes, for text without tokens.
    bytes: Option<Box<[u32; 256]>>,
    sums: Sums,
}

/// The parts of an encoder.
pub(super) struct UnigramParts<'a> {
    /// Whether a token can come out of a text.
    pub(super) wanted: &'a dyn Fn(u32) -> bool,
    /// Its score.
    pub(super) score: &'a dyn Fn(u32) -> f64,
    pub(super) unk: Option<u32>,
    pub(super) bytes: Option<Box<[u32; 256]>>,
    pub(super) sums: Sums,
}

/// How exactly scores are added, which decides between covers of equal scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// As 32-bit numbers.
    Single,
    /// As 64-bit numbers.
    Double,
}

impl Sums {
    fn add(self, a: f64, b: f64) -> f64 {
        match self {
            Sums::Single => (a as f32 + b as f32).into(),
            Sums::Double => a + b,
        }
    }
}

impl Unigram {
    /// Builds the encoder.
    pub(super) fn new(vocab: &Vocab, parts: UnigramParts<'_>) -> Self {
        let normal = (0..vocab.len() as u32).filter(|&id| vocab.kind(id) == TokenKind::Normal);
        let worst = normal
            .map(|id| vocab.scores[id as usize])
            .fold(f64::MAX, f64::min);
        let wanted = vocab.texts.iter().filter(|&(id, _)| (parts.wanted)(id));
        Unigram {
            tokens: Trie::build(wanted.map(|(id, text)| (text, id))),
            scores: (0..vocab.len() as u32).map(parts.score).collect(),
            unknown_score: worst - UNKNOWN_PENALTY,
            unk: parts.unk,
            bytes: parts.bytes,
            sums: parts.sums,
        }
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let best = &mut scratch.best;
        best.clear();
        best.resize(
            text.len() + 1,
            Step {
                score: f64::NEG_INFINITY,
                start: 0,
                id: None,
            },
        );
        best[0].score = 0.0;
        for (at, c) in text.char_indices() {
            self.extend(text, at, c.len_utf8(), best);
        }
        self.trace(text, best, &mut scratch.path);
        out.extend(scratch.path.drain(..).rev());
    }

    fn extend(&self, text: &str, at: usize, char_len: usize, best: &mut [Step]) {
        let score = best[at].score;
        let mut covered = false;
        let mut offer = |end: usize, score: f64, id: Option<u32>| {
            if score > best[end].score {
                best[end] = Step {
                    score,
                    start: at,
                    id,
                };
            }
        };
        for (length, id) in self.tokens.prefixes(&text.as_bytes()[at..]) {
            covered |= length == char_len;
            offer(
                at + length,
                self.sums.add(score, self.scores[id as usize]),
                Some(id),
            );
        }
        if !covered {
            offer(
                at + char_len,
                self.sums.add(score, self.unknown_score),
                None,
            );
        }
    }

    /// Walks back from the end; runs of unknown characters are one unknown token.
    fn trace(&self, text: &str, best: &[Step], path: &mut Vec<u32>) {
        path.clear();
        let mut end = text.len();
        let mut after_unknown = false;
        while end > 0 {
            let step = &best[end];
            let id = step.id.filter(|&id| Some(id) != self.unk);
            match (id, &self.bytes) {
                (Some(id), _) => path.push(id),
                (None, Some(bytes)) => {
                    let piece = &text.as_bytes()[step.start..end];
                    path.extend(piece.iter().rev().map(|&b| bytes[b as usize]));
                }
                (None, None) if after_unknown => {}
                (None, None) => path.extend(self.unk),
            }
            after_unknown = id.is_none();
            end = step.start;
        }
    }
}

/// The best cover of a text up to some byte: its score and its last token.
#[derive(Clone, Copy, Debug)]
struct Step {
    score: f64,
    start: usize,
    id: Option<u32>,
}

/// Buffers reused from text to text.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    best: Vec<Step>,
    path: Vec<u32>,
}
