//! Literals and matches, as zlib's lazy search at level 6 finds them.

/// A literal (length 0), or a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    /// Bytes of a match, 0 for a literal.
    pub(super) length: u16,
    /// How far back a match lies; the byte of a literal.
    pub(super) distance: u16,
}

const MIN: usize = 3;
const MAX: usize = 258;
/// A match this long is searched for less thoroughly.
const GOOD: usize = 8;
/// Behind a match this long no better one is looked for.
const LAZY: usize = 16;
/// A match this long is good enough.
const NICE: usize = 128;
const CHAIN: usize = 128;
/// A shortest match further back is none.
const TOO_FAR: usize = 4096;
const FAREST: usize = 32_768 - MAX - MIN - 1;

struct Finder<'a> {
    /// The text, zeros behind it.
    window: Vec<u8>,
    text: &'a [u8],
    head: Vec<usize>,
    previous: Vec<usize>,
}

impl Finder<'_> {
    /// Notes the three bytes at a place; the last place with the same hash before, 0 for none.
    fn insert(&mut self, at: usize) -> usize {
        let [a, b, c] = [0, 1, 2].map(|i| usize::from(self.window[at + i]));
        let hash = ((a << 10) ^ (b << 5) ^ c) & 0x7fff;
        let before = std::mem::replace(&mut self.head[hash], at);
        self.previous[at] = before;
        before
    }

    /// The longest match at a place among those that begin with a hash's chain, if it is longer than `least`.
    fn longest(&self, at: usize, mut candidate: usize, least: usize) -> (usize, usize) {
        let left = self.text.len() - at;
        let mut chain = if least >= GOOD { CHAIN / 4 } else { CHAIN };
        let nice = NICE.min(left);
        let limit = at.saturating_sub(FAREST);
        let (mut best, mut start) = (least, 0);
        loop {
            let (here, there) = (&self.window[at..at + MAX], &self.window[candidate..]);
            if there[best] == here[best] && there[best - 1] == here[best - 1] {
                let pairs = here.iter().zip(there);
                let len = pairs.take_while(|(a, b)| a == b).count();
                if len > best {
                    (best, start) = (len, candidate);
                    if len >= nice {
                        break;
                    }
                }
                if best >= MAX {
                    break;
                }
            }
            candidate = self.previous[candidate];
            chain -= 1;
            if candidate <= limit || chain == 0 {
                break;
            }
        }
        (best.min(left), start)
    }
}

/// The symbols of a text.
pub(super) fn symbols(text: &[u8]) -> Vec<Symbol> {
    let mut finder = Finder {
        window: [text, &[0; 2 * MAX + 4]].concat(),
        text,
        head: vec![0; 1 << 15],
        previous: vec![0; text.len() + 1],
    };
    let (mut at, mut pending, mut out) = (0, false, Vec::new());
    let (mut length, mut start) = (MIN - 1, 0);
    let literal = |at: usize| Symbol {
        length: 0,
        distance: u16::from(text[at]),
    };
    while at < text.len() {
        let left = text.len() - at;
        let before = if left >= MIN { finder.insert(at) } else { 0 };
        let (old_length, old_start) = (length, start);
        length = MIN - 1;
        if before != 0 && old_length < LAZY && at - before <= FAREST {
            let (len, from) = finder.longest(at, before, old_length);
            length = len;
            if from != 0 {
                start = from;
            }
            if length <= 5 && length == MIN && at - start > TOO_FAR {
                length = MIN - 1;
            }
        }
        if old_length >= MIN && length <= old_length {
            let last = (at + left).saturating_sub(MIN);
            out.push(Symbol {
                length: old_length as u16,
                distance: (at - 1 - old_start) as u16,
            });
            for _ in 0..old_length - 2 {
                at += 1;
                if at <= last {
                    finder.insert(at);
                }
            }
            pending = false;
            length = MIN - 1;
            at += 1;
        } else {
            if pending {
                out.push(literal(at - 1));
            }
            pending = true;
            at += 1;
        }
    }
    if pending {
        out.push(literal(at - 1));
    }
    out
}
