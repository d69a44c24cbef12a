//! The pool in a model that tries every order of events: `cargo xtask loom`.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::model::Builder;

use super::{Pinning, Pool, Worker};

/// Tries all orders with at most so many places where a thread is interrupted though it could go on.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// A cell that the model watches: using it from two threads without order between them is a failure.
struct Watched(UnsafeCell<usize>);

// SAFETY: that threads keep apart is what the model checks.
unsafe impl Sync for Watched {}

impl Watched {
    fn new() -> Self {
        Watched(UnsafeCell::new(0))
    }

    fn add(&self) {
        // SAFETY: the model fails where another thread uses the cell.
        self.0.with_mut(|x| unsafe { *x += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: as above.
        self.0.with(|x| unsafe { *x })
    }
}

#[test]
fn a_barrier_orders_what_workers_do() {
    explore(3, || {
        let pool = Pool::new(2);
        let cells = [Watched::new(), Watched::new()];
        let body = |worker: &Worker<'_>| {
            cells[worker.index()].add();
            worker.barrier();
            assert_eq!(cells[1 - worker.index()].get(), 1);
            worker.barrier();
            cells[1 - worker.index()].add();
        };
        pool.run(&body).expect("no worker panics");
        assert_eq!((cells[0].get(), cells[1].get()), (2, 2));
    });
}

#[test]
fn runs_follow_each_other_and_the_pool_ends() {
    explore(2, || {
        let pool = Pool::new(2);
        let cells = [Watched::new(), Watched::new()];
        for round in 1..3 {
            pool.run(&|worker| cells[worker.index()].add())
                .expect("no worker panics");
            assert_eq!((cells[0].get(), cells[1].get()), (round, round));
        }
    });
}

#[test]
fn callers_have_the_workers_to_themselves() {
    explore(2, || {
        let pool = Arc::new(Pool::new(2));
        let cells = Arc::new([Watched::new(), Watched::new()]);
        let call = |pool: &Pool, cells: &[Watched; 2]| {
            pool.run(&|worker| cells[worker.index()].add())
                .expect("no worker panics");
        };
        let (their_pool, their_cells) = (Arc::clone(&pool), Arc::clone(&cells));
        let other = loom::thread::spawn(move || call(&their_pool, &their_cells));
        call(&pool, &cells);
        other.join().expect("the other caller ends");
        assert_eq!((cells[0].get(), cells[1].get()), (2, 2));
    });
}

#[test]
fn one_that_was_left_out_comes_when_it_is_called() {
    explore(2, || {
        let pool = Pool::new(2);
        let cells = [Watched::new(), Watched::new()];
        let body = |worker: &Worker<'_>| cells[worker.index()].add();
        for workers in [1, 1, 2] {
            pool.run_on(workers, &body).expect("no worker panics");
        }
        assert_eq!((cells[0].get(), cells[1].get()), (3, 1));
    });
}

#[test]
fn one_that_is_left_out_from_the_start_comes_when_it_is_called() {
    for runs in [&[][..], &[1, 2], &[2, 1]] {
        explore(2, move || {
            let pool = Pool::where_idle(2, Pinning::Free, Some(1));
            let cells = [Watched::new(), Watched::new()];
            let body = |worker: &Worker<'_>| cells[worker.index()].add();
            for &workers in runs {
                pool.run_on(workers, &body).expect("no worker panics");
            }
            let called = runs.iter().filter(|&&workers| workers == 2).count();
            assert_eq!((cells[0].get(), cells[1].get()), (runs.len(), called));
        });
    }
}
