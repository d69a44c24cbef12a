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

    /// Its words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}
