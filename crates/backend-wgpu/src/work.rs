//! Works as words that the device reads: changes of slots, rows of steps, and data.

use tokkata_ir::sample::{Mask, SamplerRecord};
use tokkata_ir::step::{ADAPTER_SHIFT, ROW_EMBEDS, ROW_KEEPS, ROW_PROMPT};
use tokkata_ir::{
    BackendError, Delta, LogitRow, Logprob, Logprobs, RowInput, RowResult, RowStatus, SeqRows,
    SeqSlot, Work,
};

use crate::error::unsupported;
use crate::layout::{Space, StepLayout};

/// Words of a report of log-probabilities in a record.
const REPORT_WORDS: usize = 42;

/// In the place of a token: the row did not run.
const STOPPED: i32 = -3;
/// In the place of a token: the plan draws nothing.
const COMPUTED: i32 = -4;

/// Lists of a slot that may be of any length, among the words of the state.
#[derive(Debug, Default)]
struct SlotList {
    at: u64,
    room: u64,
}

/// Lists of all slots.
#[derive(Debug)]
pub(crate) struct Lists {
    space: Space,
    first: u64,
    left: u64,
    /// Per slot: tokens that end its answer, and biases.
    slots: Vec<[SlotList; 2]>,
}

impl Lists {
    pub(crate) fn new(layout: &StepLayout, slots: usize) -> Self {
        let mut lists = Vec::new();
        lists.resize_with(slots, Default::default);
        let mut space = Space::default();
        let left = layout.lists.end - layout.lists.start;
        space.give(0, left);
        Lists {
            space,
            first: layout.lists.start,
            left,
            slots: lists,
        }
    }

    /// Room for a list of a slot. What lies there is written when the work begins, so nobody reads it who came before.
    fn room(&mut self, slot: SeqSlot, which: usize, words: usize) -> Result<u32, BackendError> {
        let list = &mut self.slots[slot.index()][which];
        let words = words as u64;
        if list.room < words {
            let room = words.next_power_of_two().max(16);
            if list.room > 0 {
                self.space.give(list.at, list.room);
                (list.at, list.room) = (0, 0);
            }
            let found = self.space.find(room);
            let short = || {
                unsupported(format!(
                    "lists of {words} words for a sequence, of {}",
                    self.left
                ))
            };
            (list.at, list.room) = (found.ok_or_else(short)?, room);
        }
        Ok((self.first + list.at) as u32)
    }
}

/// Words of a work, and where its parts begin among them.
#[derive(Debug, Default)]
pub(crate) struct Words {
    pub(crate) words: Vec<u32>,
    /// First word and number of the changes of slots.
    pub(crate) deltas: (usize, u32),
    /// First words of the rows of the first step, and of those of a chain.
    pub(crate) first: usize,
    pub(crate) chain: usize,
}

impl Words {
    /// An empty work: no place is 0.
    pub(crate) fn new() -> Self {
        Words {
            words: vec![0; 4],
            ..Words::default()
        }
    }

    fn put(&mut self, data: impl IntoIterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(data);
        at
    }

    /// Floats.
    pub(crate) fn floats(&mut self, data: &[f32]) -> usize {
        self.put(data.iter().map(|x| x.to_bits()))
    }

    fn delta(&mut self, kind: u32, slot: SeqSlot, data: &[u32]) {
        self.put([kind, slot.0, data.len() as u32]);
        self.put(data.iter().copied());
        self.deltas.1 += 1;
    }

    /// Changes of slots, as `step.wgsl` numbers them.
    pub(crate) fn deltas(
        &mut self,
        deltas: &[(SeqSlot, Delta)],
        layout: &StepLayout,
        lists: &mut Lists,
    ) -> Result<(), BackendError> {
        self.deltas.0 = self.words.len();
        for (slot, delta) in deltas {
            match delta {
                Delta::Clear => self.delta(0, *slot, &SamplerRecord::default().to_words()),
                Delta::Length(n) => self.delta(1, *slot, &[*n]),
                Delta::Table {
                    group,
                    first,
                    blocks,
                } => {
                    let [base, len] = layout.groups[group.index()];
                    assert!(
                        *first as usize + blocks.len() <= len as usize,
                        "a block table is longer than the context"
                    );
                    let mut data = vec![base + slot.0 * len + first];
                    data.extend(blocks);
                    self.delta(2, *slot, &data);
                }
                Delta::Tokens { first, tokens } => {
                    assert!(
                        *first as u64 + tokens.len() as u64 <= layout.tokens_of_slot,
                        "more tokens than the context has positions"
                    );
                    let mut data = vec![*first];
                    data.extend(tokens);
                    self.delta(3, *slot, &data);
                }
                Delta::Sampler(sampler) => {
                    let mut data = sampler.record.to_words().to_vec();
                    data.push(lists.room(*slot, 1, sampler.bias.len() * 2)?);
                    let pairs = sampler.bias.iter();
                    data.extend(pairs.flat_map(|(id, x)| [*id, x.to_bits() as u32]));
                    self.delta(4, *slot, &data);
                }
                Delta::Stop { ids, remaining } => {
                    let mut data = vec![*remaining];
                    data.push(lists.room(*slot, 0, ids.len())?);
                    data.extend(ids.iter());
                    self.delta(5, *slot, &data);
                }
                Delta::Encoded(n) => self.delta(6, *slot, &[*n]),
            }
        }
        Ok(())
    }

