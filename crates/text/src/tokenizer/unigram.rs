//! Unigram: of all ways to cover a text with tokens, the one with the highest sum of scores (Viterbi).

use super::trie::Trie;
use super::vocab::{TokenKind, Vocab};

/// What an unknown character costs below the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Unigram {
    tokens: Trie,
    scores: Vec<f64>,
    unknown_score: f64,
    unk: Option<u32>,
    /// Tokens of single bytes, for text without tokens.
    bytes: Option<Box<[u32; 256]>>,
}

impl Unigram {
    /// Builds the encoder over the normal, user-defined and unused tokens.
    pub(super) fn new(vocab: &Vocab, unk: Option<u32>, bytes: Option<Box<[u32; 256]>>) -> Self {
        let kind = |id: u32| vocab.kind(id);
        let wanted = |id| {
            matches!(
                kind(id),
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            )
        };
        let normal = (0..vocab.len() as u32).filter(|&id| kind(id) == TokenKind::Normal);
        let worst = normal
            .map(|id| vocab.scores[id as usize])
            .fold(f32::MAX, f32::min);
        let score = |id: u32| match kind(id) {
            // Always better than the log probability of any other cover.
            TokenKind::UserDefined => 0.0,
            _ => f64::from(vocab.scores[id as usize]),
        };
        Unigram {
            tokens: Trie::build(
                vocab
                    .texts
                    .iter()
                    .filter(|&(id, _)| wanted(id))
                    .map(|(id, t)| (t, id)),
            ),
            scores: (0..vocab.len() as u32).map(score).collect(),
            unknown_score: f64::from(worst - UNKNOWN_PENALTY),
            unk,
            bytes,
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
            offer(at + length, score + self.scores[id as usize], Some(id));
        }
        if !covered {
            offer(at + char_len, score + self.unknown_score, None);
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
