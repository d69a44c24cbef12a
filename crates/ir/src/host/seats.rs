//! Sequence slots in the host's memory.

use std::sync::Arc;

use super::part::Part;
use crate::device::{
    Delta, LogitRow, Logprob, Logprobs, RowInput, RowResult, RowStatus, SeqRows, SeqSlot, Work,
};
use crate::sample::{Fixed, NO_CANDIDATE, NOT_A_NUMBER, SampleSide, Sampler, report};
use crate::step::{ROW_EMBEDS, ROW_KEEPS, ROW_PROMPT, SeqStep, StepState};

/// In the place of a token: the row read an embedding.
const NO_TOKEN: u32 = u32::MAX;
/// In the place of a token that a slot was said to hold, and does not.
const ANY_TOKEN: u32 = 0;

/// What a slot remembers of its sequence beside its tables.
#[derive(Debug, Default)]
struct Seat {
    /// Positions that are cached.
    len: usize,
    /// Tokens by position: those that were fed, and the one that was drawn last.
    tokens: Vec<u32>,
    sampler: Sampler,
    stop_ids: Arc<[u32]>,
    remaining: Option<u32>,
    stopped: bool,
}

/// All slots.
#[derive(Debug)]
pub(crate) struct Seats(Vec<Seat>);

impl Seats {
    pub(crate) fn new(count: usize) -> Self {
        let mut seats = Vec::new();
        seats.resize_with(count, Seat::default);
        Seats(seats)
    }

    /// Makes a change of what is not in the step state.
    pub(crate) fn apply(&mut self, slot: SeqSlot, delta: &Delta) {
        let seat = &mut self.0[slot.index()];
        match delta {
            Delta::Clear => *seat = Seat::default(),
            Delta::Length(len) => {
                seat.len = *len as usize;
                seat.stopped = false;
            }
            Delta::Tokens { first, tokens } => {
                seat.tokens.resize(*first as usize, NO_TOKEN);
                seat.tokens.extend_from_slice(tokens);
            }
            Delta::Sampler(sampler) => seat.sampler = (**sampler).clone(),
            Delta::Stop { ids, remaining } => {
                seat.stop_ids = Arc::clone(ids);
                seat.remaining = Some(*remaining);
                seat.stopped = false;
            }
            Delta::Table { .. } | Delta::Encoded(_) => {}
        }
    }

    /// The change that makes another executor's slot as long as this one.
    pub(crate) fn length(&self, slot: SeqSlot) -> Delta {
        Delta::Length(self.0[slot.index()].len as u32)
    }

    pub(crate) fn stop(&mut self, slot: SeqSlot) {
        self.0[slot.index()].stopped = true;
    }

    pub(crate) fn is_stopped(&self, slot: SeqSlot) -> bool {
        self.0[slot.index()].stopped
    }

    /// Rows of the next step of a chain: every slot whose last row is drawn from goes on, unless it has stopped.
    pub(crate) fn goes_on(&self, work: &Work) -> Vec<SeqRows> {
        let next = |rows: &SeqRows| {
            let last = rows.logits.last()?;
            assert!(!rows.keeps_states, "rows of a chain keep no states");
            let drawn = last.row as usize + 1 == rows.len() && !self.is_stopped(rows.slot);
            drawn.then(|| SeqRows {
                input: RowInput::Drawn,
                positions: Vec::new(),
                logits: vec![LogitRow {
                    best: last.best,
                    ..LogitRow::default()
                }],
                prompt: false,
                ..rows.clone()
            })
        };
        work.rows.iter().filter_map(next).collect()
    }

    /// Results of a step in the order of its rows: those of rows that ran, and one for each logit row of a slot that had
    /// stopped, or for all of its rows where no logits are wanted.
    fn beside_stopped(&self, part: &Part<'_>, ran: Vec<RowResult>) -> Vec<RowResult> {
        let mut ran = ran.into_iter();
        let mut results = Vec::new();
        for (rows, runs) in part.all() {
            if runs {
                results.extend(ran.by_ref().take(rows.logits.len()));
                continue;
            }
            let len = self.0[rows.slot.index()].len as u32;
            let logits = rows.logits.iter().map(|l| len + l.row);
            let first = rows.logits.is_empty().then_some(len);
            results.extend(logits.chain(first).map(|position| RowResult {
                slot: rows.slot,
                position,
                status: RowStatus::Stopped,
                ends: false,
                logprobs: None,
            }));
        }
        results
    }

    /// Puts tokens in the place of what was drawn, for executors that did not draw it.
    pub(crate) fn resolve(&mut self, rows: &mut [SeqRows]) {
        for rows in rows {
            let seat = &mut self.0[rows.slot.index()];
            if seat.stopped {
                rows.input = RowInput::Tokens(vec![0; rows.len()]);
                continue;
            }
            seat.feed(&rows.input);
            if matches!(rows.input, RowInput::Drawn | RowInput::Held(_)) {
                rows.input = RowInput::Tokens(seat.tokens[seat.len..].to_vec());
            }
        }
    }

