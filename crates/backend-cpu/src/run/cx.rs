//! What every step sees during a replay.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokkata_ir::{BackendError, Lead, StepInputs, StepState};

use super::acts::ActSet;
use super::adapt::Adapters;
use super::attention::Scratch as AttentionScratch;
use super::cache::Caches;
use super::indexer::Scratch as IndexerScratch;
use super::moe::Scratch as MoeScratch;
use super::rope::TurnTable;
use super::watch::Watch;
use crate::arena::Place;
use crate::kernels::{Kernel as Set, Scratch as MatmulScratch};
use crate::pool::Worker;

/// Runs of columns, all of one width but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) count: usize,
    pub(crate) columns: usize,
    /// Multiply–adds of a part and a row.
    pub(crate) work: usize,
    /// Bytes of weights of a part.
    pub(crate) bytes: usize,
}

impl Parts {
    /// `width` columns in runs of `columns`.
    pub(crate) fn of(width: usize, columns: usize) -> Self {
        Parts {
            count: width.div_ceil(columns),
            columns,
            work: 0,
            bytes: 0,
        }
    }
}

/// A prepared step. All workers run it; each takes its own share.
pub(crate) trait Kernel: Send + Sync {
    /// Does this worker's share.
    fn run(&self, cx: &Cx<'_>, worker: &Worker<'_>);

    /// The parts that it can be done in, each by any worker; `None` when it deals out its work in another way.
    fn parts(&self) -> Option<Parts> {
        None
    }

    /// Does some of its parts.
    ///
    /// # Panics
    /// When it has none.
    fn run_parts(&self, _: &Cx<'_>, _: &Worker<'_>, parts: Range<usize>) {
        unreachable!("a step without parts has no parts {parts:?}");
    }

    /// The smallest parts that it can be done in, if they are smaller than [`Kernel::parts`]: steps after it that have
    /// larger ones must wait for all of them.
    fn fine_parts(&self) -> Option<Parts> {
        None
    }

    /// Does some of its smallest parts.
    ///
    /// # Panics
    /// When it has none.
    fn run_fine(&self, _: &Cx<'_>, _: &Worker<'_>, parts: Range<usize>) {
        unreachable!("a step without small parts has no parts {parts:?}");
    }

    /// What to call it where its op's name says too little.
    fn name(&self) -> Option<&'static str> {
        None
    }
}

/// Working memory of one worker.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) matmul: MatmulScratch,
    pub(crate) attention: AttentionScratch,
    pub(crate) moe: MoeScratch,
    pub(crate) indexer: IndexerScratch,
    /// Parts of a summary.
    pub(crate) summary: Vec<f32>,
    /// A row on its way through an op.
    pub(crate) row: Vec<f32>,
    /// A row's part of low rank.
    pub(crate) low: Vec<f32>,
    /// What a draw works with.
    pub(crate) draw: tokkata_ir::sample::Scratch,
}

/// A worker's scratch, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Own(UnsafeCell<Scratch>);

// SAFETY: each worker reaches only the scratch of its index.
unsafe impl Sync for Own {}

impl Own {
    pub(crate) fn new(scratch: Scratch) -> Self {
        Own(UnsafeCell::new(scratch))
    }

    /// The scratch, while no step runs.
    pub(crate) fn get_mut(&mut self) -> &mut Scratch {
        self.0.get_mut()
    }
}

/// A counter on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Ticket(pub(crate) AtomicUsize);

/// The start of memory that workers share by rows and columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    start: *mut f32,
    len: usize,
}

