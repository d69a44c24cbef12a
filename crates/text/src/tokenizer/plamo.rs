//! PLaMo 2: of all ways to cover a text with tokens, the one with the highest sum of rounded scores;
//! ties go to the longer first token.

use super::trie::Trie;
use super::vocab::{TokenKind, Vocab};

/// What a character without a token costs, in ten-thousandths like the scores.
const UNKNOWN_COST: i64 = 10_000_000;

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Plamo {
    tokens: Trie,
    costs: Vec<i64>,
    bytes: Box<[Option<u32>; 256]>,
}

impl Plamo {
    /// Builds the encoder over all but the byte tokens.
    pub(super) fn new(vocab: &Vocab, bytes: Box<[Option<u32>; 256]>) -> Self {
        let listed = vocab
            .texts
            .iter()
            .filter(|&(id, _)| !matches!(vocab.kind(id), TokenKind::Byte | TokenKind::Control));
        let cost = |&score: &f64| -(score * 1e4).round() as i64;
        Plamo {
            tokens: Trie::build(listed.map(|(id, text)| (text, id))),
            costs: vocab.scores.iter().map(cost).collect(),
            bytes,
        }
    }

    /// Appends the tokens of `text`, less a byte order mark.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let best = &mut scratch.best;
        best.clear();
        best.resize(text.len() + 1, Step::default());
        for (at, c) in text.char_indices().rev() {
            best[at] = self.step(text, at, c.len_utf8(), best);
        }
        let mut at = 0;
        while at < text.len() {
            let Step { length, id, .. } = best[at];
            match id {
                Some(id) => out.push(id),
                None => out.extend(
                    text.as_bytes()[at..at + length]
                        .iter()
                        .filter_map(|&b| self.bytes[b as usize]),
                ),
            }
            at += length;
        }
    }

    /// The cheapest first token of `text[at..]`.
    fn step(&self, text: &str, at: usize, char_len: usize, best: &[Step]) -> Step {
        let unknown = Step {
            cost: UNKNOWN_COST + best[at + char_len].cost,
            length: char_len,
            id: None,
        };
        let mut cheapest = unknown;
        for (length, id) in self.tokens.prefixes(&text.as_bytes()[at..]) {
            let cost = self.costs[id as usize] + best[at + length].cost;
            // Prefixes come from short to long.
            if cost <= cheapest.cost {
                cheapest = Step {
                    cost,
                    length,
                    id: Some(id),
                };
            }
        }
        cheapest
    }
}

/// The cheapest cover from some byte on.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    cost: i64,
    length: usize,
    id: Option<u32>,
}

/// Buffers reused from text to text.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    best: Vec<Step>,
}

#[cfg(test)]
mod tests {
    use super::super::vocab::Blob;
    use super::*;

    #[test]
    fn the_cheapest_cover_wins_and_ties_go_to_the_longer_token() {
        let mut texts = Blob::default();
        let tokens = [
            ("a", -1.0),
            ("b", -1.0),
            ("ab", -2.0),
            ("bc", -0.5),
            ("<0xC3>", 0.0),
            ("<0xA9>", 0.0),
        ];
        tokens
            .iter()
            .for_each(|(text, _)| texts.push(text.as_bytes()));
        let kinds = [[TokenKind::Normal; 4].as_slice(), &[TokenKind::Byte; 2]].concat();
        let vocab = Vocab::new(texts, kinds, tokens.iter().map(|t| t.1).collect());
        let plamo = Plamo::new(&vocab, super::super::vocab::byte_tokens(&vocab));
        let mut out = Vec::new();
        plamo.encode("\u{feff}ababcé", &mut Scratch::default(), &mut out);
        assert_eq!(out, [2, 0, 3, 4, 5]);
    }
}
