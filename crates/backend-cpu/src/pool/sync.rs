//! Threads and what they share: the system's, or with `--cfg loom` those of a model that tries every order of events.

#[cfg(not(loom))]
mod threads {
    use std::time::Duration;

    pub(in crate::pool) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
    pub(in crate::pool) use std::sync::{Condvar, Mutex};
    pub(in crate::pool) use std::thread::{Builder, JoinHandle};

    /// A cell whose users keep apart by themselves.
    #[derive(Debug)]
    pub(in crate::pool) struct Cell<T>(std::cell::UnsafeCell<T>);

    impl<T> Cell<T> {
        pub(in crate::pool) fn new(x: T) -> Self {
            Cell(std::cell::UnsafeCell::new(x))
        }

        pub(in crate::pool) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(in crate::pool) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// Looks at a number between two readings of the clock.
    pub(in crate::pool) const LOOKS: u32 = 32;

    /// How long to look at a number before going to sleep.
    pub(in crate::pool) fn patience(usual: Duration) -> Duration {
        usual
    }

    /// Orders what is before with what is after for all threads. Sequentially consistent accesses do so already.
    #[inline]
    pub(in crate::pool) fn settle() {}
}

#[cfg(loom)]
mod threads {
    use std::time::Duration;

    pub(in crate::pool) use loom::cell::UnsafeCell as Cell;
    pub(in crate::pool) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
    pub(in crate::pool) use loom::sync::{Condvar, Mutex};
    pub(in crate::pool) use loom::thread::{Builder, JoinHandle};

    /// A look more changes nothing in a model but the number of orders.
    pub(in crate::pool) const LOOKS: u32 = 1;

    /// Nor does waiting.
    pub(in crate::pool) fn patience(_: Duration) -> Duration {
        Duration::ZERO
    }

    /// The model takes sequentially consistent accesses for weaker ones, but not fences.
    pub(in crate::pool) fn settle() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

pub(super) use threads::*;
