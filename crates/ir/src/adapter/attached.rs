//! The numbers of adapters, from when they are attached until the last work that may name them is done.

use super::Places;
use crate::backend::BackendError;
use crate::device::SeqRows;

/// Which numbers of an executor are taken.
#[derive(Debug)]
pub struct Attached {
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
    /// Room for so many.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Attached {
            places: Places::new(most),
            most,
        }
    }

    /// A number that is free.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] when there is none.
    pub fn free(&self) -> Result<u32, BackendError> {
        self.places.free()
    }

    /// Lets a number that was free be named.
    pub fn take(&mut self, number: u32) {
        self.places.set(number, Some(State::There));
    }

    /// Lets one go, after so many works.
    pub fn detach(&mut self, number: u32, works: u64) {
        if self.places.get(number).is_some() {
            self.places.set(number, Some(State::Leaving(works)));
        }
    }

    /// Those that no work can name any more, once so many works are done; their numbers are free.
    pub fn ended(&mut self, done: u64) -> Vec<u32> {
        let leaves = |number: &u32| {
            let state = self.places.get(*number);
            matches!(state, Some(State::Leaving(works)) if *works <= done)
        };
        let ended: Vec<u32> = (1..=self.most).filter(leaves).collect();
        ended.iter().for_each(|&n| self.places.set(n, None));
        ended
    }

    /// Whether all that the rows of a work go through is there: works are counted from 1 on.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] for a number that is not attached, or was let go before that work.
    pub fn check(&self, rows: &[SeqRows], work: u64) -> Result<(), BackendError> {
        let mut named = rows.iter().map(|r| r.adapter).filter(|&n| n > 0);
        let is_there = |number| match self.places.get(number) {
            Some(State::There) => true,
            Some(State::Leaving(works)) => work <= *works,
            None => false,
        };
        let absent = named.find(|&n| !is_there(n));
        absent.map_or(Ok(()), |n| {
            Err(BackendError::Adapter(format!("number {n} is not attached")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SeqSlot;

    #[test]
    fn an_adapter_stays_until_the_works_before_its_end_are_done() {
        let mut attached = Attached::new(2);
        let rows = |adapter| SeqRows {
            adapter,
            ..SeqRows::tokens(SeqSlot(0), &[1])
        };
        for number in [1, 2] {
            assert_eq!(attached.free().unwrap(), number);
            attached.take(number);
        }
        attached.detach(1, 7);
        assert!(attached.ended(6).is_empty());
        assert!(attached.check(&[rows(1), rows(0)], 7).is_ok());
        assert!(attached.check(&[rows(1)], 8).is_err(), "a later work");
        assert!(attached.free().is_err());
        assert_eq!(attached.ended(7), [1]);
        let text = attached
            .check(&[rows(2), rows(1)], 8)
            .unwrap_err()
            .to_string();
        assert_eq!(text, "adapters: number 1 is not attached");
        assert_eq!(attached.free().unwrap(), 1);
        attached.detach(1, 9);
        assert!(attached.ended(9).is_empty(), "it was gone before");
    }
}
