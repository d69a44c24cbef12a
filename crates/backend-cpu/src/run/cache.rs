//! Paged caches: one arena of memory, with our own layout inside a block.
//!
//! Keys of a head lie in panels of sixteen positions, `[position / 16][dim_k][16]`, so that scores come one
//! position per lane; values lie row by row, `[position][dim_v]` with columns padded to sixteen. Blocks whose
//! size is no multiple of sixteen keep keys row by row too, and so do slots whose keys attention picks one by one or takes
//! as values. Q8_0 keeps, behind the codes of a head, one half per position and 32 columns.
//! A block holds its positions of all slots, one slot after the other.
#![allow(unsafe_code)]

mod plane;

use std::ops::Range;

use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, CacheKind, GroupId, KvSource, Op, Program, SlotDef,
    SlotId, StepState,
};

use crate::kernels::Kernel as Set;
use crate::kernels::attention::halves_panel;
use crate::kernels::lanes::N;
use crate::memory::HugeBuf;

pub(crate) use plane::{Kind, Plane, Q8_BLOCK};

/// Keys and values of one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kv {
    /// Byte of a block at which the slot starts.
    at: usize,
    pub(crate) heads: usize,
    pub(crate) keys: Plane,
    /// `None` when values are the first columns of the keys.
    pub(crate) values: Option<Plane>,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Kv(Kv),
    State { at: usize, len: usize },
}

#[derive(Debug)]
struct Group {
    block_entries: usize,
    /// Positions of an entry.
    entry: usize,
    slots: Vec<Slot>,
    block_bytes: usize,
}

/// Every cache of a program.
#[derive(Debug)]
pub(crate) struct Caches {
    groups: Vec<Group>,
    memory: HugeBuf,
    start: *mut u8,
}

// SAFETY: `start` points into `memory`; steps that write a position are the only ones to use it until the next
// barrier.
unsafe impl Sync for Caches {}
// SAFETY: as above.
unsafe impl Send for Caches {}

fn unsupported(what: String) -> BackendError {
    BackendError::Unsupported {
        backend: "cpu",
        op: what,
    }
}

fn kv_layout(
    def: &CacheGroup,
    at: usize,
    (heads, rows): (usize, bool),
    (dim_k, dim_v): (usize, usize),
) -> Result<(Kv, usize), BackendError> {
    let kind =
        Kind::of(def.dtype).ok_or_else(|| unsupported(format!("a cache of {}", def.dtype)))?;
    let size = def.block_entries() as usize;
    let keys = Plane::new(kind, 0, dim_k, size.is_multiple_of(N) && !rows, size);
    let after = heads * keys.head_bytes;
    let values = (dim_v > 0).then(|| Plane::new(kind, after, dim_v, false, size));
    let bytes = after + values.map_or(0, |v| heads * v.head_bytes);
    let kv = Kv {
        at,
        heads,
        keys,
        values,
    };
    Ok((kv, bytes))
}

/// Slots whose keys lie row by row: attention picks some of them or reads them as values too, summaries read columns.
fn row_slots(program: &Program) -> Vec<SlotId> {
    let nodes = program.plans.iter().flat_map(|p| &p.nodes);
    let of = |op: &Op| -> Vec<SlotId> {
        let op = match op {
            Op::Attention(op) => op,
            Op::Compress(op) => return vec![op.slot],
            _ => return vec![],
        };
        let keys_only = |slot: &SlotId| {
            let def = &program.group(slot.group).slots[slot.slot as usize];
            matches!(def, SlotDef::Kv { dim_v, .. } if dim_v.unwrap_or(0) == 0)
        };
        let own = match op.source {
            KvSource::Cache(slot) | KvSource::Cross(slot) => Some(slot),
            KvSource::Rows => None,
        };
        let slots = own.into_iter().chain(op.entries);
        let rows = |slot: &SlotId| op.selection.is_some() || keys_only(slot);
        slots.filter(rows).collect()
    };
    nodes.flat_map(|n| of(&n.op)).collect()
}

