//! The tokens of a vocabulary: texts, output bytes, kinds and scores, and the index by text.

use bstr::ByteSlice;

use super::bytes::push_from_alphabet;

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text the vocabulary cannot express.
    Unknown,
    /// Has a meaning to the model and no text: begin, end, role markers.
    Control,
    /// Text that is cut out before anything else is split.
    UserDefined,
    /// A place that was never trained.
    Unused,
    /// One byte, for text that no other token covers.
    Byte,
}

/// Byte strings, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Blob {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Blob {
    pub(super) fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Adds the spelled-out bytes of `text`, or its own bytes; `None` if it spells none.
    pub(super) fn push_word(&mut self, text: &[u8], byte_level: bool) -> Option<()> {
        let start = self.bytes.len();
        if !byte_level {
            self.bytes.extend_from_slice(text);
        } else if push_from_alphabet(text, &mut self.bytes).is_none() {
            self.bytes.truncate(start);
            return None;
        }
        self.ends.push(self.bytes.len() as u32);
        Some(())
    }

    /// Adds a pair, or nothing if one of its sides spells none.
    pub(super) fn push_pair(&mut self, left: &[u8], right: &[u8], byte_level: bool) {
        let (n_bytes, n_ends) = (self.bytes.len(), self.ends.len());
        if self
            .push_word(left, byte_level)
            .and_then(|()| self.push_word(right, byte_level))
            .is_none()
        {
            self.bytes.truncate(n_bytes);
            self.ends.truncate(n_ends);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, i: u32) -> Option<&[u8]> {
        let i = i as usize;
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.bytes[start..end])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.len() as u32).filter_map(|i| Some((i, self.get(i)?)))
    }
}

/// All tokens of a file.
#[derive(Clone, Debug)]
pub(super) struct Vocab {
    /// Texts as the file spells them.
    pub(super) texts: Blob,
    /// Bytes each token adds to an output.
    pub(super) pieces: Blob,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) scores: Vec<f64>,
    by_text: BytesIndex,
}

impl Vocab {
    /// A vocabulary whose output bytes are still to be set.
    pub(super) fn new(texts: Blob, kinds: Vec<TokenKind>, scores: Vec<f64>) -> Self {
        let by_text = BytesIndex::build(&texts, |_| true);
        Vocab {
            texts,
            pieces: Blob::default(),
            kinds,
            scores,
            by_text,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The first token spelled `text` in the file.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        self.by_text.find(&self.texts, text)
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    pub(super) fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id).unwrap_or_default()
    }
}

/// The byte that a `<0xHH>` token stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 || !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(hex.to_str().ok()?, 16).ok()
}

/// The token of each byte, spelled `<0xHH>`.
pub(super) fn byte_tokens(vocab: &Vocab) -> Box<[Option<u32>; 256]> {
    Box::new(std::array::from_fn(|b| {
        vocab.find(format!("<0x{b:02X}>").as_bytes())
    }))
}

/// A hash table from the strings of a [`Blob`] to their numbers; the first of equals wins.
#[derive(Clone, Debug)]
pub(super) struct BytesIndex {
    /// Item number plus one; 0 is free.
    slots: Vec<u32>,
    longest: usize,
}

impl BytesIndex {
    pub(super) fn build(blob: &Blob, wanted: impl Fn(u32) -> bool) -> Self {
        let size = (blob.len() * 2).next_power_of_two().max(16);
        let mut index = BytesIndex {
            slots: vec![0; size],
            longest: 0,
        };
        for (i, item) in blob.iter().filter(|&(i, _)| wanted(i)) {
            index.longest = index.longest.max(item.len());
            if let Err(slot) = index.probe(blob, item) {
                index.slots[slot] = i + 1;
            }
        }
        index
    }

    pub(super) fn find(&self, blob: &Blob, item: &[u8]) -> Option<u32> {
        if item.len() > self.longest {
            return None;
        }
        self.probe(blob, item).ok()
    }

    fn probe(&self, blob: &Blob, item: &[u8]) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash_bytes(item) as usize & mask;
        loop {
            match self.slots[slot].checked_sub(1) {
                None => return Err(slot),
                Some(i) if blob.get(i) == Some(item) => return Ok(i),
                Some(_) => slot = (slot + 1) & mask,
            }
        }
    }
}

/// A fast hash for tables whose keys come from the model file.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        hash = (hash.rotate_left(23) ^ word).wrapping_mul(K);
    }
    let mut word = [0; 8];
    word[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    hash = (hash.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(K);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_finds_the_first_of_equals() {
        let mut blob = Blob::default();
        for item in ["", "a", "ab", "a", "a much longer item"] {
            blob.push(item.as_bytes());
        }
        let index = BytesIndex::build(&blob, |_| true);
        assert_eq!(index.find(&blob, b"a"), Some(1));
        assert_eq!(index.find(&blob, b""), Some(0));
        assert_eq!(index.find(&blob, b"a much longer item"), Some(4));
        assert_eq!(index.find(&blob, b"b"), None);
    }

    #[test]
    fn byte_spellings() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0x+A>"), None);
        assert_eq!(byte_of(b"<0x0AB>"), None);
    }
}
