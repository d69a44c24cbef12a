//! How repetitive a text is: its bytes by those that zlib makes of it at its usual level.
//!
//! Retries hang on this ratio, so it is zlib's to the byte: the same matches (lazy, of level 6), the same code lengths.
//! Only lengths are counted, nothing is written.

mod matches;
mod trees;

/// Bytes of the text by the bytes that zlib needs for it.
#[must_use]
pub fn compression_ratio(text: &str) -> f64 {
    text.len() as f64 / compressed_bytes(text.as_bytes()) as f64
}

/// Symbols of a block at most.
const BLOCK: usize = 16_383;

/// Bytes that zlib makes of these at level 6. Exact up to 32,506 bytes, beyond which matches would leave its window.
#[must_use]
pub fn compressed_bytes(bytes: &[u8]) -> usize {
    let symbols = matches::symbols(bytes);
    let mut bits = 0usize;
    let mut blocks = symbols.chunks(BLOCK).peekable();
    if blocks.peek().is_none() {
        bits += trees::block_bits(&[], 0);
    }
    for block in blocks {
        let stored: usize = block.iter().map(|s| usize::from(s.length.max(1))).sum();
        bits += match trees::block_bits(block, stored) {
            0 => (bits + 3).next_multiple_of(8) - bits + 32 + 8 * stored,
            n => n,
        };
    }
    // Two bytes stand before, four of a check behind.
    2 + bits.div_ceil(8) + 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_have_known_lengths() {
        // `len(zlib.compress(text))`
        for (text, bytes) in [
            ("", 8),
            ("a", 9),
            ("aaaaaaaaaa", 11),
            ("abcabcabcabcabcabc", 13),
        ] {
            assert_eq!(compressed_bytes(text.as_bytes()), bytes, "{text}");
        }
    }
}
