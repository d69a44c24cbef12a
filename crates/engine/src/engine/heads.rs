//! Guesses of the model's own multi-token-prediction heads.
//!
//! A head is a plan of the same program, with slots of its own in the same blocks. At position p it reads token p and the
//! state that the trunk made of position p − 1, and tells what follows token p. So rows of the trunk leave their states
//! here until the head has run over the tokens behind them, and a guess goes on from the head's own states. Only the first
//! head guesses, one token after another.
//!
//! What a head left in a block that another request goes on from is as good as if it had run there itself; where it had
//! not, or read no state, its guesses are worse, and no text is different.

use tokkata_ir::sample::{Scratch, sample};
use tokkata_ir::{
    BlockCopy, Delta, Lead, LogitRow, PlanRole, RowInput, SeqRows, Source, Ticket, ValueId, Work,
};

use super::Engine;
use crate::flight::{Flight, Part};
use crate::speculate::Guess;
use crate::task::{Goal, Task, place_of};

/// Tokens in a row for which a head was not worth asking, after which a request has none.
const USELESS: usize = 24;

/// The head's place in the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// The trunk's output that the head reads, `[rows, width]`.
    state: ValueId,
    width: usize,
    plan: usize,
    input: ValueId,
    logits: ValueId,
    n_vocab: usize,
    /// The state that it makes itself.
    next: ValueId,
}

/// What the head needs to know of a request.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Positions that the head has run over.
    done: usize,
    /// Position of the first state that is kept.
    first: usize,
    /// States `[n, width]` that the head has not read.
    states: Vec<f32>,
    /// Tokens since the head was last worth asking.
    useless: usize,
    /// The request goes on without.
    off: bool,
}

/// Rows of a request for the head.
struct Fed {
    i: usize,
    at: usize,
    tokens: Vec<u32>,
    states: Vec<f32>,
    copies: Vec<BlockCopy>,
    /// Whether the logits of its last row are wanted.
    guesses: bool,
}

/// What the last row of each request gave.
struct Made {
    logits: Vec<f32>,
    state: Vec<f32>,
}

impl Own {
    /// Keeps the states of rows from a position on.
    fn keep(&mut self, start: usize, states: &[f32], width: usize) {
        let kept = self.first + self.states.len() / width;
        if self.states.is_empty() || start < self.first || start > kept {
            // What stands before came from stored blocks.
            self.states.clear();
            self.first = start;
            self.done = self.done.max(start);
        }
        if self.done > start + 1 {
            // Rows run again.
            self.done = start;
        }
        self.states.truncate((start - self.first) * width);
        self.states.extend_from_slice(states);
    }

    /// The states before positions `from..to`; zeros where none is known.
    fn before(&self, from: usize, to: usize, width: usize) -> Vec<f32> {
        let state = |p: usize| {
            let at = p.checked_sub(1 + self.first)? * width;
            self.states.get(at..at + width)
        };
        let zeros = vec![0.0; width];
        (from..to)
            .flat_map(|p| state(p).unwrap_or(&zeros).to_vec())
            .collect()
    }

    /// The request goes on without.
    pub(super) fn give_up(&mut self) {
        *self = Own {
            off: true,
            ..Own::default()
        };
    }

    /// The states before positions `from..to`, over which the head is to run now.
    fn read(&mut self, from: usize, to: usize, width: usize) -> Vec<f32> {
        let states = self.before(from, to, width);
        self.ran(to, width);
        states
    }

    /// The head has run over the positions before this one.
    fn ran(&mut self, to: usize, width: usize) {
        self.done = to;
        let read = (to - 1).saturating_sub(self.first) * width;
        if read >= self.states.len() {
            self.states.clear();
        } else {
            self.states.drain(..read);
        }
        self.first = self.first.max(to - 1);
    }
}

impl Fed {
    fn last_row(&self) -> Vec<LogitRow> {
        let last = LogitRow {
            row: self.tokens.len() as u32 - 1,
            ..LogitRow::default()
        };
        self.guesses.then_some(last).into_iter().collect()
    }
}

