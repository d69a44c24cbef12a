//! The state of one step: everything that changes between replays, at fixed offsets.
//!
//! All fields live in one array of 32-bit words whose offsets follow from [`Limits`] and the cache groups, so a
//! device can keep it at one address and the host can upload a step in one copy. The table [`FIELDS`] is the one
//! definition of the layout; [`StepLayout::describe`] prints it for shader sources.
//!
//! Rows of a sequence are consecutive and in position order.

use crate::ids::GroupId;
use crate::program::{CacheGroup, Limits};

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
    /// Once per row and cache group.
    RowGroup,
    /// Once per sequence and cache group.
    SeqGroup,
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
    ("ancestors", Per::Row, 1),
    ("logit_row", Per::LogitRow, 1),
    ("first_row", Per::Seq, 1),
    ("row_count", Per::Seq, 1),
    ("past_len", Per::Seq, 1),
    ("enc_len", Per::Seq, 1),
    ("sampler", Per::Seq, crate::sample::RECORD_WORDS),
    ("remaining", Per::Seq, 1),
    ("mask_row", Per::Seq, 1),
    ("write_slot", Per::RowGroup, 1),
];

/// Offsets of every field and block table, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLayout {
    limits: Limits,
    n_groups: usize,
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
            words += width * Self::count(limits, groups.len(), per);
        }
        let mut tables = Vec::with_capacity(groups.len());
        for group in groups {
            let len = group.table_len(limits);
            tables.push((words, len));
            words += len * limits.seqs as usize;
        }
        StepLayout {
            limits: *limits,
            n_groups: groups.len(),
            offsets,
            tables,
            words,
        }
    }

    fn count(limits: &Limits, n_groups: usize, per: Per) -> usize {
        match per {
            Per::Step => 1,
            Per::Row => limits.rows as usize,
            Per::Seq => limits.seqs as usize,
            Per::LogitRow => limits.logit_rows as usize,
            Per::RowGroup => limits.rows as usize * n_groups,
            Per::SeqGroup => limits.seqs as usize * n_groups,
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
            text += &format!("table.{g} Seq at {offset} stride {len}\n");
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
    LOGIT_ROW = "logit_row";
    FIRST_ROW = "first_row";
    ROW_COUNT = "row_count";
    PAST_LEN = "past_len";
    ENC_LEN = "enc_len";
    SAMPLER = "sampler";
    WRITE_SLOT = "write_slot";
}

/// One step's state, filled by [`StepBuilder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepState {
    layout: StepLayout,
    words: Vec<u32>,
}

impl StepState {
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

    /// Encoder positions of a sequence.
    #[must_use]
    pub fn enc_len(&self, seq: usize) -> usize {
        self.word(ENC_LEN, seq) as usize
    }

    /// Sampler record of a sequence, as words.
    #[must_use]
    pub fn sampler(&self, seq: usize) -> crate::sample::SamplerRecord {
        let n = crate::sample::RECORD_WORDS;
        crate::sample::SamplerRecord::from_words(self.slice(SAMPLER, seq * n, n))
    }

    /// Physical position (`block · block_size + offset`) that a row writes in a group.
    #[must_use]
    pub fn write_slot(&self, group: GroupId, row: usize) -> usize {
        self.word(
            WRITE_SLOT,
            group.index() * self.layout.limits.rows as usize + row,
        ) as usize
    }

    /// Physical blocks of a sequence in a group; [`NO_BLOCK`] where none is.
    #[must_use]
    pub fn table(&self, group: GroupId, seq: usize) -> &[u32] {
        let (offset, len) = self.layout.tables[group.index()];
        &self.words[offset + seq * len..][..len]
    }
}

/// One sequence's part of a step.
#[derive(Clone, Debug, Default)]
pub struct SeqStep<'a> {
    /// Tokens, one per row.
    pub tokens: &'a [u32],
    /// Positions already cached.
    pub past_len: usize,
    /// Encoder positions.
    pub enc_len: usize,
    /// Physical blocks per group, at least as many as the rows reach.
    pub tables: &'a [Vec<u32>],
    /// Rows (inside `tokens`) whose logits are wanted, ascending.
    pub logits: &'a [usize],
    /// Extra row flags, such as [`ROW_PROMPT`].
    pub flags: u32,
    /// Sampler record.
    pub sampler: crate::sample::SamplerRecord,
}

/// Fills a step state sequence by sequence.
#[derive(Debug)]
pub struct StepBuilder {
    state: StepState,
    blocks: Vec<usize>,
    rows: usize,
    seqs: usize,
    logit_rows: usize,
}

impl StepBuilder {
    /// An empty step for these limits and groups.
    #[must_use]
    pub fn new(limits: &Limits, groups: &[CacheGroup]) -> Self {
        let layout = StepLayout::new(limits, groups);
        let words = vec![0; layout.words];
        let blocks = groups.iter().map(|g| g.block_size as usize).collect();
        StepBuilder {
            state: StepState { layout, words },
            blocks,
            rows: 0,
            seqs: 0,
            logit_rows: 0,
        }
    }

    /// Forgets every sequence, keeping the buffer.
    pub fn clear(&mut self) {
        self.state.words.fill(0);
        (self.rows, self.seqs, self.logit_rows) = (0, 0, 0);
    }

