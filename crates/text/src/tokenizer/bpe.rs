//! Byte pair encoding: the adjacent pair with the lowest rank is merged until none is left.
//!
//! Short words are merged in a small array, long ones with a heap over a linked list, so that the time
//! stays linear (times a logarithm) in the length of a word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocab::{Blob, BytesIndex};

/// A symbol that stands for no token and merges with nothing.
const HOLE: u32 = u32::MAX;
/// Words up to this many symbols are merged by scanning.
const SHORT: usize = 48;

/// How a word falls into its first symbols.
#[derive(Clone, Debug)]
pub(super) enum Start {
    /// One symbol a byte.
    Bytes(Box<[u32; 256]>),
    /// One symbol a character; unknown ones as byte tokens.
    Chars {
        /// Tokens of single bytes, for characters without a token.
        bytes: Box<[Option<u32>; 256]>,
        /// Text added to every character but the first, before the look-up.
        prefix: String,
        /// Text added to the last character, before the look-up.
        suffix: String,
    },
}

/// What becomes of text that has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// It vanishes.
    Dropped,
    /// Each character is this token.
    Each(u32),
    /// Each run of characters is this token.
    Fused(u32),
}

/// When a whole word needs no merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeWords {
    /// Never.
    Merged,
    /// When it is a token.
    Kept,
    /// When it is a token made of line feeds.
    LineFeedsKept,
}

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    /// Bytes of the symbols: first the tokens, then merge results that are no token.
    symbols: Blob,
    index: BytesIndex,
    n_tokens: u32,
    start: Start,
    merges: PairTable,
    pub(super) whole: WholeWords,
    pub(super) unknown: Unknown,
}

/// The parts of an encoder, as a file gives them.
pub(super) struct BpeParts<'a> {
    /// Bytes of each token as they appear in words.
    pub(super) tokens: Blob,
    /// Whether a token can come out of a word at all.
    pub(super) reachable: &'a dyn Fn(u32) -> bool,
    /// Pairs in order of rank: left and right sides in turn.
    pub(super) merges: Blob,
    /// Bytes of a continuation mark that the right side of a merge loses.
    pub(super) prefix_len: usize,
}

impl Bpe {
    /// The symbol of a byte that has no token.
    pub(super) const NONE: u32 = HOLE;

    /// Builds the encoder; `start` is told how to find a symbol.
    pub(super) fn new(
        parts: BpeParts<'_>,
        start: impl FnOnce(&dyn Fn(&[u8]) -> Option<u32>) -> Start,
    ) -> Self {
        let mut symbols = parts.tokens;
        let n_tokens = symbols.len() as u32;
        let index = BytesIndex::build(&symbols, parts.reachable);
        let start = start(&|text| index.find(&symbols, text));
        let mut extra = std::collections::HashMap::new();
        let mut joined = Vec::new();
        let mut merges = PairTable::with_capacity(parts.merges.len() / 2);
        let mut symbol = |text: &[u8], symbols: &mut Blob| {
            index.find(symbols, text).unwrap_or_else(|| {
                *extra.entry(text.to_vec()).or_insert_with(|| {
                    symbols.push(text);
                    symbols.len() as u32 - 1
                })
            })
        };
        for rank in 0..parts.merges.len() as u32 / 2 {
            let side = |i| parts.merges.get(2 * rank + i).unwrap_or_default();
            let (left, right) = (side(0), side(1));
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(&right[parts.prefix_len.min(right.len())..]);
            let id = symbol(&joined, &mut symbols);
            let (left, right) = (symbol(left, &mut symbols), symbol(right, &mut symbols));
            merges.insert(left, right, Merge { rank, id });
        }
        Bpe {
            symbols,
            index,
            n_tokens,
            start,
            merges,
            whole: WholeWords::Merged,
            unknown: Unknown::Dropped,
        }
    }

    /// Appends the tokens of `word`.
    pub(super) fn encode(&self, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(id) = self.whole_word(word) {
            out.push(id);
            return;
        }
        scratch.ids.clear();
        self.cut(word, &mut scratch.ids);
        if scratch.ids.len() > SHORT {
            self.merge_long(scratch);
        } else {
            self.merge_short(scratch);
        }
        for &id in &scratch.ids {
            self.emit(id, out);
        }
    }

    fn whole_word(&self, word: &str) -> Option<u32> {
        let looked_up = match self.whole {
            WholeWords::Merged => false,
            WholeWords::Kept => true,
            WholeWords::LineFeedsKept => word.bytes().all(|b| b == b'\n'),
        };
        if looked_up {
            self.index.find(&self.symbols, word.as_bytes())
        } else {
            None
        }
    }

    fn cut(&self, word: &str, ids: &mut Vec<u32>) {
        match &self.start {
            Start::Bytes(table) => ids.extend(word.bytes().map(|b| table[b as usize])),
            Start::Chars {
                bytes,
                prefix,
                suffix,
            } => {
                let n = word.chars().count();
                for (i, c) in word.chars().enumerate() {
                    let before = if i > 0 { prefix.as_str() } else { "" };
                    let after = if i + 1 == n { suffix.as_str() } else { "" };
                    self.cut_char(c, (before, after), bytes, ids);
                }
            }
        }
    }

