//! The numbers of adapters, from when they are attached until the last work that may name them is done.

use crate::adapter::Places;
use crate::backend::BackendError;
use crate::device::SeqRows;

/// Which numbers are taken.
#[derive(Debug)]
pub(crate) struct Attached {
    places: Places<State>,
    most: u32,
}

/// What becomes of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may be named.
    There,
    /// It was let go when so many works had been taken.
    Leaving(u64),
}

impl Attached {
    pub(crate) fn new(most: u32) -> Self {
        Attached {
            places: Places::new(most),
            most,
        }
    }

    /// A number that is free.
    pub(crate) fn free(&self) -> Result<u32, BackendError> {
        self.places.free()
    }

    pub(crate) fn take(&mut self, number: u32) {
        self.places.set(number, Some(State::There));
    }

    /// Lets one go, after so many works.
    pub(crate) fn detach(&mut self, number: u32, works: u64) {
        if self.places.get(number).is_some() {
            self.places.set(number, Some(State::Leaving(works)));
        }
    }

    /// Those that no work can name any more, once so many works are done; their numbers are free.
    pub(crate) fn ended(&mut self, done: u64) -> Vec<u32> {
        let leaves = |number: &u32| {
            let state = self.places.get(*number);
            matches!(state, Some(State::Leaving(works)) if *works <= done)
        };
        let ended: Vec<u32> = (1..=self.most).filter(leaves).collect();
        ended.iter().for_each(|&n| self.places.set(n, None));
        ended
    }

    /// Whether all that rows go through is there.
    pub(crate) fn check(&self, rows: &[SeqRows]) -> Result<(), BackendError> {
        let named = rows.iter().map(|r| r.adapter).filter(|&n| n > 0);
        let absent = named.clone().find(|&n| self.places.get(n).is_none());
        absent.map_or(Ok(()), |n| {
            Err(BackendError::Adapter(format!("number {n} is not attached")))
        })
    }
}
