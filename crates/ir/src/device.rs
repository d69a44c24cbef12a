//! The contract of a device.
//!
//! A [`Device`] loads a [`Program`] in two phases: weights and work space first ([`Loaded`]), then caches out of what
//! memory is left, which gives an [`Executor`]. An executor takes [`Work`] without waiting for it, does works in the
//! order they came, and hands out a result per row. What a sequence needs from one work to the next (its length, its
//! block tables, its tokens, how its tokens are drawn) lives with the executor in *sequence slots*; the engine sends
//! [`Delta`]s. Which sequence owns which block is the engine's business, what lies inside a block the device's.
//!
//! A failure belongs to a row ([`RowStatus`]), to a work ([`Progress::failure`]) or to the device
//! ([`BackendError::Lost`]), after which an executor answers nothing else.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::adapter::Adapter;
use crate::arena::ArenaLayout;
use crate::backend::{BackendError, LoadOptions, StepTime, WeightSource};
use crate::fusion::Rule;
use crate::ids::{GroupId, ValueId};
use crate::program::Program;
#[cfg(doc)]
use crate::sample::MOST_LISTED;
use crate::sample::{Fixed, Mask, Sampler};

/// A place where programs run.
pub trait Device: Send + Sync {
    /// `ref`, `cpu`…
    fn name(&self) -> &'static str;

    /// Bytes that may be taken on it now; `None` where that is not known.
    fn available_bytes(&self) -> Option<u64>;

    /// Every fusion that it may do: each of them is to be seen in a test.
    fn fusions(&self) -> &'static [Rule] {
        &[]
    }

    /// What whoever uses it should hear, a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Lays out weights and work space and lowers every plan. All plans share one set of weights.
    ///
    /// # Errors
    /// Memory, weights, or an op that the device cannot run.
    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError>;
}

/// A program with its weights, before it has caches.
pub trait Loaded: Send {
    /// Bytes of a block of each cache group, as the device lays it out.
    fn block_bytes(&self) -> Vec<u64>;

    /// Bytes held for weights and work space.
    fn memory_bytes(&self) -> u64;

    /// Bytes that caches may take; `None` where that is not known.
    fn available_bytes(&self) -> Option<u64>;

    /// Makes the caches. Nothing but their memory depends on the size of the arena.
    ///
    /// # Errors
    /// Memory.
    fn open(self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError>;
}

/// A sequence's place with an executor; the limits' `seqs` are their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqSlot(pub u32);

impl SeqSlot {
    /// The slot as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A change of a sequence slot, made before the rows of its work run.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// The slot belongs to a new sequence: nothing cached, no tokens, no blocks, greedy draws.
    Clear,
    /// Its first `n` positions count as cached; later ones are forgotten. A slot that had stopped goes on.
    Length(u32),
    /// Blocks of a group from a place of its table on.
    Table {
        /// The group.
        group: GroupId,
        /// The first place that changes.
        first: u32,
        /// Its blocks; [`NO_BLOCK`](crate::step::NO_BLOCK) where none is needed any more.
        blocks: Vec<u32>,
    },
    /// Tokens from a position on; those before it stay, those after them are forgotten.
    Tokens {
        /// The first position.
        first: u32,
        /// What stands there.
        tokens: Vec<u32>,
    },
    /// How its tokens are drawn.
    Sampler(Box<Sampler>),
    /// Where its answer ends. A slot that had stopped goes on.
    Stop {
        /// Tokens that end it, once they are drawn.
        ids: Arc<[u32]>,
        /// Tokens that may still be drawn.
        remaining: u32,
    },
    /// Positions that its encoder wrote.
    Encoded(u32),
}

/// A block to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Whose.
    pub group: GroupId,
    /// Source.
    pub from: u32,
    /// Destination.
    pub to: u32,
}

/// What rows of a sequence read.
#[derive(Clone, Debug, PartialEq)]
pub enum RowInput {
    /// Tokens, one per row.
    Tokens(Vec<u32>),
    /// One row: the token that was drawn last in this slot, which the host need not know yet.
    Drawn,
    /// So many rows: the tokens that the slot holds from its length on, the last of which were drawn there. A row for which it
    /// holds none reads what lies there, or any token where that is none; the work may fail by it.
    Held(u32),
    /// So many rows of the embeddings that are fed to the port `embeds`, from the next one on.
    Embeds(u32),
}