    /// Writes the rows of a step; one side per logit row.
    pub(super) fn form(&mut self, rows: &[&SeqRows], state: &mut StepState) -> Vec<SampleSide> {
        state.begin();
        let mut sides = Vec::new();
        for rows in rows {
            let seat = &mut self.0[rows.slot.index()];
            seat.feed(&rows.input);
            let wanted: Vec<usize> = rows.logits.iter().map(|l| l.row as usize).collect();
            let (slot, past_len, n) = (rows.slot.index(), seat.len, rows.len());
            state.set_sampler(slot, &seat.sampler.record);
            state.push(&SeqStep {
                slot,
                tokens: &seat.tokens[past_len..past_len + n],
                past_len,
                positions: &rows.positions,
                logits: &wanted,
                flags: flags(rows),
                span_end: rows.span_end,
                adapter: rows.adapter,
            });
            let side = |logit: &LogitRow| {
                let seen = &seat.tokens[..=past_len + logit.row as usize];
                let sampler = &seat.sampler;
                sampler.side(seen, logit.mask.clone(), logit.dry.clone())
            };
            sides.extend(rows.logits.iter().map(side));
        }
        sides
    }

    /// What a step left: the drawn tokens of its logit rows, and their logits for those who asked.
    pub(super) fn results(
        &self,
        rows: &[&SeqRows],
        drawn: Option<&[i32]>,
        logits: Option<&[f32]>,
    ) -> Vec<RowResult> {
        let count: usize = rows.iter().map(|r| r.logits.len()).sum();
        let width = logits.map_or(0, |x| x.len() / count.max(1));
        let mut results = Vec::with_capacity(count);
        for rows in rows {
            let past_len = self.0[rows.slot.index()].len as u32;
            for logit in &rows.logits {
                let i = results.len();
                let status = drawn.map_or(RowStatus::Computed, |d| status(d[i]));
                let row = logits.map(|x| &x[i * width..][..width]);
                results.push(RowResult {
                    slot: rows.slot,
                    position: past_len + logit.row,
                    status,
                    ends: false,
                    logprobs: probabilities(logit, status, row),
                });
            }
        }
        results
    }

    /// Takes the results of a step, and gives them with those of the slots that had stopped.
    pub(crate) fn follow(&mut self, part: &Part<'_>, results: Vec<RowResult>) -> Vec<RowResult> {
        let ran = results
            .into_iter()
            .filter(|r| r.status != RowStatus::Stopped);
        let mut ran: Vec<RowResult> = ran.collect();
        let mut rest = &mut ran[..];
        for rows in part.running() {
            let seat = &mut self.0[rows.slot.index()];
            seat.len += rows.len();
            let (own, later) = rest.split_at_mut(rows.logits.len());
            let last = rows.logits.last().zip(own.last_mut());
            if let Some((_, result)) = last.filter(|(l, _)| l.row as usize + 1 == rows.len()) {
                result.ends = seat.take(result.status);
            }
            rest = later;
        }
        self.beside_stopped(part, ran)
    }

    /// The slots of a work that failed run no further rows until they are set right.
    pub(crate) fn fail(&mut self, rows: &[SeqRows]) {
        for rows in rows {
            self.stop(rows.slot);
        }
    }
}

fn flags(rows: &SeqRows) -> u32 {
    let embeds = matches!(rows.input, RowInput::Embeds(_));
    (u32::from(rows.prompt) * ROW_PROMPT)
        | (u32::from(embeds) * ROW_EMBEDS)
        | (u32::from(rows.keeps_states) * ROW_KEEPS)
}

fn status(token: i32) -> RowStatus {
    match token {
        NOT_A_NUMBER => RowStatus::NotANumber,
        NO_CANDIDATE => RowStatus::NoCandidate,
        token => RowStatus::Drawn(u32::try_from(token).expect("tokens are of the vocabulary")),
    }
}

fn probabilities(logit: &LogitRow, status: RowStatus, row: Option<&[f32]>) -> Option<Logprobs> {
    let RowStatus::Drawn(token) = status else {
        return None;
    };
    let found = report(row?, token, logit.best?.into()).ok()?;
    let of = |(token, logprob): (u32, Fixed)| Logprob {
        token,
        logprob: logprob.to_f32(),
    };
    Some(Logprobs {
        picked: of((token, found.token)),
        top: found.best.into_iter().map(of).collect(),
    })
}

impl Seat {
    /// The tokens of the next rows stand from `len` on.
    fn feed(&mut self, input: &RowInput) {
        match input {
            RowInput::Tokens(tokens) => {
                self.tokens.resize(self.len, NO_TOKEN);
                self.tokens.extend_from_slice(tokens);
            }
            RowInput::Drawn => assert!(
                self.tokens.len() == self.len + 1,
                "a slot goes on from a token that was drawn in it"
            ),
            RowInput::Held(n) => {
                self.tokens.resize(self.len + *n as usize, ANY_TOKEN);
                let held = self.tokens[self.len..].iter_mut();
                held.filter(|t| **t == NO_TOKEN)
                    .for_each(|t| *t = ANY_TOKEN);
            }
            RowInput::Embeds(n) => self.tokens.resize(self.len + *n as usize, NO_TOKEN),
        }
    }

    /// Takes what the last row's logits gave; whether that ends the answer.
    fn take(&mut self, status: RowStatus) -> bool {
        let RowStatus::Drawn(token) = status else {
            self.stopped = status != RowStatus::Computed;
            return false;
        };
        self.tokens.push(token);
        let spent = self.remaining.as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        self.stopped = spent || self.stop_ids.contains(&token);
        self.stopped
    }
}
