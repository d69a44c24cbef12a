//! Paged caches: what a position or a state holds, after rounding to the group's element type.
//!
//! Elements are kept decoded, so that reading a cache is indexing; a write rounds them as storing and loading
//! the group's element type would.

use std::ops::Range;

use tokkata_core::DType;
use tokkata_ir::step::{NO_BLOCK, Stretch};
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, CacheKind, GroupId, Program, SlotDef, SlotId, StepState,
};
use tokkata_quant::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::real::Real;

/// One array of a slot: `[blocks, entries of a block, width]`.
struct Plane<R> {
    width: usize,
    data: Vec<R>,
}

impl<R: Real> Plane<R> {
    fn new(positions: usize, width: usize) -> Self {
        Plane {
            width,
            data: vec![R::ZERO; positions * width],
        }
    }

    fn row(&self, position: usize) -> &[R] {
        &self.data[position * self.width..][..self.width]
    }

    fn row_mut(&mut self, position: usize) -> &mut [R] {
        &mut self.data[position * self.width..][..self.width]
    }
}

/// A cache group: per slot the planes of keys and values, or of a state.
struct Group<R> {
    dtype: DType,
    block_size: usize,
    /// Positions of an entry.
    entry: usize,
    slots: Vec<Vec<Plane<R>>>,
}

/// Every cache of a program. A group has room for all blocks that the arena can hold; memory is taken where it is
/// written first.
pub(crate) struct Caches<R> {
    groups: Vec<Group<R>>,
    arena: ArenaLayout,
}

fn widths(slot: &SlotDef) -> Vec<usize> {
    match *slot {
        SlotDef::Kv {
            n_kv_heads,
            dim_k,
            dim_v,
        } => [Some(dim_k), dim_v]
            .into_iter()
            .flatten()
            .filter(|&d| d > 0)
            .map(|d| (n_kv_heads * d) as usize)
            .collect(),
        SlotDef::State { len } => vec![len as usize],
    }
}

impl<R: Real> Group<R> {
    fn new(def: &CacheGroup, n_blocks: usize) -> Self {
        let entries = n_blocks * def.block_entries() as usize;
        let planes = |slot: &SlotDef| {
            let widths = widths(slot);
            widths.iter().map(|&w| Plane::new(entries, w)).collect()
        };
        let states = def.slots.iter().any(|s| matches!(s, SlotDef::State { .. }));
        Group {
            dtype: if states { DType::F32 } else { def.dtype },
            block_size: def.block_size as usize,
            entry: match def.kind {
                CacheKind::Entries(n) => n as usize,
                _ => 1,
            },
            slots: def.slots.iter().map(planes).collect(),
        }
    }
}

impl<R: Real> Caches<R> {
    /// Caches without blocks.
    pub(crate) fn check(program: &Program) -> Result<Self, BackendError> {
        let supported = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
        match program
            .caches
            .iter()
            .find(|g| !supported.contains(&g.dtype))
        {
            None => Ok(Self::new(
                program,
                &ArenaLayout::new(&block_bytes(program), 0),
            )),
            Some(def) => Err(BackendError::Unsupported {
                backend: "ref",
                op: format!("a cache of {}", def.dtype),
            }),
        }
    }

    pub(crate) fn new(program: &Program, arena: &ArenaLayout) -> Self {
        let group = |(g, def): (u32, &CacheGroup)| {
            let per_slab = arena.per_slab(GroupId(g)) as usize;
            Group::new(def, arena.slabs() as usize * per_slab)
        };
        Caches {
            groups: (0..).zip(&program.caches).map(group).collect(),
            arena: arena.clone(),
        }
    }

    /// Place of a block among all that its group may have.
    fn index(&self, group: GroupId, block: u32) -> usize {
        let (slab, i) = self.arena.place(group, block);
        (slab * self.arena.per_slab(group) + i) as usize
    }

    fn planes(&self, slot: SlotId) -> &[Plane<R>] {
        &self.groups[slot.group.index()].slots[slot.slot as usize]
    }

    /// Positions of an entry of a group.
    pub(crate) fn entry_positions(&self, group: GroupId) -> usize {
        self.groups[group.index()].entry
    }

    /// Physical entry of a sequence's position, or `None` where no block is.
    pub(crate) fn place(
        &self,
        step: &StepState,
        group: GroupId,
        seq: usize,
        pos: usize,
    ) -> Option<usize> {
        let Group {
            block_size: size,
            entry,
            ..
        } = self.groups[group.index()];
        let block = *step.table(group, seq).get(pos / size)?;
        (block != NO_BLOCK).then(|| self.index(group, block) * (size / entry) + pos % size / entry)
    }