impl Heads {
    /// The first head of a program that has one.
    pub(crate) fn of(program: &tokkata_ir::Program) -> Option<Heads> {
        let (plan, head) = program.plan(PlanRole::Draft(0))?;
        let (_, main) = program.plan(PlanRole::Main)?;
        let (state, logits) = (main.output("draft_input")?, head.output("logits")?);
        if main.value(state).shape.lead != Lead::Rows {
            return None;
        }
        Some(Heads {
            state,
            width: main.value(state).shape.width(),
            plan,
            input: head.input("hidden")?,
            logits,
            n_vocab: head.value(logits).shape.width(),
            next: head.output("hidden")?,
        })
    }
}

impl Engine {
    /// Whether the program has a multi-token-prediction head that can guess.
    #[must_use]
    pub fn has_head(&self) -> bool {
        Heads::of(&self.program).is_some()
    }

    /// Whether nothing more is launched until what is under way has landed: its states are needed in order.
    pub(super) fn waits_for_states(&self) -> bool {
        self.heads.is_some()
            && !self.flights.is_empty()
            && self.running.iter().any(Task::keeps_states_for_head)
    }

    /// The output to keep of a work whose parts have use for it.
    pub(super) fn kept_for_head(&self, parts: &[Part]) -> Option<ValueId> {
        let head = self.heads?;
        let needs = |part: &Part| {
            let task = place_of(&self.running, part.task).map(|i| &self.running[i]);
            task.is_some_and(Task::keeps_states_for_head)
        };
        parts.iter().any(needs).then_some(head.state)
    }

    /// Takes the states of a part's rows, which are those from `before` on in its work.
    fn take_states(&mut self, head: Heads, flight: &Flight, part: &Part, before: usize) {
        let (Some(i), Some(ticket)) = (place_of(&self.running, part.task), &flight.ticket) else {
            return;
        };
        if part.encodes || !self.running[i].keeps_states_for_head() {
            return;
        }
        let mut states = vec![0.0; part.rows * head.width];
        let rows = before..before + part.rows;
        let read = self.executor.read(ticket, head.state, rows, &mut states);
        let own = &mut self.running[i].head;
        match read {
            Ok(()) => own.keep(part.start, &states, head.width),
            Err(_) => own.give_up(),
        }
    }

    /// Takes the states of a work's rows, and runs the head over the same rows before anything else becomes of them: what a
    /// window passes is given back when they count.
    pub(super) fn follow(&mut self, flight: &Flight) {
        let Some(head) = self.heads else {
            return;
        };
        let mut before = 0;
        for part in &flight.parts {
            self.take_states(head, flight, part, before);
            before += part.rows;
        }
        if !self.flights.is_empty() {
            return;
        }
        let fed: Vec<Fed> = flight
            .parts
            .iter()
            .filter_map(|part| self.behind(head, part))
            .collect();
        if !fed.is_empty() {
            self.run_head(head, &fed);
        }
    }

    /// The rows of a part that the head has not run over.
    fn behind(&mut self, head: Heads, part: &Part) -> Option<Fed> {
        let i = place_of(&self.running, part.task)?;
        let task = &mut self.running[i];
        if part.encodes || !task.keeps_states_for_head() || task.fresh {
            return None;
        }
        let to = task.tokens.len().min(part.start + part.rows - part.tried);
        let from = task.head.done;
        (part.start..to).contains(&from).then(|| Fed {
            i,
            at: from,
            tokens: task.tokens[from..to].to_vec(),
            states: task.head.read(from, to, head.width),
            copies: Vec::new(),
            guesses: false,
        })
    }

