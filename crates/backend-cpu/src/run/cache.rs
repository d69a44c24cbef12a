//! Paged caches: one arena of memory, with our own layout inside a block.
//!
//! Keys of a head lie in panels of sixteen positions, `[position / 16][dim_k][16]`, so that scores come one
//! position per lane; values lie row by row, `[position][dim_v]` with columns padded to sixteen. Blocks whose
//! size is no multiple of sixteen keep keys row by row too, and so do slots whose keys attention picks one by one or takes
//! as values. Q8_0 keeps, behind the codes of a head, one half per
//! position and 32 columns. A block holds its positions of all slots, one slot after the other.
#![allow(unsafe_code)]

use std::ops::Range;

use tokkata_core::DType;
use tokkata_ir::step::NO_BLOCK;
use tokkata_ir::{
    ArenaLayout, BackendError, CacheGroup, CacheKind, GroupId, KvSource, Op, Program, SlotDef,
    SlotId, StepState,
};
use tokkata_quant::num::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::kernels::Kernel as Set;
use crate::kernels::attention::{Row, halves_panel, halves_run};
use crate::kernels::lanes::N;
use crate::memory::HugeBuf;

/// Element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Q8,
}

/// Halves converted at a time.
const HALVES: usize = 64;
/// Columns that share a Q8_0 scale.
pub(crate) const Q8_BLOCK: usize = 32;

impl Kind {
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Kind::F32),
            DType::F16 => Some(Kind::F16),
            DType::BF16 => Some(Kind::Bf16),
            DType::Q8_0 => Some(Kind::Q8),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::Q8 => 1,
        }
    }
}

/// Keys or values of one head inside a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    pub(crate) kind: Kind,
    /// Byte of the block at which head 0 starts, and bytes per head.
    at: usize,
    head_bytes: usize,
    /// Columns of a head, and as stored.
    pub(crate) dim: usize,
    pub(crate) padded: usize,
    /// Positions lie side by side in panels.
    pub(crate) panels: bool,
    /// Sixteen positions from a multiple of sixteen on lie in one block.
    pub(crate) grouped: bool,
    /// Columns of a stored scale: those of a head that share a block of the row for certain.
    pub(crate) granule: usize,
    positions: usize,
}

impl Plane {
    fn new(kind: Kind, at: usize, dim: usize, panels: bool, positions: usize) -> Self {
        let padded = if panels { dim } else { dim.next_multiple_of(N) };
        let granule = 1 << dim.trailing_zeros().min(Q8_BLOCK.trailing_zeros());
        let scales = if kind == Kind::Q8 {
            padded / granule * 2
        } else {
            0
        };
        let head_bytes = (positions * (padded * kind.bytes() + scales)).next_multiple_of(64);
        Plane {
            kind,
            at,
            head_bytes,
            dim,
            padded,
            panels,
            grouped: positions.is_multiple_of(N),
            granule,
            positions,
        }
    }

    /// Whether kernels read its elements where they lie.
    pub(crate) fn is_float(&self) -> bool {
        matches!(self.kind, Kind::F32 | Kind::F16)
    }

    /// Element index of a column of a position.
    pub(crate) fn element(&self, position: usize, column: usize) -> usize {
        if self.panels {
            (position / N * self.padded + column) * N + position % N
        } else {
            position * self.padded + column
        }
    }

    /// Index among the halves behind the codes.
    pub(crate) fn scale(&self, position: usize, block: usize) -> usize {
        let blocks = self.padded / self.granule;
        if self.panels {
            (position / N * blocks + block) * N + position % N
        } else {
            position * blocks + block
        }
    }

    /// Bytes before the scales of a head.
    pub(crate) fn code_bytes(&self) -> usize {
        self.positions * self.padded
    }

    /// Stores one head of one position; `row` holds this and other whole heads, and all of the blocks of its columns
    /// where the cache has blocks.
    ///
    /// # Safety
    /// `to` points to this plane's head in a block and no one else uses the position.
    unsafe fn store(&self, set: Set, to: *mut u8, position: usize, (row, head): (&[f32], usize)) {
        let x = &row[head * self.dim..][..self.dim];
        let (first, step) = (self.element(position, 0), if self.panels { N } else { 1 });
        // SAFETY: elements and scales of a position lie inside the head.
        unsafe {
            match self.kind {
                Kind::F32 => spread(to.cast::<f32>().add(first), step, x, |x| x),
                Kind::F16 if step == 1 => {
                    let to = to.cast::<u16>().add(first);
                    halves_run(set, x, std::slice::from_raw_parts_mut(to, x.len()));
                }
                Kind::F16 => {
                    let mut halves = [0; HALVES];
                    for (i, x) in x.chunks(HALVES).enumerate() {
                        halves_run(set, x, &mut halves[..x.len()]);
                        spread(
                            to.cast::<u16>().add(first + i * HALVES * step),
                            step,
                            &halves[..x.len()],
                            |x| x,
                        );
                    }
                }
                Kind::Bf16 => spread(to.cast::<u16>().add(first), step, x, f32_to_bf16),
                Kind::Q8 => self.store_q8(to, position, (row, head), 0..self.dim),
            }
        }
    }