impl Group {
    fn new(group: GroupId, def: &CacheGroup, rows: &[SlotId]) -> Result<Self, BackendError> {
        let mut at = 0;
        let mut slots = Vec::with_capacity(def.slots.len());
        for (slot, i) in def.slots.iter().zip(0..) {
            let id = SlotId { group, slot: i };
            let (slot, bytes) = match *slot {
                SlotDef::State { len } => {
                    let len = len as usize;
                    (Slot::State { at, len }, len * 4)
                }
                SlotDef::Kv {
                    n_kv_heads,
                    dim_k,
                    dim_v,
                } => {
                    let dims = (dim_k as usize, dim_v.unwrap_or(0) as usize);
                    let heads = (n_kv_heads as usize, rows.contains(&id));
                    let (kv, bytes) = kv_layout(def, at, heads, dims)?;
                    (Slot::Kv(kv), bytes)
                }
            };
            slots.push(slot);
            at += bytes.next_multiple_of(64);
        }
        Ok(Group {
            block_entries: def.block_entries() as usize,
            entry: match def.kind {
                CacheKind::Entries(n) => n as usize,
                _ => 1,
            },
            slots,
            block_bytes: at,
        })
    }
}

/// Heads of one block of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockAt(*mut u8);

impl BlockAt {
    /// Where a head of a plane starts.
    pub(crate) fn head(self, plane: &Plane, head: usize) -> *const u8 {
        self.0.wrapping_add(plane.at + head * plane.head_bytes)
    }
}

/// A state in the pool, of which each worker takes the parts that are its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateAt {
    start: *mut f32,
    len: usize,
}

impl StateAt {
    /// Elements of it.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Some of its elements.
    ///
    /// # Safety
    /// No one else uses them for as long as the slice lives, which is shorter than the caches do.
    pub(crate) unsafe fn part<'a>(self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the state lies in the pool, whose start is aligned; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

impl Caches {
    /// The layout of a program's caches, without memory.
    pub(crate) fn lay_out(program: &Program) -> Result<Self, BackendError> {
        let rows = row_slots(program);
        let groups = (0..).map(GroupId).zip(&program.caches);
        let groups = groups.map(|(id, def)| Group::new(id, def, &rows));
        Ok(Caches {
            groups: groups.collect::<Result<_, _>>()?,
            memory: HugeBuf::zeroed(0),
            start: std::ptr::null_mut(),
        })
    }

    /// Bytes of a block of each group.
    pub(crate) fn block_bytes(&self) -> Vec<u64> {
        self.groups.iter().map(|g| g.block_bytes as u64).collect()
    }

    /// Takes the memory.
    pub(crate) fn make(&mut self, arena: &ArenaLayout) {
        let bytes = usize::try_from(arena.bytes()).expect("the arena was found to fit the memory");
        self.memory = HugeBuf::zeroed(bytes);
        self.start = self.memory.as_mut_ptr();
    }

    /// Where a block of a group starts.
    fn at(&self, group: GroupId, block: u32) -> *mut u8 {
        let offset = ArenaLayout::offset(block) as usize;
        let bytes = self.groups[group.index()].block_bytes;
        assert!(
            offset + bytes <= self.memory.len(),
            "block {block} of an arena of {} bytes",
            self.memory.len()
        );
        self.start.wrapping_add(offset)
    }

    pub(crate) fn kv(&self, slot: SlotId) -> &Kv {
        match &self.groups[slot.group.index()].slots[slot.slot as usize] {
            Slot::Kv(kv) => kv,
            Slot::State { .. } => panic!("{slot} holds a state, not keys and values"),
        }
    }

    /// Entries of a block: positions, or runs of them.
    pub(crate) fn block_entries(&self, group: GroupId) -> usize {
        self.groups[group.index()].block_entries
    }

    /// Positions of an entry.
    pub(crate) fn entry_positions(&self, group: GroupId) -> usize {
        self.groups[group.index()].entry
    }

