//! Threads that ask constraints, shared by all requests, so that no step waits for a grammar.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokkata_ir::sample::Mask;

use crate::request::{Constraint, RequestId};

/// Threads at most.
const THREADS: usize = 2;

/// What a constraint is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// How the answer begins.
    Begin,
    /// What follows these tokens.
    Accept(Vec<u32>),
    /// What would follow each token of a draft, as far as the draft is allowed, after this mask.
    Try(Vec<u32>, Option<Mask>),
}

/// What a constraint answers.
pub(crate) enum Says {
    /// Tokens that are forced, and what may come after them.
    Next(Vec<u32>, Option<Mask>),
    /// What may come after each token of a draft that is allowed.
    Tried(Vec<Option<Mask>>),
}

/// What a constraint said.
pub(crate) struct Told {
    pub(crate) request: RequestId,
    /// The constraint, on its way back.
    pub(crate) constraint: Box<dyn Constraint>,
    pub(crate) told: Result<Says, String>,
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
        let told = match patience {
            // Where there are no threads, nothing can be waited for either.
            Duration::ZERO => self.told.try_recv().ok(),
            _ => self.told.recv_timeout(patience).ok(),
        };
        self.away -= usize::from(told.is_some());
        told
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
            Ask::Accept(tokens) => accept(constraint.as_mut(), &tokens, &mut forced)?,
            Ask::Try(draft, mask) => return tried(constraint.as_mut(), &draft, mask),
        }
        Ok(Says::Next(forced, constraint.mask()?))
    }));
    let told = told.unwrap_or_else(|_| Err("the grammar's engine failed".to_owned()));
    Told {
        request,
        constraint,
        told,
    }
}

fn accept(
    constraint: &mut dyn Constraint,
    tokens: &[u32],
    forced: &mut Vec<u32>,
) -> Result<(), String> {
    for &token in tokens {
        if !forced.is_empty() {
            return Err("the constraint forces other tokens than when it was tried".to_owned());
        }
        constraint.accept(token, forced)?;
    }
    Ok(())
}

/// Goes through a draft and back. Behind a token that forces others nothing is drawn, so a draft ends before it.
fn tried(
    constraint: &mut dyn Constraint,
    draft: &[u32],
    mut mask: Option<Mask>,
) -> Result<Says, String> {
    let (mut masks, mut taken) = (Vec::new(), 0);
    for &token in draft {
        if !mask.as_ref().is_none_or(|m| m.allows(token)) {
            break;
        }
        let mut forced = Vec::new();
        constraint.accept(token, &mut forced)?;
        taken += 1 + forced.len();
        if !forced.is_empty() {
            break;
        }
        mask = constraint.mask()?;
        masks.push(mask.clone());
    }
    constraint.rollback(taken)?;
    Ok(Says::Tried(masks))
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

    fn forced(told: Told) -> Vec<u32> {
        match told.told {
            Ok(Says::Next(forced, _)) => forced,
            _ => panic!("it was asked what comes next"),
        }
    }

    /// Allows 3, then 4 or 9, and so on in turn; after 9 comes a forced 5.
    #[derive(Default)]
    struct Turns {
        taken: Vec<u32>,
    }

    impl Constraint for Turns {
        fn accept(&mut self, token: u32, forced: &mut Vec<u32>) -> Result<(), String> {
            self.taken.push(token);
            if token == 9 {
                self.taken.push(5);
                forced.push(5);
            }
            Ok(())
        }

        fn mask(&mut self) -> Result<Option<Mask>, String> {
            let odd = self.taken.len() % 2 == 1;
            Ok(Some(Mask::new(vec![if odd {
                1 << 4 | 1 << 9
            } else {
                1 << 3
            }])))
        }

        fn rollback(&mut self, tokens: usize) -> Result<(), String> {
            self.taken.truncate(self.taken.len() - tokens);
            Ok(())
        }
    }

    #[test]
    fn a_draft_is_cut_where_it_is_refused_or_something_is_forced_and_taken_back() {
        let mut turns = Turns::default();
        let masks = |draft: &[u32], turns: &mut Turns| {
            let mask = turns.mask().unwrap();
            match tried(turns, draft, mask).unwrap() {
                Says::Tried(masks) => masks.len(),
                Says::Next(..) => unreachable!(),
            }
        };
        assert_eq!(masks(&[3, 4, 3, 4], &mut turns), 4);
        assert_eq!(masks(&[3, 4, 4, 4], &mut turns), 2);
        assert_eq!(masks(&[3, 9, 5], &mut turns), 1, "9 forces");
        assert_eq!(masks(&[30], &mut turns), 0);
        assert!(turns.taken.is_empty(), "everything was taken back");
    }

    #[test]
    fn a_slow_constraint_keeps_no_other_waiting() {
        let mut pool = MaskPool::new();
        let slow = Box::new(Slow(Duration::from_millis(300)));
        pool.ask(RequestId(1), slow, Ask::Begin);
        pool.ask(
            RequestId(2),
            Box::new(Slow(Duration::ZERO)),
            Ask::Accept(vec![4]),
        );
        let first = pool.told(Duration::from_secs(5)).unwrap();
        assert_eq!((first.request, forced(first)), (RequestId(2), vec![5]));
        assert!(pool.told(Duration::ZERO).is_none() && pool.is_busy());
        let second = pool.told(Duration::from_secs(5)).unwrap();
        assert_eq!((second.request, forced(second)), (RequestId(1), vec![]));
        assert!(!pool.is_busy() && pool.told(Duration::from_secs(5)).is_none());
    }

    #[test]
    fn a_constraint_that_panics_fails_alone() {
        let mut pool = MaskPool::new();
        pool.ask(
            RequestId(1),
            Box::new(Slow(Duration::ZERO)),
            Ask::Accept(vec![9]),
        );
        let told = pool.told(Duration::from_secs(5)).unwrap();
        assert!(told.told.is_err());
        pool.ask(RequestId(1), told.constraint, Ask::Accept(vec![1]));
        assert!(pool.told(Duration::from_secs(5)).unwrap().told.is_ok());
    }
}
