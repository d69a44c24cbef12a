//! The blocks of all cache groups: who holds them, who promised to keep them, who may write them.
//!
//! All groups draw slabs from one [`ArenaLayout`]; a slab whose blocks are all free goes back to it. A block is *held*
//! by sequences and *pinned* by entries of the prefix cache. A block that is neither is free; one that is only pinned
//! is idle, and becomes free when its pins are given up. Where nothing is free, [`BlockPools::victims`] names what has
//! been idle longest: single blocks of slabs that are in use, or a whole slab that is not.

use std::collections::BTreeSet;

use tokkata_ir::{ArenaLayout, GroupId};

/// Name of a block: the unit of the arena at which it starts.
pub type Block = u32;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    holders: u32,
    pins: u32,
    /// Leading positions that pins promise to keep.
    sealed: u32,
    /// When its last holder let it go.
    since: u64,
}

/// Blocks of one cache group.
#[derive(Debug)]
struct BlockPool {
    group: GroupId,
    per_slab: u32,
    /// By slab and place in it.
    blocks: Vec<State>,
    /// Free blocks of each slab that belongs to the group, the next to be taken last; `None` for other slabs.
    free_of: Vec<Option<Vec<Block>>>,
    /// Slabs with free blocks, those with fewest first.
    open: BTreeSet<(u32, u32)>,
    /// Held blocks of each slab.
    held_of: Vec<u32>,
    /// Idle blocks of slabs with held blocks, by how long they have been idle.
    idle_there: BTreeSet<(u64, Block)>,
    /// The group's slabs without held blocks, by how long that has been so.
    unheld: BTreeSet<(u64, u32)>,
    unheld_since: Vec<u64>,
    free: usize,
    idle: usize,
    held: usize,
}

/// Blocks of every group.
#[derive(Debug)]
pub struct BlockPools {
    arena: ArenaLayout,
    pools: Vec<BlockPool>,
    /// Slabs of no group, the next to be taken last.
    slabs: Vec<u32>,
    clock: u64,
    /// Hands blocks and slabs out in an order that follows from it.
    shuffle: Option<u64>,
}

impl BlockPools {
    /// Pools of `groups` groups over an arena; `shuffle` hands blocks out in an odd order, for tests.
    #[must_use]
    pub fn new(groups: usize, arena: ArenaLayout, shuffle: Option<u64>) -> Self {
        let pools = (0..groups as u32).map(|g| BlockPool::new(GroupId(g), &arena));
        BlockPools {
            pools: pools.collect(),
            slabs: ordered((0..arena.slabs()).collect(), shuffle),
            arena,
            clock: 0,
            shuffle,
        }
    }

    /// Where blocks lie.
    #[must_use]
    pub fn arena(&self) -> &ArenaLayout {
        &self.arena
    }

    /// Slabs of no group.
    #[must_use]
    pub fn free_slabs(&self) -> usize {
        self.slabs.len()
    }

    /// Blocks of a group that can be taken from its own slabs at once.
    #[must_use]
    pub fn free(&self, group: usize) -> usize {
        self.pools[group].free
    }

    /// Blocks of a group that can be taken once their pins are given up.
    #[must_use]
    pub fn idle(&self, group: usize) -> usize {
        self.pools[group].idle
    }

    /// Blocks of a group that sequences hold.
    #[must_use]
    pub fn held(&self, group: usize) -> usize {
        self.pools[group].held
    }

    /// Whether so many blocks of each group could be taken together, once what is idle is given up.
    #[must_use]
    pub fn could_take(&self, wanted: &[usize]) -> bool {
        let unheld: usize = self.pools.iter().map(|p| p.unheld.len()).sum();
        let slabs = |(pool, &wanted): (&BlockPool, &usize)| {
            let per_slab = pool.per_slab as usize;
            let there = pool.free + pool.idle - pool.unheld.len() * per_slab;
            match wanted.saturating_sub(there) {
                0 => 0,
                more if per_slab == 0 => more.max(usize::MAX / 64),
                more => more.div_ceil(per_slab),
            }
        };
        let needed: usize = self.pools.iter().zip(wanted).map(slabs).sum();
        needed <= self.slabs.len() + unheld
    }