/// A row whose logits are wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitRow {
    /// Its place among the rows of its sequence.
    pub row: u32,
    /// What may be drawn; `None` allows all.
    pub mask: Option<Mask>,
    /// Subtracted from logits by id (DRY, computed by the host).
    pub dry: Vec<(u32, Fixed)>,
    /// Report the log-probability of what is drawn and of the best so many tokens, at most [`MOST_LISTED`].
    pub best: Option<u8>,
}

/// Rows of one sequence: positions from its length on.
#[derive(Clone, Debug, PartialEq)]
pub struct SeqRows {
    /// Whose.
    pub slot: SeqSlot,
    /// What they read.
    pub input: RowInput,
    /// Their positions in each channel; counted from the sequence's length where there are none.
    pub positions: Vec<[u32; 4]>,
    /// Rows whose logits are wanted, ascending.
    pub logits: Vec<LogitRow>,
    /// Rows of a prompt rather than of an answer.
    pub prompt: bool,
    /// Position after the last that rows of a bidirectional span see; 0 outside of spans.
    pub span_end: u32,
    /// The adapter they go through, by the number that [`Executor::attach`] gave it; 0 is none.
    pub adapter: u32,
    /// Whether recurrent states can go back to any of these rows, of which there are `limits.draft` at most. The state
    /// before them stays in the block of place 0 of its table, the state after row `j` goes to the block of place `j + 1`.
    /// The engine picks one by a [`Delta::Table`] that puts its block at place 0, with a [`Delta::Length`]; nothing is
    /// copied. Not in a chain. Groups of positions go back by length alone.
    pub keeps_states: bool,
}

impl SeqRows {
    /// Prompt rows of these tokens, no logits wanted.
    #[must_use]
    pub fn tokens(slot: SeqSlot, tokens: &[u32]) -> Self {
        SeqRows {
            slot,
            input: RowInput::Tokens(tokens.to_vec()),
            positions: Vec::new(),
            logits: Vec::new(),
            prompt: true,
            span_end: 0,
            adapter: 0,
            keeps_states: false,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.input {
            RowInput::Tokens(tokens) => tokens.len(),
            RowInput::Drawn => 1,
            RowInput::Held(n) | RowInput::Embeds(n) => *n as usize,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the value of a port comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The host: `[rows, width]`.
    Host(Vec<f32>),
    /// Rows of a value that a ticket keeps, of this executor or of another one of the same device.
    Kept {
        /// The ticket.
        ticket: Ticket,
        /// The value.
        value: ValueId,
        /// Its rows.
        rows: Range<usize>,
    },
}

/// What an executor is to do. Copies and imports come first, then deltas, rows, and exports.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// The plan.
    pub plan: usize,
    /// Blocks to copy, in order.
    pub copies: Vec<BlockCopy>,
    /// Blocks to set from their canonical form.
    pub imports: Vec<(GroupId, u32, Vec<f32>)>,
    /// Changes of slots, in order.
    pub deltas: Vec<(SeqSlot, Delta)>,
    /// Rows; of a sequence at most one entry. Without any, nothing is replayed.
    pub rows: Vec<SeqRows>,
    /// Ports to set for the first step. A port of embeddings takes a row for each row that reads one; another port takes
    /// one for each of its lead, those of slots that had stopped among them.
    pub feeds: Vec<(ValueId, Source)>,
    /// Outputs to keep for as long as the ticket lives; of a chain, those of its last step. Rows of slots that had stopped
    /// are zeros.
    pub keep: Vec<ValueId>,
    /// Steps beyond the first, in which every slot whose last row was drawn from goes on with what was drawn.
    pub chained: u32,
    /// Blocks to give out in canonical form.
    pub exports: Vec<(GroupId, u32)>,
}

/// A work that was taken. What it keeps lives until its last clone is dropped.
#[derive(Clone)]
pub struct Ticket {
    id: u64,
    kept: Arc<dyn Any + Send + Sync>,
}

impl Ticket {
    /// The executor's name for a work, with what the executor will keep for it.
    #[must_use]
    pub fn new(id: u64, kept: Arc<dyn Any + Send + Sync>) -> Self {
        Ticket { id, kept }
    }

    /// Its number: works of an executor are numbered in their order.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the executor keeps, if it is of this type.
    #[must_use]
    pub fn kept<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.kept.downcast_ref()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", self.id)
    }
}

/// A token and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability, before sampling parameters.
    pub logprob: f32,
}

