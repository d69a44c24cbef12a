//! Persistent worker threads that run one closure together and meet at barriers.
//!
//! The caller is worker 0. Waiting spins for a short while and then sleeps, so the pool stays
//! correct, and does not burn cores, when there are more threads than cores. When a worker panics,
//! everyone leaves its barrier and [`Pool::run`] returns the message; the next run is not concerned.
//! Models of one process share a pool ([`Pools`]): runs of several callers take turns.
//!
//! ```
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use tokkata_backend_cpu::pool::Pool;
//! let pool = Pool::new(2);
//! let sum = AtomicUsize::new(0);
//! pool.run(&|worker| {
//!     sum.fetch_add(worker.share(10).len(), Ordering::Relaxed);
//!     worker.barrier();
//!     assert_eq!(sum.load(Ordering::Relaxed), 10);
//! })
//! .unwrap();
//! ```
#![allow(unsafe_code)]

#[cfg(all(test, loom))]
mod model;
mod shared;
mod signal;
mod sync;
mod turns;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use shared::Pools;
pub use tokkata_ir::tape::share;

use signal::{Padded, Signal};
use sync::{AtomicBool, AtomicUsize, Builder, Cell, JoinHandle, Mutex, Ordering};
use turns::Turns;

/// How long an idle worker spins for the next run before it sleeps: longer than the host's work
/// between two decode steps.
const IDLE_SPIN: Duration = Duration::from_micros(300);
/// How long a worker spins at a barrier before it sleeps.
const BARRIER_SPIN: Duration = Duration::from_micros(100);

/// A run did not finish: a worker panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} panicked: {message}")]
pub struct PoolError {
    /// Index of the worker.
    pub worker: usize,
    /// Its panic message.
    pub message: String,
}

/// Whether workers are bound to cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// The system places threads.
    #[default]
    Free,
    /// Worker `i` runs on the `i`-th core this process may use, or again the first when there are no more: one thread of
    /// each physical core, then the others. The caller's thread is left alone.
    Cores,
}