    /// Whether so many blocks of each group can be taken together only if every group first gives up what is idle in
    /// slabs that it must keep.
    #[must_use]
    pub fn is_scarce(&self, wanted: &[usize]) -> bool {
        let unheld: usize = self.pools.iter().map(|p| p.unheld.len()).sum();
        let slabs = |(pool, &wanted): (&BlockPool, &usize)| {
            let more = wanted.saturating_sub(pool.free);
            more.div_ceil((pool.per_slab as usize).max(1))
        };
        let needed: usize = self.pools.iter().zip(wanted).map(slabs).sum();
        needed > self.slabs.len() + unheld
    }

    /// Idle blocks whose pins must be given up before a block of the group is taken; `None` when none need be, or
    /// nothing is idle. Where blocks are scarce, idle ones come before free slabs.
    #[must_use]
    pub fn victims(&self, group: usize, scarce: bool) -> Option<(usize, Vec<Block>)> {
        let pool = &self.pools[group];
        if pool.free > 0 || !(self.slabs.is_empty() || scarce && !pool.idle_there.is_empty()) {
            return None;
        }
        if let Some(&(_, block)) = pool.idle_there.first() {
            return Some((group, vec![block]));
        }
        let oldest = |(g, pool): (usize, &BlockPool)| {
            let &(since, slab) = pool.unheld.first()?;
            Some((since, g, slab))
        };
        let (_, group, slab) = self.pools.iter().enumerate().filter_map(oldest).min()?;
        Some((group, self.pools[group].idle_of(&self.arena, slab)))
    }

    /// A free block, held once: from the fullest of the group's slabs, or from a new one.
    pub fn take(&mut self, group: usize) -> Option<Block> {
        if self.pools[group].free == 0 {
            let slab = self.slabs.pop()?;
            let pool = &mut self.pools[group];
            let block = |i| self.arena.block(pool.group, slab, i);
            let blocks = ordered((0..pool.per_slab).map(block).collect(), self.shuffle);
            pool.adopt(slab, blocks);
        }
        Some(self.pools[group].take(&self.arena))
    }

    /// Another sequence holds the block.
    pub fn retain(&mut self, group: usize, block: Block) {
        self.pools[group].retain(&self.arena, block);
    }

    /// A sequence lets the block go.
    pub fn release(&mut self, group: usize, block: Block) {
        self.clock += 1;
        let empty = self.pools[group].release(&self.arena, block, self.clock);
        self.slabs.extend(empty);
    }

    /// Promises to keep the first `positions` of a held block.
    pub fn pin(&mut self, group: usize, block: Block, positions: u32) {
        self.pools[group].pin(&self.arena, block, positions);
    }

    /// Gives one pin up.
    pub fn unpin(&mut self, group: usize, block: Block) {
        let empty = self.pools[group].unpin(&self.arena, block);
        self.slabs.extend(empty);
    }

    /// Whether the one holder of the block may write its positions from `offset` on.
    #[must_use]
    pub fn is_writable(&self, group: usize, block: Block, offset: u32) -> bool {
        let pool = &self.pools[group];
        let state = pool.blocks[pool.index(&self.arena, block)];
        state.holders == 1 && offset >= state.sealed
    }

    /// Whether nothing is held or pinned.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.slabs.len() == self.arena.slabs() as usize
    }
}

impl BlockPool {
    fn new(group: GroupId, arena: &ArenaLayout) -> Self {
        let (slabs, per_slab) = (arena.slabs() as usize, arena.per_slab(group));
        BlockPool {
            group,
            per_slab,
            blocks: vec![State::default(); slabs * per_slab as usize],
            free_of: vec![None; slabs],
            open: BTreeSet::new(),
            held_of: vec![0; slabs],
            idle_there: BTreeSet::new(),
            unheld: BTreeSet::new(),
            unheld_since: vec![0; slabs],
            free: 0,
            idle: 0,
            held: 0,
        }
    }

    fn index(&self, arena: &ArenaLayout, block: Block) -> usize {
        let (slab, i) = arena.place(self.group, block);
        (slab * self.per_slab + i) as usize
    }

    fn adopt(&mut self, slab: u32, blocks: Vec<Block>) {
        self.free += blocks.len();
        self.open.insert((blocks.len() as u32, slab));
        self.free_of[slab as usize] = Some(blocks);
        self.unheld.insert((0, slab));
        self.unheld_since[slab as usize] = 0;
    }

