//! One sequence: the tokens that were fed and the blocks that hold their cache.

use crate::engine::{Attached, family};
use crate::prefix::NodeId;

/// Tokens in the cache and where their cache is. Blocks are given back by `Cache::release` only.
#[derive(Debug, Default)]
pub struct Sequence {
    pub(crate) tokens: Vec<u32>,
    /// By token: whether its row was an answer's.
    pub(crate) answers: Vec<bool>,
    /// Rows under way behind the tokens: their blocks are there, their cache does not count yet.
    pub(crate) ahead: usize,
    /// Per group: leading places of its table that the device knows.
    pub(crate) synced: Vec<usize>,
    /// Per group: physical blocks by place; `NO_BLOCK` where a window has passed.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Prefix-cache nodes of the whole granules.
    pub(crate) path: Vec<NodeId>,
    pub(crate) salt: u64,
    /// The first position that moved, if any did: from there on its cache is not what its tokens alone would give.
    pub(crate) moved: Option<usize>,
    /// What its rows go through.
    pub(crate) adapter: Option<Attached>,
    /// Positions that its encoder writes.
    pub(crate) encoded: usize,
    /// Length at the newest snapshot of a recurrent state.
    pub(crate) snapshot_len: usize,
}

impl Sequence {
    /// An empty sequence. Only sequences of one salt share blocks.
    #[must_use]
    pub fn new(groups: usize, salt: u64) -> Self {
        Sequence {
            tables: vec![Vec::new(); groups],
            synced: vec![0; groups],
            salt,
            ..Sequence::default()
        }
    }

    /// What it shares blocks within.
    pub(crate) fn family(&self) -> u64 {
        family(self.salt, self.adapter)
    }

    /// The executor's number of its adapter; 0 for none.
    pub(crate) fn adapter_number(&self) -> u32 {
        self.adapter.map_or(0, |a| a.number)
    }

    /// The tokens whose cache is held.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens whose cache is held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was fed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Length once every row under way is done.
    #[must_use]
    pub fn end(&self) -> usize {
        self.tokens.len() + self.ahead
    }

    /// Which tokens were computed as an answer's rows.
    #[must_use]
    pub fn answers(&self) -> &[bool] {
        &self.answers
    }

    /// A place of a table changed.
    pub(crate) fn touch(&mut self, group: usize, place: usize) {
        self.synced[group] = self.synced[group].min(place);
    }

    /// The device forgot what it knew of the tables.
    pub(crate) fn forget_synced(&mut self) {
        self.synced.fill(0);
    }

    /// Block tables per group, as a step takes them.
    #[must_use]
    pub fn tables(&self) -> &[Vec<u32>] {
        &self.tables
    }
}
