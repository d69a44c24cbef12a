//! How fast this machine reads memory and multiplies: the two rates of a roofline.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::memory::HugeBuf;

/// Rates of a machine with all its threads at work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read from memory per second.
    pub bytes_per_s: f64,
    /// f32 multiplications and additions per second.
    pub flops_per_s: f64,
}

/// More than the caches of usual processors hold, and no burden to small machines.
const BUFFER_BYTES: usize = 512 << 20;
const PASSES: usize = 5;
const FMA_ROUNDS: usize = 4_000_000;
/// Accumulators: enough for every vector unit to be busy while results are on their way.
const LANES: usize = 128;

impl Rates {
    /// Measures for about half a second, with `threads` threads.
    #[must_use]
    pub fn measure(threads: usize) -> Self {
        Rates {
            bytes_per_s: bandwidth(threads, BUFFER_BYTES),
            flops_per_s: arithmetic(threads),
        }
    }
}

/// Bytes per second of sequential reads of `bytes` in huge pages, each thread its own part; the best of several.
#[must_use]
pub fn bandwidth(threads: usize, bytes: usize) -> f64 {
    let mut buffer = HugeBuf::zeroed(bytes);
    buffer.bytes_mut().fill(1);
    let (words, _) = buffer.bytes().as_chunks::<8>();
    best(threads, bytes as f64, |thread| {
        let share = words.len() / threads;
        black_box(sum(black_box(&words[thread * share..][..share])));
    })
}

/// The best of several runs of `work` on all threads at once, in units per second.
fn best(threads: usize, units: f64, work: impl Fn(usize) + Sync) -> f64 {
    let (start, end, work) = (Barrier::new(threads + 1), Barrier::new(threads + 1), &work);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (start, end) = (&start, &end);
            scope.spawn(move || {
                for _ in 0..PASSES {
                    start.wait();
                    work(thread);
                    end.wait();
                }
            });
        }
        let once = |_| {
            // Before the barrier: behind it this thread may come too late, and find the work half done.
            let begin = Instant::now();
            start.wait();
            end.wait();
            units / begin.elapsed().as_secs_f64()
        };
        (0..PASSES).map(once).fold(0.0, f64::max)
    })
}

fn arithmetic(threads: usize) -> f64 {
    let flops = (2 * LANES * (FMA_ROUNDS / LANES)) as f64;
    best(threads, flops * threads as f64, |_| {
        black_box(multiply(FMA_ROUNDS / LANES));
    })
}

/// The vector units that the compiler may use, chosen at run time.
macro_rules! dispatch {
    ($name:ident($($arg:ident: $ty:ty),*) -> $out:ty, $body:ident) => {
        fn $name($($arg: $ty),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f")]
                fn wide($($arg: $ty),*) -> $out {
                    $body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn middle($($arg: $ty),*) -> $out {
                    $body::<true>($($arg),*)
                }
                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has the feature.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has both features.
                    return unsafe { middle($($arg),*) };
                }
            }
            $body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}

dispatch!(sum(buffer: &[[u8; 8]]) -> u64, sum_with);
dispatch!(multiply(rounds: usize) -> f32, multiply_with);

#[inline(always)]
fn sum_with<const FUSED: bool>(buffer: &[[u8; 8]]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in buffer.chunks_exact(32) {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(x));
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[inline(always)]
fn multiply_with<const FUSED: bool>(rounds: usize) -> f32 {
    let (mut sums, factor) = ([1.0f32; LANES], black_box(0.999f32));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = if FUSED {
                sum.mul_add(factor, 1e-6)
            } else {
                *sum * factor + 1e-6
            };
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_some_computer() {
        let rates = Rates::measure(1);
        assert!(
            rates.bytes_per_s > 1e8 && rates.bytes_per_s < 1e13,
            "{rates:?}"
        );
        assert!(
            rates.flops_per_s > 1e8 && rates.flops_per_s < 1e13,
            "{rates:?}"
        );
    }
}
