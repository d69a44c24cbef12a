//! The caches of all sequences: pools, tables, sharing, and going back.

use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{CacheGroup, CacheKind, GroupId, Limits};

use crate::error::EngineError;
use crate::kind::{CacheTraits, Truncate};
use crate::pool::{Block, BlockPool};
use crate::prefix::{GRANULE, Hit, NodeId, PrefixCache, Span};
use crate::sequence::Sequence;

/// A block to be copied before anything else is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Whose pool.
    pub group: GroupId,
    /// Source.
    pub from: Block,
    /// Destination.
    pub to: Block,
}

/// How caches behave beyond what a program says.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Forget a sequence's blocks as soon as it ends.
    pub no_prefix_cache: bool,
    /// Hand blocks out in a shuffled order, for tests.
    pub shuffle_blocks: Option<u64>,
}

/// Pools, and the prefixes they hold.
#[derive(Debug)]
pub struct Cache {
    groups: Vec<CacheGroup>,
    limits: Limits,
    pools: Vec<BlockPool>,
    prefix: Option<PrefixCache>,
}

impl Cache {
    /// Empty caches for these groups.
    #[must_use]
    pub fn new(groups: &[CacheGroup], limits: &Limits, options: &CacheOptions) -> Self {
        let order = |n: u32| match options.shuffle_blocks {
            None => (0..n).collect(),
            Some(seed) => shuffled(n, seed),
        };
        Cache {
            groups: groups.to_vec(),
            limits: *limits,
            pools: groups
                .iter()
                .map(|g| BlockPool::with_order(order(g.n_blocks)))
                .collect(),
            prefix: (!options.no_prefix_cache).then(|| PrefixCache::new(groups.len())),
        }
    }

