//! The caches of all sequences: pools, tables, sharing, and going back.

use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{ArenaLayout, BlockCopy, CacheGroup, CacheKind, GroupId, Limits};

use crate::error::EngineError;
use crate::kind::{CacheTraits, Truncate};
use crate::pool::{Block, BlockPools};
use crate::prefix::{GRANULE, Hit, NodeId, PrefixCache, Span, Wanted, kinds};
use crate::sequence::Sequence;

/// How caches behave beyond what a program says.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Forget a sequence's blocks as soon as it ends.
    pub no_prefix_cache: bool,
    /// Hand blocks out in a shuffled order, for tests.
    pub shuffle_blocks: Option<u64>,
}

/// Rows to come, and what they do to recurrent states.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// So many, which change states where they lie.
    Plain(usize),
    /// So many, each of which leaves a state of its own.
    Kept(usize),
}

impl Rows {
    fn count(self) -> usize {
        match self {
            Rows::Plain(n) | Rows::Kept(n) => n,
        }
    }
}

/// Pools, and the prefixes they hold.
#[derive(Debug)]
pub struct Cache {
    groups: Vec<CacheGroup>,
    limits: Limits,
    pools: BlockPools,
    prefix: Option<PrefixCache>,
    /// Positions behind a window that stay.
    slack: usize,
}

impl Cache {
    /// Empty caches for these groups, whose blocks lie in `arena`.
    #[must_use]
    pub fn new(
        groups: &[CacheGroup],
        limits: &Limits,
        arena: &ArenaLayout,
        options: &CacheOptions,
    ) -> Self {
        Cache {
            groups: groups.to_vec(),
            limits: *limits,
            pools: BlockPools::new(groups.len(), arena.clone(), options.shuffle_blocks),
            prefix: (!options.no_prefix_cache).then(|| PrefixCache::new(groups.len())),
            slack: 0,
        }
    }

    /// Keeps so many positions behind each window from now on, for rows that run again.
    pub(crate) fn keep_slack(&mut self, positions: usize) {
        self.slack = positions;
    }

    /// Positions behind a window that stay.
    pub(crate) fn slack(&self) -> usize {
        self.slack
    }

    /// The blocks of all groups.
    #[must_use]
    pub fn pools(&self) -> &BlockPools {
        &self.pools
    }