    fn idle_of(&self, arena: &ArenaLayout, slab: u32) -> Vec<Block> {
        let blocks = (0..self.per_slab).map(|i| (i, arena.block(self.group, slab, i)));
        let first = slab * self.per_slab;
        let idle = |i: u32| {
            let state = &self.blocks[(first + i) as usize];
            state.holders == 0 && state.pins > 0
        };
        blocks.filter(|&(i, _)| idle(i)).map(|(_, b)| b).collect()
    }

    /// When the newest of an unheld slab's blocks was let go.
    fn newest(&self, slab: u32) -> u64 {
        let first = (slab * self.per_slab) as usize;
        let blocks = &self.blocks[first..first + self.per_slab as usize];
        blocks.iter().map(|b| b.since).max().unwrap_or(0)
    }

    fn forget_unheld(&mut self, slab: u32) {
        self.unheld
            .remove(&(self.unheld_since[slab as usize], slab));
    }

    /// A block of the slab is held that was not.
    fn hold(&mut self, arena: &ArenaLayout, slab: u32) {
        self.held += 1;
        self.held_of[slab as usize] += 1;
        if self.held_of[slab as usize] == 1 {
            self.forget_unheld(slab);
            for block in self.idle_of(arena, slab) {
                let since = self.blocks[self.index(arena, block)].since;
                self.idle_there.insert((since, block));
            }
        }
    }

    /// A block of the slab is no longer held.
    fn unhold(&mut self, arena: &ArenaLayout, slab: u32) {
        self.held -= 1;
        self.held_of[slab as usize] -= 1;
        if self.held_of[slab as usize] == 0 {
            let since = self.newest(slab);
            self.unheld.insert((since, slab));
            self.unheld_since[slab as usize] = since;
            for block in self.idle_of(arena, slab) {
                let since = self.blocks[self.index(arena, block)].since;
                self.idle_there.remove(&(since, block));
            }
        }
    }

    fn take(&mut self, arena: &ArenaLayout) -> Block {
        let (count, slab) = self
            .open
            .pop_first()
            .expect("a free block is in an open slab");
        let blocks = self.free_of[slab as usize].as_mut();
        let block = blocks
            .and_then(Vec::pop)
            .expect("an open slab has a free block");
        if count > 1 {
            self.open.insert((count - 1, slab));
        }
        self.free -= 1;
        let index = self.index(arena, block);
        self.blocks[index].holders = 1;
        self.hold(arena, slab);
        block
    }

    /// Puts a block back; gives its slab away when all of it is free.
    fn give(&mut self, arena: &ArenaLayout, block: Block) -> Option<u32> {
        let (slab, _) = arena.place(self.group, block);
        let blocks = self.free_of[slab as usize].as_mut();
        let blocks = blocks.expect("a block in use lies in a slab of its group");
        self.open.remove(&(blocks.len() as u32, slab));
        blocks.push(block);
        self.free += 1;
        if blocks.len() < self.per_slab as usize {
            self.open.insert((blocks.len() as u32, slab));
            return None;
        }
        self.free -= blocks.len();
        self.free_of[slab as usize] = None;
        self.forget_unheld(slab);
        Some(slab)
    }

    fn retain(&mut self, arena: &ArenaLayout, block: Block) {
        let (index, (slab, _)) = (self.index(arena, block), arena.place(self.group, block));
        let state = &mut self.blocks[index];
        if state.holders == 0 {
            assert!(state.pins > 0, "a free block cannot be retained");
            let since = state.since;
            state.holders = 1;
            self.idle -= 1;
            self.idle_there.remove(&(since, block));
            self.hold(arena, slab);
        } else {
            state.holders += 1;
        }
    }

    fn release(&mut self, arena: &ArenaLayout, block: Block, now: u64) -> Option<u32> {
        let (index, (slab, _)) = (self.index(arena, block), arena.place(self.group, block));
        let state = &mut self.blocks[index];
        assert!(
            state.holders > 0,
            "a block is released more often than held"
        );
        state.holders -= 1;
        if state.holders > 0 {
            return None;
        }
        state.since = now;
        let pinned = state.pins > 0;
        if pinned {
            self.idle += 1;
            self.idle_there.insert((now, block));
        }
        self.unhold(arena, slab);
        if pinned {
            None
        } else {
            self.give(arena, block)
        }
    }

    fn pin(&mut self, arena: &ArenaLayout, block: Block, positions: u32) {
        let index = self.index(arena, block);
        let state = &mut self.blocks[index];
        assert!(
            state.holders + state.pins > 0,
            "a free block cannot be pinned"
        );
        state.pins += 1;
        state.sealed = state.sealed.max(positions);
    }

