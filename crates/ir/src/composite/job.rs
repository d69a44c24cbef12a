//! A work under way on several devices, and what it keeps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::BackendError;
use crate::device::{Progress, RowResult, SeqRows, SeqSlot, Ticket, Work};
use crate::ids::ValueId;

/// What one device does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Copies, imports and deltas, on this device.
    Prepare(usize),
    /// A segment of the work's plan.
    Segment(usize),
    /// Blocks to give out, on this device.
    Export(usize),
}

/// A segment that ran: its device, its first node, its work.
pub(super) type Ran = (usize, usize, Ticket);

/// A work under way.
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) work: Work,
    pub(super) kept: Arc<Kept>,
    pub(super) begun: bool,
    /// Steps of the chain that are left.
    pub(super) chained: u32,
    pub(super) stages: VecDeque<Stage>,
    /// What is under way.
    pub(super) running: Option<(Stage, Ticket)>,
    /// Whether the step is the work's first.
    pub(super) first: bool,
    /// Rows of the step, and the slots among them that had stopped before it.
    pub(super) rows: Vec<SeqRows>,
    pub(super) stopped: Vec<SeqSlot>,
    /// Values of the step: the device and the work that keeps them.
    pub(super) values: BTreeMap<ValueId, (usize, Ticket)>,
    pub(super) ran: Vec<Ran>,
    pub(super) results: Vec<RowResult>,
    pub(super) failure: Option<BackendError>,
}

impl Job {
    pub(super) fn new(id: u64, work: Work) -> Self {
        Job {
            id,
            kept: Arc::default(),
            begun: false,
            chained: work.chained,
            stages: VecDeque::new(),
            running: None,
            first: true,
            rows: Vec::new(),
            stopped: Vec::new(),
            values: BTreeMap::new(),
            ran: Vec::new(),
            results: Vec::new(),
            failure: None,
            work,
        }
    }

    /// Puts the segments of a step before whatever else is left.
    pub(super) fn begin_step(
        &mut self,
        (rows, stopped): (Vec<SeqRows>, Vec<SeqSlot>),
        count: usize,
    ) {
        (self.rows, self.stopped) = (rows, stopped);
        self.values.clear();
        self.ran.clear();
        self.results.clear();
        for i in (0..count).rev() {
            self.stages.push_front(Stage::Segment(i));
        }
    }

    /// Leaves out what is left of its rows.
    pub(super) fn fail(&mut self, error: BackendError) {
        self.failure = Some(error);
        self.results.clear();
        self.stages.retain(|s| !matches!(s, Stage::Segment(_)));
    }

    /// Keeps what the step made.
    pub(super) fn keep(&mut self) {
        let mut kept = self.kept.inner();
        for value in &self.work.keep {
            if let Some(made) = self.values.get(value) {
                kept.values.insert(*value, made.clone());
            }
        }
        kept.plan = self.work.plan;
        kept.ran = std::mem::take(&mut self.ran);
    }

    /// The rows of a step, or all that is left to tell.
    pub(super) fn news(&mut self, done: bool) -> Progress {
        Progress {
            ticket: self.id,
            rows: std::mem::take(&mut self.results),
            done,
            failure: self.failure.take(),
        }
    }
}

/// Where the values of a work lie.
#[derive(Default)]
pub(super) struct Kept(Mutex<Inner>);

#[derive(Default)]
pub(super) struct Inner {
    pub(super) values: BTreeMap<ValueId, (usize, Ticket)>,
    /// Blocks that were given out.
    pub(super) blocks: Vec<Vec<f32>>,
    /// The work's plan, and the segments of its last step.
    pub(super) plan: usize,
    pub(super) ran: Vec<Ran>,
}

impl Kept {
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device that has a kept value, and its work there.
pub(super) fn place(ticket: &Ticket, value: ValueId) -> Result<(usize, Ticket), BackendError> {
    let kept = ticket.kept::<Kept>();
    let place = kept.and_then(|kept| kept.inner().values.get(&value).cloned());
    place.ok_or(BackendError::NotKept { value })
}
