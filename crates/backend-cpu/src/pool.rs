//! Persistent worker threads that run one closure together and meet at barriers.
//!
//! The caller is worker 0. Waiting spins for a short while and then sleeps, so the pool stays
//! correct, and does not burn cores, when there are more threads than cores. When a worker panics,
//! everyone leaves its barrier and [`Pool::run`] returns the message; the next run is not concerned.
//! Models of one process share a pool ([`Pools`]): runs of several callers take turns. Where other programs have the
//! cores, [`Pool::run_some`] leaves out workers that would keep the others waiting.
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

mod crowd;
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
use std::time::{Duration, Instant};

pub use shared::Pools;
pub use tokkata_ir::tape::share;

use crate::busy;
use crowd::Crowd;
use signal::{Nap, Padded, Signal};
use sync::{AtomicBool, AtomicU32, AtomicUsize, Builder, Cell, JoinHandle, Mutex, Ordering, Watch};
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

/// Workers of a run, as the number of runs tells them: the low bits of it.
const WORKERS: u32 = (1 << 12) - 1;

/// Most workers of a pool.
pub const MOST_WORKERS: usize = WORKERS as usize;

struct Shared {
    count: usize,
    /// Which run it is, and in the low bits how many workers it has.
    epoch: Padded<Signal>,
    /// Changes when a run has more workers than the last: those who were left out wait for it.
    called: Signal,
    /// By worker: for how much of its last run others had its core, in microseconds.
    robbed: Vec<Padded<AtomicU32>>,
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
    crowd: Mutex<Crowd>,
    /// Tells how many cores are idle, or whether so many are.
    look: Option<fn(usize) -> Option<usize>>,
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
    /// Workers of the run.
    count: usize,
    shared: &'a Shared,
    /// Its sleep for this run.
    nap: std::cell::Cell<Nap>,
}

/// Carries the unwinding of a worker whose neighbour panicked.
struct LeftPoisoned;

