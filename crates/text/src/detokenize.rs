//! Token ids to text as they come, without ever splitting a character.

use crate::tokenizer::{DecodeOptions, Tokenizer};

/// The state of one stream of tokens.
///
/// Bytes that begin a character are held back until the character is whole; bytes that can never
/// become one turn into U+FFFD at once.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    options: DecodeOptions,
    /// Less than one character.
    held: Vec<u8>,
    begun: bool,
    /// Spaces before the text that were left out.
    dropped: usize,
}

impl Detokenizer {
    /// A stream that has not begun.
    #[must_use]
    pub fn new(options: DecodeOptions) -> Self {
        Detokenizer {
            options,
            ..Self::default()
        }
    }

    /// Appends to `out` the characters that token `id` completes.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if !self.options.special && tokenizer.is_special(id) {
            return;
        }
        let mut bytes = tokenizer.token_bytes(id);
        while !self.begun && !self.options.continues && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) if self.dropped < tokenizer.leading_spaces() => {
                    self.dropped += 1;
                    bytes = rest;
                }
                _ => self.begun = true,
            }
        }
        self.push_bytes(bytes, out);
    }

    /// Appends to `out` the characters that `bytes` complete.
    pub fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if self.held.is_empty() {
            let rest = decode(bytes, out);
            self.held.extend_from_slice(rest);
            return;
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        self.held = decode(&all, out).to_vec();
    }

    /// Whether the stream ends inside a character so far.
    #[must_use]
    pub fn is_mid_character(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends the stream: half a character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        self.held.clear();
        self.begun = false;
        self.dropped = 0;
    }
}

/// Appends the whole characters of `bytes` and returns the begun one after them.
fn decode<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (good, bad) = rest.split_at(error.valid_up_to());
                out.push_str(std::str::from_utf8(good).unwrap_or_default());
                let Some(length) = error.error_len() else {
                    return bad;
                };
                out.push(char::REPLACEMENT_CHARACTER);
                rest = &bad[length..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(parts: &[&[u8]]) -> Vec<String> {
        let mut detokenizer = Detokenizer::default();
        let mut out: Vec<String> = parts
            .iter()
            .map(|part| {
                let mut text = String::new();
                detokenizer.push_bytes(part, &mut text);
                text
            })
            .collect();
        let mut last = String::new();
        detokenizer.finish(&mut last);
        out.push(last);
        out
    }

    #[test]
    fn characters_stay_whole() {
        assert_eq!(
            stream(&[b"a\xf0\x9f", b"\x98", b"\x80b", b"\xc3"]),
            ["a", "", "😀b", "", "\u{fffd}"]
        );
    }

    #[test]
    fn broken_bytes_are_replaced_at_once() {
        assert_eq!(
            stream(&[b"\xff", b"\xe4\xb8", b"x"]),
            ["\u{fffd}", "", "\u{fffd}x", ""]
        );
    }

    #[test]
    fn a_stream_equals_the_lossy_whole() {
        let all = b"\xf0\x9f\x98\x80\xe2\x82(\xff\xc3\xa9\xed\xa0\x80\xf0\x90";
        for size in 1..all.len() {
            let parts: Vec<&[u8]> = all.chunks(size).collect();
            assert_eq!(
                stream(&parts).concat(),
                String::from_utf8_lossy(all),
                "chunks of {size}"
            );
        }
    }
}