    fn set(&mut self, field: usize, i: usize, value: usize) {
        let offset = self.state.layout.offsets[field];
        self.state.words[offset + i] = u32::try_from(value).expect("step values fit 32 bits");
    }

    /// Adds a sequence and returns its index in the step.
    ///
    /// # Panics
    /// When limits are exceeded or a table is too short: the scheduler's bug.
    pub fn push(&mut self, seq: &SeqStep<'_>) -> usize {
        let limits = self.state.layout.limits;
        let s = self.seqs;
        assert!(
            s < limits.seqs as usize,
            "more sequences than the limits allow"
        );
        assert!(
            self.rows + seq.tokens.len() <= limits.rows as usize,
            "more rows than the limits allow"
        );
        self.set(FIRST_ROW, s, self.rows);
        self.set(ROW_COUNT, s, seq.tokens.len());
        self.set(PAST_LEN, s, seq.past_len);
        self.set(ENC_LEN, s, seq.enc_len);
        let record = seq.sampler.to_words();
        let at = self.state.layout.offsets[SAMPLER] + s * record.len();
        self.state.words[at..at + record.len()].copy_from_slice(&record);
        self.push_tables(s, seq.tables);
        self.push_rows(s, seq);
        let len = (self.state.word(MAX_LEN, 0) as usize).max(seq.past_len + seq.tokens.len());
        self.set(MAX_LEN, 0, len);
        self.seqs += 1;
        s
    }

    fn push_tables(&mut self, s: usize, tables: &[Vec<u32>]) {
        for (g, table) in tables.iter().enumerate() {
            let (offset, len) = self.state.layout.tables[g];
            assert!(
                table.len() <= len,
                "a block table is longer than the context"
            );
            let words = &mut self.state.words[offset + s * len..][..len];
            words[..table.len()].copy_from_slice(table);
            words[table.len()..].fill(NO_BLOCK);
        }
    }

    fn push_rows(&mut self, s: usize, seq: &SeqStep<'_>) {
        for (i, &token) in seq.tokens.iter().enumerate() {
            let (row, pos) = (self.rows + i, seq.past_len + i);
            self.set(TOKEN, row, token as usize);
            for channel in 0..3 {
                self.set(POS, row * 4 + channel, pos);
            }
            self.set(POS, row * 4 + 3, 0);
            self.set(SEQ, row, s);
            self.set(FLAGS, row, (ROW_LIVE | seq.flags) as usize);
            self.set_slots(s, row, pos);
        }
        for &i in seq.logits {
            assert!(
                self.logit_rows < self.state.layout.limits.logit_rows as usize,
                "more logit rows than allowed"
            );
            let row = self.rows + i;
            let flags = self.state.flags(row) | ROW_LOGITS;
            self.set(FLAGS, row, flags as usize);
            self.set(LOGIT_ROW, self.logit_rows, row);
            self.logit_rows += 1;
        }
        self.rows += seq.tokens.len();
    }

    fn set_slots(&mut self, s: usize, row: usize, pos: usize) {
        for g in 0..self.state.layout.n_groups {
            let (offset, len) = self.state.layout.tables[g];
            let size = self.blocks[g];
            let table = &self.state.words[offset + s * len..][..len];
            let place = if len == 1 && size == 1 { 0 } else { pos / size };
            let slot = match table.get(place) {
                Some(&block) if block != NO_BLOCK => block as usize * size + pos % size,
                _ => 0,
            };
            self.set(
                WRITE_SLOT,
                g * self.state.layout.limits.rows as usize + row,
                slot,
            );
        }
    }

    /// The finished state.
    pub fn finish(&mut self) -> &StepState {
        self.set(N_ROWS, 0, self.rows);
        self.set(N_SEQS, 0, self.seqs);
        self.set(N_LOGIT_ROWS, 0, self.logit_rows);
        &self.state
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
            n_blocks: 8,
        }
    }

    #[test]
    fn rows_find_their_slots_through_shuffled_blocks() {
        let limits = Limits {
            rows: 8,
            seqs: 2,
            logit_rows: 4,
            ctx: 16,
            ..Limits::default()
        };
        let mut builder = StepBuilder::new(&limits, &[group(4)]);
        let tables = [vec![5, 2]];
        let seq = SeqStep {
            tokens: &[7, 8, 9],
            past_len: 3,
            tables: &tables,
            logits: &[2],
            ..SeqStep::default()
        };
        builder.push(&seq);
        let state = builder.finish();
        let slots: Vec<usize> = (0..3).map(|r| state.write_slot(GroupId(0), r)).collect();
        assert_eq!(slots, [23, 8, 9]);
        assert_eq!(
            (state.pos(0), state.max_len(), state.logit_rows()),
            (3, 6, &[2][..])
        );
        assert_eq!(state.table(GroupId(0), 0), [5, 2, NO_BLOCK, NO_BLOCK]);
    }

    #[test]
    #[should_panic(expected = "more rows")]
    fn too_many_rows_is_a_bug() {
        let limits = Limits {
            rows: 1,
            ..Limits::default()
        };
        let seq = SeqStep {
            tokens: &[1, 2],
            ..SeqStep::default()
        };
        StepBuilder::new(&limits, &[]).push(&seq);
    }
}