    /// The rows of a step; the place of its `Plan`.
    pub(crate) fn step(&mut self, step: &Step) -> usize {
        let (mut parts, mut wanted) = (Vec::new(), Vec::new());
        let (mut row, mut logit) = (0, 0);
        for (i, part) in step.parts.iter().enumerate() {
            let (kind, tokens, flags) = match &part.input {
                RowInput::Tokens(tokens) => (0, self.put(tokens.iter().copied()), 0),
                RowInput::Drawn | RowInput::Held(_) => (1, 0, 0),
                RowInput::Embeds(_) => (2, 0, ROW_EMBEDS),
            };
            let positions = match part.positions.is_empty() {
                true => 0,
                false => self.put(part.positions.iter().flatten().copied()),
            };
            let flags = flags
                | (u32::from(part.prompt) * ROW_PROMPT)
                | (u32::from(part.keeps_states) * ROW_KEEPS)
                | (part.adapter << ADAPTER_SHIFT);
            let n = part.len() as u32;
            parts.extend([part.slot.0, n, row, kind, tokens as u32, logit]);
            parts.extend([part.logits.len() as u32, flags, part.span_end]);
            parts.extend([positions as u32, last(part).into(), 0]);
            for want in &part.logits {
                wanted.extend(self.wanted(want, i as u32));
            }
            row += n;
            logit += part.logits.len() as u32;
        }
        let at = self.put([step.parts.len() as u32, logit, row, 0]);
        self.put(parts);
        self.put(wanted);
        at
    }

    fn wanted(&mut self, want: &LogitRow, part: u32) -> [u32; 8] {
        let mask = want.mask.as_ref().map(Mask::words);
        let mask_at = mask.map_or(0, |m| self.put(m.iter().copied()));
        let mask_len = mask.map_or(0, <[u32]>::len);
        let dry = want.dry.iter();
        let dry_at = self.put(dry.flat_map(|(id, x)| [*id, x.to_bits() as u32]));
        [
            want.row,
            want.best.map_or(0, |n| u32::from(n) + 1),
            mask_at as u32,
            mask_len as u32,
            dry_at as u32,
            want.dry.len() as u32,
            part,
            0,
        ]
    }
}

/// Whether logits of the last row are wanted: a slot goes on from what is drawn there.
fn last(rows: &SeqRows) -> bool {
    let wanted = rows.logits.last();
    wanted.is_some_and(|l| l.row as usize + 1 == rows.len())
}

/// Rows of one step of a work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) parts: Vec<SeqRows>,
    chained: bool,
}

/// Rows, sequences and logit rows of parts.
fn counts(parts: &[SeqRows]) -> [usize; 3] {
    let rows = parts.iter().map(SeqRows::len).sum();
    let logits = parts.iter().map(|p| p.logits.len()).sum();
    [rows, parts.len(), logits]
}

impl Step {
    pub(crate) fn first(work: &Work) -> Self {
        Step {
            parts: work.rows.clone(),
            chained: false,
        }
    }

    /// The steps of a chain after the first.
    pub(crate) fn chained(work: &Work) -> Self {
        let next = |rows: &SeqRows| {
            let wanted = rows.logits.last()?;
            assert!(!rows.keeps_states, "rows of a chain keep no states");
            last(rows).then(|| SeqRows {
                input: RowInput::Drawn,
                positions: Vec::new(),
                logits: vec![LogitRow {
                    best: wanted.best,
                    ..LogitRow::default()
                }],
                prompt: false,
                ..rows.clone()
            })
        };
        Step {
            parts: work.rows.iter().filter_map(next).collect(),
            chained: true,
        }
    }

    /// Words of its record: without reports where nobody asks for one.
    pub(crate) fn record_words(&self) -> usize {
        let [_, seqs, logits] = self.counts();
        let asked = self
            .parts
            .iter()
            .flat_map(|p| &p.logits)
            .any(|l| l.best.is_some());
        match asked {
            true => record_words(seqs, logits),
            false => FAULT_WORDS + 2 * seqs + 2 * logits,
        }
    }