    /// A block of a slot.
    pub(crate) fn block(&self, slot: SlotId, kv: &Kv, block: u32) -> BlockAt {
        BlockAt(self.at(slot.group, block).wrapping_add(kv.at))
    }

    /// Whether a row of a sequence is stored: of rows of a step that share an entry, the last one is.
    pub(crate) fn stores(&self, step: &StepState, slot: SlotId, row: usize) -> bool {
        let seq = step.seqs()[row] as usize;
        let last = row + 1 == step.first_row(seq) + step.row_count(seq);
        let next = step.index_in_sequence(row) + 1;
        last || next.is_multiple_of(self.entry_positions(slot.group))
    }

    /// Whether keys of a slot are written sixteen positions at a time, [`Caches::write_panel`].
    pub(crate) fn takes_panels(&self, slot: SlotId) -> bool {
        let keys = self.kv(slot).keys;
        let single = self.entry_positions(slot.group) == 1;
        single && keys.panels && keys.kind == Kind::F16 && keys.dim.is_multiple_of(N)
    }

    /// Stores one head of a position of a sequence, unless its block is gone.
    pub(crate) fn write(&self, set: Set, step: &StepState, slot: SlotId, at: Write<'_>) {
        if let Some((plane, head, position)) = self.place(step, slot, &at) {
            // SAFETY: the block lies in the pool; the step that writes gives each head of a row to one worker.
            unsafe { plane.store(set, head, position, (at.row, at.head - at.first)) };
        }
    }

    /// Stores the keys of one head of sixteen positions of a sequence, the first as given, unless their block is gone.
    pub(crate) fn write_panel(
        &self,
        (set, step, slot): (Set, &StepState, SlotId),
        at: Write<'_>,
        rows: &[&[f32]; N],
    ) {
        if let Some((plane, head, position)) = self.place(step, slot, &at) {
            let first = (at.head - at.first) * plane.dim;
            let columns = first..first + plane.dim;
            let to = head.cast::<u16>().wrapping_add(plane.element(position, 0));
            // SAFETY: the panel lies in the block, which lies in the pool; the step that writes gives each head of a
            // row to one worker.
            let to = unsafe { std::slice::from_raw_parts_mut(to, plane.dim * N) };
            halves_panel(set, &rows.map(|row| &row[columns.clone()]), to);
        }
    }

    /// The plane, its head in the block of a position and the place in there.
    fn place(
        &self,
        step: &StepState,
        slot: SlotId,
        at: &Write<'_>,
    ) -> Option<(&Plane, *mut u8, usize)> {
        let kv = self.kv(slot);
        let size = self.block_entries(slot.group);
        let entry = at.position / self.entry_positions(slot.group);
        let block = *step.table(slot.group, at.seq).get(entry / size)?;
        if block == NO_BLOCK {
            return None;
        }
        let plane = if at.values {
            kv.values.as_ref()
        } else {
            Some(&kv.keys)
        };
        let plane = plane.expect("a slot that keeps values");
        let head = self.block(slot, kv, block).head(plane, at.head).cast_mut();
        Some((plane, head, entry % size))
    }

    /// Stores some columns of a row of a slot with one head at a position of a sequence, unless its block is gone; where
    /// the cache has blocks, whole ones.
    pub(crate) fn write_columns(
        &self,
        (step, slot): (&StepState, SlotId),
        (seq, position): (usize, usize),
        values: bool,
        (row, cols): (&[f32], Range<usize>),
    ) {
        let at = Write {
            seq,
            position,
            head: 0,
            values,
            row,
            first: 0,
        };
        if let Some((plane, head, position)) = self.place(step, slot, &at) {
            // SAFETY: the block lies in the pool; the step that writes gives these columns to one worker.
            unsafe { plane.store_columns(head, position, row, cols) };
        }
    }