    /// The pools, by group.
    #[must_use]
    pub fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    /// Whether some state cannot be cut back.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.groups.iter().any(|g| g.kind == CacheKind::Recurrent)
    }

    /// An empty sequence of these caches.
    #[must_use]
    pub fn sequence(&self, salt: u64) -> Sequence {
        Sequence::new(self.groups.len(), salt)
    }

    /// Tables long enough for `n` more tokens, of blocks that this sequence alone may write. The copies must be
    /// made at once, in order.
    ///
    /// # Errors
    /// [`EngineError::CacheFull`], with nothing changed.
    pub fn reserve(&mut self, seq: &mut Sequence, n: usize) -> Result<Vec<BlockCopy>, EngineError> {
        for g in 0..self.groups.len() {
            let needed = self.missing(seq, g, n);
            let available = self.pools[g].free() + self.pools[g].idle();
            if needed > available {
                return Err(EngineError::CacheFull {
                    group: g,
                    needed,
                    available,
                });
            }
        }
        let mut copies = Vec::new();
        for g in 0..self.groups.len() {
            copies.extend(self.own_last(seq, g));
            let places = self.places(g, seq.len() + n);
            while seq.tables[g].len() < places {
                let block = self.take(g);
                seq.tables[g].push(block);
            }
        }
        Ok(copies)
    }

    /// Whether blocks for `n` more tokens can be had, as far as windows need them at once.
    #[must_use]
    pub fn fits(&self, seq: &Sequence, n: usize) -> bool {
        let enough = |(g, group): (usize, &CacheGroup)| {
            let n = match group.kind {
                CacheKind::Window(w) => n.min(w as usize + self.limits.rows as usize),
                _ => n,
            };
            self.missing(seq, g, n) <= self.pools[g].free() + self.pools[g].idle()
        };
        self.groups.iter().enumerate().all(enough)
    }

    /// Blocks of a group for `len` positions.
    fn places(&self, g: usize, len: usize) -> usize {
        let size = self.groups[g].block_size as usize;
        match self.groups[g].kind {
            CacheKind::Recurrent => 1,
            CacheKind::Cross => self.groups[g].table_len(&self.limits),
            _ => len.div_ceil(size),
        }
    }

    /// Blocks that `reserve` would take from the pool of a group.
    fn missing(&self, seq: &Sequence, g: usize, n: usize) -> usize {
        let new = self
            .places(g, seq.len() + n)
            .saturating_sub(seq.tables[g].len());
        new + usize::from(self.foreign(seq, g).is_some())
    }

    /// The place of the block that the next token is written to, when it exists and must be copied first.
    fn foreign(&self, seq: &Sequence, g: usize) -> Option<usize> {
        let size = self.groups[g].block_size as usize;
        let (place, offset) = match self.groups[g].kind {
            CacheKind::Recurrent | CacheKind::Cross => (0, 0),
            _ => (seq.len() / size, seq.len() % size),
        };
        let &block = seq.tables[g].get(place).filter(|&&b| b != NO_BLOCK)?;
        (!self.pools[g].is_writable(block, offset as u32)).then_some(place)
    }

    fn own_last(&mut self, seq: &mut Sequence, g: usize) -> Option<BlockCopy> {
        let place = self.foreign(seq, g)?;
        let from = seq.tables[g][place];
        let to = self.take(g);
        seq.tables[g][place] = to;
        self.pools[g].release(from);
        Some(BlockCopy {
            group: GroupId(g as u32),
            from,
            to,
        })
    }

    fn take(&mut self, g: usize) -> Block {
        if self.pools[g].free() == 0 {
            let prefix = self
                .prefix
                .as_mut()
                .expect("only the prefix cache leaves idle blocks");
            assert!(
                prefix.evict(g, &mut self.pools),
                "idle blocks can be evicted"
            );
        }
        self.pools[g].take().expect("a block was made free")
    }

    /// The backend has written the cache of these tokens: they count from now on.
    pub fn commit(&mut self, seq: &mut Sequence, tokens: &[u32]) {
        seq.tokens.extend_from_slice(tokens);
        self.remember(seq);
        for g in 0..self.groups.len() {
            self.drop_passed(seq, g);
        }
    }

    /// Releases blocks that a window has passed for good.
    fn drop_passed(&mut self, seq: &mut Sequence, g: usize) {
        let size = self.groups[g].block_size as usize;
        let passed = self.groups[g].kind.first_needed(seq.len()) / size;
        for block in seq.tables[g].iter_mut().take(passed).rev() {
            if *block == NO_BLOCK {
                break;
            }
            self.pools[g].release(std::mem::replace(block, NO_BLOCK));
        }
    }

    /// Stores every whole granule that is not stored yet.
    fn remember(&mut self, seq: &mut Sequence) {
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        if seq.path.last().is_some_and(|&node| !prefix.contains(node)) {
            seq.path.clear();
        }
        while (seq.path.len() + 1) * GRANULE <= seq.len() {
            let start = seq.path.len() * GRANULE;
            let parent = seq.path.last().copied();
            let parent = parent.unwrap_or_else(|| prefix.root(seq.salt));
            let node = prefix.child(parent, &seq.tokens[start..start + GRANULE]);
            for (g, group) in self.groups.iter().enumerate() {
                let span = positions(group, &seq.tables[g], start, start + GRANULE);
                if let Some(span) = span {
                    prefix.hold(node, g, span, &mut self.pools[g]);
                }
            }
            seq.path.push(node);
        }
    }

    /// Stores the state after the newest token, so that a recurrent model can be continued from here.
    pub fn snapshot(&mut self, seq: &mut Sequence) {
        if !self.is_recurrent() || seq.is_empty() || seq.snapshot_len == seq.len() {
            return;
        }
        self.remember(seq);
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        let (start, end) = (seq.path.len() * GRANULE, seq.len());
        let last = seq.path.last().copied();
        let mut node = last.unwrap_or_else(|| prefix.root(seq.salt));
        if start < end {
            node = prefix.child(node, &seq.tokens[start..end]);
        }
        for (g, group) in self.groups.iter().enumerate() {
            let span = match group.kind {
                CacheKind::Recurrent => Some(Span {
                    start: end,
                    blocks: vec![(seq.tables[g][0], 1)],
                }),
                _ => positions(group, &seq.tables[g], start, end),
            };
            if let Some(span) = span {
                prefix.hold(node, g, span, &mut self.pools[g]);
            }
        }
        seq.snapshot_len = end;
    }

    /// Gives an empty sequence the longest stored prefix of `tokens` that leaves at least one token to compute.
    /// Returns its length.
    pub fn reuse(&mut self, seq: &mut Sequence, tokens: &[u32]) -> usize {
        assert!(
            seq.is_empty(),
            "only an empty sequence takes a stored prefix"
        );
        let Some(prefix) = &self.prefix else { return 0 };
        let hits = prefix.hits(seq.salt, tokens);
        let (path, mut marks): (Vec<Hit>, Vec<Hit>) = (
            hits.iter()
                .copied()
                .filter(|h| h.len == h.depth * GRANULE)
                .collect(),
            hits,
        );
        marks.sort_by_key(|h| std::cmp::Reverse(h.len));
        let found = marks.iter().find_map(|hit| {
            let len = self.usable(hit, &path, tokens.len() - 1)?;
            Some((*hit, len))
        });
        let Some((hit, len)) = found else { return 0 };
        let nodes = chain(&path, &hit);
        self.attach(seq, &nodes, &tokens[..len]);
        self.prefix.as_mut().expect("it was searched").touch(&nodes);
        len
    }

    /// The length at which every group can continue from a hit, at most `limit`.
    fn usable(&self, hit: &Hit, path: &[Hit], limit: usize) -> Option<usize> {
        let len = if self.is_recurrent() {
            hit.len
        } else {
            hit.len.min(limit)
        };
        if len == 0 || len > limit {
            return None;
        }
        let prefix = self.prefix.as_ref()?;
        let nodes = chain(path, hit);
        let holds = |g: usize, group: &CacheGroup| match group.kind {
            CacheKind::Recurrent => prefix.span(hit.node, g).is_some(),
            CacheKind::Cross => false,
            kind => {
                let first = kind.first_needed(len);
                let nodes = nodes.iter().enumerate().skip(first / GRANULE);
                let reaches = |span: &Span, i| span.start <= first.max(i * GRANULE);
                nodes
                    .into_iter()
                    .all(|(i, &n)| prefix.span(n, g).is_some_and(|s| reaches(s, i)))
            }
        };
        self.groups
            .iter()
            .enumerate()
            .all(|(g, group)| holds(g, group))
            .then_some(len)
    }

    fn attach(&mut self, seq: &mut Sequence, nodes: &[NodeId], tokens: &[u32]) {
        let prefix = self.prefix.as_ref().expect("a prefix was found");
        let len = tokens.len();
        for (g, group) in self.groups.iter().enumerate() {
            let table = match group.kind {
                CacheKind::Recurrent => {
                    let last = nodes.last().and_then(|&n| prefix.span(n, g));
                    vec![last.expect("a usable hit holds the state").blocks[0].0]
                }
                _ => shared_table(prefix, (g, group), nodes, len),
            };
            for &block in table.iter().filter(|&&b| b != NO_BLOCK) {
                self.pools[g].retain(block);
            }
            seq.tables[g] = table;
        }
        seq.tokens = tokens.to_vec();
        seq.path = nodes[..len / GRANULE].to_vec();
        seq.snapshot_len = if self.is_recurrent() { len } else { 0 };
    }

    /// A second sequence over the same blocks; whichever writes a shared block first copies it.
    #[must_use]
    pub fn fork(&mut self, seq: &Sequence) -> Sequence {
        for (pool, table) in self.pools.iter_mut().zip(&seq.tables) {
            for &block in table.iter().filter(|&&b| b != NO_BLOCK) {
                pool.retain(block);
            }
        }
        Sequence {
            tokens: seq.tokens.clone(),
            tables: seq.tables.clone(),
            path: seq.path.clone(),
            salt: seq.salt,
            snapshot_len: seq.snapshot_len,
        }
    }

    /// Whether a sequence can be cut to `len` tokens.
    #[must_use]
    pub fn can_truncate(&self, seq: &Sequence, len: usize) -> bool {
        if len == 0 || len == seq.len() {
            return true;
        }
        let reaches = |(g, group): (usize, &CacheGroup)| {
            let gone = seq.tables[g].iter().take_while(|&&b| b == NO_BLOCK).count();
            match group
                .kind
                .can_truncate(seq.len(), gone * group.block_size as usize)
            {
                Truncate::Exact => true,
                Truncate::Within(n) => seq.len() - len <= n,
                Truncate::Never => false,
            }
        };
        len < seq.len() && self.groups.iter().enumerate().all(reaches)
    }

    /// Forgets the tokens from `len` on, exactly.
    ///
    /// # Errors
    /// [`EngineError::CannotTruncate`] when a window or a state cannot go back that far; nothing is changed.
    pub fn truncate(&mut self, seq: &mut Sequence, len: usize) -> Result<(), EngineError> {
        if !self.can_truncate(seq, len) {
            return Err(EngineError::CannotTruncate {
                held: seq.len(),
                wanted: len,
            });
        }
        if len == seq.len() {
            return Ok(());
        }
        for g in 0..self.groups.len() {
            let keep = if len == 0 { 0 } else { self.places(g, len) };
            for block in seq.tables[g].drain(keep..).filter(|&b| b != NO_BLOCK) {
                self.pools[g].release(block);
            }
        }
        seq.tokens.truncate(len);
        seq.path.truncate(len / GRANULE);
        seq.snapshot_len = seq.snapshot_len.min(len);
        Ok(())
    }

    /// Gives every block of a sequence back; what is stored of it stays reusable.
    pub fn release(&mut self, mut seq: Sequence) {
        if let Some(prefix) = &mut self.prefix {
            prefix.touch(&seq.path);
        }
        self.clear(&mut seq);
    }

    /// Empties a sequence.
    pub fn clear(&mut self, seq: &mut Sequence) {
        self.truncate(seq, 0).expect("every cache can be emptied");
    }

    /// Forgets all stored prefixes.
    pub fn forget(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.clear(&mut self.pools);
        }
    }
}