    /// Positions of its sequences behind it.
    pub(crate) fn lengths(&self, record: &Record<'_>) -> Vec<(SeqSlot, u32)> {
        let length = |(i, part): (usize, &SeqRows)| {
            let (ran, past) = record.sequence(i);
            (part.slot, past + if ran { part.len() as u32 } else { 0 })
        };
        self.parts.iter().enumerate().map(length).collect()
    }

    /// Whether a row goes through an adapter.
    pub(crate) fn adapts(&self) -> bool {
        self.parts.iter().any(|p| p.adapter > 0)
    }

    /// Rows, sequences and logit rows.
    pub(crate) fn counts(&self) -> [usize; 3] {
        counts(&self.parts)
    }

    /// The same up to the last part of an answer.
    pub(crate) fn replies(&self) -> [usize; 3] {
        let parts = self.parts.iter().rposition(|p| !p.prompt);
        counts(&self.parts[..parts.map_or(0, |last| last + 1)])
    }

    /// Reads a record: results, whether any sequence ran, and whether any goes on.
    pub(crate) fn results(&self, record: &Record<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut logit = 0;
        for (i, part) in self.parts.iter().enumerate() {
            let (ran, past) = record.sequence(i);
            outcome.ran += usize::from(ran);
            for wanted in &part.logits {
                let (code, ends) = record.logit(logit);
                let result = RowResult {
                    slot: part.slot,
                    position: past + wanted.row,
                    status: status(code),
                    ends,
                    logprobs: wanted.best.and_then(|_| record.logprobs(logit, code)),
                };
                outcome.goes_on |= ran
                    && last(part)
                    && code >= 0
                    && !ends
                    && wanted.row as usize + 1 == part.len();
                if ran || !self.chained {
                    outcome.rows.push(result);
                }
                logit += 1;
            }
            if !ran && !self.chained && part.logits.is_empty() {
                outcome.rows.push(RowResult {
                    slot: part.slot,
                    position: past,
                    status: RowStatus::Stopped,
                    ends: false,
                    logprobs: None,
                });
            }
        }
        outcome
    }
}

/// What a step left.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<RowResult>,
    /// Sequences that ran.
    pub(crate) ran: usize,
    pub(crate) goes_on: bool,
}

fn status(code: i32) -> RowStatus {
    use tokkata_ir::sample::{NO_CANDIDATE, NOT_A_NUMBER};
    match code {
        NOT_A_NUMBER => RowStatus::NotANumber,
        NO_CANDIDATE => RowStatus::NoCandidate,
        STOPPED => RowStatus::Stopped,
        COMPUTED => RowStatus::Computed,
        token => RowStatus::Drawn(token as u32),
    }
}

/// Words that the device wrote for a step.
pub(crate) struct Record<'a> {
    pub(crate) words: &'a [u32],
    pub(crate) seqs: usize,
    pub(crate) logits: usize,
}

/// Words of a record for so many sequences and logit rows, with reports.
pub(crate) fn record_words(seqs: usize, logits: usize) -> usize {
    4 + 2 * seqs + (2 + REPORT_WORDS) * logits
}

/// Words of a record in front of those of sequences.
const FAULT_WORDS: usize = 4;

impl Record<'_> {
    /// A row that a table was asked for and does not have, and the rows that it has.
    pub(crate) fn no_row(&self) -> Option<(u32, u32)> {
        (self.words[1] != 0).then(|| (self.words[2], self.words[3]))
    }

    fn sequence(&self, i: usize) -> (bool, u32) {
        let at = FAULT_WORDS + 2 * i;
        (self.words[at] != 0, self.words[at + 1])
    }

    fn logit(&self, i: usize) -> (i32, bool) {
        let at = FAULT_WORDS + 2 * self.seqs + 2 * i;
        (self.words[at] as i32, self.words[at + 1] != 0)
    }

    fn logprobs(&self, i: usize, token: i32) -> Option<Logprobs> {
        let token = u32::try_from(token).ok()?;
        let at = FAULT_WORDS + 2 * self.seqs + 2 * self.logits + REPORT_WORDS * i;
        let words = &self.words[at..at + REPORT_WORDS];
        let of = |token: u32, bits: u32| Logprob {
            token,
            logprob: tokkata_ir::sample::Fixed::from_bits(bits as i32).to_f32(),
        };
        let listed = words[2..].as_chunks::<2>().0;
        let top = listed.iter().take(words[1] as usize);
        Some(Logprobs {
            picked: of(token, words[0]),
            top: top.map(|pair| of(pair[0], pair[1])).collect(),
        })
    }
}
