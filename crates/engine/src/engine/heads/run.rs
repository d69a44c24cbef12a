//! A head's rows on the device.

use std::borrow::Cow;

use tokkata_ir::{
    Delta, LogitRow, Refusal, RowInput, RowResult, RowStatus, SeqRows, Source, Ticket, Work,
};

use super::{Fed, Heads, Made, Stage};
use crate::engine::Engine;

/// Rows of a request that run as an answer's do, which are made for few.
const FEW_ROWS: usize = 16;

/// The token that a row drew, if it ran and drew one.
fn drawn_of(row: &RowResult) -> Option<u32> {
    match row.status {
        RowStatus::Drawn(token) => Some(token),
        _ => None,
    }
}

impl Fed {
    /// The rows that tell what follows: so many from the first of those on. Of a block they are those behind the newest token.
    fn logit_rows(&self, block: bool, known: usize) -> Vec<LogitRow> {
        let first = match block {
            true => known,
            false => self.tokens.len() - self.guesses,
        };
        let row = |row: usize| LogitRow {
            row: row as u32,
            ..self.row.clone()
        };
        (first..first + self.guesses).map(row).collect()
    }
}

impl Heads {
    /// Whether somebody has use for the states that a head makes of rows: another one, or a guess that goes on.
    fn reads_states(&self, fed: &[Fed]) -> bool {
        let guesses = fed.iter().any(|fed| fed.guesses > 0);
        self.state.is_some() && (self.stages.len() > 1 || guesses)
    }

    /// Logits of all tokens, of a drafter that knows some of them.
    pub(super) fn spread<'a>(&self, logits: &'a [f32], n_vocab: u32) -> Cow<'a, [f32]> {
        let n_vocab = n_vocab as usize;
        match &self.form.ids {
            None if logits.len() == n_vocab => logits.into(),
            None => {
                let mut all = logits.to_vec();
                all.resize(n_vocab, f32::NEG_INFINITY);
                all.into()
            }
            Some(ids) => {
                let mut all = vec![f32::NEG_INFINITY; n_vocab];
                for (&id, &x) in ids.iter().zip(logits) {
                    all[id as usize] = x;
                }
                all.into()
            }
        }
    }
}

impl Engine {
    /// Runs a head over rows of tasks of which nothing is under way, and waits for it. Where it fails, nobody gets anything,
    /// and all of them go on without.
    pub(super) fn run_head(&mut self, heads: &Heads, stage: &Stage, fed: &[Fed]) -> Vec<Made> {
        let made = self.try_head(heads, stage, fed);
        if made.is_none() {
            for fed in fed {
                self.running[fed.i].head.give_up();
            }
        }
        made.unwrap_or_default()
    }

    fn try_head(&mut self, heads: &Heads, at: &Stage, fed: &[Fed]) -> Option<Vec<Made>> {
        let work = self.head_work(heads, at, fed)?;
        let ticket = self.executor.submit(work).ok()?;
        let mut drawn = Vec::new();
        self.hear_heads(&mut drawn, 1)?;
        self.made(heads, at, fed, (&ticket, &drawn))
    }

    /// Guesses at most so many tokens of one request without waiting for each: behind the first the last head reads what it drew
    /// and the state that it made where the device left both. Where it fails, the request goes on without.
    pub(super) fn guess_ahead(
        &mut self,
        heads: &Heads,
        at: &Stage,
        (fed, most): (Fed, usize),
    ) -> Vec<u32> {
        let i = fed.i;
        let drawn = self.try_ahead(heads, at, (fed, most));
        if drawn.is_none() {
            self.running[i].head.give_up();
        }
        drawn.unwrap_or_default()
    }

    fn try_ahead(
        &mut self,
        heads: &Heads,
        at: &Stage,
        (fed, most): (Fed, usize),
    ) -> Option<Vec<u32>> {
        let input = at.input?;
        let mut work = self.head_work(heads, at, std::slice::from_ref(&fed))?;
        let behind = SeqRows {
            input: RowInput::Drawn,
            logits: vec![fed.row.clone()],
            ..work.rows[0].clone()
        };
        let (mut drawn, mut last) = (Vec::new(), fed.tokens.len() - 1);
        for n in 1..=most {
            work.keep.retain(|_| n < most);
            let Some(ticket) = self.submit_behind(work, &mut drawn) else {
                self.hear_heads(&mut drawn, usize::MAX);
                return None;
            };
            let state = Source::Kept {
                ticket,
                value: at.next,
                rows: last..last + 1,
            };
            work = Work {
                plan: at.plan,
                keep: vec![at.next],
                rows: vec![SeqRows {
                    prompt: false,
                    ..behind.clone()
                }],
                feeds: vec![(input, state)],
                ..Work::default()
            };
            last = 0;
        }
        self.hear_heads(&mut drawn, usize::MAX)?;
        Some(drawn.into_iter().map_while(|token| token).collect())
    }