    /// Guesses so many tokens for each of these tasks.
    pub(super) fn guess_by_head(&mut self, asked: &[(usize, usize)]) -> Vec<Guess> {
        let mut guesses = vec![Guess::default(); asked.len()];
        let Some(head) = self.heads.filter(|_| self.flights.is_empty()) else {
            return guesses;
        };
        let mut open = Vec::new();
        let mut rows = self.limits().rows as usize;
        for (n, &(i, count)) in asked.iter().enumerate() {
            let fed = self.open(head, (i, count), rows);
            rows -= fed.as_ref().map_or(0, |fed| fed.tokens.len());
            open.extend(fed.map(|fed| (n, fed)));
        }
        let mut scratch = Scratch::default();
        while !open.is_empty() {
            let (places, fed): (Vec<usize>, Vec<Fed>) = open.into_iter().unzip();
            let made = self.run_head(head, &fed);
            open = Vec::new();
            for ((n, fed), made) in places.into_iter().zip(fed).zip(made) {
                let at = fed.at + fed.tokens.len();
                let Some(token) = self.draw(
                    fed.i,
                    at - 1,
                    &guesses[n].tokens,
                    &made.logits,
                    &mut scratch,
                ) else {
                    continue;
                };
                guesses[n].tokens.push(token);
                if guesses[n].tokens.len() < asked[n].1 {
                    let next = Fed {
                        i: fed.i,
                        at,
                        tokens: vec![token],
                        states: made.state,
                        copies: Vec::new(),
                        guesses: true,
                    };
                    open.push((n, next));
                }
            }
        }
        guesses
    }

    /// What the head is fed first for a guess: the newest tokens of a task, with room for the guess behind them.
    fn open(&mut self, head: Heads, (i, count): (usize, usize), most: usize) -> Option<Fed> {
        let task = &self.running[i];
        if !task.keeps_states_for_head() || task.fresh {
            return None;
        }
        let (len, end) = (task.seq.len(), task.tokens.len());
        // What windows have passed cannot be read again.
        let from = task.head.done.max(len.saturating_sub(self.cache.slack()));
        let from = from.min(end - 1);
        if end - from > most {
            return None;
        }
        let room = (self.limits().ctx as usize).saturating_sub(end);
        let rows = end - len + (count - 1).min(room);
        let task = &mut self.running[i];
        let copies = self.cache.reserve(&mut task.seq, rows).ok()?;
        task.seq.ahead -= rows;
        // Of rows that were tried, those that were wrong left states too.
        let known = len.saturating_sub(task.head.first) * head.width;
        task.head.states.truncate(known);
        Some(Fed {
            i,
            at: from,
            tokens: task.tokens[from..end].to_vec(),
            states: task.head.read(from, end, head.width),
            copies,
            guesses: true,
        })
    }

    /// Runs the head over rows of tasks of which nothing is under way, and waits for it. Where it fails, nobody gets anything,
    /// and all of them go on without.
    fn run_head(&mut self, head: Heads, fed: &[Fed]) -> Vec<Made> {
        let made = self.try_head(head, fed);
        if made.is_none() {
            for fed in fed {
                self.running[fed.i].head.give_up();
            }
        }
        made.unwrap_or_default()
    }

    fn try_head(&mut self, head: Heads, fed: &[Fed]) -> Option<Vec<Made>> {
        let guesses = fed.iter().any(|fed| fed.guesses);
        let mut work = Work {
            plan: head.plan,
            keep: match guesses {
                true => vec![head.logits, head.next],
                false => Vec::new(),
            },
            ..Work::default()
        };
        let mut states = Vec::new();
        for fed in fed {
            let task = &mut self.running[fed.i];
            let slot = task.slot?;
            work.copies.extend(fed.copies.iter().copied());
            let changes = task.seq.changes().into_iter();
            let length = Delta::Length(fed.at as u32);
            work.deltas
                .extend(changes.chain([length]).map(|d| (slot, d)));
            // Its slot is set right again with its next rows.
            task.tried = true;
            work.rows.push(SeqRows {
                input: RowInput::Tokens(fed.tokens.clone()),
                logits: fed.last_row(),
                adapter: task.seq.adapter_number(),
                ..SeqRows::tokens(slot, &[])
            });
            states.extend_from_slice(&fed.states);
        }
        work.feeds = vec![(head.input, Source::Host(states))];
        let ticket = self.executor.submit(work).ok()?;
        loop {
            match self.executor.wait() {
                Ok(Some(news)) if news.failure.is_some() => return None,
                Ok(Some(news)) if !news.done => {}
                Ok(_) => return self.made(head, fed, &ticket),
                // A lost device says so again to the next work, when nobody is in the middle of anything.
                Err(_) => return None,
            }
        }
    }