/// Nodes from the first granule to a hit.
fn chain(path: &[Hit], hit: &Hit) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = path[..hit.depth].iter().map(|h| h.node).collect();
    if hit.len != hit.depth * GRANULE {
        nodes.push(hit.node);
    }
    nodes
}

/// The blocks of positions `start..end`, less those that a window has passed; `None` when all are, and for states.
fn positions(group: &CacheGroup, table: &[u32], start: usize, end: usize) -> Option<Span> {
    if !matches!(group.kind, CacheKind::Full | CacheKind::Window(_)) {
        return None;
    }
    let size = group.block_size as usize;
    let places = start / size..end.div_ceil(size);
    let passed = table[places.clone()]
        .iter()
        .take_while(|&&b| b == NO_BLOCK)
        .count();
    let first = places.start + passed;
    let kept = |place: usize| (table[place], (end - place * size).min(size) as u32);
    (first < places.end).then(|| Span {
        start: start.max(first * size),
        blocks: (first..places.end).map(kept).collect(),
    })
}

/// The table of `len` positions out of stored blocks. A later node's block of the same place wins: it holds the
/// earlier positions too.
fn shared_table(
    prefix: &PrefixCache,
    (g, group): (usize, &CacheGroup),
    nodes: &[NodeId],
    len: usize,
) -> Vec<u32> {
    let size = group.block_size as usize;
    let mut table = vec![NO_BLOCK; len.div_ceil(size)];
    let passed = group.kind.first_needed(len) / size;
    for span in nodes.iter().filter_map(|&node| prefix.span(node, g)) {
        for (place, &(block, _)) in (span.start / size..).zip(&span.blocks) {
            if (passed..table.len()).contains(&place) {
                table[place] = block;
            }
        }
    }
    table
}

/// A permutation of `0..n` that depends on the seed alone.
fn shuffled(n: u32, seed: u64) -> Vec<Block> {
    let mut order: Vec<Block> = (0..n).collect();
    order.sort_by_key(|&b| tokkata_ir::sample::uniform(seed, b.into()));
    order
}
