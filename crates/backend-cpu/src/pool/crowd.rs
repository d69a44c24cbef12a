//! How many workers to use on a machine whose cores others want too.
//!
//! Workers meet at barriers many times a run. One whose core another program has for a few milliseconds keeps all the
//! others waiting that long, so that many workers are slower than one. Such workers are seen by their clocks: they
//! neither ran nor slept of their own will. Runs go on without so many of them, and try again now and then.
//!
//! Before the first run there are no clocks to go by, only a look at how many cores are idle at that moment. It is soon repeated:
//! whatever ran for that moment must not cost a prompt half of its speed.

use std::time::Duration;

/// Share of a run's time from which a worker counts as pushed aside.
const MUCH: f64 = 0.3;
/// Weight of the newest run.
const NEWEST: f64 = 0.25;
/// What a worker that was left out begins with when it is tried again: it is soon seen whether nothing has changed.
const DOUBT: f64 = 0.25;
/// Runs without the workers that were left out before they are tried again, and how long these must have taken, since a
/// try costs some milliseconds however short runs are: at first, and at most.
const PATIENCE: [(u32, Duration); 2] = [
    (32, Duration::from_millis(100)),
    (512, Duration::from_secs(5)),
];
/// Where runs are long, so many times that long is enough, however few they were: a try costs one of them at most.
const LONG: u32 = 4;
/// Runs take so long before it is looked again whether cores are idle: far longer than a look.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Workers begin without those for whom no core is idle, if these are one in so many.
const WORTH_LEAVING: usize = 4;

/// What was seen of workers lately.
#[derive(Debug)]
pub(super) struct Crowd {
    /// By worker: running means of the share of time that others had its core.
    robbed: Vec<f64>,
    workers: usize,
    /// Until all are tried again.
    left: (u32, Duration),
    patience: (u32, Duration),
    /// Until they are, however few the runs.
    at_most: Duration,
    /// Until it is looked again whether cores are idle, where no more than a look left workers out.
    look_in: Option<Duration>,
}

/// How many of so many workers a look at how many cores are idle leaves, as far as that is known.
fn at_a_look(count: usize, idle: Option<usize>) -> usize {
    let idle = idle.unwrap_or(count).clamp(1, count);
    if WORTH_LEAVING * (count - idle) >= count {
        idle
    } else {
        count
    }
}

impl Crowd {
    /// Of so many workers, where so many cores are idle, as far as that is known.
    pub(super) fn new(count: usize, idle: Option<usize>) -> Self {
        let workers = at_a_look(count, idle);
        Crowd {
            robbed: vec![0.0; count],
            workers,
            left: PATIENCE[0],
            patience: PATIENCE[0],
            at_most: LONG * PATIENCE[0].1,
            look_in: (workers < count).then_some(Duration::ZERO),
        }
    }

    /// Whether to look how many cores are idle before the next run.
    pub(super) fn wants_look(&self) -> bool {
        self.look_in == Some(Duration::ZERO)
    }

    /// So many cores are idle, as far as that is known.
    pub(super) fn looked(&mut self, idle: Option<usize>) {
        self.look_in = Some(LOOK_AGAIN);
        let all = self.robbed.len();
        if idle.is_some() && at_a_look(all, idle) == all {
            self.all_again(0.0);
        }
    }

    /// All workers run again, who others are taken to have pushed aside for such a share of the time.
    fn all_again(&mut self, robbed: f64) {
        self.workers = self.robbed.len();
        self.robbed.fill(robbed);
        self.look_in = None;
    }

