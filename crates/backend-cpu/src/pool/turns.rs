//! Turns: whoever asked first goes first.

use std::sync::PoisonError;

use super::sync::{Condvar, Mutex};

/// A lock that is passed on in the order in which it was asked for, so that of two models that share a pool neither
/// waits for more than one run of the other.
#[derive(Default)]
pub(super) struct Turns {
    /// The next number to give out, and the one whose turn it is.
    numbers: Mutex<(u64, u64)>,
    passed: Condvar,
}

/// Somebody's turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for its turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = numbers.0;
        numbers.0 += 1;
        while numbers.1 != own {
            let waited = self.passed.wait(numbers);
            numbers = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let numbers = &self.0.numbers;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).1 += 1;
        self.0.passed.notify_all();
    }
}
