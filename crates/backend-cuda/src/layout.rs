//! Places of values, of the step's state and inside cache blocks.

use std::collections::BTreeMap;

use tokkata_core::DType;
use tokkata_ir::{CacheGroup, CacheKind, Lead, Limits, Plan, Program, SlotDef, ValueId};

use crate::params::Params;
use crate::select::Traffic;

/// Values start at multiples of this.
const ALIGN: u64 = 256;

/// Most that a lead can be.
pub(crate) fn most(limits: &Limits, lead: Lead) -> u32 {
    match lead {
        Lead::Rows => limits.rows,
        Lead::LogitRows => limits.logit_rows,
        Lead::Seqs => limits.seqs,
    }
}

/// The lead as kernels number it.
pub(crate) fn lead_code(lead: Lead) -> u32 {
    match lead {
        Lead::Rows => 0,
        Lead::Seqs => 1,
        Lead::LogitRows => 2,
    }
}

/// Rows from a run to the next one where scales and sums lie run by run: whole tiles.
pub(crate) fn turned_rows(rows: u64) -> u64 {
    rows.next_multiple_of(128)
}

/// Rows and columns of which those in halves are filled up to multiples.
const HALVED_ROWS: u64 = 256;
pub(crate) const HALVED_COLUMNS: u64 = 256;

/// Bytes of rows of activations as the kernels of products take them: bytes, scales, and sums, and these run by run. Behind them,
/// where there are kernels that take `halves`, these.
fn rows_in_bytes(rows: u64, columns: u64, halves: bool) -> u64 {
    match halves && columns.is_multiple_of(HALVED_COLUMNS) {
        true => halves_at(rows, columns) + halves_bytes(rows, columns),
        false => halves_at(rows, columns),
    }
}

/// Bytes of rows in halves and of what they are multiplied by.
pub(crate) fn halves_bytes(rows: u64, columns: u64) -> u64 {
    units_at(rows, columns) + rows.next_multiple_of(HALVED_ROWS) * 4
}

/// Where a value's halves are, from its bytes on.
pub(crate) fn halves_at(rows: u64, columns: u64) -> u64 {
    let beside = rows * (columns + columns / 32 * 8);
    let turned = turned_rows(rows) * (columns / 32) * 8;
    (beside.next_multiple_of(16) + turned).next_multiple_of(16)
}

/// Where that is which they are multiplied by, from the halves on.
pub(crate) fn units_at(rows: u64, columns: u64) -> u64 {
    rows.next_multiple_of(HALVED_ROWS) * columns * 2
}

/// Where values of a plan lie, from the first byte of the work space on.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValuePlaces {
    /// Of every value; those that no launch makes are 0.
    pub(crate) values: Vec<u64>,
    /// Of values in bytes.
    pub(crate) bytes: Vec<u64>,
    /// Bytes in all.
    pub(crate) end: u64,
}

impl ValuePlaces {
    /// As these places are in a work space that begins here.
    pub(crate) fn move_by(&mut self, by: u64) {
        self.values.iter_mut().for_each(|at| *at += by);
        self.bytes.iter_mut().for_each(|at| *at += by);
    }
}