    /// Some columns of a slot with one head, at a position of a sequence that has a block.
    pub(crate) fn read_columns(
        &self,
        (step, slot): (&StepState, SlotId),
        (seq, position): (usize, usize),
        values: bool,
        cols: Range<usize>,
        out: &mut [f32],
    ) {
        let at = Write {
            seq,
            position,
            head: 0,
            values,
            row: &[],
            first: 0,
        };
        let (plane, head, position) =
            (self.place(step, slot, &at)).expect("a position that is read has a block");
        for (column, to) in cols.zip(out) {
            // SAFETY: the block lies in the pool; these columns are this worker's.
            *to = unsafe { plane.load(head, position, column) };
        }
    }

    /// Where the state lies that a place of a sequence's table names.
    pub(crate) fn state(
        &self,
        step: &StepState,
        slot: SlotId,
        (seq, place): (usize, usize),
    ) -> StateAt {
        let group = &self.groups[slot.group.index()];
        let Slot::State { at, len } = group.slots[slot.slot as usize] else {
            panic!("{slot} holds keys and values, not a state");
        };
        let block = step.table(slot.group, seq)[place];
        assert_ne!(block, NO_BLOCK, "a recurrent sequence without a state");
        StateAt {
            start: self.at(slot.group, block).wrapping_add(at).cast(),
            len,
        }
    }

    pub(crate) fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        let bytes = self.groups[group.index()].block_bytes;
        let [from, to] = [from, to].map(|block| ArenaLayout::offset(block) as usize);
        let memory = self.memory.bytes_mut();
        memory.copy_within(from..from + bytes, to);
    }

    /// Visits every element of a block in canonical order.
    fn visit(&self, group: GroupId, block: u32, mut f: impl FnMut(Element)) {
        let def = &self.groups[group.index()];
        for (i, slot) in def.slots.iter().enumerate() {
            match *slot {
                Slot::State { at, len } => {
                    let at = self.at(group, block).wrapping_add(at).cast::<f32>();
                    (0..len).for_each(|i| f(Element::State(at.wrapping_add(i))));
                }
                Slot::Kv(kv) => {
                    let id = SlotId {
                        group,
                        slot: i as u32,
                    };
                    let at = self.block(id, &kv, block);
                    for plane in [Some(kv.keys), kv.values].into_iter().flatten() {
                        for position in 0..def.block_entries {
                            f(Element::Row(plane, at, position, kv.heads));
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        let mut out = Vec::new();
        self.visit(group, block, |element| {
            // SAFETY: `visit` gives addresses inside the pool; no step runs.
            unsafe {
                match element {
                    Element::State(x) => out.push(x.read()),
                    Element::Row(plane, block, p, heads) => {
                        for head in (0..heads).map(|h| block.head(&plane, h)) {
                            out.extend((0..plane.dim).map(|c| plane.load(head, p, c)));
                        }
                    }
                }
            }
        });
        out
    }

    pub(crate) fn import_block(&mut self, set: Set, group: GroupId, block: u32, data: &[f32]) {
        let mut rest = data;
        self.visit(group, block, |element| {
            let len = match &element {
                Element::State(_) => 1,
                Element::Row(plane, _, _, heads) => plane.dim * heads,
            };
            let Some((x, after)) = rest.split_at_checked(len) else {
                return;
            };
            rest = after;
            // SAFETY: as above.
            unsafe {
                match element {
                    Element::State(to) => to.write(x[0]),
                    Element::Row(plane, block, p, heads) => {
                        (0..heads).for_each(|h| {
                            plane.store(set, block.head(&plane, h).cast_mut(), p, (x, h));
                        });
                    }
                }
            }
        });
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }
}

enum Element {
    State(*mut f32),
    /// All heads of a position.
    Row(Plane, BlockAt, usize, usize),
}

/// One head of one row, on its way to a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) seq: usize,
    pub(crate) position: usize,
    pub(crate) head: usize,
    /// Values rather than keys.
    pub(crate) values: bool,
    /// Some heads of the row.
    pub(crate) row: &'a [f32],
    /// The first of them.
    pub(crate) first: usize,
}
