//! Workers that sleep before steps picked at random, so that a missing barrier shows in the numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One step of so many is slept before.
const ONE_IN: u64 = 64;
/// Long beside a small model's step.
const PAUSE: Duration = Duration::from_micros(100);

/// The state of the dice, shared by all workers.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Jitter(AtomicU64::new(seed))
    }

    /// Sleeps, or not.
    pub(crate) fn pause(&self) {
        let state = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33;
        if mixed.is_multiple_of(ONE_IN) {
            std::thread::sleep(PAUSE);
        }
    }
}
