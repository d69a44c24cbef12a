//! States that a head has not read yet, of one request.

use std::ops::Range;

use tokkata_ir::{Source, Ticket, ValueId};

/// Tokens in a row for which a head was not worth asking, after which a request has none.
const USELESS: usize = 24;

/// What the heads need to know of a request.
#[derive(Debug, Default)]
pub(crate) struct Own {
    stages: Vec<Kept>,
    /// Tokens since the heads were last worth asking.
    useless: usize,
    /// The request goes on without.
    off: bool,
}

/// What one head has run over, and what it will read.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Positions that the head has run over.
    pub(super) done: usize,
    /// Position of the first state that is kept.
    first: usize,
    /// States `[n, width]` that the head has not read.
    states: Vec<f32>,
    /// Those behind them that still lie with the device.
    there: Option<There>,
}

/// States of rows that a work has kept.
#[derive(Debug)]
pub(super) struct There {
    pub(super) ticket: Ticket,
    pub(super) value: ValueId,
    /// Position of the first of them.
    pub(super) start: usize,
    /// Which of the work's rows they are.
    pub(super) rows: Range<usize>,
}

impl There {
    /// The states of positions, if they are all among these.
    fn of(&self, positions: Range<usize>) -> Option<Source> {
        let first = self.rows.start + positions.start.checked_sub(self.start)?;
        let rows = first..first + positions.len();
        (rows.end <= self.rows.end).then(|| Source::Kept {
            ticket: self.ticket.clone(),
            value: self.value,
            rows,
        })
    }
}

impl Own {
    /// What is kept for a head.
    pub(super) fn stage(&mut self, stage: usize) -> &mut Kept {
        if self.stages.len() <= stage {
            self.stages.resize_with(stage + 1, Kept::default);
        }
        &mut self.stages[stage]
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// The request goes on without.
    pub(crate) fn give_up(&mut self) {
        *self = Own {
            off: true,
            ..Own::default()
        };
    }

    /// Notes whether the heads were worth asking for a token.
    pub(super) fn note(&mut self, asked: bool) {
        self.useless = if asked { 0 } else { self.useless + 1 };
        if self.useless >= USELESS {
            self.give_up();
        }
    }
}

impl Kept {
    /// Keeps the states of rows from a position on.
    pub(super) fn keep(&mut self, start: usize, states: &[f32], width: usize) {
        self.goes_on_at(start, width);
        self.states.extend_from_slice(states);
    }

    /// Keeps states that lie with the device. Those that lay there before were brought here, or were read.
    pub(super) fn keep_there(&mut self, there: There, width: usize) {
        self.goes_on_at(there.start, width);
        self.there = Some(there);
    }

    /// Takes the states that lie with the device, to bring them here.
    pub(super) fn bring(&mut self) -> Option<There> {
        self.there.take().filter(|there| !there.rows.is_empty())
    }

    /// What is kept next are the states of rows from a position on.
    fn goes_on_at(&mut self, start: usize, width: usize) {
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
    }

    /// The states before positions `from..to`; zeros where none is known.
    pub(super) fn before(&self, from: usize, to: usize, width: usize) -> Vec<f32> {
        let state = |p: usize| {
            let at = p.checked_sub(1 + self.first)? * width;
            self.states.get(at..at + width)
        };
        let zeros = vec![0.0; width];
        (from..to)
            .flat_map(|p| state(p).unwrap_or(&zeros).to_vec())
            .collect()
    }

    /// The states before positions `from..to`, over which the head is to run now.
    pub(super) fn read(&mut self, from: usize, to: usize, width: usize) -> Vec<f32> {
        let states = self.before(from, to, width);
        self.ran(to, width);
        states
    }

    /// As [`Kept::read`] where all of them lie with the device.
    pub(super) fn read_there(&mut self, from: usize, to: usize, width: usize) -> Option<Source> {
        let there = self.there.as_mut()?;
        let source = there.of(from.checked_sub(1)?..to - 1)?;
        there.rows.start += to - 1 - there.start;
        there.start = to - 1;
        if there.rows.is_empty() {
            self.there = None;
        }
        self.ran(to, width);
        Some(source)
    }

    /// Of rows that were tried, those from a position on were wrong.
    pub(super) fn forget(&mut self, from: usize, width: usize) {
        let known = from.saturating_sub(self.first) * width;
        self.states.truncate(known);
        if let Some(there) = &mut self.there {
            let right = from.saturating_sub(there.start).min(there.rows.len());
            there.rows.end = there.rows.start + right;
        }
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

#[cfg(test)]
mod tests {
    use tokkata_ir::{Source, Ticket, ValueId};

    use super::{Kept, There};

    /// States of one number each, ten times their position.
    fn states(rows: std::ops::Range<usize>) -> Vec<f32> {
        rows.map(|p| 10.0 * p as f32).collect()
    }

    #[test]
    fn a_row_reads_the_state_of_the_position_before() {
        let mut own = Kept::default();
        own.keep(0, &states(0..3), 1);
        assert_eq!(own.read(0, 3, 1), [0.0, 0.0, 10.0]);
        own.keep(3, &states(3..4), 1);
        assert_eq!((own.done, own.read(3, 5, 1)), (3, vec![20.0, 30.0]));
    }

    #[test]
    fn rows_that_were_tried_are_read_again() {
        let mut own = Kept::default();
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
    fn states_that_lie_with_the_device_are_read_there() {
        let mut own = Kept::default();
        own.keep(0, &states(0..4), 1);
        assert_eq!(own.read(0, 5, 1).len(), 5);
        let there = |start| There {
            ticket: Ticket::new(1, std::sync::Arc::new(())),
            value: ValueId(7),
            start,
            rows: 2..5,
        };
        own.keep_there(there(4), 1);
        own.forget(6, 1);
        assert!(own.read_there(5, 8, 1).is_none(), "the last was wrong");
        let Some(Source::Kept { value, rows, .. }) = own.read_there(5, 7, 1) else {
            panic!("they lie there");
        };
        assert_eq!((value, rows, own.done), (ValueId(7), 2..4, 7));
        own.keep_there(there(6), 1);
        let read = |own: &mut Kept, from, to| match own.read_there(from, to, 1) {
            Some(Source::Kept { rows, .. }) => rows,
            _ => panic!("they lie there"),
        };
        assert_eq!([read(&mut own, 7, 8), read(&mut own, 8, 10)], [2..3, 3..5]);
        own.keep_there(there(9), 1);
        assert!(
            own.read_there(9, 11, 1).is_none(),
            "one before is not known"
        );
        assert_eq!(own.bring().map(|t| t.start), Some(9));
    }

    #[test]
    fn what_came_from_stored_blocks_is_not_run_again() {
        let mut own = Kept::default();
        own.keep(64, &states(64..66), 1);
        assert_eq!((own.done, own.read(64, 66, 1)), (64, vec![0.0, 640.0]));
        own.keep(8, &states(8..9), 1);
        assert_eq!(own.done, 8, "the task began again");
    }
}
