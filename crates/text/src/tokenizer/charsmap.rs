//! SentencePiece's compiled normaliser: a double-array trie from prefixes of a text to replacements.
//!
//! The file format: the trie's size in bytes (u32, little endian), its units (u32 each), then the
//! replacements, each ended by a zero byte. In a unit, bit 31 and bits 0-7 are the label, bit 8 says
//! that a value hangs below, bits 10-30 are the offset to the children, shifted by 8 if bit 9 is set.

use super::error::TokenizerError;

/// The normaliser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

const LABEL: u32 = 1 << 31 | 0xFF;

impl Charsmap {
    /// Reads the compiled form.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let bad = |reason: &str| TokenizerError::malformed("precompiled_charsmap", reason);
        let (size, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| bad("it ends in its header"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) = rest
            .split_at_checked(size)
            .ok_or_else(|| bad("its trie is longer than the data"))?;
        if std::str::from_utf8(replacements).is_err() {
            return Err(bad("a replacement is not UTF-8"));
        }
        let units = trie
            .chunks_exact(4)
            .map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]]));
        Ok(Charsmap {
            units: units.collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// Replaces the longest known prefix over and over.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + text.len() / 4);
        let mut at = 0;
        while at < text.len() {
            match self.longest(&text.as_bytes()[at..]) {
                Some((length, replacement)) if text.is_char_boundary(at + length) => {
                    out.push_str(replacement);
                    at += length;
                }
                _ => {
                    let c = text[at..].chars().next().unwrap_or_default();
                    out.push(c);
                    at += c.len_utf8();
                }
            }
        }
        out
    }

    /// The longest prefix of `text` that has a replacement.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut node = offset(*self.units.first()?);
        let mut found = None;
        for (i, &byte) in text.iter().enumerate() {
            node ^= byte as usize;
            let Some(&unit) = self
                .units
                .get(node)
                .filter(|&&u| byte != 0 && u & LABEL == u32::from(byte))
            else {
                break;
            };
            node ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                found = self
                    .units
                    .get(node)
                    .map(|value| (i + 1, *value as usize & !(1 << 31)));
            }
        }
        let (length, start) = found?;
        Some((length, self.replacement(start)?))
    }

    fn replacement(&self, start: usize) -> Option<&str> {
        let rest = self.replacements.get(start..)?;
        let end = rest.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}