    /// Blocks of 32 run through the row, across heads; `row` starts at one.
    unsafe fn store_q8(
        &self,
        to: *mut u8,
        position: usize,
        (row, head): (&[f32], usize),
        cols: Range<usize>,
    ) {
        let scales = to.wrapping_add(self.code_bytes()).cast::<u16>();
        let first = cols.start / self.granule;
        let x = &row[head * self.dim..][cols];
        for (i, x) in (first..).zip(x.chunks(self.granule)) {
            let column = (head * self.dim + i * self.granule) / Q8_BLOCK * Q8_BLOCK;
            let block = &row[column..(column + Q8_BLOCK).min(row.len())];
            let step = match block.iter().any(|x| x.is_nan()) {
                // Codes hold numbers only.
                true => f32::NAN,
                false => block.iter().map(|x| x.abs()).fold(0.0, f32::max) / 127.0,
            };
            let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
            // SAFETY: as `store`.
            unsafe {
                scales.add(self.scale(position, i)).write(f32_to_f16(step));
                let first = to
                    .cast::<i8>()
                    .add(self.element(position, i * self.granule));
                spread(first, if self.panels { N } else { 1 }, x, |x| {
                    (x * inverse).round() as i8
                });
            }
        }
    }

    /// Stores some columns of a row of one head, rounded as [`Plane::store`] does.
    ///
    /// # Safety
    /// `to` points to this plane's head in a block and no one else uses these columns of the position, nor, where
    /// elements come in blocks, the rest of their blocks.
    unsafe fn store_columns(&self, to: *mut u8, position: usize, row: &[f32], cols: Range<usize>) {
        let x = &row[cols.clone()];
        let (first, step) = (
            self.element(position, cols.start),
            if self.panels { N } else { 1 },
        );
        // SAFETY: elements and scales of a position lie inside the head.
        unsafe {
            match self.kind {
                Kind::F32 => spread(to.cast::<f32>().add(first), step, x, |x| x),
                Kind::F16 => spread(to.cast::<u16>().add(first), step, x, f32_to_f16),
                Kind::Bf16 => spread(to.cast::<u16>().add(first), step, x, f32_to_bf16),
                Kind::Q8 => self.store_q8(to, position, (row, 0), cols),
            }
        }
    }

    /// The columns of a position where they lie side by side in a form that kernels read.
    pub(crate) fn row(&self, head: *const u8, position: usize) -> Option<Row> {
        let at = |bytes: usize| head.wrapping_add(self.element(position, 0) * bytes);
        match self.kind {
            _ if self.panels => None,
            Kind::F32 => Some(Row::Floats(at(4).cast())),
            Kind::F16 => Some(Row::Halves(at(2).cast())),
            Kind::Q8 if self.granule == Q8_BLOCK => {
                let scales = head.wrapping_add(self.code_bytes()).cast::<u16>();
                let scales = scales.wrapping_add(self.scale(position, 0));
                Some(Row::Codes(at(1).cast(), scales))
            }
            Kind::Q8 | Kind::Bf16 => None,
        }
    }

    /// One element.
    ///
    /// # Safety
    /// `head` points to this plane's head in a block that no one writes.
    pub(crate) unsafe fn load(&self, head: *const u8, position: usize, column: usize) -> f32 {
        let i = self.element(position, column);
        // SAFETY: as `store`.
        unsafe {
            match self.kind {
                Kind::F32 => head.cast::<f32>().add(i).read(),
                Kind::F16 => f16_to_f32(head.cast::<u16>().add(i).read()),
                Kind::Bf16 => bf16_to_f32(head.cast::<u16>().add(i).read()),
                Kind::Q8 => {
                    let scales = head.add(self.code_bytes()).cast::<u16>();
                    let scale = scales
                        .add(self.scale(position, column / self.granule))
                        .read();
                    f32::from(head.cast::<i8>().add(i).read()) * f16_to_f32(scale)
                }
            }
        }
    }
}

/// Writes converted elements `step` apart.
#[inline(always)]
unsafe fn spread<X: Copy, T>(to: *mut T, step: usize, x: &[X], convert: impl Fn(X) -> T) {
    for (i, &x) in x.iter().enumerate() {
        // SAFETY: the caller gives room for all.
        unsafe { to.add(i * step).write(convert(x)) };
    }
}

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
