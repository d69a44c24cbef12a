//! Places of values, of the step's state and inside cache blocks, all in words.

use std::collections::BTreeMap;

use tokkata_core::DType;
use tokkata_ir::{CacheGroup, CacheKind, Lead, Limits, Plan, Program, SlotDef, ValueId};

use crate::preprocess::Constants;
use crate::select::Traffic;
use crate::work::record_words;

/// Everything starts at a multiple of so many words.
const ALIGN: u64 = 64;

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

/// Where values of a plan lie in the work space.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValuePlaces {
    /// Of every value; those that no dispatch makes are 0.
    pub(crate) values: Vec<u64>,
    /// Words in all.
    pub(crate) end: u64,
}

/// Places of a plan's values, of which each is there from the dispatch that makes it to the last that reads it.
pub(crate) fn values(plan: &Plan, traffic: &[Traffic], limits: &Limits) -> ValuePlaces {
    let size = |value: usize| {
        let shape = &plan.values[value].shape;
        let words = u64::from(most(limits, shape.lead)) * shape.width() as u64;
        words.next_multiple_of(ALIGN).max(ALIGN)
    };
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, t) in traffic.iter().enumerate() {
        last.extend(t.ins.iter().chain(&t.outs).map(|v| (v.index(), i)));
    }
    let ports = plan.inputs.iter().chain(&plan.outputs);
    last.extend(ports.map(|p| (p.value.index(), usize::MAX)));
    let (mut space, mut places) = (Space::default(), vec![0; plan.values.len()]);
    for port in &plan.inputs {
        places[port.value.index()] = space.take(size(port.value.index()));
    }
    for (i, t) in traffic.iter().enumerate() {
        // What ends here may go on under another name.
        let same = t.same.iter().map(|(out, of)| (out.index(), of.index()));
        let same: BTreeMap<usize, usize> = same.filter(|(_, of)| last[of] == i).collect();
        for out in t.outs.iter().map(|v| v.index()) {
            places[out] = match same.get(&out) {
                Some(&of) => places[of],
                None => space.take(size(out)),
            };
        }
        let done = t.ins.iter().chain(&t.outs);
        let mut done: Vec<usize> = done.map(|v: &ValueId| v.index()).collect();
        done.sort_unstable();
        done.dedup();
        done.retain(|value| same.values().all(|of| of != value));
        for value in done.into_iter().filter(|value| last[value] == i) {
            space.give(places[value], size(value));
        }
    }
    ValuePlaces {
        values: places,
        end: space.end,
    }
}

/// Free runs of words by their starts.
#[derive(Debug, Default)]
pub(crate) struct Space {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Space {
    pub(crate) fn take(&mut self, words: u64) -> u64 {
        self.find(words).unwrap_or_else(|| {
            self.end += words;
            self.end - words
        })
    }

    /// A run among the free ones.
    pub(crate) fn find(&mut self, words: u64) -> Option<u64> {
        let fits = self.free.iter().filter(|f| *f.1 >= words);
        let (&at, &len) = fits.min_by_key(|f| *f.1)?;
        self.free.remove(&at);
        if len > words {
            self.free.insert(at + words, len - words);
        }
        Some(at)
    }

    pub(crate) fn give(&mut self, at: u64, words: u64) {
        let (mut at, mut words) = (at, words);
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            (at, words) = (before, words + len);
        }
        if let Some(len) = self.free.remove(&(at + words)) {
            words += len;
        }
        self.free.insert(at, words);
    }
}

/// Keys or values of the entries of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plane {
    /// Words into the block.
    pub(crate) offset: u32,
    /// Words into the block, of one half per 32 columns.
    pub(crate) scales: u32,
    /// Columns.
    pub(crate) width: u32,
    pub(crate) dtype: u32,
}

impl Plane {
    pub(crate) fn words(self) -> [u32; 4] {
        [self.offset, self.scales, self.width, self.dtype]
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
    pub(crate) block_words: u64,
}

impl GroupLayout {
    /// The layout of a group; `None` for an element type that no kernel knows.
    pub(crate) fn new(group: &CacheGroup) -> Option<Self> {
        let entries = group.block_entries();
        let mut words = 0u64;
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
                planes.push(plane(width, dtype, entries, &mut words)?);
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
            block_words: words,
        })
    }
}

