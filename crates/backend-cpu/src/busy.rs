//! Whether other programs have the cores, as a thread's own clock tells.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long this thread has run, as far as the system tells.
#[cfg(unix)]
fn thread_time() -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes a time and nothing else.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    (failed == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(not(unix))]
fn thread_time() -> Option<Duration> {
    None
}

/// The time since a moment: everybody's, and this thread's own, which stands while others have its core.
pub(crate) struct Clock {
    wall: Instant,
    own: Option<Duration>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock {
            wall: Instant::now(),
            own: thread_time(),
        }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.wall.elapsed()
    }

    /// How long this thread has run since; `None` where the system does not tell.
    pub(crate) fn ran(&self) -> Option<Duration> {
        let then = self.own?;
        Some(thread_time()?.saturating_sub(then))
    }
}

/// Looks of [`idle_cores`], and the time between them: what runs for a moment only is seen in one of them. Whoever slept
/// that long on a busy machine would wait for a core again.
const LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_micros(100);

/// Cores that nothing else runs on now, this thread's among them; `None` where the system does not tell. Looks no
/// further once so many are known to be idle.
pub(crate) fn idle_cores(enough: usize) -> Option<usize> {
    // A model of threads has no other programs.
    if cfg!(loom) {
        return None;
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    idle_of(cores(&online)?, enough, |look| {
        if look > 0 {
            spin(BETWEEN);
        }
        running(&std::fs::read_to_string("/proc/loadavg").ok()?)
    })
}

/// The same of so many cores, where a look tells how many threads run, this one among them.
fn idle_of(cores: usize, enough: usize, look: impl FnMut(u32) -> Option<usize>) -> Option<usize> {
    let mut idle = 0;
    for running in (0..LOOKS).map(look) {
        idle = idle.max((cores + 1).saturating_sub(running?));
        if idle >= enough {
            break;
        }
    }
    Some(idle)
}

/// Threads that run or want to, of a text like `0.20 0.18 0.12 2/80 11206`.
fn running(text: &str) -> Option<usize> {
    let (running, _) = text.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// How many a list like `0-3,8` names.
fn cores(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    ranges.sum()
}

/// Share of a time in which others had the cores of so many busy threads, 0 to 1: the mean over threads. 0 where the
/// system does not tell.
#[must_use]
pub fn share(threads: usize, time: Duration) -> f64 {
    let all: Vec<f64> = std::thread::scope(|scope| {
        let spinning = || (0..threads).map(|_| scope.spawn(move || spin(time)));
        let spinning: Vec<_> = spinning().collect();
        spinning.into_iter().filter_map(|s| s.join().ok()).collect()
    });
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Runs for so long; the share of it in which it did not.
fn spin(time: Duration) -> f64 {
    let clock = Clock::start();
    let mut n = 0_u64;
    while clock.wall() < time {
        n = black_box(n + 1);
    }
    let wall = clock.wall();
    clock.ran().map_or(0.0, |ran| {
        1.0 - (ran.as_secs_f64() / wall.as_secs_f64()).min(1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_read_as_it_tells() {
        assert_eq!(running("11.37 9.61 7.81 11/166 2063\n"), Some(11));
        assert_eq!(running("nonsense"), None);
        assert_eq!(
            (cores("0-3,8\n"), cores("0"), cores("3-1"), cores("")),
            (Some(5), Some(1), None, None)
        );
        if cfg!(target_os = "linux") {
            assert!(idle_cores(usize::MAX).is_none_or(|n| n < 1 << 16));
        }
    }

    #[test]
    fn it_is_looked_until_enough_cores_were_seen_idle() {
        let looks = |running: [usize; 3], enough| {
            let mut looks = 0;
            let idle = idle_of(4, enough, |look| {
                looks = look + 1;
                Some(running[look as usize])
            });
            (idle, looks)
        };
        assert_eq!(looks([1, 9, 9], 4), (Some(4), 1));
        assert_eq!(
            looks([3, 2, 9], 3),
            (Some(3), 2),
            "what ran for a moment only"
        );
        assert_eq!(looks([5, 3, 4], 4), (Some(2), 3), "the most of all looks");
        assert_eq!(looks([9, 9, 9], 1), (Some(0), 3));
        assert_eq!(idle_of(4, 4, |_| None), None);
    }

    #[test]
    fn more_threads_than_cores_take_each_other_aside() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = share(4 * cores, Duration::from_millis(200));
        assert!(crowded > 0.5 && crowded <= 1.0, "{crowded}");
        assert!((0.0..=1.0).contains(&share(1, Duration::from_millis(20))));
    }
}