    /// Stores plane `plane` (0 keys, 1 values) of a position.
    pub(crate) fn store(&mut self, slot: SlotId, plane: usize, position: usize, x: &[R]) {
        let group = &mut self.groups[slot.group.index()];
        let row = group.slots[slot.slot as usize][plane].row_mut(position);
        row.copy_from_slice(x);
        round(group.dtype, row);
    }

    /// Keys of a position.
    pub(crate) fn keys(&self, slot: SlotId, position: usize) -> &[R] {
        self.planes(slot)[0].row(position)
    }

    /// Values of a position: the keys themselves when the slot keeps keys only.
    pub(crate) fn values(&self, slot: SlotId, position: usize) -> &[R] {
        let planes = self.planes(slot);
        planes[planes.len() - 1].row(position)
    }

    /// Whether the values of a slot are its keys.
    pub(crate) fn keys_only(&self, slot: SlotId) -> bool {
        self.planes(slot).len() == 1
    }

    /// Takes the states of every sequence through its rows, in order. `run` is given rows of the step and the state before
    /// them, and leaves the state after them.
    pub(crate) fn carry(
        &mut self,
        step: &StepState,
        slot: SlotId,
        mut run: impl FnMut(Range<usize>, &mut Vec<R>),
    ) {
        for seq in 0..step.n_seqs() {
            for Stretch { rows, from, to } in step.stretches(seq) {
                let plane = &self.planes(slot)[0];
                let mut state = match from {
                    Some(place) => plane
                        .row(self.state_block(step, slot, (seq, place)))
                        .to_vec(),
                    None => vec![R::ZERO; plane.width],
                };
                run(rows, &mut state);
                self.store(slot, 0, self.state_block(step, slot, (seq, to)), &state);
            }
        }
    }

    fn state_block(&self, step: &StepState, slot: SlotId, (seq, place): (usize, usize)) -> usize {
        let block = step.table(slot.group, seq)[place];
        assert_ne!(block, NO_BLOCK, "a recurrent sequence without a state");
        self.index(slot.group, block)
    }

    pub(crate) fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        let [from, to] = [from, to].map(|block| self.index(group, block));
        let group = &mut self.groups[group.index()];
        for plane in group.slots.iter_mut().flatten() {
            let len = group.block_size / group.entry * plane.width;
            let from = from * len;
            plane.data.copy_within(from..from + len, to * len);
        }
    }

    pub(crate) fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        let block = self.index(group, block);
        let group = &self.groups[group.index()];
        let planes = group.slots.iter().flatten();
        let elems = planes.flat_map(|plane| {
            let len = group.block_size / group.entry * plane.width;
            &plane.data[block * len..][..len]
        });
        elems.map(|x| x.narrow()).collect()
    }

    pub(crate) fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        let block = self.index(group, block);
        let group = &mut self.groups[group.index()];
        let mut data = data.iter();
        for plane in group.slots.iter_mut().flatten() {
            let len = group.block_size / group.entry * plane.width;
            let elems = &mut plane.data[block * len..][..len];
            for (to, &from) in elems.iter_mut().zip(data.by_ref()) {
                *to = R::from(from);
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let planes = self.groups.iter().flat_map(|g| g.slots.iter().flatten());
        planes.map(|p| size_of_val(p.data.as_slice()) as u64).sum()
    }
}

/// Bytes of a block of each group.
pub(crate) fn block_bytes(program: &Program) -> Vec<u64> {
    program.caches.iter().map(CacheGroup::block_bytes).collect()
}

/// Rounds a row as storing it would. F32 keeps the run's own precision.
fn round<R: Real>(dtype: DType, row: &mut [R]) {
    let through = |row: &mut [R], f: fn(f32) -> f32| {
        for x in row {
            *x = R::from(f(x.narrow()));
        }
    };
    match dtype {
        DType::F16 => through(row, |x| f16_to_f32(f32_to_f16(x))),
        DType::BF16 => through(row, |x| bf16_to_f32(f32_to_bf16(x))),
        DType::Q8_0 => row.chunks_mut(32).for_each(round_q8),
        _ => {}
    }
}

/// Q8_0: 127 steps to the largest magnitude, the step kept as a half.
fn round_q8<R: Real>(block: &mut [R]) {
    let largest = block.iter().map(|x| x.narrow().abs()).fold(0.0, f32::max);
    let step = largest / 127.0;
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let kept = f16_to_f32(f32_to_f16(step));
    for x in block {
        *x = R::from((x.narrow() * inverse).round() * kept);
    }
}