    /// The stored prefixes, unless they are switched off.
    #[must_use]
    pub fn prefixes(&self) -> Option<&PrefixCache> {
        self.prefix.as_ref()
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

    /// Tables long enough for `n` more rows, of blocks that this sequence alone may write. The copies must be made
    /// before those rows run, in order.
    ///
    /// # Errors
    /// [`EngineError::CacheFull`], with nothing changed.
    pub fn reserve(&mut self, seq: &mut Sequence, n: usize) -> Result<Vec<BlockCopy>, EngineError> {
        self.reserve_rows(seq, Rows::Plain(n))
    }

    /// As [`Cache::reserve`], for `n` rows that keep the state after each of them, at most as many as the limits' `draft`.
    /// [`Cache::commit_kept`] takes as many of them as are right.
    ///
    /// # Errors
    /// As [`Cache::reserve`].
    pub fn reserve_kept(
        &mut self,
        seq: &mut Sequence,
        n: usize,
    ) -> Result<Vec<BlockCopy>, EngineError> {
        self.reserve_rows(seq, Rows::Kept(n))
    }

    fn reserve_rows(
        &mut self,
        seq: &mut Sequence,
        rows: Rows,
    ) -> Result<Vec<BlockCopy>, EngineError> {
        let wanted = self.missing(seq, rows);
        if !self.pools.could_take(&wanted) {
            return Err(self.full(&wanted));
        }
        let scarce = self.pools.is_scarce(&wanted);
        let mut copies = Vec::new();
        for g in 0..self.groups.len() {
            copies.extend(self.own_written(seq, (g, rows), scarce));
            let places = self.places_for(seq, g, rows);
            if seq.tables[g].len() < places {
                seq.touch(g, seq.tables[g].len());
            }
            while seq.tables[g].len() < places {
                let block = self.take(g, scarce);
                seq.tables[g].push(block);
            }
        }
        seq.ahead += rows.count();
        Ok(copies)
    }

    fn full(&self, wanted: &[usize]) -> EngineError {
        let alone = |g: usize| {
            let mut only = vec![0; wanted.len()];
            only[g] = wanted[g];
            !self.pools.could_take(&only)
        };
        let group = (0..wanted.len()).find(|&g| alone(g)).unwrap_or(0);
        EngineError::CacheFull {
            group,
            needed: wanted[group],
            available: self.pools.free(group)
                + self.pools.idle(group)
                + self.pools.free_slabs()
                    * self.pools.arena().per_slab(GroupId(group as u32)) as usize,
        }
    }

    /// Blocks of each group that `n` more rows of a sequence need at once, as far as windows need them.
    #[must_use]
    pub fn needs(&self, seq: &Sequence, n: usize) -> Vec<usize> {
        let need = |(g, group): (usize, &CacheGroup)| {
            let n = match group.kind {
                CacheKind::Window(w) => {
                    n.min((w as usize).saturating_add(self.limits.rows as usize))
                }
                _ => n,
            };
            self.missing_of(seq, g, Rows::Plain(n))
        };
        self.groups.iter().enumerate().map(need).collect()
    }

    /// Whether so many blocks of each group can be had together.
    #[must_use]
    pub fn could_take(&self, wanted: &[usize]) -> bool {
        self.pools.could_take(wanted)
    }

    /// Blocks of a group for `len` positions of a sequence.
    fn places(&self, g: usize, seq: &Sequence, len: usize) -> usize {
        let size = self.groups[g].block_size as usize;
        match self.groups[g].kind {
            CacheKind::Recurrent => 1,
            CacheKind::Cross => seq.encoded.div_ceil(size),
            _ => len.div_ceil(size),
        }
    }

    /// Blocks of a group that a sequence has after more rows.
    fn places_for(&self, seq: &Sequence, g: usize, rows: Rows) -> usize {
        match (self.groups[g].kind, rows) {
            (CacheKind::Recurrent, Rows::Kept(n)) => 1 + n,
            _ => self.places(g, seq, seq.end() + rows.count()),
        }
    }

    /// Blocks that `reserve` would take.
    fn missing(&self, seq: &Sequence, rows: Rows) -> Vec<usize> {
        let groups = 0..self.groups.len();
        groups.map(|g| self.missing_of(seq, g, rows)).collect()
    }

    fn missing_of(&self, seq: &Sequence, g: usize, rows: Rows) -> usize {
        let new = self
            .places_for(seq, g, rows)
            .saturating_sub(seq.tables[g].len());
        new + self.foreign(seq, g, rows).len()
    }

    /// Places of existing blocks that rows are written to and that are not this sequence's alone.
    fn foreign(&self, seq: &Sequence, g: usize, rows: Rows) -> Vec<usize> {
        let size = self.groups[g].block_size as usize;
        let (places, offset) = match (self.groups[g].kind, rows) {
            (CacheKind::Recurrent, Rows::Kept(n)) => (1..n + 1, 0),
            (CacheKind::Recurrent, _) => (0..1, 0),
            // Only an encoder writes there, before the sequence has rows; those who share what it wrote read it.
            (CacheKind::Cross, _) => (0..0, 0),
            _ => (seq.end() / size..seq.end() / size + 1, seq.end() % size),
        };
        let foreign = |&place: &usize| {
            let block = seq.tables[g].get(place).filter(|&&b| b != NO_BLOCK);
            block.is_some_and(|&b| !self.pools.is_writable(g, b, offset as u32))
        };
        places.filter(foreign).collect()
    }

    /// Blocks of its own for what rows are written to; what they go on from is copied.
    fn own_written(
        &mut self,
        seq: &mut Sequence,
        (g, rows): (usize, Rows),
        scarce: bool,
    ) -> Vec<BlockCopy> {
        let mut copies = Vec::new();
        for place in self.foreign(seq, g, rows) {
            let from = seq.tables[g][place];
            let to = self.take(g, scarce);
            seq.tables[g][place] = to;
            seq.touch(g, place);
            self.pools.release(g, from);
            let state = matches!(
                (self.groups[g].kind, rows),
                (CacheKind::Recurrent, Rows::Kept(_))
            );
            copies.extend((!state).then_some(BlockCopy {
                group: GroupId(g as u32),
                from,
                to,
            }));
        }
        copies
    }

    /// A block, after giving up what has been idle longest.
    fn take(&mut self, g: usize, scarce: bool) -> Block {
        while let Some((group, blocks)) = self.pools.victims(g, scarce) {
            let prefix = self
                .prefix
                .as_mut()
                .expect("only the prefix cache leaves idle blocks");
            for block in blocks {
                prefix.give_up(group, block, &mut self.pools);
            }
        }
        self.pools
            .take(g)
            .expect("it was seen that there are blocks")
    }

    /// The device has written the cache of these tokens, the first of the rows under way: they count from now on.
    pub fn commit(&mut self, seq: &mut Sequence, tokens: &[u32], answer: bool) {
        assert!(
            tokens.len() <= seq.ahead,
            "only what is under way is committed"
        );
        seq.tokens.extend_from_slice(tokens);
        seq.answers.resize(seq.tokens.len(), answer);
        seq.ahead -= tokens.len();
        self.remember(seq);
        for g in 0..self.groups.len() {
            self.drop_passed(seq, g);
        }
    }

    /// As [`Cache::commit`], when the rows under way kept their states and the first so many of them are right: the state
    /// after those becomes the sequence's, and the rest is forgotten.
    pub fn commit_kept(&mut self, seq: &mut Sequence, tokens: &[u32], answer: bool) {
        for g in 0..self.groups.len() {
            if self.groups[g].kind == CacheKind::Recurrent && !tokens.is_empty() {
                seq.tables[g].swap(0, tokens.len());
                seq.touch(g, 0);
            }
        }
        self.commit(seq, tokens, answer);
        self.abandon(seq);
    }

    /// Releases blocks that a window has passed for good.
    fn drop_passed(&mut self, seq: &mut Sequence, g: usize) {
        let size = self.groups[g].block_size as usize;
        let len = seq.len().saturating_sub(self.slack);
        let passed = self.groups[g].kind.first_needed(len) / size;
        for block in seq.tables[g].iter_mut().take(passed).rev() {
            if *block == NO_BLOCK {
                break;
            }
            self.pools.release(g, std::mem::replace(block, NO_BLOCK));
        }
    }

    /// Rows under way will not be committed: their blocks stay in the table until the sequence is cut or goes on.
    pub fn abandon(&mut self, seq: &mut Sequence) {
        seq.ahead = 0;
    }

    /// Stores every whole granule that is not stored yet.
    fn remember(&mut self, seq: &mut Sequence) {
        if seq.moved.is_some() {
            return;
        }
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        while (seq.path.len() + 1) * GRANULE <= seq.len() {
            let start = seq.path.len() * GRANULE;
            let parent = seq.path.last().copied();
            let parent = parent.unwrap_or_else(|| prefix.root(seq.family()));
            let edge = &seq.tokens[start..start + GRANULE];
            let node = prefix.child(parent, edge, kinds(&seq.answers, start, GRANULE));
            for (g, group) in self.groups.iter().enumerate() {
                let span = positions(group, &seq.tables[g], start, start + GRANULE);
                if let Some(span) = span {
                    prefix.hold(node, g, span, &mut self.pools);
                }
            }
            prefix.enter(&[node]);
            seq.path.push(node);
        }
    }

    /// Stores the state after the newest token, so that a recurrent model can be continued from here.
    pub fn snapshot(&mut self, seq: &mut Sequence) {
        if !self.is_recurrent() || seq.is_empty() || seq.snapshot_len == seq.len() {
            return;
        }
        self.remember(seq);
        if seq.moved.is_some() {
            seq.snapshot_len = seq.len();
            return;
        }
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        let (start, end) = (seq.path.len() * GRANULE, seq.len());
        let last = seq.path.last().copied();
        let mut node = last.unwrap_or_else(|| prefix.root(seq.family()));
        if start < end {
            let kinds = kinds(&seq.answers, start, end - start);
            node = prefix.child(node, &seq.tokens[start..end], kinds);
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
                prefix.hold(node, g, span, &mut self.pools);
            }
        }
        seq.snapshot_len = end;
    }

