//! Where cache blocks lie: one arena of bytes, cut into slabs of equal size.
//!
//! A slab holds blocks of one cache group at a time; which group is decided while the model runs, so that no group's
//! share is fixed when it is loaded. A block is named by the unit of the arena at which it starts: neither tables nor
//! replays depend on how large the arena is or how its slabs are dealt out.

use crate::ids::GroupId;

/// Bytes that a block's name counts in; every block starts on a multiple of it.
pub const UNIT_BYTES: u64 = 256;

/// Most slabs that a shape is cut finer for.
const FINE_SLABS: u64 = 64;

/// The sizes of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    slab_units: u32,
    slabs: u32,
    block_units: Vec<u32>,
}

impl ArenaLayout {
    /// As many slabs as fit `bytes`, for groups whose blocks take `block_bytes`; no slab where they are too few.
    #[must_use]
    pub fn new(block_bytes: &[u64], bytes: u64) -> Self {
        let units: Vec<u64> = block_bytes
            .iter()
            .map(|b| b.div_ceil(UNIT_BYTES).max(1))
            .collect();
        let bound = (bytes / UNIT_BYTES).min(u64::from(u32::MAX) - 1);
        let slab = slab_units(&units, bound);
        let narrow = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        ArenaLayout {
            slab_units: narrow(slab),
            slabs: narrow(bound / slab),
            block_units: units.into_iter().map(narrow).collect(),
        }
    }

    /// An arena with room for `counts` blocks of each group, whatever the order in which they are taken.
    #[must_use]
    pub fn for_counts(block_bytes: &[u64], counts: &[u64]) -> Self {
        let bytes = block_bytes.iter().zip(counts);
        let bytes = bytes.map(|(&b, &n)| b.next_multiple_of(UNIT_BYTES).saturating_mul(n));
        let sum = bytes.fold(0, u64::saturating_add);
        let mut layout = Self::new(block_bytes, sum);
        let blocks = (0..).zip(counts);
        let slabs = blocks.map(|(g, &n)| n.div_ceil(layout.per_slab(GroupId(g)).max(1).into()));
        let slabs = slabs.fold(0, u64::saturating_add);
        let most = (u64::from(u32::MAX) - 1) / u64::from(layout.slab_units.max(1));
        layout.slabs = slabs.min(most) as u32;
        layout
    }

    /// As many slabs, each with room for as many blocks of every group, where blocks take `block_bytes`, which must be no
    /// more than here.
    #[must_use]
    pub fn with_blocks(&self, block_bytes: &[u64]) -> Self {
        let units = block_bytes
            .iter()
            .map(|b| b.div_ceil(UNIT_BYTES).max(1) as u32);
        let block_units: Vec<u32> = units.collect();
        let slabs = (0..).zip(&block_units);
        let slab_units = slabs.map(|(g, units)| self.per_slab(GroupId(g)) * units);
        ArenaLayout {
            slab_units: slab_units.max().unwrap_or(1),
            slabs: self.slabs,
            block_units,
        }
    }

