//! A head's rows on the device.

use std::borrow::Cow;

use tokkata_ir::{
    Delta, LogitRow, Refusal, RowInput, RowResult, RowStatus, SeqRows, Source, Ticket, Work,
};
use web_time::Instant;

use super::{Fed, Heads, Made, Stage};
use crate::engine::Engine;
use crate::request::RequestId;
use crate::task::place_of;

/// Rows of a request that run as an answer's do, which are made for few.
const FEW_ROWS: usize = 16;

/// Guesses of one request under way, which the device draws one behind the other.
#[derive(Debug)]
pub(crate) struct Guessing {
    pub(crate) task: RequestId,
    /// Which drafter is measured by them, and since when.
    pub(crate) timed: Option<(usize, Instant)>,
    /// Works that have not ended.
    left: usize,
    drawn: Vec<Option<u32>>,
    pub(super) failed: bool,
}

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

/// The states of all rows that are fed, one request behind the other.
fn states_of(fed: &[Fed]) -> Source {
    let here = |fed: &Fed| match &fed.states {
        Source::Host(states) => states.clone(),
        Source::Kept { .. } => unreachable!("states of several requests are brought here"),
    };
    match fed {
        [alone] => alone.states.clone(),
        all => Source::Host(all.iter().map(here).collect::<Vec<_>>().concat()),
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
        self.hear_head(&mut drawn)?;
        self.made(heads, at, fed, (&ticket, &drawn))
    }

    /// Lets at most so many tokens of one request be guessed without waiting for any: behind the first the last head reads what
    /// it drew and the state that it made where the device left both.
    pub(super) fn guess_ahead(
        &mut self,
        heads: &Heads,
        at: &Stage,
        (fed, most): (Fed, usize),
    ) -> Guessing {
        let mut guessing = Guessing {
            task: self.running[fed.i].id,
            timed: None,
            left: 0,
            drawn: Vec::new(),
            failed: false,
        };
        let submitted = self.submit_ahead(heads, at, (fed, most), &mut guessing);
        guessing.failed |= submitted.is_none();
        guessing
    }

    fn submit_ahead(
        &mut self,
        heads: &Heads,
        at: &Stage,
        (fed, most): (Fed, usize),
        guessing: &mut Guessing,
    ) -> Option<()> {
        let input = at.input?;
        let mut work = self.head_work(heads, at, std::slice::from_ref(&fed))?;
        let behind = SeqRows {
            input: RowInput::Drawn,
            logits: vec![fed.row.clone()],
            ..work.rows[0].clone()
        };
        let mut last = fed.tokens.len() - 1;
        for n in 1..=most {
            work.keep.retain(|_| n < most);
            let ticket = self.submit_behind(work, guessing)?;
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
        Some(())
    }

    /// Submits a work behind others, as soon as there is room for it.
    fn submit_behind(&mut self, mut work: Work, guessing: &mut Guessing) -> Option<Ticket> {
        loop {
            match self.executor.submit(work) {
                Ok(ticket) => {
                    guessing.left += 1;
                    return Some(ticket);
                }
                Err(Refusal::Busy(back)) => work = *back,
                Err(Refusal::Backend(_)) => return None,
            }
            if !self.hear_a_guess(guessing) {
                return None;
            }
        }
    }

    /// Waits for the oldest of some guesses; whether any was under way.
    pub(in crate::engine) fn hear_a_guess(&mut self, guessing: &mut Guessing) -> bool {
        let any = guessing.left > 0;
        if any {
            guessing.left -= 1;
            guessing.failed |= self.hear_head(&mut guessing.drawn).is_none();
        }
        any
    }

    /// Waits for guesses. Where they failed, there are none, and the request goes on without.
    pub(in crate::engine) fn guessed(&mut self, mut guessing: Guessing) -> Vec<u32> {
        while self.hear_a_guess(&mut guessing) {}
        if !guessing.failed {
            return guessing
                .drawn
                .into_iter()
                .map_while(|token| token)
                .collect();
        }
        if let Some(i) = place_of(&self.running, guessing.task) {
            self.running[i].head.give_up();
        }
        Vec::new()
    }

    /// Waits for the end of a work: what was drawn.
    fn hear_head(&mut self, drawn: &mut Vec<Option<u32>>) -> Option<()> {
        // A lost device says so again to the next work, when nobody is in the middle of anything.
        let news = self.executor.wait().ok()??;
        drawn.extend(news.rows.iter().map(drawn_of));
        news.failure.is_none().then_some(())
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
        }
        work.feeds
            .extend(at.input.map(|input| (input, states_of(fed))));
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