    /// Submits a work behind others, as soon as there is room for it.
    fn submit_behind(&mut self, mut work: Work, drawn: &mut Vec<Option<u32>>) -> Option<Ticket> {
        loop {
            match self.executor.submit(work) {
                Ok(ticket) => return Some(ticket),
                Err(Refusal::Busy(back)) => work = *back,
                Err(Refusal::Backend(_)) => return None,
            }
            self.hear_heads(drawn, 1)?;
        }
    }

    /// Waits for the end of so many works, or of all: what was drawn.
    fn hear_heads(&mut self, drawn: &mut Vec<Option<u32>>, works: usize) -> Option<()> {
        let (mut ended, mut failed) = (0, false);
        // A lost device says so again to the next work, when nobody is in the middle of anything.
        while ended < works
            && let Some(news) = self.executor.wait().ok()?
        {
            failed |= news.failure.is_some();
            drawn.extend(news.rows.iter().map(drawn_of));
            ended += usize::from(news.done);
        }
        (!failed).then_some(())
    }

    /// What a head is given to run over rows of tasks.
    fn head_work(&mut self, heads: &Heads, at: &Stage, fed: &[Fed]) -> Option<Work> {
        let block = heads.form.block.is_some();
        let reads_logits = !heads.draws() && fed.iter().any(|fed| fed.guesses > 0);
        let keep = [
            reads_logits.then_some(at.logits),
            heads.reads_states(fed).then_some(at.next),
        ];
        let mut work = Work {
            plan: at.plan,
            keep: keep.into_iter().flatten().collect(),
            ..Work::default()
        };
        let mut states = Vec::new();
        for fed in fed {
            let task = &mut self.running[fed.i];
            let slot = task.slot?;
            work.copies.extend(fed.copies.iter().copied());
            let changes = task.seq.changes().into_iter();
            let first = fed.at - heads.shift();
            let length = Delta::Length(first as u32);
            work.deltas
                .extend(changes.chain([length]).map(|d| (slot, d)));
            // Its slot is set right again with its next rows.
            task.tried = true;
            // The slot knows no tokens behind those rows any more, and where rows stand before their tokens not these either.
            let end = (fed.at + fed.tokens.len()).min(task.tokens.len());
            task.told = task.told.min(if first < fed.at { first } else { end });
            let known = task.tokens.len().saturating_sub(fed.at);
            work.rows.push(SeqRows {
                input: RowInput::Tokens(fed.tokens.clone()),
                logits: fed.logit_rows(block, known),
                prompt: fed.tokens.len() > FEW_ROWS,
                adapter: task.seq.adapter_number(),
                ..SeqRows::tokens(slot, &[])
            });
            states.extend_from_slice(&fed.states);
        }
        work.feeds
            .extend(at.input.map(|input| (input, Source::Host(states))));
        Some(work)
    }

    fn made(
        &mut self,
        heads: &Heads,
        at: &Stage,
        fed: &[Fed],
        (ticket, drawn): (&Ticket, &[Option<u32>]),
    ) -> Option<Vec<Made>> {
        let draws = heads.draws();
        let reads_states = heads.reads_states(fed);
        let (mut row, mut logit_row) = (0, 0);
        let mut all = Vec::with_capacity(fed.len());
        for fed in fed {
            let (rows, told) = (fed.tokens.len(), fed.guesses);
            let read = if draws { 0 } else { told };
            let mut logits = vec![0.0; read * at.columns];
            let mut states = Vec::new();
            let executor = &mut self.executor;
            if read > 0 {
                let places = logit_row..logit_row + told;
                executor.read(ticket, at.logits, places, &mut logits).ok()?;
            }
            if reads_states {
                states.resize(rows * heads.width, 0.0);
                let places = row..row + rows;
                executor.read(ticket, at.next, places, &mut states).ok()?;
            }
            let own = drawn.get(logit_row..logit_row + told);
            all.push(Made {
                logits,
                drawn: own.and_then(|own| *own.last()?),
                states,
            });
            (row, logit_row) = (row + rows, logit_row + told);
        }
        Some(all)
    }
}
