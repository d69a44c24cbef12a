//! Masks of allowed tokens.

use std::sync::Arc;

/// One bit per id, 1 allowed; clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Arc<[u32]>);

impl Mask {
    /// A mask of these words; ids beyond them are not allowed.
    #[must_use]
    pub fn new(words: Vec<u32>) -> Self {
        Mask(words.into())
    }

    /// Whether an id may be drawn.
    #[must_use]
    pub fn allows(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / 32).copied().unwrap_or(0);
        word >> (id % 32) & 1 == 1
    }

    /// Its words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}
