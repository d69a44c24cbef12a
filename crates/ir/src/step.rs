//! The state of one step: everything that changes between replays, at fixed offsets.
//!
//! All fields live in one array of 32-bit words whose offsets follow from [`Limits`] and the cache groups, so a
//! device can keep it at one address. What belongs to a step is written anew for each; what belongs to a sequence
//! slot (block tables, the sampler's record) stays until it is changed. The table [`FIELDS`] is the one definition
//! of the layout; [`StepLayout::describe`] prints it for shader sources.
//!
//! Rows of a sequence are consecutive and in position order.

use std::ops::Range;

use crate::ids::GroupId;
use crate::program::{CacheGroup, Limits};
use crate::sample::{RECORD_WORDS, SamplerRecord};

/// A block that is not there (fallen out of a window); never read.
pub const NO_BLOCK: u32 = u32::MAX;

/// Row flag: the row exists.
pub const ROW_LIVE: u32 = 1;
/// Row flag: its input comes from the embeddings of the step, not from a table.
pub const ROW_EMBEDS: u32 = 2;
/// Row flag: it is listed among the logit rows.
pub const ROW_LOGITS: u32 = 4;
/// Row flag: prompt rather than generated.
pub const ROW_PROMPT: u32 = 8;
/// Row flag: the state after it is kept in a block of its own, and the state before its sequence's rows stays. All rows
/// of a sequence have it, or none.
pub const ROW_KEEPS: u32 = 16;
/// Bits below a row's adapter, where that stands in one word with its flags.
pub const ADAPTER_SHIFT: u32 = 8;

/// How often a field repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Once per step.
    Step,
    /// Once per row.
    Row,
    /// Once per sequence.
    Seq,
    /// Once per logit row.
    LogitRow,
    /// Once per sequence slot; kept from step to step.
    Slot,
}

/// Fields in layout order: name, repetition, words each.
pub const FIELDS: &[(&str, Per, usize)] = &[
    ("n_rows", Per::Step, 1),
    ("n_seqs", Per::Step, 1),
    ("n_logit_rows", Per::Step, 1),
    ("max_len", Per::Step, 1),
    ("token", Per::Row, 1),
    ("pos", Per::Row, 4),
    ("seq", Per::Row, 1),
    ("flags", Per::Row, 1),
    ("adapter", Per::Row, 1),
    ("span_end", Per::Row, 1),
    ("logit_row", Per::LogitRow, 1),
    ("slot", Per::Seq, 1),
    ("first_row", Per::Seq, 1),
    ("row_count", Per::Seq, 1),
    ("past_len", Per::Seq, 1),
    ("enc_len", Per::Slot, 1),
    ("sampler", Per::Slot, RECORD_WORDS),
];

/// Offsets of every field and block table, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLayout {
    limits: Limits,
    offsets: Vec<usize>,
    tables: Vec<(usize, usize)>,
    words: usize,
}

impl StepLayout {
    /// Lays out the state for these limits and groups.
    #[must_use]
    pub fn new(limits: &Limits, groups: &[CacheGroup]) -> Self {
        let mut words = 0;
        let mut offsets = Vec::with_capacity(FIELDS.len());
        for &(_, per, width) in FIELDS {
            offsets.push(words);
            words += width * Self::count(limits, per);
        }
        let mut tables = Vec::with_capacity(groups.len());
        for group in groups {
            let len = group.table_len(limits);
            tables.push((words, len));
            words += len * limits.seqs as usize;
        }
        StepLayout {
            limits: *limits,
            offsets,
            tables,
            words,
        }
    }

    fn count(limits: &Limits, per: Per) -> usize {
        match per {
            Per::Step => 1,
            Per::Row => limits.rows as usize,
            Per::Seq | Per::Slot => limits.seqs as usize,
            Per::LogitRow => limits.logit_rows as usize,
        }
    }

    /// Offset in words and stride per repetition of a field.
    ///
    /// # Panics
    /// When no field has this name.
    #[must_use]
    pub fn field(&self, name: &str) -> (usize, usize) {
        let i = FIELDS
            .iter()
            .position(|f| f.0 == name)
            .unwrap_or_else(|| panic!("no step field {name}"));
        (self.offsets[i], FIELDS[i].2)
    }