type Job = *const (dyn Fn(&Worker<'_>) + Sync);

struct Shared {
    count: usize,
    /// Bumped once per run; an odd number of workers may still be asleep on it.
    epoch: Padded<Signal>,
    done: Padded<Signal>,
    arrived: Padded<AtomicUsize>,
    generation: Padded<Signal>,
    ticket: Padded<AtomicUsize>,
    /// A worker panicked in this run.
    poisoned: AtomicBool,
    stop: AtomicBool,
    job: Cell<Option<Job>>,
    failure: Mutex<Option<PoolError>>,
}

// SAFETY: `job` is written only by whoever has the turn while all workers wait on `epoch`,
// and read only between the bump of `epoch` and the worker's count in `done`.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is used only during `Pool::run`, which outlives every use.
unsafe impl Send for Shared {}

/// A set of persistent threads.
pub struct Pool {
    shared: Arc<Shared>,
    turns: Turns,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

/// What a closure knows of the thread that runs it.
pub struct Worker<'a> {
    index: usize,
    shared: &'a Shared,
}

/// Carries the unwinding of a worker whose neighbour panicked.
struct LeftPoisoned;

impl Pool {
    /// A pool of `count` workers (at least 1), the caller among them.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self::with_pinning(count, Pinning::Free)
    }

    /// A pool of `count` workers, placed as `pinning` says.
    #[must_use]
    pub fn with_pinning(count: usize, pinning: Pinning) -> Self {
        let shared = Arc::new(Shared::new(count.max(1)));
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            let body = move || {
                pin(pinning, index);
                shared.serve(index);
            };
            let builder = Builder::new().name(format!("tokkata-{index}"));
            builder.spawn(body).expect("the system gives a thread")
        };
        let threads = (1..shared.count).map(spawn).collect();
        Self {
            shared,
            turns: Turns::default(),
            threads,
        }
    }

    /// Number of workers, the caller included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Runs `body` on every worker and returns when all have finished. Callers take turns; `body` must not call this.
    ///
    /// # Errors
    /// When a worker panics.
    pub fn run(&self, body: &(dyn Fn(&Worker<'_>) + Sync)) -> Result<(), PoolError> {
        let _turn = self.turns.take();
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Every worker counts itself in `done` after its last
        // use, and this function waits for all of them before it returns.
        let job: Job = unsafe { std::mem::transmute(std::ptr::from_ref(body)) };
        // SAFETY: no worker reads `job` before `epoch` is bumped.
        shared.job.with_mut(|to| unsafe { *to = Some(job) });
        shared.done.set(0);
        shared.ticket.store(0, Ordering::Relaxed);
        shared.epoch.add(1);
        shared.execute(0, body);
        shared
            .done
            .wait(IDLE_SPIN, |done| done as usize == shared.count - 1);
        shared.settle()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.add(1);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn new(count: usize) -> Self {
        Self {
            count,
            epoch: Padded::default(),
            done: Padded::default(),
            arrived: Padded::default(),
            generation: Padded::default(),
            ticket: Padded::default(),
            poisoned: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            job: Cell::new(None),
            failure: Mutex::new(None),
        }
    }

    /// The life of a spawned worker.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.epoch.wait(IDLE_SPIN, |epoch| epoch != seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: `run` wrote the job before it bumped `epoch` and keeps it alive until `done`.
            let job = self.job.with(|job| unsafe { *job });
            let job = job.expect("a bumped epoch comes with a job");
            // SAFETY: as above.
            self.execute(index, unsafe { &*job });
            self.done.add(1);
        }
    }

    fn execute(&self, index: usize, body: &(dyn Fn(&Worker<'_>) + Sync)) {
        let worker = Worker {
            index,
            shared: self,
        };
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(&worker))) else {
            return;
        };
        if !payload.is::<LeftPoisoned>() {
            let failure = PoolError {
                worker: index,
                message: message_of(&*payload),
            };
            let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert(failure);
        }
        self.poisoned.store(true, Ordering::SeqCst);
        self.generation.add(1);
    }

    /// How a run ended that every worker has left; the next starts afresh.
    fn settle(&self) -> Result<(), PoolError> {
        if !self.poisoned.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        self.arrived.store(0, Ordering::Relaxed);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), Err)
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

impl Worker<'_> {
    /// This worker's number, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of workers in the run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Returns once every worker has called it; what others wrote before is visible after.
    pub fn barrier(&self) {
        let shared = self.shared;
        if shared.count == 1 {
            return;
        }
        let generation = shared.generation.get();
        // A panic after this look bumps the generation; one before it shows here.
        self.leave_if_poisoned();
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == shared.count {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.generation.add(1);
        } else {
            shared
                .generation
                .wait(BARRIER_SPIN, |now| now != generation);
        }
        self.leave_if_poisoned();
    }

    fn leave_if_poisoned(&self) {
        if self.shared.poisoned.load(Ordering::SeqCst) {
            resume_unwind(Box::new(LeftPoisoned));
        }
    }

    /// This worker's contiguous share of `0..items`; shares differ by at most one.
    #[must_use]
    pub fn share(&self, items: usize) -> Range<usize> {
        share(items, self.index, self.count())
    }

    /// A number no other worker gets in this run, from 0 upwards: for work stealing. All workers
    /// that steal from one list must meet at [`Worker::reset_tickets`] before the next list.
    pub fn ticket(&self) -> usize {
        self.shared.ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts tickets again from 0, with a barrier before and after.
    pub fn reset_tickets(&self) {
        self.barrier();
        if self.index == 0 {
            self.shared.ticket.store(0, Ordering::Relaxed);
        }
        self.barrier();
    }
}

#[cfg(target_os = "linux")]
fn pin(pinning: Pinning, index: usize) {
    if pinning == Pinning::Free {
        return;
    }
    // SAFETY: `cpu_set_t` is plain bits, both calls get its true size, and concern this thread only.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let bytes = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, bytes, &raw mut allowed) != 0 {
            return;
        }
        let cores = (0..libc::CPU_SETSIZE as usize).filter(|&c| libc::CPU_ISSET(c, &allowed));
        let mut cores: Vec<usize> = cores.collect();
        cores.sort_by_key(|&core| !is_first_thread(core));
        let Some(&core) = cores.iter().cycle().nth(index) else {
            return;
        };
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut one);
        libc::sched_setaffinity(0, bytes, &raw const one);
    }
}

/// Whether a logical core is the first of its physical core, as far as the system tells.
#[cfg(target_os = "linux")]
fn is_first_thread(core: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let first = list.trim().split([',', '-']).next();
    first
        .and_then(|first| first.parse().ok())
        .is_none_or(|first: usize| first == core)
}

#[cfg(not(target_os = "linux"))]
fn pin(_: Pinning, _: usize) {}

#[cfg(all(test, not(loom)))]
mod tests;