/// Entries of a plane are whole words each, as `cache.wgsl` finds them.
fn plane(width: u32, dtype: DType, entries: u32, words: &mut u64) -> Option<Plane> {
    let mut take = |n: u64| {
        let at = *words;
        *words += n.next_multiple_of(4);
        at as u32
    };
    let (entries, columns) = (u64::from(entries), u64::from(width));
    let (offset, scales) = match dtype {
        DType::F32 => (take(entries * columns), 0),
        DType::F16 | DType::BF16 => (take(entries * columns.div_ceil(2)), 0),
        DType::Q8_0 => {
            let runs = columns.div_ceil(32);
            (take(entries * runs * 8), take(entries * runs))
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

/// Words of a slot and of a logit row, as `common.wgsl` declares them.
pub(crate) const SLOT_WORDS: u64 = 32;
const LOGIT_WORDS: u64 = 8;

/// Words for lists of slots: tokens that end answers, and biases.
const LIST_WORDS: u64 = 1 << 18;

/// Words that say where parts begin.
const START_WORDS: usize = 32;

/// Records of steps that may be under way.
pub(crate) const RECORDS: u32 = 32;

/// Parts of the state as kernels name them, the same for all programs; the last is a number.
const PARTS: &[&str] = &[
    "S_HEAD",
    "S_TOKEN",
    "S_POS",
    "S_SEQ",
    "S_FLAGS",
    "S_SPAN_END",
    "S_LOGIT_ROW",
    "S_LOGIT",
    "S_SLOT",
    "S_FIRST_ROW",
    "S_ROW_COUNT",
    "S_PAST_LEN",
    "S_SLOTS",
    "S_TOKENS",
    "S_TABLES",
    "S_REQUESTS",
    "S_RECORDS",
    "S_TOKENS_OF_SLOT",
];

/// The names of the state's parts with their numbers.
pub(crate) fn part_names() -> Constants {
    let names = PARTS.iter().map(|name| (*name).to_owned());
    names.zip(0..).collect()
}

/// Where the state of a step and of the slots lies.
#[derive(Clone, Debug)]
pub(crate) struct StepLayout {
    /// Where parts begin, in the order of `PARTS`.
    pub(crate) starts: Vec<u32>,
    /// Room for tokens of a slot.
    pub(crate) tokens_of_slot: u64,
    pub(crate) slots: u64,
    pub(crate) tables: u64,
    pub(crate) table_words: u64,
    /// First word among the tables and words per slot, per group.
    pub(crate) groups: Vec<[u32; 2]>,
    pub(crate) requests: u64,
    pub(crate) records: u64,
    pub(crate) record_words: u64,
    /// Lists of slots.
    pub(crate) lists: std::ops::Range<u64>,
    pub(crate) words: u64,
}

impl StepLayout {
    pub(crate) fn new(program: &Program) -> Self {
        let limits = &program.limits;
        let (rows, logits) = (u64::from(limits.rows), u64::from(limits.logit_rows));
        let seqs = u64::from(limits.seqs);
        let (mut words, mut starts) = (0u64, Vec::new());
        let mut take = |n: u64| {
            let at = words;
            words += n.next_multiple_of(ALIGN);
            at
        };
        let tokens_of_slot = u64::from(limits.ctx) + 1;
        let mut table_words = 0;
        let mut groups = Vec::new();
        for group in &program.caches {
            let len = group.table_len(limits) as u32;
            groups.push([table_words as u32, len]);
            table_words += u64::from(len * limits.seqs);
        }
        let record_words = record_words(limits.seqs as usize, limits.logit_rows as usize) as u64;
        let mut named = |n: u64| {
            let at = take(n);
            starts.push(at as u32);
            at
        };
        // In the order of `PARTS`.
        named(8);
        named(rows);
        named(rows * 4);
        named(rows);
        named(rows);
        named(rows);
        named(logits);
        named(logits * LOGIT_WORDS);
        named(seqs);
        named(seqs);
        named(seqs);
        named(seqs);
        let slots = named(seqs * SLOT_WORDS);
        named(seqs * tokens_of_slot);
        let tables = named(table_words);
        let requests = named(seqs);
        let records = named(u64::from(RECORDS) * record_words);
        let first = take(LIST_WORDS);
        starts.push(tokens_of_slot as u32);
        debug_assert_eq!(starts.len(), PARTS.len());
        starts.resize(START_WORDS, 0);
        StepLayout {
            starts,
            tokens_of_slot,
            slots,
            tables,
            table_words,
            groups,
            requests,
            records,
            record_words,
            lists: first..first + LIST_WORDS,
            words,
        }
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