    /// Slabs in all.
    #[must_use]
    pub fn slabs(&self) -> u32 {
        self.slabs
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.slabs) * self.slab_bytes()
    }

    /// Bytes of a slab.
    #[must_use]
    pub fn slab_bytes(&self) -> u64 {
        u64::from(self.slab_units) * UNIT_BYTES
    }

    /// Bytes of a block of a group.
    #[must_use]
    pub fn block_bytes(&self, group: GroupId) -> u64 {
        u64::from(self.block_units[group.index()]) * UNIT_BYTES
    }

    /// Blocks of a group that a slab holds.
    #[must_use]
    pub fn per_slab(&self, group: GroupId) -> u32 {
        self.slab_units / self.block_units[group.index()]
    }

    /// Name of the `i`-th block of a slab that holds a group's.
    #[must_use]
    pub fn block(&self, group: GroupId, slab: u32, i: u32) -> u32 {
        slab * self.slab_units + i * self.block_units[group.index()]
    }

    /// The slab that a block lies in, and its place among the group's blocks there.
    #[must_use]
    pub fn place(&self, group: GroupId, block: u32) -> (u32, u32) {
        let (slab, rest) = (block / self.slab_units, block % self.slab_units);
        (slab, rest / self.block_units[group.index()])
    }

    /// Byte of the arena at which a block starts.
    #[must_use]
    pub fn offset(block: u32) -> u64 {
        u64::from(block) * UNIT_BYTES
    }

    /// Names of `counts` blocks of each group, slabs dealt out in order: for callers that share nothing.
    ///
    /// # Panics
    /// When the arena is too small.
    #[must_use]
    pub fn deal(&self, counts: &[u64]) -> Vec<Vec<u32>> {
        let mut next = 0;
        let mut of = |(g, &n): (u32, &u64)| {
            let (group, first) = (GroupId(g), next);
            let per_slab = u64::from(self.per_slab(group));
            next += n.div_ceil(per_slab) as u32;
            assert!(next <= self.slabs, "the arena is too small for {counts:?}");
            let name =
                |i: u64| self.block(group, first + (i / per_slab) as u32, (i % per_slab) as u32);
            (0..n).map(name).collect()
        };
        (0..).zip(counts).map(&mut of).collect()
    }
}

/// The multiple of the widest block, up to eight, that wastes least of a slab while an arena has slabs enough.
fn slab_units(blocks: &[u64], bound: u64) -> u64 {
    let widest = blocks.iter().copied().max().unwrap_or(1);
    let waste = |slab: u64| {
        blocks
            .iter()
            .map(|b| slab % b * 1024 / slab)
            .max()
            .unwrap_or(0)
    };
    let fits = |n: &u64| *n == 1 || bound / (n * widest) >= FINE_SLABS;
    let slabs = (1..=8).filter(fits).map(|n| n * widest);
    slabs.min_by_key(|&slab| waste(slab)).unwrap_or(widest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_groups_never_meet_and_are_found_again() {
        let sizes = [1000, 300, 7000, 256];
        let counts = [5, 40, 3, 1];
        let layout = ArenaLayout::for_counts(&sizes, &counts);
        let blocks = layout.deal(&counts);
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (g, blocks) in (0..).zip(&blocks) {
            for &block in blocks {
                let (slab, i) = layout.place(GroupId(g), block);
                assert_eq!(layout.block(GroupId(g), slab, i), block);
                let start = ArenaLayout::offset(block);
                spans.push((start, start + sizes[g as usize]));
            }
        }
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "{spans:?}");
        assert!(spans.last().unwrap().1 <= layout.bytes());
    }

    #[test]
    fn blocks_of_another_size_have_places_of_their_own() {
        let counts = [9, 40, 3];
        let whole = ArenaLayout::for_counts(&[1000, 300, 7000], &counts);
        for sizes in [[500, 300, 0], [0, 0, 6000], [1000, 1, 7000]] {
            let part = whole.with_blocks(&sizes);
            assert_eq!(part.slabs(), whole.slabs());
            assert!(part.bytes() <= whole.bytes());
            let mut spans: Vec<(u64, u64)> = Vec::new();
            for (g, blocks) in (0..).zip(whole.deal(&counts)) {
                for (slab, i) in blocks.iter().map(|&b| whole.place(GroupId(g), b)) {
                    let start = ArenaLayout::offset(part.block(GroupId(g), slab, i));
                    spans.push((start, start + sizes[g as usize].max(1)));
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "{spans:?}");
            assert!(spans.last().unwrap().1 <= part.bytes());
        }
    }

    #[test]
    fn slabs_follow_the_bytes_and_waste_little() {
        let layout = ArenaLayout::new(&[3 << 20, 2 << 20], 1 << 30);
        assert_eq!(layout.slab_bytes(), 6 << 20);
        assert_eq!(layout.slabs(), 170);
        assert_eq!(layout.per_slab(GroupId(0)), 2);
        assert_eq!(ArenaLayout::new(&[3 << 20], 1 << 20).slabs(), 0);
        let all = ArenaLayout::new(&[1 << 20], u64::MAX);
        assert!(all.bytes() <= u64::from(u32::MAX) * UNIT_BYTES);
    }
}
