//! RWKV's world vocabulary: the longest token at every place, from left to right.

use super::trie::Trie;
use super::vocab::Blob;

/// The encoder.
#[derive(Clone, Debug)]
pub(super) struct Rwkv {
    tokens: Trie,
    unk: Option<u32>,
}

impl Rwkv {
    /// Builds the encoder from the tokens' bytes.
    pub(super) fn new(pieces: &Blob, unk: Option<u32>) -> Self {
        Rwkv {
            tokens: Trie::build(pieces.iter().map(|(id, piece)| (piece, id))),
            unk,
        }
    }

    /// Appends the tokens of `text`; a byte without a token is unknown.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (length, id) = match self.tokens.longest(rest) {
                Some((length, id)) => (length, Some(id)),
                None => (1, self.unk),
            };
            out.extend(id);
            rest = &rest[length..];
        }
    }
}

/// The bytes that a token is spelled as: `\n \r \t \xHH`, and any other character after a backslash.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let digits = [bytes.next(), bytes.next()].map(|d| hex(d.unwrap_or(b'0')));
                out.push(digits[0] << 4 | digits[1]);
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(unescape(br"a\n\t\r\xe4\\\'"), b"a\n\t\r\xe4\\'");
    }

    #[test]
    fn longest_match_and_unknown_bytes() {
        let mut pieces = Blob::default();
        for piece in ["?", "a", "ab", "abcd"] {
            pieces.push(piece.as_bytes());
        }
        let rwkv = Rwkv::new(&pieces, Some(0));
        let mut out = Vec::new();
        rwkv.encode("abcabcdxa", &mut out);
        assert_eq!(out, [2, 0, 3, 0, 1]);
    }
}