    fn unpin(&mut self, arena: &ArenaLayout, block: Block) -> Option<u32> {
        let index = self.index(arena, block);
        let state = &mut self.blocks[index];
        assert!(state.pins > 0, "a block is unpinned more often than pinned");
        state.pins -= 1;
        if state.pins > 0 {
            return None;
        }
        state.sealed = 0;
        if state.holders > 0 {
            return None;
        }
        let since = state.since;
        self.idle -= 1;
        self.idle_there.remove(&(since, block));
        self.give(arena, block)
    }
}

/// The items to be taken from the end, the first of them last; in an odd order with a seed.
fn ordered(mut items: Vec<u32>, shuffle: Option<u64>) -> Vec<u32> {
    match shuffle {
        None => items.reverse(),
        Some(seed) => items.sort_by_key(|&i| tokkata_ir::sample::uniform(seed, i.into())),
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups whose blocks take one and two units, in slabs of two units.
    fn pools(slabs: u64) -> BlockPools {
        let arena = ArenaLayout::new(&[256, 512], 512 * slabs);
        assert_eq!((arena.slab_bytes(), arena.slabs()), (512, slabs as u32));
        BlockPools::new(2, arena, None)
    }

    #[test]
    fn a_block_is_free_only_without_holders_and_pins() {
        let mut pools = pools(1);
        let a = pools.take(0).unwrap();
        assert_eq!((a, pools.free(0), pools.free_slabs()), (0, 1, 0));
        pools.pin(0, a, 3);
        assert!(pools.is_writable(0, a, 3) && !pools.is_writable(0, a, 2));
        pools.retain(0, a);
        assert!(!pools.is_writable(0, a, 3));
        pools.release(0, a);
        pools.release(0, a);
        assert_eq!((pools.free(0), pools.idle(0), pools.held(0)), (1, 1, 0));
        pools.retain(0, a);
        assert_eq!((pools.idle(0), pools.held(0)), (0, 1));
        pools.release(0, a);
        pools.unpin(0, a);
        assert!(pools.is_unused(), "the slab went back");
        assert_eq!(pools.take(0), Some(a));
        assert!(pools.is_writable(0, a, 0), "a seal ends with its pins");
    }

    #[test]
    fn slabs_go_where_they_are_needed() {
        let mut pools = pools(2);
        let small: Vec<Block> = (0..3).map(|_| pools.take(0).unwrap()).collect();
        assert_eq!(pools.take(1), None, "both slabs belong to the first group");
        pools.release(0, small[2]);
        let large = pools.take(1).unwrap();
        assert_eq!(pools.take(0), None);
        pools.release(0, small[0]);
        assert_eq!(
            pools.take(0),
            Some(small[0]),
            "a slab in use is filled first"
        );
        assert!(pools.could_take(&[0, 0]) && !pools.could_take(&[1, 0]));
        pools.release(1, large);
        assert!(pools.could_take(&[2, 0]) && !pools.could_take(&[2, 1]));
    }

    #[test]
    fn what_is_idle_longest_is_given_up_first() {
        let mut pools = pools(2);
        let blocks: Vec<Block> = (0..4).map(|_| pools.take(0).unwrap()).collect();
        blocks.iter().for_each(|&b| pools.pin(0, b, 1));
        for i in [3, 0, 2] {
            pools.release(0, blocks[i]);
        }
        assert_eq!(
            pools.victims(0, false),
            Some((0, vec![blocks[0]])),
            "of the slab in use before the slab that is not"
        );
        assert_eq!(
            pools.victims(1, false),
            Some((0, vec![blocks[2], blocks[3]]))
        );
        assert!(pools.could_take(&[1, 1]) && !pools.could_take(&[2, 1]));
        pools.unpin(0, blocks[2]);
        pools.unpin(0, blocks[3]);
        assert_eq!(pools.victims(1, false), None, "a slab became free");
        assert!(pools.take(1).is_some());
    }

    #[test]
    #[should_panic(expected = "more often than held")]
    fn releasing_twice_is_a_bug() {
        let mut pools = pools(1);
        let (a, _b) = (pools.take(0).unwrap(), pools.take(0));
        pools.release(0, a);
        pools.release(0, a);
    }
}
