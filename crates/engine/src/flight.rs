//! Works under way, and whose rows they have.

use tokkata_ir::{GroupId, SeqSlot, Ticket};
use web_time::Instant;

use crate::cost::PromptRows;
use crate::request::RequestId;
use crate::task::Read;

/// A work under way.
pub(crate) struct Flight {
    /// `None` until it is submitted.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) parts: Vec<Part>,
    pub(crate) submitted: Instant,
    /// Whether news of its first step came.
    pub(crate) begun: bool,
    /// Steps that it has at most, and results that came of them.
    pub(crate) steps: u32,
    pub(crate) results: usize,
    /// A context that moves by it.
    pub(crate) turning: Option<Turning>,
}

/// A task whose context moves: its keys are turned.
pub(crate) struct Turning {
    pub(crate) task: RequestId,
    /// Positions that keys move back by.
    pub(crate) back: usize,
    /// Positions before all that move.
    pub(crate) keep: usize,
    /// Group and place of blocks that are still to be turned.
    pub(crate) todo: Vec<(usize, usize)>,
    /// Those that the work under way gives out.
    pub(crate) given: Vec<(usize, usize)>,
    /// Turned blocks that the next work takes.
    pub(crate) imports: Vec<(GroupId, u32, Vec<f32>)>,
}

/// Rows of one task in a work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) task: RequestId,
    pub(crate) slot: SeqSlot,
    /// Positions before its first row.
    pub(crate) start: usize,
    /// Rows of the first step.
    pub(crate) rows: usize,
    /// Whether they are an answer's.
    pub(crate) answer: bool,
    /// Whether they are its encoder's.
    pub(crate) encodes: bool,
    /// Tokens that it draws.
    pub(crate) draws: usize,
    /// Those of the rows that try a draft; each draws.
    pub(crate) tried: usize,
    /// What is read of them.
    pub(crate) read: Option<Read>,
}

impl Part {
    /// Its rows, if they are a prompt's.
    pub(crate) fn prompt(&self) -> Option<PromptRows> {
        let (rows, depth) = (self.rows, self.start);
        (!self.answer).then_some(PromptRows { rows, depth })
    }
}

impl Flight {
    pub(crate) fn new(parts: Vec<Part>, submitted: Instant) -> Self {
        Flight {
            ticket: None,
            parts,
            submitted,
            begun: false,
            steps: 1,
            results: 0,
            turning: None,
        }
    }

    /// Rows of answers and of prompts in its first step.
    pub(crate) fn rows(&self) -> (usize, Vec<PromptRows>) {
        let answers = self.parts.iter().filter(|p| p.answer).map(|p| p.rows);
        let prompts = self.parts.iter().filter_map(Part::prompt);
        (answers.sum(), prompts.collect())
    }

    /// Steps that ran, once it is done: a chain whose rows have all stopped ends early.
    pub(crate) fn ran(&self) -> u32 {
        let drawn = self.results.div_ceil(self.parts.len().max(1));
        self.steps
            .min(u32::try_from(drawn).unwrap_or(u32::MAX))
            .max(1)
    }
}
