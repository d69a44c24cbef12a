//! Masks of allowed tokens that may be computed while the model runs.

use std::sync::{Arc, OnceLock};

/// One bit per id, 1 allowed; clones share it.
#[derive(Clone)]
pub struct Mask(Arc<OnceLock<Option<Vec<u32>>>>);

/// Settles a [`Mask`]. Dropped without having done so, it settles that all is allowed.
#[derive(Debug)]
pub struct MaskSetter(Mask);

impl Mask {
    /// A mask that is known.
    #[must_use]
    pub fn ready(words: Vec<u32>) -> Self {
        Mask(Arc::new(OnceLock::from(Some(words))))
    }

    /// A mask that somebody else is computing.
    #[must_use]
    pub fn pending() -> (MaskSetter, Self) {
        let mask = Mask(Arc::default());
        (MaskSetter(mask.clone()), mask)
    }

    /// Its words, once they are known; `None` allows all.
    #[must_use]
    pub fn words(&self) -> Option<&[u32]> {
        self.0.wait().as_deref()
    }

    fn settle(&self, words: Option<Vec<u32>>) {
        // Settled before is settled for good.
        let _ = self.0.set(words);
    }
}

impl MaskSetter {
    /// Settles the mask.
    pub fn set(self, words: Vec<u32>) {
        self.0.settle(Some(words));
    }
}

impl Drop for MaskSetter {
    fn drop(&mut self) {
        self.0.settle(None);
    }
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.words() == other.words()
    }
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mask").field(&self.0.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_wait_until_a_mask_is_settled() {
        let (setter, mask) = Mask::pending();
        let reader = std::thread::spawn({
            let mask = mask.clone();
            move || mask.words().map(<[u32]>::to_vec)
        });
        setter.set(vec![5]);
        assert_eq!(reader.join().unwrap(), Some(vec![5]));
        assert_eq!(mask, Mask::ready(vec![5]));
        let (setter, mask) = Mask::pending();
        drop(setter);
        assert_eq!(mask.words(), None);
    }
}