// SAFETY: steps give every element to one worker between two barriers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(floats: &mut [f32]) -> Self {
        Memory {
            start: floats.as_mut_ptr(),
            len: floats.len(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// No one writes there until the next barrier.
    unsafe fn read(&self, range: Range<usize>) -> &[f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds; that no one writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    #[allow(clippy::mut_from_ref)]
    unsafe fn write(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds; exclusivity is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// A replay at work, as one worker sees it.
#[derive(Clone, Copy)]
pub(crate) struct Cx<'a> {
    pub(crate) kernel: Set,
    pub(crate) step: &'a StepState,
    pub(crate) inputs: &'a StepInputs<'a>,
    pub(crate) caches: &'a Caches,
    pub(crate) acts: &'a ActSet,
    pub(crate) adapters: &'a Adapters,
    /// Whether a row goes through one of them.
    pub(crate) adapts: bool,
    pub(crate) memory: Memory,
    pub(crate) partials: Memory,
    pub(crate) turns: &'a [TurnTable],
    pub(crate) scratch: &'a [Own],
    pub(crate) tickets: &'a [Ticket],
    pub(crate) failure: &'a Mutex<Option<BackendError>>,
    pub(crate) watch: Watch<'a>,
}

impl<'a> Cx<'a> {
    /// Waits for the other workers.
    pub(crate) fn meet(&self, worker: &Worker<'_>) {
        worker.barrier();
        self.watch.met();
    }

    /// Rows that a leading dimension has in this step.
    pub(crate) fn count(&self, lead: Lead) -> usize {
        count(self.step, lead)
    }

    /// The step's row behind row `i` of a lead.
    pub(crate) fn step_row(&self, lead: Lead, i: usize) -> usize {
        match lead {
            Lead::Rows => i,
            Lead::LogitRows => self.step.logit_rows()[i] as usize,
            Lead::Seqs => self.step.first_row(i),
        }
    }

    /// A row of a value that no one writes before the next barrier.
    pub(crate) fn row(&self, place: Place, row: usize) -> &[f32] {
        self.cols(place, row, 0..place.width)
    }

    /// Columns of a row of a value: those that the step says a share reads. Others may be a neighbour's to write.
    pub(crate) fn cols(&self, place: Place, row: usize, cols: Range<usize>) -> &[f32] {
        let at = place.at + row * place.stride;
        // SAFETY: the tape keeps those who write these columns away; debug builds prove that it does, and record that
        // steps read no others.
        let floats = unsafe { self.memory.read(at + cols.start..at + cols.end) };
        self.watch
            .note(place.id, (row, cols), Some(floats.as_ptr()), false);
        floats
    }

    /// Columns of a row of a value, to write.
    ///
    /// # Safety
    /// No one else uses these columns until the next barrier.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn cols_mut(
        &self,
        place: Place,
        row: usize,
        cols: Range<usize>,
    ) -> &mut [f32] {
        let at = place.at + row * place.stride;
        // SAFETY: the caller's promise.
        let floats = unsafe { self.memory.write(at + cols.start..at + cols.end) };
        self.watch
            .note(place.id, (row, cols), Some(floats.as_ptr()), true);
        floats
    }

    /// A row of integers.
    pub(crate) fn ints(&self, place: Place, row: usize) -> &[i32] {
        let floats = self.row(place, row);
        // SAFETY: both types have the same size and alignment and no invalid bits.
        unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
    }

    /// A row of integers, to write.
    ///
    /// # Safety
    /// As [`Cx::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn ints_mut(&self, place: Place, row: usize) -> &mut [i32] {
        // SAFETY: the caller's promise.
        unsafe { self.some_ints_mut(place, row, 0..place.width) }
    }

    /// Columns of a row of integers, to write.
    ///
    /// # Safety
    /// As [`Cx::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn some_ints_mut(
        &self,
        place: Place,
        row: usize,
        cols: Range<usize>,
    ) -> &mut [i32] {
        // SAFETY: the caller's promise, and as in `ints`.
        unsafe {
            let floats = self.cols_mut(place, row, cols);
            std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len())
        }
    }

    /// Part of the memory between two halves of a step, to write.
    ///
    /// # Safety
    /// No one else uses this part until the next barrier.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn partial_mut(&self, at: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.partials.write(at..at + len) }
    }

    /// Part of the memory between two halves of a step.
    ///
    /// # Safety
    /// No one writes this part until the next barrier.
    pub(crate) unsafe fn partial(&self, at: usize, len: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.partials.read(at..at + len) }
    }

    /// The scratch of a worker.
    ///
    /// # Safety
    /// A step borrows it once at a time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn scratch(&self, worker: &Worker<'_>) -> &'a mut Scratch {
        // SAFETY: the index is this worker's own; one borrow at a time is the caller's promise.
        unsafe { &mut *self.scratch[worker.index()].0.get() }
    }

    /// The next number of a counter.
    pub(crate) fn ticket(&self, counter: usize) -> usize {
        self.tickets[counter].0.fetch_add(1, Ordering::Relaxed)
    }

    /// Remembers the first failure.
    pub(crate) fn fail(&self, error: BackendError) {
        let mut failure = self
            .failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

/// Rows that a leading dimension has in a step.
pub(crate) fn count(step: &StepState, lead: Lead) -> usize {
    match lead {
        Lead::Rows => step.n_rows(),
        Lead::LogitRows => step.logit_rows().len(),
        Lead::Seqs => step.n_seqs(),
    }
}