    fn made(&mut self, head: Heads, fed: &[Fed], ticket: &Ticket) -> Option<Vec<Made>> {
        let mut row = 0;
        let mut all = Vec::with_capacity(fed.len());
        for fed in fed {
            row += fed.tokens.len();
            if !fed.guesses {
                continue;
            }
            let n = all.len();
            let (mut logits, mut state) = (vec![0.0; head.n_vocab], vec![0.0; head.width]);
            let executor = &mut self.executor;
            executor
                .read(ticket, head.logits, n..n + 1, &mut logits)
                .ok()?;
            executor
                .read(ticket, head.next, row - 1..row, &mut state)
                .ok()?;
            all.push(Made { logits, state });
        }
        Some(all)
    }

    /// Draws from a head's logits as the task's next row will from the trunk's: with the same noise.
    fn draw(
        &self,
        i: usize,
        position: usize,
        guessed: &[u32],
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Option<u32> {
        let task = &self.running[i];
        let Goal::Answer(answer) = &task.goal else {
            return None;
        };
        let tokens = [&task.tokens[..], guessed].concat();
        let row = answer.masked_row(0, &tokens, None);
        let sampler = answer.sampling.sampler();
        let side = sampler.side(&tokens, None, row.dry);
        let row = side.row(logits, position as u32);
        sample(&sampler.record, &row, scratch).ok()
    }

    /// Notes whether the head was worth asking for a token of a task.
    pub(super) fn note_head(&mut self, i: usize, asked: bool) {
        let own = &mut self.running[i].head;
        own.useless = if asked { 0 } else { own.useless + 1 };
        if own.useless >= USELESS {
            own.give_up();
        }
    }
}

impl Task {
    /// Whether states of its rows are kept for the head.
    fn keeps_states_for_head(&self) -> bool {
        let answers = matches!(&self.goal, Goal::Answer(answer) if !answer.own.never);
        answers && !self.head.off && self.media.is_empty() && !self.alone && self.encode.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::Own;

    /// States of one number each, ten times their position.
    fn states(rows: std::ops::Range<usize>) -> Vec<f32> {
        rows.map(|p| 10.0 * p as f32).collect()
    }

    #[test]
    fn a_row_reads_the_state_of_the_position_before() {
        let mut own = Own::default();
        own.keep(0, &states(0..3), 1);
        assert_eq!(own.read(0, 3, 1), [0.0, 0.0, 10.0]);
        own.keep(3, &states(3..4), 1);
        assert_eq!((own.done, own.read(3, 5, 1)), (3, vec![20.0, 30.0]));
    }

    #[test]
    fn rows_that_were_tried_are_read_again() {
        let mut own = Own::default();
        own.keep(0, &states(0..4), 1);
        assert_eq!(own.read(0, 5, 1).len(), 5);
        // Rows 4 to 6, of which 5 and 6 were guesses: the head ran over the newest token alone.
        own.keep(4, &states(4..7), 1);
        assert_eq!(own.done, 5);
        own.keep(5, &[1.0], 1);
        assert_eq!(
            own.read(5, 7, 1),
            [40.0, 1.0],
            "a wrong guess leaves nothing"
        );
    }

    #[test]
    fn what_came_from_stored_blocks_is_not_run_again() {
        let mut own = Own::default();
        own.keep(64, &states(64..66), 1);
        assert_eq!((own.done, own.read(64, 66, 1)), (64, vec![0.0, 640.0]));
        own.keep(8, &states(8..9), 1);
        assert_eq!(own.done, 8, "the task began again");
    }
}