/// Places of a plan's values, of which each is there from the launch that makes it to the last that reads it.
pub(crate) fn values(
    plan: &Plan,
    traffic: &[Traffic],
    (limits, halves): (&Limits, bool),
) -> ValuePlaces {
    let count = plan.values.len();
    // Values, then values in bytes.
    let size = |key: usize| {
        let shape = &plan.values[key % count].shape;
        let (lead, width) = (u64::from(most(limits, shape.lead)), shape.width() as u64);
        let bytes = if key < count {
            lead * width * 4
        } else {
            rows_in_bytes(lead, width, halves && shape.lead == Lead::Rows)
        };
        bytes.next_multiple_of(ALIGN).max(ALIGN)
    };
    let keys = |values: &[ValueId], bytes: Option<ValueId>| -> Vec<usize> {
        let values = values.iter().map(|v| v.index());
        values.chain(bytes.map(|v| v.index() + count)).collect()
    };
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, t) in traffic.iter().enumerate() {
        last.extend(keys(&t.ins, t.bytes_in).into_iter().map(|k| (k, i)));
        last.extend(keys(&t.outs, t.bytes_out).into_iter().map(|k| (k, i)));
    }
    let ports = plan.inputs.iter().chain(&plan.outputs);
    last.extend(ports.map(|p| (p.value.index(), usize::MAX)));
    let (mut space, mut places) = (Space::default(), vec![0; 2 * count]);
    for port in &plan.inputs {
        places[port.value.index()] = space.take(size(port.value.index()));
    }
    for (i, t) in traffic.iter().enumerate() {
        let outs = keys(&t.outs, t.bytes_out);
        // What ends here may go on under another name.
        let ends = |value: &usize| last[value] == i;
        let same = t.same.iter().map(|(out, of)| (out.index(), of.index()));
        let same: BTreeMap<usize, usize> = same.filter(|(_, of)| ends(of)).collect();
        for &out in &outs {
            places[out] = match same.get(&out) {
                Some(&of) => places[of],
                None => space.take(size(out)),
            };
        }
        let mut done = keys(&t.ins, t.bytes_in);
        done.extend(outs);
        done.sort_unstable();
        done.dedup();
        done.retain(|key| same.values().all(|of| of != key));
        for key in done.into_iter().filter(|key| last[key] == i) {
            space.give(places[key], size(key));
        }
    }
    let bytes = places.split_off(count);
    ValuePlaces {
        values: places,
        bytes,
        end: space.end,
    }
}

/// Free runs of bytes by their starts.
#[derive(Debug, Default)]
struct Space {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Space {
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = self.free.iter().filter(|f| *f.1 >= bytes);
        let Some((&at, &len)) = fits.min_by_key(|f| *f.1) else {
            self.end += bytes;
            return self.end - bytes;
        };
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        at
    }

    fn give(&mut self, at: u64, bytes: u64) {
        let (mut at, mut bytes) = (at, bytes);
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, bytes + len);
        }
        if let Some(len) = self.free.remove(&(at + bytes)) {
            bytes += len;
        }
        self.free.insert(at, bytes);
    }
}

/// Keys or values of the entries of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plane {
    pub(crate) offset: u32,
    pub(crate) scales: u32,
    pub(crate) width: u32,
    pub(crate) dtype: u32,
}

impl Plane {
    pub(crate) fn params(self, params: Params) -> Params {
        params.u32s(&[self.offset, self.scales, self.width, self.dtype])
    }
}

/// Planes of the slots of a cache group, in a block.
#[derive(Clone, Debug)]
pub(crate) struct GroupLayout {
    /// Per slot: keys, then values where it has them; or its state.
    pub(crate) slots: Vec<Vec<Plane>>,
    /// Entries of a block.
    pub(crate) entries: u32,
    /// Positions of an entry.
    pub(crate) entry: u32,
    pub(crate) block_bytes: u64,
}

impl GroupLayout {
    /// The layout of a group; `None` for an element type that no kernel knows.
    pub(crate) fn new(group: &CacheGroup) -> Option<Self> {
        let entries = group.block_entries();
        let mut bytes = 0u64;
        let mut slots = Vec::new();
        for slot in &group.slots {
            let (widths, dtype) = match *slot {
                SlotDef::Kv {
                    n_kv_heads,
                    dim_k,
                    dim_v,
                } => {
                    let dims = [Some(dim_k), dim_v.filter(|&d| d > 0)];
                    let widths = dims.into_iter().flatten().map(|d| d * n_kv_heads);
                    (widths.collect(), group.dtype)
                }
                SlotDef::State { len } => (vec![len], DType::F32),
            };
            let mut planes = Vec::new();
            for width in widths {
                planes.push(plane(width, dtype, entries, &mut bytes)?);
            }
            slots.push(planes);
        }
        let entry = match group.kind {
            CacheKind::Entries(n) => n,
            _ => 1,
        };
        Some(GroupLayout {
            slots,
            entries,
            entry,
            block_bytes: bytes,
        })
    }
}