    /// Size of the state in words.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// One line per field: name, offset, stride.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (&(name, per, width), offset) in FIELDS.iter().zip(&self.offsets) {
            text += &format!("{name} {per:?} at {offset} stride {width}\n");
        }
        for (g, (offset, len)) in self.tables.iter().enumerate() {
            text += &format!("table.{g} Slot at {offset} stride {len}\n");
        }
        text
    }
}

macro_rules! indices {
    ($($name:ident = $text:literal;)*) => {
        $(const $name: usize = field_index($text);)*
    };
}

const fn field_index(name: &str) -> usize {
    let mut i = 0;
    while i < FIELDS.len() {
        if equal(FIELDS[i].0.as_bytes(), name.as_bytes()) {
            return i;
        }
        i += 1;
    }
    panic!("unknown step field");
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

indices! {
    N_ROWS = "n_rows";
    N_SEQS = "n_seqs";
    N_LOGIT_ROWS = "n_logit_rows";
    MAX_LEN = "max_len";
    TOKEN = "token";
    POS = "pos";
    SEQ = "seq";
    FLAGS = "flags";
    ADAPTER = "adapter";
    SPAN_END = "span_end";
    LOGIT_ROW = "logit_row";
    SLOT = "slot";
    FIRST_ROW = "first_row";
    ROW_COUNT = "row_count";
    PAST_LEN = "past_len";
    ENC_LEN = "enc_len";
    SAMPLER = "sampler";
}

/// One step's state, and that of every sequence slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepState {
    layout: StepLayout,
    words: Vec<u32>,
}

/// One sequence's rows of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeqStep<'a> {
    /// The slot that holds its block tables and its record.
    pub slot: usize,
    /// Tokens, one per row.
    pub tokens: &'a [u32],
    /// Positions already cached.
    pub past_len: usize,
    /// Positions of the rows in each channel; `past_len` on in the first three where there are none.
    pub positions: &'a [[u32; 4]],
    /// Rows (inside `tokens`) whose logits are wanted, ascending.
    pub logits: &'a [usize],
    /// Extra row flags, such as [`ROW_PROMPT`].
    pub flags: u32,
    /// Position after the last that rows of a bidirectional span see; 0 where rows see what comes before them.
    pub span_end: u32,
    /// The adapter that the rows go through; 0 is none.
    pub adapter: u32,
}

/// Rows of a sequence that a state goes through without a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The rows of the step.
    pub rows: Range<usize>,
    /// The place of the block table whose block holds the state before them; `None` where it is zeros.
    pub from: Option<usize>,
    /// The place whose block takes the state after them; what lies there is overwritten, from its first row on.
    pub to: usize,
}

impl StepState {
    /// An empty step for these limits and groups: no rows, and slots without blocks.
    #[must_use]
    pub fn new(limits: &Limits, groups: &[CacheGroup]) -> Self {
        let layout = StepLayout::new(limits, groups);
        let mut words = vec![0; layout.words];
        for &(offset, len) in &layout.tables {
            words[offset..offset + len * limits.seqs as usize].fill(NO_BLOCK);
        }
        StepState { layout, words }
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// All words, as a device sees them.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    fn word(&self, field: usize, i: usize) -> u32 {
        self.words[self.layout.offsets[field] + i]
    }

    fn slice(&self, field: usize, first: usize, len: usize) -> &[u32] {
        &self.words[self.layout.offsets[field] + first..][..len]
    }

    fn set(&mut self, field: usize, i: usize, value: usize) {
        let offset = self.layout.offsets[field];
        self.words[offset + i] = u32::try_from(value).expect("step values fit 32 bits");
    }

    fn count(&mut self, field: usize, more: usize) -> usize {
        let before = self.word(field, 0) as usize;
        self.set(field, 0, before + more);
        before
    }