impl Pool {
    /// A pool of `count` workers (1 to [`MOST_WORKERS`]), the caller among them.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self::with_pinning(count, Pinning::Free)
    }

    /// A pool of `count` workers, placed as `pinning` says.
    #[must_use]
    pub fn with_pinning(count: usize, pinning: Pinning) -> Self {
        // One worker keeps nobody waiting.
        let idle = (count > 1).then(|| busy::idle_cores(count));
        let mut pool = Self::where_idle(count, pinning, idle.flatten());
        pool.look = Some(busy::idle_cores);
        pool
    }

    /// The same where so many cores are idle, as far as that is known.
    fn where_idle(count: usize, pinning: Pinning, idle: Option<usize>) -> Self {
        let count = count.clamp(1, MOST_WORKERS);
        let crowd = Crowd::new(count, idle);
        let first = crowd.workers();
        let shared = Arc::new(Shared::new(count, first));
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            let body = move || {
                pin(pinning, index);
                shared.serve(index, first);
            };
            let builder = Builder::new().name(format!("tokkata-{index}"));
            builder.spawn(body).expect("the system gives a thread")
        };
        let threads = (1..shared.count).map(spawn).collect();
        Self {
            turns: Turns::default(),
            crowd: Mutex::new(crowd),
            look: None,
            shared,
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
        self.run_on(self.count(), body)
    }

    /// As [`Pool::run`], but on at most so many workers, and on no more than have lately had a core of their own: one
    /// that others push aside keeps all who meet it waiting. Without a number on all. Returns how many that were.
    ///
    /// # Errors
    /// As [`Pool::run`].
    pub fn run_some(
        &self,
        most: Option<usize>,
        body: &(dyn Fn(&Worker<'_>) + Sync),
    ) -> Result<usize, PoolError> {
        let Some(most) = most else {
            return self.run(body).map(|()| self.count());
        };
        let _turn = self.turns.take();
        let mut crowd = self.crowd.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = self.look.filter(|_| crowd.wants_look()) {
            crowd.looked(look(self.count()));
        }
        let (workers, start) = (crowd.workers().min(most.max(1)), Instant::now());
        self.run_on(workers, body)?;
        let robbed = self.shared.robbed[..workers].iter();
        let robbed = robbed.map(|us| Duration::from_micros(us.load(Ordering::Relaxed).into()));
        crowd.saw(start.elapsed(), robbed);
        Ok(workers)
    }

    /// A run of somebody whose turn it is.
    fn run_on(&self, workers: usize, body: &(dyn Fn(&Worker<'_>) + Sync)) -> Result<(), PoolError> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Every worker counts itself in `done` after its last
        // use, and this function waits for all of them before it returns.
        let job: Job = unsafe { std::mem::transmute(std::ptr::from_ref(body)) };
        // SAFETY: no worker reads `job` before `epoch` is bumped.
        shared.job.with_mut(|to| unsafe { *to = Some(job) });
        shared.done.set(0);
        shared.ticket.store(0, Ordering::Relaxed);
        let before = shared.epoch.get();
        let next = (before | WORKERS).wrapping_add(1) | workers as u32;
        shared.epoch.add(next.wrapping_sub(before));
        if workers > (before & WORKERS) as usize {
            shared.called.add(1);
        }
        shared.execute((0, workers), Nap::default(), body);
        let (_, nap) = shared
            .done
            .wait(IDLE_SPIN, |done| done as usize == workers - 1);
        shared.robbed[0].fetch_add(micros(nap.late), Ordering::Relaxed);
        shared.settle()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.add(WORKERS + 1);
        self.shared.called.add(1);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Shared {
    /// For so many workers, of which runs have so many at first.
    fn new(count: usize, first: usize) -> Self {
        let epoch: Padded<Signal> = Padded::default();
        epoch.set(first as u32);
        Self {
            count,
            epoch,
            called: Signal::default(),
            robbed: (0..count).map(|_| Padded::default()).collect(),
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

    /// The life of a spawned worker of a pool whose runs have so many at first.
    fn serve(&self, index: usize, first: usize) {
        let mut seen = first as u32;
        // Whoever is left out from the start wants no core.
        if index >= first {
            self.called.wait(Duration::ZERO, |called| called != 0);
        }
        loop {
            let called = self.called.get();
            let (now, nap) = self.epoch.wait(IDLE_SPIN, |epoch| epoch != seen);
            seen = now;
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let workers = (seen & WORKERS) as usize;
            if index >= workers {
                // Whoever calls bumps `epoch` first: if that was before `called` was read, `seen` is the newer run.
                self.called.wait(Duration::ZERO, |now| now != called);
                continue;
            }
            // SAFETY: `run_on` wrote the job before it bumped `epoch` and keeps it alive until `done`, which it does
            // not see before this worker, one of the run's, has counted itself.
            let job = self.job.with(|job| unsafe { *job });
            let job = job.expect("a bumped epoch comes with a job");
            let before = Nap {
                slept: Duration::ZERO,
                ..nap
            };
            // SAFETY: as above.
            self.execute((index, workers), before, unsafe { &*job });
            self.done.add(1);
        }
    }

    /// A worker's part of a run, for which it came `nap.late`.
    fn execute(
        &self,
        (index, count): (usize, usize),
        nap: Nap,
        body: &(dyn Fn(&Worker<'_>) + Sync),
    ) {
        let worker = Worker {
            index,
            count,
            shared: self,
            nap: std::cell::Cell::new(nap),
        };
        let watch = Watch::start();
        let ended = catch_unwind(AssertUnwindSafe(|| body(&worker)));
        let robbed = watch.robbed(worker.nap.get());
        self.robbed[index].store(micros(robbed), Ordering::Relaxed);
        let Err(payload) = ended else {
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

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
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
        self.count
    }

    /// Returns once every worker has called it; what others wrote before is visible after.
    pub fn barrier(&self) {
        let shared = self.shared;
        if self.count == 1 {
            return;
        }
        let generation = shared.generation.get();
        // A panic after this look bumps the generation; one before it shows here.
        self.leave_if_poisoned();
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.generation.add(1);
        } else {
            let (_, nap) = shared
                .generation
                .wait(BARRIER_SPIN, |now| now != generation);
            let mut all = self.nap.get();
            all += nap;
            self.nap.set(all);
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
