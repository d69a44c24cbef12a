//! Activations in the forms that matmuls read, one set per leading dimension, length and form.
//!
//! With few rows every worker prepares its own copy, which costs less than a barrier; with many rows they share
//! one, written by rows.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::transmute;

use tokkata_ir::{Lead, Limits, StepState};

use super::cx::count;
use crate::arena::most;
use crate::kernels::{Activations, Forms, RowWriter};
use crate::pool::Worker;

/// Rows up to which workers prepare copies of their own.
pub(crate) const OWN_ROWS: usize = 2;

/// What distinguishes sets of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) lead: Lead,
    /// Rows per row of the lead: experts per token, or 1.
    pub(crate) times: usize,
    pub(crate) k: usize,
    pub(crate) forms: Forms,
}

struct Slot {
    data: UnsafeCell<Activations>,
    writer: Option<RowWriter<'static>>,
}

impl Slot {
    fn new(rows: usize, key: &Key) -> Self {
        Slot {
            data: UnsafeCell::new(Activations::new(rows, key.k, key.forms)),
            writer: None,
        }
    }

    fn begin(&mut self, rows: usize, key: &Key) {
        let writer = self.data.get_mut().begin(rows, key.k, key.forms);
        // SAFETY: the writer is used only while the activations it points into stay as they are: until the next
        // `begin`, which replaces it.
        self.writer = Some(unsafe { transmute::<RowWriter<'_>, RowWriter<'static>>(writer) });
    }
}

struct Set {
    key: Key,
    shared: Slot,
    own: Vec<Slot>,
    split: bool,
}

/// Every set of activations of a program.
pub(crate) struct ActSet {
    sets: Vec<Set>,
}

// SAFETY: between two barriers a row of shared activations has one writer and no reader, or readers only; own
// copies are used by their worker alone.
unsafe impl Sync for ActSet {}
// SAFETY: as above.
unsafe impl Send for ActSet {}

impl ActSet {
    /// Memory for all keys.
    pub(crate) fn new(keys: &[Key], limits: &Limits, workers: usize) -> Self {
        let set = |key: &Key| {
            let rows = most(limits, key.lead) * key.times;
            let own = if key.times == 1 && workers > 1 {
                workers
            } else {
                0
            };
            Set {
                key: *key,
                shared: Slot::new(rows, key),
                own: (0..own)
                    .map(|_| Slot::new(OWN_ROWS.min(rows), key))
                    .collect(),
                split: true,
            }
        };
        ActSet {
            sets: keys.iter().map(set).collect(),
        }
    }

    /// Prepares all sets for a step.
    pub(crate) fn begin(&mut self, step: &StepState) {
        for set in &mut self.sets {
            let rows = count(step, set.key.lead) * set.key.times;
            set.split = set.own.is_empty() || rows > OWN_ROWS;
            if set.split {
                set.shared.begin(rows, &set.key);
            } else {
                set.own
                    .iter_mut()
                    .for_each(|slot| slot.begin(rows, &set.key));
            }
        }
    }

    /// Whether workers share the rows of a set in this step.
    pub(crate) fn is_split(&self, set: usize) -> bool {
        self.sets[set].split
    }

    fn slot(&self, set: usize, worker: &Worker<'_>) -> &Slot {
        let set = &self.sets[set];
        if set.split {
            &set.shared
        } else {
            &set.own[worker.index()]
        }
    }

    /// Writes rows, the worker's share or all of its own copy.
    pub(crate) fn writer(&self, set: usize, worker: &Worker<'_>) -> RowWriter<'static> {
        let slot = self.slot(set, worker);
        if worker.index() == 0 || !self.sets[set].split {
            // SAFETY: only the atomic stamp is touched.
            unsafe { &*slot.data.get() }.renew();
        }
        slot.writer.expect("a step begins with fresh writers")
    }

    /// The activations that this worker reads.
    ///
    /// # Safety
    /// All rows are written and, where they are shared, a barrier has passed.
    pub(crate) unsafe fn get(&self, set: usize, worker: &Worker<'_>) -> &Activations {
        // SAFETY: the caller's promise.
        unsafe { &*self.slot(set, worker).data.get() }
    }
}