    /// Rows of the step.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.word(N_ROWS, 0) as usize
    }

    /// Sequences of the step.
    #[must_use]
    pub fn n_seqs(&self) -> usize {
        self.word(N_SEQS, 0) as usize
    }

    /// Rows whose logits are wanted.
    #[must_use]
    pub fn logit_rows(&self) -> &[u32] {
        self.slice(LOGIT_ROW, 0, self.word(N_LOGIT_ROWS, 0) as usize)
    }

    /// Longest sequence after this step, in positions.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.word(MAX_LEN, 0) as usize
    }

    /// Tokens of the rows.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.slice(TOKEN, 0, self.n_rows())
    }

    /// Position of a row in channel 0.
    #[must_use]
    pub fn pos(&self, row: usize) -> u32 {
        self.word(POS, row * 4)
    }

    /// Position of a row in each channel.
    #[must_use]
    pub fn pos4(&self, row: usize) -> [u32; 4] {
        std::array::from_fn(|c| self.word(POS, row * 4 + c))
    }

    /// Sequence (of the step) that each row belongs to.
    #[must_use]
    pub fn seqs(&self) -> &[u32] {
        self.slice(SEQ, 0, self.n_rows())
    }

    /// Flags of a row.
    #[must_use]
    pub fn flags(&self, row: usize) -> u32 {
        self.word(FLAGS, row)
    }

    /// Adapter of a row; 0 is none.
    #[must_use]
    pub fn adapter(&self, row: usize) -> u32 {
        self.word(ADAPTER, row)
    }

    /// Position after the last that a row of a bidirectional span sees; 0 outside of spans.
    #[must_use]
    pub fn span_end(&self, row: usize) -> u32 {
        self.word(SPAN_END, row)
    }

    /// Slot of a sequence.
    #[must_use]
    pub fn slot(&self, seq: usize) -> usize {
        self.word(SLOT, seq) as usize
    }

    /// First row of a sequence.
    #[must_use]
    pub fn first_row(&self, seq: usize) -> usize {
        self.word(FIRST_ROW, seq) as usize
    }

    /// Rows of a sequence in this step.
    #[must_use]
    pub fn row_count(&self, seq: usize) -> usize {
        self.word(ROW_COUNT, seq) as usize
    }

    /// Positions a sequence had cached before this step.
    #[must_use]
    pub fn past_len(&self, seq: usize) -> usize {
        self.word(PAST_LEN, seq) as usize
    }

    /// Place of a row in its sequence: what was cached before it, and the rows of the step before it.
    #[must_use]
    pub fn index_in_sequence(&self, row: usize) -> usize {
        let seq = self.word(SEQ, row) as usize;
        self.past_len(seq) + row - self.first_row(seq)
    }

    /// Whether the state after each row of a sequence is kept.
    #[must_use]
    pub fn keeps_states(&self, seq: usize) -> bool {
        self.row_count(seq) > 0 && self.flags(self.first_row(seq)) & ROW_KEEPS != 0
    }

    /// How recurrent states go through the rows of a sequence, in order. Usually all rows in one stretch, in place: the
    /// state stays in the block of place 0. Where states are kept row `j` goes by itself from place `j` to place `j + 1`, so
    /// that the state before all rows stays where it is.
    pub fn stretches(&self, seq: usize) -> impl Iterator<Item = Stretch> + use<> {
        let (first, count) = (self.first_row(seq), self.row_count(seq));
        let (keeps, fresh) = (self.keeps_states(seq), self.past_len(seq) == 0);
        let stretch = move |j: usize| Stretch {
            rows: if keeps {
                first + j..first + j + 1
            } else {
                first..first + count
            },
            from: (j > 0 || !fresh).then_some(j),
            to: if keeps { j + 1 } else { 0 },
        };
        (0..if keeps { count } else { 1 }).map(stretch)
    }

    /// Encoder positions of a sequence.
    #[must_use]
    pub fn enc_len(&self, seq: usize) -> usize {
        self.word(ENC_LEN, self.slot(seq)) as usize
    }

    /// Sampler record of a sequence.
    #[must_use]
    pub fn sampler(&self, seq: usize) -> SamplerRecord {
        let slot = self.slot(seq);
        SamplerRecord::from_words(self.slice(SAMPLER, slot * RECORD_WORDS, RECORD_WORDS))
    }

    /// Blocks of a sequence in a group, by place; [`NO_BLOCK`] where none is.
    #[must_use]
    pub fn table(&self, group: GroupId, seq: usize) -> &[u32] {
        let (offset, len) = self.layout.tables[group.index()];
        &self.words[offset + self.slot(seq) * len..][..len]
    }

    /// Forgets the rows of the step; slots stay.
    pub fn begin(&mut self) {
        for field in [N_ROWS, N_SEQS, N_LOGIT_ROWS, MAX_LEN] {
            self.set(field, 0, 0);
        }
    }

    /// Sets blocks of a slot from a place of its table on.
    ///
    /// # Panics
    /// When they reach past the context: the scheduler's bug.
    pub fn set_table(&mut self, slot: usize, group: GroupId, first: usize, blocks: &[u32]) {
        let (offset, len) = self.layout.tables[group.index()];
        assert!(
            first + blocks.len() <= len,
            "a block table is longer than the context"
        );
        self.words[offset + slot * len + first..][..blocks.len()].copy_from_slice(blocks);
    }

    /// Takes all blocks of a slot from its tables.
    pub fn clear_tables(&mut self, slot: usize) {
        for &(offset, len) in &self.layout.tables {
            self.words[offset + slot * len..][..len].fill(NO_BLOCK);
        }
    }

    /// Sets the sampler record of a slot.
    pub fn set_sampler(&mut self, slot: usize, record: &SamplerRecord) {
        let at = self.layout.offsets[SAMPLER] + slot * RECORD_WORDS;
        self.words[at..at + RECORD_WORDS].copy_from_slice(&record.to_words());
    }

    /// Sets the encoder positions of a slot.
    pub fn set_enc_len(&mut self, slot: usize, enc_len: usize) {
        self.set(ENC_LEN, slot, enc_len);
    }

    /// Adds a sequence and returns its index in the step.
    ///
    /// # Panics
    /// When limits are exceeded: the scheduler's bug.
    pub fn push(&mut self, seq: &SeqStep<'_>) -> usize {
        let limits = self.layout.limits;
        let (s, first) = (self.n_seqs(), self.n_rows());
        assert!(
            s < limits.seqs as usize && seq.slot < limits.seqs as usize,
            "more sequences than the limits allow"
        );
        assert!(
            first + seq.tokens.len() <= limits.rows as usize,
            "more rows than the limits allow"
        );
        assert!(
            seq.flags & ROW_KEEPS == 0 || seq.tokens.len() <= limits.draft as usize,
            "more kept states than the limits allow"
        );
        self.set(SLOT, s, seq.slot);
        self.set(FIRST_ROW, s, first);
        self.set(ROW_COUNT, s, seq.tokens.len());
        self.set(PAST_LEN, s, seq.past_len);
        self.push_rows(s, seq);
        let len = self.max_len().max(seq.past_len + seq.tokens.len());
        self.set(MAX_LEN, 0, len);
        self.count(N_SEQS, 1)
    }

    fn push_rows(&mut self, s: usize, seq: &SeqStep<'_>) {
        let first = self.count(N_ROWS, seq.tokens.len());
        for (i, &token) in seq.tokens.iter().enumerate() {
            let (row, pos) = (first + i, seq.past_len + i);
            let own = [pos as u32, pos as u32, pos as u32, 0];
            let channels = seq.positions.get(i).copied().unwrap_or(own);
            for (channel, pos) in channels.into_iter().enumerate() {
                self.set(POS, row * 4 + channel, pos as usize);
            }
            self.set(TOKEN, row, token as usize);
            self.set(SEQ, row, s);
            self.set(FLAGS, row, (ROW_LIVE | seq.flags) as usize);
            self.set(ADAPTER, row, seq.adapter as usize);
            self.set(SPAN_END, row, seq.span_end as usize);
        }
        for &i in seq.logits {
            let at = self.count(N_LOGIT_ROWS, 1);
            assert!(
                at < self.layout.limits.logit_rows as usize,
                "more logit rows than allowed"
            );
            let flags = self.flags(first + i) | ROW_LOGITS;
            self.set(FLAGS, first + i, flags as usize);
            self.set(LOGIT_ROW, at, first + i);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokkata_core::DType;

    use super::*;
    use crate::program::{CacheKind, SlotDef};

    fn group(block_size: u32) -> CacheGroup {
        let slots = vec![SlotDef::Kv {
            n_kv_heads: 1,
            dim_k: 4,
            dim_v: Some(4),
        }];
        CacheGroup {
            kind: CacheKind::Full,
            slots,
            dtype: DType::F32,
            block_size,
        }
    }

    fn limits() -> Limits {
        Limits {
            rows: 8,
            seqs: 2,
            logit_rows: 4,
            ctx: 16,
            ..Limits::default()
        }
    }

    #[test]
    fn slots_stay_while_steps_come_and_go() {
        let mut state = StepState::new(&limits(), &[group(4)]);
        state.set_table(1, GroupId(0), 0, &[5, 2]);
        for past_len in [3, 6] {
            state.begin();
            let seq = SeqStep {
                slot: 1,
                tokens: &[7, 8, 9],
                past_len,
                logits: &[2],
                ..SeqStep::default()
            };
            assert_eq!(state.push(&seq), 0);
            assert_eq!((state.n_rows(), state.n_seqs()), (3, 1));
            assert_eq!(
                (state.pos(0), state.max_len()),
                (past_len as u32, past_len + 3)
            );
            assert_eq!(state.logit_rows(), [2]);
            assert_eq!(state.table(GroupId(0), 0), [5, 2, NO_BLOCK, NO_BLOCK]);
        }
        state.set_table(1, GroupId(0), 1, &[9, 4]);
        assert_eq!(state.table(GroupId(0), 0), [5, 9, 4, NO_BLOCK]);
        state.clear_tables(1);
        assert_eq!(state.table(GroupId(0), 0), [NO_BLOCK; 4]);
    }

    #[test]
    fn rows_have_the_positions_they_are_given() {
        let mut state = StepState::new(&limits(), &[]);
        let given = [[4, 0, 1, 2], [4, 0, 2, 2]];
        state.push(&SeqStep {
            tokens: &[1, 1],
            past_len: 9,
            positions: &given,
            span_end: 11,
            ..SeqStep::default()
        });
        assert_eq!([state.pos4(0), state.pos4(1)], given);
        assert_eq!((state.index_in_sequence(1), state.span_end(1)), (10, 11));
    }

    #[test]
    fn a_state_goes_through_all_rows_or_through_each() {
        let limits = Limits {
            draft: 3,
            ..limits()
        };
        let mut state = StepState::new(&limits, &[]);
        let stretch = |rows, from, to| Stretch { rows, from, to };
        for (slot, past_len, flags) in [(0, 0, 0), (1, 5, ROW_KEEPS), (0, 0, ROW_KEEPS), (1, 5, 0)]
        {
            state.begin();
            state.push(&SeqStep {
                tokens: &[9],
                ..SeqStep::default()
            });
            let seq = SeqStep {
                slot,
                tokens: &[1, 2, 3],
                past_len,
                flags,
                ..SeqStep::default()
            };
            let seq = state.push(&seq);
            let from = (past_len > 0).then_some(0);
            let want = match flags {
                0 => vec![stretch(1..4, from, 0)],
                _ => vec![
                    stretch(1..2, from, 1),
                    stretch(2..3, Some(1), 2),
                    stretch(3..4, Some(2), 3),
                ],
            };
            assert_eq!(state.stretches(seq).collect::<Vec<_>>(), want);
        }
    }

    #[test]
    #[should_panic(expected = "more kept states")]
    fn more_states_than_places_is_a_bug() {
        let seq = SeqStep {
            tokens: &[1],
            flags: ROW_KEEPS,
            ..SeqStep::default()
        };
        StepState::new(&limits(), &[]).push(&seq);
    }

    #[test]
    #[should_panic(expected = "more rows")]
    fn too_many_rows_is_a_bug() {
        let limits = Limits {
            rows: 1,
            ..limits()
        };
        let seq = SeqStep {
            tokens: &[1, 2],
            ..SeqStep::default()
        };
        StepState::new(&limits, &[]).push(&seq);
    }
}