    /// How many the next run has.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// A run ended: how long it took, and for how much of that others had the core of each of its workers.
    pub(super) fn saw(&mut self, took: Duration, robbed: impl Iterator<Item = Duration>) {
        for (mean, robbed) in self.robbed.iter_mut().zip(robbed) {
            let share = robbed.as_secs_f64() / took.as_secs_f64().max(1e-9);
            *mean += NEWEST * (share.min(1.0) - *mean);
        }
        let all = self.robbed.len();
        let aside = self.robbed[..self.workers].iter();
        let aside = aside.filter(|&&mean| mean > MUCH).count();
        // Alone a worker keeps nobody waiting.
        if aside > 0 && self.workers > 1 {
            self.workers = (self.workers - aside).max(1);
            (self.left, self.at_most) = (self.patience, LONG * self.patience.1);
            let ((runs, time), most) = (self.patience, PATIENCE[1]);
            self.patience = ((2 * runs).min(most.0), (2 * time).min(most.1));
            self.robbed.fill(0.0);
            self.look_in = None;
        } else if self.workers < all {
            let (runs, time) = self.left;
            self.left = (runs.saturating_sub(1), time.saturating_sub(took));
            self.at_most = self.at_most.saturating_sub(took);
            self.look_in = self.look_in.map(|left| left.saturating_sub(took));
            if self.left == (0, Duration::ZERO) || self.at_most.is_zero() {
                self.all_again(DOUBT);
            }
        } else if self.robbed.iter().all(|&mean| mean < MUCH / 8.0) {
            self.patience = PATIENCE[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Duration = Duration::ZERO;
    const HALF: Duration = Duration::from_millis(5);
    const WHOLE: Duration = Duration::from_millis(10);

    /// Runs until the number of workers changes, which others keep from theirs so long.
    fn until_changed(crowd: &mut Crowd, took: Duration, robbed: Duration) -> usize {
        let before = crowd.workers();
        for run in 1..10_000 {
            crowd.saw(took, std::iter::repeat_n(robbed, before));
            if crowd.workers() != before {
                return run;
            }
        }
        panic!("nothing changes");
    }

    #[test]
    fn where_every_core_is_wanted_one_worker_goes_on() {
        let mut crowd = Crowd::new(4, None);
        assert!(until_changed(&mut crowd, WHOLE, HALF) < 6);
        assert_eq!(crowd.workers(), 1);
        assert_eq!(until_changed(&mut crowd, WHOLE, HALF), 32, "robbed or not");
        assert_eq!(crowd.workers(), 4);
        assert!(
            until_changed(&mut crowd, WHOLE, HALF) < 4,
            "soon seen again"
        );
        assert_eq!(
            until_changed(&mut crowd, WHOLE, NOTHING),
            64,
            "and left longer"
        );
        for _ in 0..40 {
            crowd.saw(WHOLE, [NOTHING; 4].into_iter());
        }
        until_changed(&mut crowd, WHOLE, WHOLE);
        assert_eq!(
            until_changed(&mut crowd, WHOLE, NOTHING),
            32,
            "forgotten in peace"
        );
    }

    #[test]
    fn short_runs_wait_as_long_for_those_left_out() {
        let mut crowd = Crowd::new(2, None);
        let short = Duration::from_micros(500);
        until_changed(&mut crowd, short, short);
        assert_eq!(until_changed(&mut crowd, short, NOTHING), 200, "100 ms");
    }

    #[test]
    fn workers_begin_without_those_for_whom_no_core_is_idle() {
        let begun = |count, idle| Crowd::new(count, idle).workers();
        assert_eq!(
            (
                begun(2, None),
                begun(2, Some(2)),
                begun(2, Some(1)),
                begun(2, Some(0))
            ),
            (2, 2, 1, 1)
        );
        assert_eq!(
            (begun(16, Some(15)), begun(16, Some(12)), begun(4, Some(60))),
            (16, 12, 4)
        );
        let mut crowd = Crowd::new(2, Some(1));
        assert_eq!(
            until_changed(&mut crowd, WHOLE, NOTHING),
            32,
            "and try again"
        );
    }

    #[test]
    fn long_runs_do_not_wait_for_many() {
        let mut crowd = Crowd::new(2, None);
        let long = Duration::from_millis(150);
        until_changed(&mut crowd, long, long);
        assert_eq!(until_changed(&mut crowd, long, NOTHING), 3, "400 ms");
        until_changed(&mut crowd, long, long);
        assert_eq!(until_changed(&mut crowd, long, NOTHING), 6, "800 ms");
    }

    #[test]
    fn what_a_look_left_out_is_looked_for_again() {
        let mut crowd = Crowd::new(2, Some(1));
        assert!(crowd.wants_look(), "before the first run");
        crowd.looked(Some(1));
        let mut runs = 0;
        while !crowd.wants_look() {
            crowd.saw(Duration::from_millis(3), [NOTHING].into_iter());
            runs += 1;
        }
        assert_eq!((runs, crowd.workers()), (4, 1), "12 ms later");
        crowd.looked(None);
        assert_eq!(crowd.workers(), 1, "nothing is known");
        crowd.looked(Some(2));
        assert_eq!((crowd.workers(), crowd.wants_look()), (2, false));
        let mut crowd = Crowd::new(16, Some(12));
        crowd.looked(Some(13));
        assert_eq!(crowd.workers(), 16, "three are not worth it");
        let mut crowd = Crowd::new(16, Some(12));
        until_changed(&mut crowd, WHOLE, WHOLE);
        crowd.saw(LOOK_AGAIN, [NOTHING].into_iter());
        assert!(!crowd.wants_look(), "clocks know better");
    }

    #[test]
    fn one_that_is_pushed_aside_is_left_out_and_noise_is_not() {
        let mut crowd = Crowd::new(16, None);
        for run in 0..100 {
            let noise = |worker: u32| if worker == run % 16 { WHOLE } else { NOTHING };
            crowd.saw(WHOLE, (0..16).map(noise));
            assert_eq!(crowd.workers(), 16);
        }
        for _ in 0..8 {
            // Fifteen find a core of their own each.
            let wanted = crowd.workers() == 16;
            let hog = |worker: u32| if worker == 3 && wanted { HALF } else { NOTHING };
            crowd.saw(WHOLE, (0..crowd.workers() as u32).map(hog));
        }
        assert_eq!(crowd.workers(), 15);
    }
}