fn plane(width: u32, dtype: DType, entries: u32, bytes: &mut u64) -> Option<Plane> {
    let mut take = |n: u64| {
        let at = *bytes;
        *bytes += n.next_multiple_of(16);
        at as u32
    };
    let elems = u64::from(entries) * u64::from(width);
    let (offset, scales) = match dtype {
        DType::F32 => (take(elems * 4), 0),
        DType::F16 | DType::BF16 => (take(elems * 2), 0),
        DType::Q8_0 => {
            let scales = u64::from(entries) * u64::from(width.div_ceil(32)) * 2;
            (take(elems), take(scales))
        }
        _ => return None,
    };
    Some(Plane {
        offset,
        scales,
        width,
        dtype: dtype.ggml(),
    })
}

/// Bytes of a slot and of a logit row, as `common.cuh` declares them.
pub(crate) const SLOT_BYTES: u64 = 128;
const LOGIT_BYTES: u64 = 32;

/// Where the state of a step and of the slots lies.
#[derive(Clone, Debug)]
pub(crate) struct StepLayout {
    offsets: Vec<u64>,
    /// Tokens of all slots.
    pub(crate) tokens: u64,
    /// Room for tokens of a slot.
    pub(crate) tokens_of_slot: u64,
    pub(crate) tables: u64,
    /// First word among the tables and words per slot, per group.
    pub(crate) groups: Vec<[u32; 2]>,
    pub(crate) bytes: u64,
}

impl StepLayout {
    pub(crate) fn new(program: &Program) -> Self {
        let limits = &program.limits;
        let (rows, logits) = (u64::from(limits.rows), u64::from(limits.logit_rows));
        let seqs = u64::from(limits.seqs);
        let mut bytes = 0u64;
        let mut take = |n: u64| {
            let at = bytes;
            bytes += n.next_multiple_of(ALIGN);
            at
        };
        let row = rows * 4;
        let sizes = [
            32,
            row,
            row * 4,
            row,
            row,
            row,
            logits * 4,
            logits * LOGIT_BYTES,
            seqs * 4,
            seqs * 4,
            seqs * 4,
            seqs * 4,
            seqs * SLOT_BYTES,
        ];
        let offsets = sizes.into_iter().map(&mut take).collect();
        let tokens = take(seqs * Self::tokens_of_slot(limits) * 4);
        let mut words = 0;
        let mut groups = Vec::new();
        for group in &program.caches {
            let len = group.table_len(limits) as u32;
            groups.push([words, len]);
            words += len * limits.seqs;
        }
        let tables = take(u64::from(words) * 4);
        StepLayout {
            offsets,
            tokens,
            tokens_of_slot: Self::tokens_of_slot(limits),
            tables,
            groups,
            bytes,
        }
    }

    /// Tokens that a slot has room for: a whole context and the one that was drawn last.
    pub(crate) fn tokens_of_slot(limits: &Limits) -> u64 {
        u64::from(limits.ctx) + 1
    }

    /// Where the slots lie.
    pub(crate) fn slots(&self) -> u64 {
        self.offsets[12]
    }

    /// The structure that every kernel gets first.
    pub(crate) fn params(&self, base: u64) -> Params {
        let addresses: Vec<u64> = self.offsets.iter().map(|o| base + o).collect();
        Params::new().u64s(&addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::Space;

    #[test]
    fn space_is_used_again_and_grows_together() {
        let mut space = Space::default();
        let (a, b, c) = (space.take(256), space.take(512), space.take(256));
        assert_eq!((a, b, c, space.end), (0, 256, 768, 1024));
        space.give(a, 256);
        space.give(b, 512);
        assert_eq!((space.take(768), space.end), (0, 1024));
        space.give(c, 256);
        assert_eq!(
            (space.take(256), space.take(256), space.end),
            (768, 1024, 1280)
        );
    }
}