/// The drawn token's probability and the likeliest tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The drawn token.
    pub picked: Logprob,
    /// The likeliest, best first.
    pub top: Vec<Logprob>,
}

/// How a row fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// This token was drawn from its logits.
    Drawn(u32),
    /// Its logits were computed; the plan draws nothing.
    Computed,
    /// Its logits are not numbers.
    NotANumber,
    /// Nothing may be drawn: mask, biases and filters leave no token.
    NoCandidate,
    /// It did not run: its slot had stopped before.
    Stopped,
}

/// What became of a logit row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowResult {
    /// Whose.
    pub slot: SeqSlot,
    /// Place in the sequence of the row whose logits these were.
    pub position: u32,
    /// How it fared.
    pub status: RowStatus,
    /// Whether what was drawn ended the slot's answer: a stop token, or the last that was allowed.
    pub ends: bool,
    /// Log-probabilities, where they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// News of a work.
#[derive(Debug)]
pub struct Progress {
    /// Which: [`Ticket::id`].
    pub ticket: u64,
    /// Rows that are done since the last news, in the order of the work's rows, step by step.
    pub rows: Vec<RowResult>,
    /// No more news of it will come.
    pub done: bool,
    /// Why it did not run to its end. Caches of its rows count as not written.
    pub failure: Option<BackendError>,
}

/// Why a work was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// As many works as the executor holds are under way; the work comes back.
    #[error("the device is busy")]
    Busy(Box<Work>),
    /// The device is gone.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A loaded program with its caches, on its device.
pub trait Executor: Send {
    /// Works that it holds at once.
    fn depth(&self) -> usize;

    /// Where its cache blocks lie.
    fn arena(&self) -> &ArenaLayout;

    /// Takes a work, without waiting for the device.
    ///
    /// # Errors
    /// [`Refusal::Busy`] with the work; a lost device.
    fn submit(&mut self, work: Work) -> Result<Ticket, Refusal>;

    /// Makes progress and hands out news, oldest work first; `None` when there are none yet.
    ///
    /// # Errors
    /// A lost device.
    fn poll(&mut self) -> Result<Option<Progress>, BackendError>;

    /// As [`Executor::poll`], but waits for news while a work is under way.
    ///
    /// # Errors
    /// A lost device.
    fn wait(&mut self) -> Result<Option<Progress>, BackendError>;

    /// Ends what a slot's chain has still to do, at the next step of it.
    fn stop(&mut self, slot: SeqSlot);

    /// Rows that a kept value has.
    ///
    /// # Errors
    /// [`BackendError::NotKept`] for a value that is not kept, or not yet.
    fn rows(&self, ticket: &Ticket, value: ValueId) -> Result<usize, BackendError>;

    /// Copies rows of a kept value of floats, `[rows, width]`.
    ///
    /// # Errors
    /// [`BackendError::NotKept`]; a lost device.
    fn read(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Copies rows of a kept value of integers, `[rows, width]`.
    ///
    /// # Errors
    /// As [`Executor::read`].
    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError>;

    /// The `i`-th block that a work gave out: per slot keys then values of every position as f32, or the state's
    /// values.
    ///
    /// # Errors
    /// [`BackendError::NotKept`]; a lost device.
    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError>;

    /// Takes an adapter, which rows of later works may go through, under the number that is returned: 1 or more, free
    /// again once it is detached. The limits say how many there may be.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] for one that does not fit the program, or one too many; memory; a device that has none.
    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        let _ = adapter;
        Err(BackendError::Unsupported {
            backend: "this device",
            op: "an adapter".to_owned(),
        })
    }

    /// Lets an adapter go, once the works that were taken before are done. A work with rows that go through an adapter that
    /// is not there fails.
    fn detach(&mut self, _adapter: u32) {}

    /// Bytes held for weights, caches and work space.
    fn memory_bytes(&self) -> u64;

    /// Whether works are measured from now on; a device that cannot ignores it.
    fn measure(&mut self, _on: bool) {}

    /// Times of the steps of a work, when it was measured.
    fn times(&self, _ticket: &Ticket) -> Vec<StepTime> {
        Vec::new()
    }
}
