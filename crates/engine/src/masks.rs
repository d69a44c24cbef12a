//! Threads that ask constraints, shared by all requests, so that no step waits for a grammar.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokkata_ir::sample::Mask;

use crate::request::{Constraint, RequestId};

/// Threads at most.
const THREADS: usize = 2;

/// What a constraint is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// How the answer begins.
    Begin,
    /// What follows a token.
    Accept(u32),
}

/// What a constraint said.
pub(crate) struct Told {
    pub(crate) request: RequestId,
    /// The constraint, on its way back.
    pub(crate) constraint: Box<dyn Constraint>,
    /// Tokens that are forced, and what may come after them.
    pub(crate) told: Result<(Vec<u32>, Option<Mask>), String>,
}

struct Job {
    request: RequestId,
    constraint: Box<dyn Constraint>,
    ask: Ask,
}

/// The threads; none are started before there is something to ask.
pub(crate) struct MaskPool {
    jobs: Option<Sender<Job>>,
    queue: Arc<Mutex<Receiver<Job>>>,
    results: Sender<Told>,
    told: Receiver<Told>,
    threads: usize,
    away: usize,
}

impl MaskPool {
    pub(crate) fn new() -> Self {
        let (jobs, queue) = channel();
        let (results, told) = channel();
        MaskPool {
            jobs: Some(jobs),
            queue: Arc::new(Mutex::new(queue)),
            results,
            told,
            threads: 0,
            away: 0,
        }
    }

    /// Asks, on a thread where the system gives one.
    pub(crate) fn ask(&mut self, request: RequestId, constraint: Box<dyn Constraint>, ask: Ask) {
        self.away += 1;
        if self.threads < THREADS && self.threads < self.away && self.start() {
            self.threads += 1;
        }
        let job = Job {
            request,
            constraint,
            ask,
        };
        match (&self.jobs, self.threads) {
            (Some(jobs), 1..) => jobs.send(job).expect("the queue outlives its senders"),
            _ => self
                .results
                .send(answer(job))
                .expect("the pool holds the receiver"),
        }
    }

    fn start(&self) -> bool {
        let (queue, results) = (Arc::clone(&self.queue), self.results.clone());
        let work = move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = next else { return };
                if results.send(answer(job)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("masks".to_owned());
        thread.spawn(work).is_ok()
    }

    /// The next answer, after waiting at most `patience` for it; `None` when none came or none is due.
    pub(crate) fn told(&mut self, patience: Duration) -> Option<Told> {
        if self.away == 0 {
            return None;
        }
        match self.told.recv_timeout(patience) {
            Ok(told) => {
                self.away -= 1;
                Some(told)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Whether a constraint is being asked.
    pub(crate) fn is_busy(&self) -> bool {
        self.away > 0
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        // Threads end with the queue.
        self.jobs = None;
    }
}

/// Asks a constraint. One that panics has no way on.
fn answer(job: Job) -> Told {
    let Job {
        request,
        mut constraint,
        ask,
    } = job;
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut forced = Vec::new();
        match ask {
            Ask::Begin => constraint.begin(&mut forced)?,
            Ask::Accept(token) => constraint.accept(token, &mut forced)?,
        }
        Ok((forced, constraint.mask()?))
    }));
    let told = told.unwrap_or_else(|_| Err("the grammar's engine failed".to_owned()));
    Told {
        request,
        constraint,
        told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slow(Duration);

    impl Constraint for Slow {
        fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
            assert!(token != 9, "a bug");
            forced.push(token + 1);
            Ok(())
        }

        fn mask(&mut self) -> Result<Option<Mask>, String> {
            std::thread::sleep(self.0);
            Ok(Some(Mask::new(vec![1])))
        }
    }

    #[test]
    fn a_slow_constraint_keeps_no_other_waiting() {
        let mut pool = MaskPool::new();
        let slow = Box::new(Slow(Duration::from_millis(300)));
        pool.ask(RequestId(1), slow, Ask::Begin);
        pool.ask(RequestId(2), Box::new(Slow(Duration::ZERO)), Ask::Accept(4));
        let first = pool.told(Duration::from_secs(5)).unwrap();
        assert_eq!(
            (first.request, first.told.unwrap().0),
            (RequestId(2), vec![5])
        );
        assert!(pool.told(Duration::ZERO).is_none() && pool.is_busy());
        let second = pool.told(Duration::from_secs(5)).unwrap();
        assert_eq!(
            (second.request, second.told.unwrap().0),
            (RequestId(1), vec![])
        );
        assert!(!pool.is_busy() && pool.told(Duration::from_secs(5)).is_none());
    }

    #[test]
    fn a_constraint_that_panics_fails_alone() {
        let mut pool = MaskPool::new();
        pool.ask(RequestId(1), Box::new(Slow(Duration::ZERO)), Ask::Accept(9));
        let told = pool.told(Duration::from_secs(5)).unwrap();
        assert!(told.told.is_err());
        pool.ask(RequestId(1), told.constraint, Ask::Accept(1));
        assert!(pool.told(Duration::from_secs(5)).unwrap().told.is_ok());
    }
}
