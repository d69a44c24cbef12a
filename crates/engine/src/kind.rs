//! What each kind of cache allows.

use tokkata_ir::CacheKind;

/// How far a sequence's cache can be cut back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncate {
    /// To any length.
    Exact,
    /// By at most this many positions.
    Within(usize),
    /// Not at all: its state has forgotten how it came about.
    Never,
}

/// What a kind of cache allows whatever a sequence holds.
pub trait CacheTraits {
    /// How far a cache of `len` positions, of which those below `first` are gone, can be cut back.
    fn can_truncate(&self, len: usize, first: usize) -> Truncate;

    /// First position that a row at position `len` may still read.
    fn first_needed(&self, len: usize) -> usize;
}

impl CacheTraits for CacheKind {
    fn can_truncate(&self, len: usize, first: usize) -> Truncate {
        match *self {
            CacheKind::Full | CacheKind::Entries(_) | CacheKind::Cross => Truncate::Exact,
            CacheKind::Recurrent => Truncate::Never,
            CacheKind::Window(_) if first == 0 => Truncate::Exact,
            CacheKind::Window(w) => {
                let shortest = first + (w as usize).saturating_sub(1);
                Truncate::Within(len.saturating_sub(shortest))
            }
        }
    }

    fn first_needed(&self, len: usize) -> usize {
        match *self {
            CacheKind::Window(w) => (len + 1).saturating_sub((w as usize).max(1)),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_goes_back_as_far_as_its_blocks_reach() {
        let window = CacheKind::Window(4);
        assert_eq!(window.first_needed(10), 7);
        assert_eq!(window.first_needed(2), 0);
        assert_eq!(window.can_truncate(10, 0), Truncate::Exact);
        assert_eq!(window.can_truncate(10, 4), Truncate::Within(3));
        assert_eq!(window.first_needed(7), 4);
        assert_eq!(CacheKind::Recurrent.can_truncate(10, 0), Truncate::Never);
        assert_eq!(CacheKind::Full.can_truncate(10, 0), Truncate::Exact);
    }
}
