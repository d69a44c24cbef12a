use super::*;
use std::sync::atomic::AtomicU64;

#[test]
fn every_worker_runs_once_per_run() {
    let pool = Pool::new(3);
    let hits: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    for _ in 0..100 {
        pool.run(&|w| {
            hits[w.index()].fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    }
    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 100));
}

/// More workers than cores, and steps that depend on every other worker's last step.
#[test]
fn barriers_order_steps_when_over_subscribed() {
    let pool = Pool::new(7);
    let step = AtomicUsize::new(0);
    pool.run(&|w| {
        for i in 0..200 {
            assert_eq!(step.load(Ordering::Relaxed), i);
            w.barrier();
            if w.index() == i % w.count() {
                step.fetch_add(1, Ordering::Relaxed);
            }
            w.barrier();
        }
    })
    .unwrap();
    assert_eq!(step.load(Ordering::Relaxed), 200);
}

#[test]
fn a_panicking_worker_frees_the_others_and_the_next_run_works() {
    let pool = Pool::new(3);
    for culprit in 0..3 {
        let result = pool.run(&|w| {
            assert!(w.index() != culprit, "worker gave up");
            w.barrier();
            w.barrier();
        });
        let expected = PoolError {
            worker: culprit,
            message: "worker gave up".to_owned(),
        };
        assert_eq!(result, Err(expected));
        // Each of the others was, or was not, counted at the barrier when it left.
        let met = AtomicUsize::new(0);
        let next = pool.run(&|w| {
            met.fetch_add(1, Ordering::Relaxed);
            w.barrier();
            assert_eq!(met.load(Ordering::Relaxed), 3);
        });
        assert_eq!(next, Ok(()));
    }
}

#[test]
fn sleeping_workers_wake_for_the_next_run() {
    let pool = Pool::with_pinning(2, Pinning::Cores);
    for _ in 0..3 {
        std::thread::sleep(IDLE_SPIN * 4);
        pool.run(&|w| {
            if w.index() == 0 {
                std::thread::sleep(BARRIER_SPIN * 4);
            }
            w.barrier();
        })
        .unwrap();
    }
}

/// Cores that this thread may use.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is plain bits, and the call gets its true size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        let cores = 0..libc::CPU_SETSIZE as usize;
        cores.filter(|&c| libc::CPU_ISSET(c, &set)).collect()
    }
}

#[test]
#[cfg(target_os = "linux")]
fn pinned_workers_have_a_core_each() {
    let own = allowed();
    let pool = Pool::with_pinning(own.len(), Pinning::Cores);
    let cores = Mutex::new(Vec::new());
    pool.run(&|worker| {
        if worker.index() > 0 {
            let mine = allowed();
            assert_eq!(mine.len(), 1);
            cores.lock().unwrap().extend(mine);
        }
    })
    .unwrap();
    let mut cores = cores.into_inner().unwrap();
    cores.sort_unstable();
    cores.dedup();
    assert_eq!(cores.len(), own.len() - 1);
    assert_eq!(allowed(), own, "the caller is left alone");
}

#[test]
fn shares_cover_everything_once() {
    for (items, count) in [(0, 1), (1, 3), (10, 3), (7, 7), (100, 8)] {
        let shares: Vec<_> = (0..count).map(|i| share(items, i, count)).collect();
        assert_eq!(
            shares.iter().map(ExactSizeIterator::len).sum::<usize>(),
            items
        );
        assert!(
            shares
                .windows(2)
                .all(|w| w[0].end == w[1].start && w[0].len() >= w[1].len())
        );
    }
}

#[test]
fn tickets_are_given_out_once() {
    let pool = Pool::new(4);
    let taken = AtomicU64::new(0);
    pool.run(&|w| {
        for _ in 0..2 {
            loop {
                let ticket = w.ticket();
                if ticket >= 20 {
                    break;
                }
                taken.fetch_add(1 << ticket, Ordering::Relaxed);
            }
            w.reset_tickets();
        }
    })
    .unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), 2 * ((1 << 20) - 1));
}

#[test]
fn models_share_a_pool_for_as_long_as_one_of_them_lives() {
    let pools = Pools::new();
    let (first, second) = (pools.get(2, Pinning::Free), pools.get(2, Pinning::Free));
    assert!(Arc::ptr_eq(&first, &second));
    assert!(!Arc::ptr_eq(&first, &pools.get(2, Pinning::Cores)));
    assert!(!Arc::ptr_eq(&first, &pools.get(3, Pinning::Free)));
    let old = Arc::downgrade(&first);
    drop((first, second));
    assert!(old.upgrade().is_none(), "threads end with the last model");
    assert_eq!(pools.get(2, Pinning::Free).count(), 2);
}

/// Each caller's runs see only their own workers' counts.
#[test]
fn callers_take_turns() {
    let pool = Pool::new(2);
    let running = AtomicUsize::new(0);
    let caller = || {
        for _ in 0..200 {
            pool.run(&|w| {
                assert!(
                    running.fetch_add(1, Ordering::SeqCst) < 2,
                    "two runs at once"
                );
                w.barrier();
                w.barrier();
                running.fetch_sub(1, Ordering::SeqCst);
                w.barrier();
            })
            .unwrap();
        }
    };
    std::thread::scope(|s| {
        (0..3).for_each(|_| {
            s.spawn(caller);
        });
    });
}

/// Whoever is left out of a run does nothing in it, and is there again when it is called.
#[test]
fn runs_may_have_fewer_workers() {
    fewer_workers(&Pool::new(4));
}

#[test]
fn those_left_out_from_the_start_come_when_they_are_called() {
    drop(Pool::where_idle(4, Pinning::Free, Some(1)));
    fewer_workers(&Pool::where_idle(4, Pinning::Free, Some(1)));
    let pool = Pool::where_idle(4, Pinning::Free, Some(2));
    for workers in [2, 4, 2] {
        let seen = pool.run_some((workers < 4).then_some(4), &|w| {
            assert_eq!(w.count(), workers);
            w.barrier();
        });
        assert_eq!(seen, Ok(workers));
    }
}

fn fewer_workers(pool: &Pool) {
    let hits: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let mut wanted = [0; 4];
    for round in 0..400 {
        let workers = [4, 1, 3, 3, 2, 1][round % 6];
        let body = |w: &Worker<'_>| {
            assert_eq!(w.count(), workers);
            hits[w.index()].fetch_add(1, Ordering::Relaxed);
            w.barrier();
        };
        pool.run_on(workers, &body).unwrap();
        wanted[..workers].iter_mut().for_each(|n| *n += 1);
        let seen: Vec<u64> = hits.iter().map(|h| h.load(Ordering::Relaxed)).collect();
        assert_eq!(seen, wanted);
    }
}
