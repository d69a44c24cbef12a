//! Threads and what they share: the system's, or with `--cfg loom` those of a model that tries every order of events.

#[cfg(not(loom))]
mod threads {
    use std::sync::LazyLock;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use crate::busy::Clock;
    use crate::pool::signal::Nap;

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

    /// A moment that threads tell each other.
    #[derive(Default)]
    pub(in crate::pool) struct Stamp(AtomicU64);

    /// What moments are counted from.
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    impl Stamp {
        pub(in crate::pool) fn set(&self) {
            let now = START.elapsed().as_nanos() as u64;
            self.0.store(now, Ordering::Relaxed);
        }

        /// How long ago that was.
        pub(in crate::pool) fn elapsed(&self) -> Duration {
            let then = Duration::from_nanos(self.0.load(Ordering::Relaxed));
            START.elapsed().saturating_sub(then)
        }
    }

    /// Tells for how much of a time others had the core of this thread.
    pub(in crate::pool) struct Watch(Clock);

    impl Watch {
        pub(in crate::pool) fn start() -> Self {
            Watch(Clock::start())
        }

        /// Of the time since, that in which it neither ran nor slept of its own will.
        pub(in crate::pool) fn robbed(&self, nap: Nap) -> Duration {
            let wall = self.0.wall();
            let robbed = |ran| wall.saturating_sub(ran + nap.slept) + nap.late;
            self.0.ran().map_or(Duration::ZERO, robbed)
        }
    }
}

#[cfg(loom)]
mod threads {
    use std::time::Duration;

    use crate::pool::signal::Nap;

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

    /// A model has no clock.
    #[derive(Default)]
    pub(in crate::pool) struct Stamp;

    impl Stamp {
        pub(in crate::pool) fn set(&self) {}

        pub(in crate::pool) fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// In a model nobody else has the cores.
    pub(in crate::pool) struct Watch;

    impl Watch {
        pub(in crate::pool) fn start() -> Self {
            Watch
        }

        pub(in crate::pool) fn robbed(&self, _: Nap) -> Duration {
            Duration::ZERO
        }
    }
}

pub(super) use threads::*;
