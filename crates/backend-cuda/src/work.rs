//! Works as words that the device reads: changes of slots, rows of steps, and data.

use tokkata_ir::sample::{Mask, SamplerRecord};
use tokkata_ir::step::{ADAPTER_SHIFT, ROW_EMBEDS, ROW_KEEPS, ROW_PROMPT};
use tokkata_ir::{
    BackendError, Delta, LogitRow, Logprob, Logprobs, RowInput, RowResult, RowStatus, SeqRows,
    SeqSlot, Work,
};

use crate::driver::{Buffer, Context};
use crate::error::lost;
use crate::layout::StepLayout;
use std::sync::Arc;

/// Words of a report of log-probabilities in a record.
const REPORT_WORDS: usize = 42;

/// In the place of a token: the row did not run.
const STOPPED: i32 = -3;
/// In the place of a token: the plan draws nothing.
const COMPUTED: i32 = -4;

/// Lists of a slot that may be of any length.
#[derive(Debug, Default)]
pub(crate) struct SlotLists {
    stops: Option<Buffer>,
    bias: Option<Buffer>,
    /// Replaced by longer ones while works that name them may be under way.
    old: Vec<Buffer>,
}

impl SlotLists {
    fn room(
        list: &mut Option<Buffer>,
        old: &mut Vec<Buffer>,
        context: &Arc<Context>,
        words: usize,
    ) -> Result<u64, BackendError> {
        let bytes = words as u64 * 4;
        if let Some(buffer) = list.as_ref().filter(|b| b.bytes() >= bytes) {
            return Ok(buffer.at());
        }
        let buffer = context
            .alloc(bytes.next_power_of_two().max(64))
            .map_err(lost)?;
        let at = buffer.at();
        old.extend(list.replace(buffer));
        Ok(at)
    }

    fn stops(&mut self, context: &Arc<Context>, words: usize) -> Result<u64, BackendError> {
        Self::room(&mut self.stops, &mut self.old, context, words)
    }

    fn bias(&mut self, context: &Arc<Context>, words: usize) -> Result<u64, BackendError> {
        Self::room(&mut self.bias, &mut self.old, context, words)
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

    /// Floats at a multiple of 16 bytes.
    pub(crate) fn floats(&mut self, data: &[f32]) -> usize {
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        self.put(data.iter().map(|x| x.to_bits()))
    }

    fn delta(&mut self, kind: u32, slot: SeqSlot, data: &[u32]) {
        self.put([kind, slot.0, data.len() as u32]);
        self.put(data.iter().copied());
        self.deltas.1 += 1;
    }

    /// Changes of slots, as `step.cu` numbers them.
    pub(crate) fn deltas(
        &mut self,
        deltas: &[(SeqSlot, Delta)],
        layout: &StepLayout,
        (context, lists): (&Arc<Context>, &mut [SlotLists]),
    ) -> Result<(), BackendError> {
        self.deltas.0 = self.words.len();
        let halves = |at: u64| [at as u32, (at >> 32) as u32];
        for (slot, delta) in deltas {
            let lists = &mut lists[slot.index()];
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
                    data.extend(halves(lists.bias(context, sampler.bias.len() * 2)?));
                    let pairs = sampler.bias.iter();
                    data.extend(pairs.flat_map(|(id, x)| [*id, x.to_bits() as u32]));
                    self.delta(4, *slot, &data);
                }
                Delta::Stop { ids, remaining } => {
                    let mut data = vec![*remaining];
                    data.extend(halves(lists.stops(context, ids.len())?));
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

    /// Whether a row goes through an adapter.
    pub(crate) fn adapts(&self) -> bool {
        self.parts.iter().any(|p| p.adapter > 0)
    }

    /// Whether log-probabilities are told of a row.
    pub(crate) fn tells(&self) -> bool {
        let mut wanted = self.parts.iter().flat_map(|p| &p.logits);
        wanted.any(|row| row.best.is_some())
    }

    /// Rows, sequences and logit rows.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let rows = self.parts.iter().map(SeqRows::len).sum();
        let logits = self.parts.iter().map(|p| p.logits.len()).sum();
        [rows, self.parts.len(), logits]
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

/// Words that the device wrote for a step, but for its number.
pub(crate) struct Record<'a> {
    pub(crate) words: &'a [u32],
    pub(crate) seqs: usize,
    pub(crate) logits: usize,
}

/// Words of a record for so many sequences and logit rows.
pub(crate) fn record_words(seqs: usize, logits: usize) -> usize {
    4 + 2 * seqs + (2 + REPORT_WORDS) * logits
}

/// Words of a record in front of those of sequences, but for its number.
const FAULT_WORDS: usize = 3;

impl Record<'_> {
    /// A row that a table was asked for and does not have, and the rows that it has.
    pub(crate) fn no_row(&self) -> Option<(u32, u32)> {
        (self.words[0] != 0).then(|| (self.words[1], self.words[2]))
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
