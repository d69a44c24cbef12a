//! How fast this machine reads and multiplies: the rates of a roofline.
//!
//! Products are measured with the kernels themselves, format by format, with weights and activations in cache; reading
//! with sets of several sizes, since a small model stays in cache. Other programs may have the cores meanwhile, so
//! everything is measured until its best is seen again.

mod products;
mod read;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use tokkata_core::DType;

use crate::caps::Caps;
use crate::kernels::Kernel;

/// Rates of a machine with all its threads at work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes per second of reading sets of so many bytes again and again, smaller sets first; the last are from memory.
    pub reads: Vec<(u64, f64)>,
    /// f32 multiplications and additions per second.
    pub flops_per_s: f64,
    /// Multiplications and additions per second of products with weights in each format, by the kernels.
    pub products: BTreeMap<DType, f64>,
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.memory() / 1e9;
        write!(f, "{memory:.1} GB/s")?;
        if let Some(&(bytes, rate)) = self.reads.first().filter(|_| self.reads.len() > 1) {
            write!(f, " ({:.1} in sets of {} MiB)", rate / 1e9, bytes >> 20)?;
        }
        write!(f, ", {:.0} GFLOP/s", self.flops_per_s / 1e9)?;
        for (dtype, rate) in &self.products {
            write!(f, ", {:.0} GOP/s in {}", rate / 1e9, dtype.name())?;
        }
        Ok(())
    }
}

/// Sizes of sets that are read. The last is more than the caches of usual processors hold.
const SETS: [usize; 6] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
/// Sets from this size on lie in memory, and a set that is read so much faster than memory lies in a cache.
const IN_MEMORY: u64 = 256 << 20;
const CACHED: f64 = 1.3;

impl Rates {
    /// Measures for some seconds, with `threads` threads: products with weights in `formats`.
    #[must_use]
    pub fn measure(threads: usize, formats: &[DType]) -> Self {
        let kernel = Kernel::new(&Caps::detect()).expect("the best set is built");
        let product = |&dtype: &DType| Some((dtype, products::rate(threads, kernel, dtype)?));
        let mut reads: Vec<(u64, f64)> = Vec::new();
        for bytes in SETS.into_iter().rev() {
            // Fewer bytes are read at least as fast: what seems slower was disturbed.
            let least = reads.first().map_or(0.0, |r| r.1);
            let rate = read::bandwidth(threads, bytes).max(least);
            reads.insert(0, (bytes as u64, rate));
        }
        Rates {
            reads,
            flops_per_s: products::floats(threads, kernel),
            products: formats.iter().filter_map(product).collect(),
        }
    }

    /// Bytes per second from memory.
    #[must_use]
    pub fn memory(&self) -> f64 {
        self.reads.last().map_or(0.0, |r| r.1)
    }

    /// Bytes per second of reading a set of so many bytes again and again, at most: the rate of the largest set measured
    /// that is no larger.
    #[must_use]
    pub fn read(&self, set_bytes: u64) -> f64 {
        let smaller = self.reads.iter().rev().find(|r| r.0 <= set_bytes);
        smaller.or(self.reads.first()).map_or(0.0, |r| r.1)
    }

    /// Whether a set of so many bytes that is read again and again stays in a cache.
    #[must_use]
    pub fn caches(&self, set_bytes: u64) -> bool {
        set_bytes < IN_MEMORY && self.read(set_bytes) > CACHED * self.memory()
    }

    /// Multiplications and additions per second of products with weights in a format.
    #[must_use]
    pub fn product(&self, dtype: DType) -> f64 {
        let found = self.products.get(&dtype);
        found.copied().unwrap_or(self.flops_per_s)
    }
}

/// Bytes per second of reading from memory, with so many threads.
#[must_use]
pub fn bandwidth(threads: usize) -> f64 {
    read::bandwidth(threads, SETS[SETS.len() - 1])
}

/// Measurements at least and at most, and how long they may take in all.
const PASSES: (usize, usize) = (5, 60);
const PATIENCE: Duration = Duration::from_millis(200);
/// A best is certain when it was seen so often, within this part.
const SEEN: usize = 3;
const ALIKE: f64 = 0.97;

/// The best of several measurements, of which some more come near it unless that takes too long.
fn certain(mut measure: impl FnMut() -> f64) -> f64 {
    let begin = Instant::now();
    let mut seen: Vec<f64> = Vec::new();
    loop {
        seen.push(measure());
        let best = seen.iter().copied().fold(0.0, f64::max);
        let near = seen.iter().filter(|&&rate| rate >= ALIKE * best).count();
        let enough = seen.len() >= PASSES.0 && (near >= SEEN || begin.elapsed() > PATIENCE);
        if enough || seen.len() == PASSES.1 {
            return best;
        }
    }
}

/// The best of several runs of `work` on all threads at once, in units per second.
fn best(threads: usize, units: f64, work: impl Fn(usize) + Sync) -> f64 {
    let (start, end, work) = (Barrier::new(threads + 1), Barrier::new(threads + 1), &work);
    let over = std::sync::atomic::AtomicBool::new(false);
    let stopped = || over.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (start, end) = (&start, &end);
            scope.spawn(move || {
                loop {
                    start.wait();
                    if stopped() {
                        return;
                    }
                    work(thread);
                    end.wait();
                }
            });
        }
        let rate = certain(|| {
            // Before the barrier: behind it this thread may come too late, and find the work half done.
            let begin = Instant::now();
            start.wait();
            end.wait();
            units / begin.elapsed().as_secs_f64()
        });
        over.store(true, std::sync::atomic::Ordering::Release);
        start.wait();
        rate
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_certain_was_seen_again() {
        // One sample in eight is undisturbed.
        let mut n = 0;
        let rate = certain(|| {
            n += 1;
            if n % 8 == 0 {
                100.0 - n as f64 / 100.0
            } else {
                n as f64 / 10.0
            }
        });
        assert!((99.0..=100.0).contains(&rate), "{rate}");
        assert_eq!(n, 24, "three good ones were waited for");
    }

    #[test]
    fn a_set_has_the_rate_of_the_largest_that_is_no_larger() {
        let rates = Rates {
            reads: vec![(1 << 20, 100.0), (16 << 20, 50.0), (1 << 30, 20.0)],
            flops_per_s: 7.0,
            products: BTreeMap::from([(DType::Q4_0, 9.0)]),
        };
        let read = [1 << 10, 1 << 20, 17 << 20, 999 << 20, 2 << 30].map(|b| rates.read(b));
        assert_eq!(read, [100.0, 100.0, 50.0, 50.0, 20.0]);
        assert_eq!(rates.memory(), 20.0);
        let cached = [1 << 10, 255 << 20, 256 << 20].map(|b| rates.caches(b));
        assert_eq!(cached, [true, true, false]);
        assert_eq!(
            (rates.product(DType::Q4_0), rates.product(DType::F16)),
            (9.0, 7.0)
        );
    }
}
