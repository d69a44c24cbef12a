//! The blocks of one cache group: who holds them, who promised to keep them, who may write them.

/// A physical block of a group.
pub type Block = u32;

/// Blocks of one cache group.
///
/// A block is *held* by sequences and *pinned* by entries of the prefix cache. A block that is neither is free; one
/// that is only pinned is idle, and becomes free when its pins are given up.
#[derive(Debug)]
pub struct BlockPool {
    holders: Vec<u32>,
    pins: Vec<u32>,
    /// Leading positions of each block that pins promise to keep.
    sealed: Vec<u32>,
    free: Vec<Block>,
    idle: usize,
}

impl BlockPool {
    /// `n` free blocks, lowest first.
    #[must_use]
    pub fn new(n: u32) -> Self {
        Self::with_order((0..n).collect())
    }

    /// Free blocks that are handed out in this order; it must be a permutation of `0..len`.
    #[must_use]
    pub fn with_order(mut order: Vec<Block>) -> Self {
        order.reverse();
        BlockPool {
            holders: vec![0; order.len()],
            pins: vec![0; order.len()],
            sealed: vec![0; order.len()],
            free: order,
            idle: 0,
        }
    }

    /// Blocks in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether the pool has no blocks at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Blocks that can be taken at once.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that can be taken once their pins are given up.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// A free block, held once.
    pub fn take(&mut self) -> Option<Block> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Another sequence holds the block.
    pub fn retain(&mut self, block: Block) {
        let b = block as usize;
        if self.holders[b] == 0 {
            assert!(self.pins[b] > 0, "a free block cannot be retained");
            self.idle -= 1;
        }
        self.holders[b] += 1;
    }

    /// A sequence lets the block go.
    pub fn release(&mut self, block: Block) {
        let b = block as usize;
        assert!(
            self.holders[b] > 0,
            "a block is released more often than held"
        );
        self.holders[b] -= 1;
        if self.holders[b] == 0 {
            if self.pins[b] > 0 {
                self.idle += 1;
            } else {
                self.free.push(block);
            }
        }
    }

    /// Promises to keep the first `positions` of a held block.
    pub fn pin(&mut self, block: Block, positions: u32) {
        let b = block as usize;
        assert!(
            self.holders[b] + self.pins[b] > 0,
            "a free block cannot be pinned"
        );
        if self.holders[b] == 0 && self.pins[b] == 0 {
            self.idle += 1;
        }
        self.pins[b] += 1;
        self.sealed[b] = self.sealed[b].max(positions);
    }

    /// Gives one pin up.
    pub fn unpin(&mut self, block: Block) {
        let b = block as usize;
        assert!(
            self.pins[b] > 0,
            "a block is unpinned more often than pinned"
        );
        self.pins[b] -= 1;
        if self.pins[b] == 0 {
            self.sealed[b] = 0;
            if self.holders[b] == 0 {
                self.idle -= 1;
                self.free.push(block);
            }
        }
    }

    /// Whether no sequence holds the block.
    #[must_use]
    pub fn is_idle(&self, block: Block) -> bool {
        self.holders[block as usize] == 0
    }

    /// Whether the one holder of the block may write its positions from `offset` on.
    #[must_use]
    pub fn is_writable(&self, block: Block, offset: u32) -> bool {
        self.holders[block as usize] == 1 && offset >= self.sealed[block as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_free_only_without_holders_and_pins() {
        let mut pool = BlockPool::new(2);
        let a = pool.take().unwrap();
        assert_eq!((a, pool.free()), (0, 1));
        pool.pin(a, 3);
        assert!(pool.is_writable(a, 3) && !pool.is_writable(a, 2));
        pool.retain(a);
        assert!(!pool.is_writable(a, 3));
        pool.release(a);
        pool.release(a);
        assert_eq!((pool.free(), pool.idle()), (1, 1));
        pool.retain(a);
        assert_eq!(pool.idle(), 0);
        pool.release(a);
        pool.unpin(a);
        assert_eq!((pool.free(), pool.idle()), (2, 0));
        assert_eq!(pool.take(), Some(a));
        assert!(pool.is_writable(a, 0), "a seal ends with its pins");
    }

    #[test]
    fn the_order_is_the_given_one() {
        let mut pool = BlockPool::with_order(vec![2, 0, 1]);
        assert_eq!(
            [pool.take(), pool.take(), pool.take()],
            [Some(2), Some(0), Some(1)]
        );
        assert_eq!(pool.take(), None);
    }

    #[test]
    #[should_panic(expected = "more often than held")]
    fn releasing_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let a = pool.take().unwrap();
        pool.release(a);
        pool.release(a);
    }
}
