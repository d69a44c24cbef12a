//! A number that threads wait on: they spin for a while, then sleep.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::sync::{AtomicU32, Condvar, LOOKS, Mutex, Ordering, Stamp, patience, settle};

/// Keeps its content on cache lines of its own (two, for the adjacent-line prefetcher).
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

#[derive(Default)]
pub(super) struct Signal {
    value: AtomicU32,
    sleepers: AtomicU32,
    /// When sleepers were last called.
    called: Stamp,
    lock: Mutex<()>,
    wake: Condvar,
}

/// A thread's sleep while it waited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nap {
    /// All of it.
    pub(super) slept: Duration,
    /// From when it was called until it had a core again.
    pub(super) late: Duration,
}

impl std::ops::AddAssign for Nap {
    fn add_assign(&mut self, other: Nap) {
        self.slept += other.slept;
        self.late += other.late;
    }
}

impl Signal {
    pub(super) fn get(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
    }

    /// Adds to the value and wakes all who sleep on it.
    pub(super) fn add(&self, step: u32) {
        self.value.fetch_add(step, Ordering::SeqCst);
        settle();
        // A sleeper announces itself before its last look at the value (both sequentially
        // consistent), so either it sees the new value or this sees the sleeper.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.called.set();
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Waits until `ready(value)`, spinning for at most `spin`; returns the value, and its sleep.
    pub(super) fn wait(&self, spin: Duration, ready: impl Fn(u32) -> bool) -> (u32, Nap) {
        if let Some(value) = self.spin(spin, &ready) {
            return (value, Nap::default());
        }
        let start = Instant::now();
        let value = self.sleep(&ready);
        let slept = start.elapsed();
        let late = self.called.elapsed().min(slept);
        (value, Nap { slept, late })
    }

    fn spin(&self, limit: Duration, ready: &impl Fn(u32) -> bool) -> Option<u32> {
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                let value = self.get();
                if ready(value) {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            if start.get_or_insert_with(Instant::now).elapsed() >= patience(limit) {
                return None;
            }
        }
    }

    fn sleep(&self, ready: &impl Fn(u32) -> bool) -> u32 {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        settle();
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let value = loop {
            let value = self.value.load(Ordering::SeqCst);
            if ready(value) {
                break value;
            }
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        value
    }
}