    /// Gives an empty sequence the longest stored prefix of `tokens` that leaves at least one token to compute.
    /// Returns its length.
    pub fn reuse(&mut self, seq: &mut Sequence, tokens: &[u32], wanted: &Wanted<'_>) -> usize {
        assert!(
            seq.is_empty(),
            "only an empty sequence takes a stored prefix"
        );
        let Some(prefix) = &self.prefix else { return 0 };
        let hits = prefix.hits(seq.family(), tokens, wanted);
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
        let prefix = self.prefix.as_mut().expect("it was searched");
        prefix.enter(&seq.path);
        seq.answers = nodes
            .iter()
            .flat_map(|&n| prefix.answers(n))
            .take(len)
            .collect();
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
                self.pools.retain(g, block);
            }
            seq.tables[g] = table;
        }
        seq.forget_synced();
        seq.tokens = tokens.to_vec();
        seq.path = nodes[..len / GRANULE].to_vec();
        seq.snapshot_len = if self.is_recurrent() { len } else { 0 };
    }

    /// A second sequence over the same blocks; whichever writes a shared block first copies it.
    #[must_use]
    pub fn fork(&mut self, seq: &Sequence) -> Sequence {
        for (g, table) in seq.tables.iter().enumerate() {
            for &block in table.iter().filter(|&&b| b != NO_BLOCK) {
                self.pools.retain(g, block);
            }
        }
        if let Some(prefix) = &mut self.prefix {
            prefix.enter(&seq.path);
        }
        Sequence {
            tokens: seq.tokens.clone(),
            answers: seq.answers.clone(),
            tables: seq.tables.clone(),
            path: seq.path.clone(),
            salt: seq.salt,
            adapter: seq.adapter,
            snapshot_len: seq.snapshot_len,
            encoded: seq.encoded,
            moved: seq.moved,
            ahead: 0,
            synced: vec![0; seq.synced.len()],
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

    /// As [`Cache::truncate`], for a length that [`Cache::can_truncate`] has allowed.
    pub(crate) fn cut(&mut self, seq: &mut Sequence, len: usize) {
        self.truncate(seq, len).expect("it can be truncated");
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
        assert_eq!(
            seq.ahead, 0,
            "a sequence is not cut while rows are under way"
        );
        for g in 0..self.groups.len() {
            let keep = if len == 0 {
                0
            } else {
                self.places(g, seq, len)
            };
            // The last first: what has been idle longest is given up first, and a prefix is used from its beginning.
            let table = &mut seq.tables[g];
            let keep = keep.min(table.len());
            for block in table.drain(keep..).rev() {
                if block != NO_BLOCK {
                    self.pools.release(g, block);
                }
            }
            seq.touch(g, keep);
        }
        seq.tokens.truncate(len);
        seq.answers.truncate(len);
        if let Some(prefix) = &mut self.prefix {
            prefix.leave(&seq.path[(len / GRANULE).min(seq.path.len())..]);
        }
        seq.path.truncate(len / GRANULE);
        seq.snapshot_len = seq.snapshot_len.min(len);
        seq.moved = seq.moved.filter(|&first| len > first);
        Ok(())
    }

    /// Positions that all groups divide into whole blocks.
    pub(crate) fn block_step(&self) -> usize {
        let sizes = self.groups.iter().map(|g| g.block_size as usize);
        sizes.fold(1, lcm)
    }

    /// Forgets whole blocks in the middle of a sequence; what stands behind them moves up.
    pub(crate) fn forget_between(&mut self, seq: &mut Sequence, keep: usize, count: usize) {
        assert_eq!(seq.ahead, 0, "no rows are under way");
        for (g, group) in self.groups.iter().enumerate() {
            if matches!(group.kind, CacheKind::Recurrent | CacheKind::Cross) {
                continue;
            }
            let size = group.block_size as usize;
            let table = &mut seq.tables[g];
            for block in table.drain(keep / size..(keep + count) / size).rev() {
                if block != NO_BLOCK {
                    self.pools.release(g, block);
                }
            }
            seq.touch(g, keep / size);
        }
        seq.tokens.drain(keep..keep + count);
        seq.answers.drain(keep..keep + count);
        let stored = (keep / GRANULE).min(seq.path.len());
        if let Some(prefix) = &mut self.prefix {
            prefix.leave(&seq.path[stored..]);
        }
        seq.path.truncate(stored);
        seq.snapshot_len = seq.len();
        seq.moved = Some(seq.moved.map_or(keep, |first| first.min(keep)));
    }

    /// Places of a table from `first` on where there are blocks.
    pub(crate) fn held_from(&self, seq: &Sequence, g: usize, first: usize) -> Vec<usize> {
        let table = &seq.tables[g];
        let held = |&place: &usize| table[place] != NO_BLOCK;
        (first..table.len()).filter(held).collect()
    }

    /// A block that a sequence holds alone, in a place of its table; what was there is not copied.
    ///
    /// # Errors
    /// [`EngineError::CacheFull`].
    pub(crate) fn own_place(
        &mut self,
        seq: &mut Sequence,
        g: usize,
        place: usize,
    ) -> Result<Block, EngineError> {
        let old = seq.tables[g][place];
        if self.pools.is_writable(g, old, 0) {
            return Ok(old);
        }
        let mut wanted = vec![0; self.groups.len()];
        wanted[g] = 1;
        if !self.pools.could_take(&wanted) {
            return Err(self.full(&wanted));
        }
        let scarce = self.pools.is_scarce(&wanted);
        let new = self.take(g, scarce);
        seq.tables[g][place] = new;
        seq.touch(g, place);
        self.pools.release(g, old);
        Ok(new)
    }

    /// Gives every block of a sequence back; what is stored of it stays reusable.
    pub fn release(&mut self, mut seq: Sequence) {
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

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
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
    if matches!(group.kind, CacheKind::Recurrent | CacheKind::Cross) {
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