    fn cut_char(
        &self,
        c: char,
        (before, after): (&str, &str),
        bytes: &[Option<u32>; 256],
        ids: &mut Vec<u32>,
    ) {
        let mut buffer = [0; 4];
        let text: &str = c.encode_utf8(&mut buffer);
        let found = if before.is_empty() && after.is_empty() {
            self.index.find(&self.symbols, text.as_bytes())
        } else {
            self.index
                .find(&self.symbols, [before, text, after].concat().as_bytes())
        };
        if let Some(id) = found {
            ids.push(id);
        } else if text.bytes().all(|b| bytes[b as usize].is_some()) {
            ids.extend(text.bytes().filter_map(|b| bytes[b as usize]));
        } else {
            ids.push(HOLE);
        }
    }

    fn emit(&self, id: u32, out: &mut Vec<u32>) {
        if id < self.n_tokens {
            out.push(id);
            return;
        }
        if id != HOLE {
            return self.emit_parts(id, out);
        }
        match self.unknown {
            Unknown::Dropped => {}
            Unknown::Each(unk) => out.push(unk),
            Unknown::Fused(unk) if out.last() == Some(&unk) => {}
            Unknown::Fused(unk) => out.push(unk),
        }
    }

    /// A merge result that is no token falls back to its first symbols.
    fn emit_parts(&self, id: u32, out: &mut Vec<u32>) {
        let bytes = self.symbols.get(id).unwrap_or_default();
        let mut ids = Vec::new();
        match &self.start {
            Start::Bytes(table) => ids.extend(bytes.iter().map(|&b| table[b as usize])),
            Start::Chars { bytes: table, .. } => {
                ids.extend(bytes.iter().map(|&b| table[b as usize].unwrap_or(HOLE)));
            }
        }
        out.extend(ids.into_iter().filter(|&id| id < self.n_tokens));
    }

    fn merge_short(&self, scratch: &mut Scratch) {
        let Scratch { ids, ranks, .. } = scratch;
        ranks.clear();
        ranks.extend(ids.windows(2).map(|pair| self.merges.get(pair[0], pair[1])));
        while let Some(best) = lowest(ranks) {
            ids[best] = ranks[best].id;
            ids.remove(best + 1);
            ranks.remove(best);
            if best > 0 {
                ranks[best - 1] = self.merges.get(ids[best - 1], ids[best]);
            }
            if best + 1 < ids.len() {
                ranks[best] = self.merges.get(ids[best], ids[best + 1]);
            }
        }
    }

    fn merge_long(&self, scratch: &mut Scratch) {
        let Scratch {
            ids, links, heap, ..
        } = scratch;
        let n = ids.len() as u32;
        links.clear();
        links.extend((0..n).map(|i| Link {
            prev: i.wrapping_sub(1),
            next: i + 1,
        }));
        heap.clear();
        for at in 0..n - 1 {
            heap.extend(self.candidate(ids, at, at + 1));
        }
        while let Some(Reverse(c)) = heap.pop() {
            let right = links[c.at as usize].next;
            if right >= n || ids[c.at as usize] != c.left || ids[right as usize] != c.right {
                continue;
            }
            ids[c.at as usize] = c.id;
            ids[right as usize] = GONE;
            let after = links[right as usize].next;
            links[c.at as usize].next = after;
            if after < n {
                links[after as usize].prev = c.at;
                heap.extend(self.candidate(ids, c.at, after));
            }
            let before = links[c.at as usize].prev;
            if before < n {
                heap.extend(self.candidate(ids, before, c.at));
            }
        }
        ids.retain(|&id| id != GONE);
    }

    fn candidate(&self, ids: &[u32], at: u32, next: u32) -> Option<Reverse<Candidate>> {
        let (left, right) = (ids[at as usize], ids[next as usize]);
        let merge = self.merges.get(left, right);
        (merge.rank != NEVER).then_some(Reverse(Candidate {
            rank: merge.rank,
            at,
            left,
            right,
            id: merge.id,
        }))
    }
}

/// A symbol swallowed by the one before it.
const GONE: u32 = u32::MAX - 1;
/// The rank of a pair that does not merge.
const NEVER: u32 = u32::MAX;

fn lowest(ranks: &[Merge]) -> Option<usize> {
    let (at, merge) = ranks.iter().enumerate().min_by_key(|(_, m)| m.rank)?;
    (merge.rank != NEVER).then_some(at)
}

/// Buffers reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    ranks: Vec<Merge>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// Ordered by rank, then from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    at: u32,
    left: u32,
    right: u32,
    id: u32,
}

/// What a pair merges into.
#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    id: u32,
}

/// A hash table from pairs of symbols to merges.
#[derive(Clone, Debug)]
struct PairTable {
    slots: Vec<(u64, Merge)>,
    shift: u32,
}

const FREE: u64 = u64::MAX;

impl PairTable {
    fn with_capacity(n: usize) -> Self {
        let size = (n * 2).next_power_of_two().max(16);
        let none = Merge {
            rank: NEVER,
            id: HOLE,
        };
        PairTable {
            slots: vec![(FREE, none); size],
            shift: 64 - size.trailing_zeros(),
        }
    }

    fn slot(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        while self.slots[slot].0 != key && self.slots[slot].0 != FREE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Adds a merge unless the pair has one.
    fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let key = key(left, right);
        let slot = self.slot(key);
        if self.slots[slot].0 == FREE {
            self.slots[slot] = (key, merge);
        }
    }

    fn get(&self, left: u32, right: u32) -> Merge {
        self.slots[self.slot(key(left, right))].1
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
