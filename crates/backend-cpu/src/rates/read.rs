//! How fast sets of some size are read: from caches, or from memory.

#![allow(unsafe_code)]

use std::hint::black_box;

use super::best;
use crate::available::available_bytes;
use crate::memory::{HugeBuf, Pages};

/// No more than this part of the memory that is left.
const SHARE_OF_MEMORY: u64 = 4;
/// Bytes that a measurement reads at least: small sets are read again and again.
const LEAST_BYTES: usize = 64 << 20;

/// How a part of memory is read.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Runs that are read in turn, line by line.
    streams: usize,
    /// Bytes that lines are fetched ahead, if at all.
    ahead: Option<usize>,
}

/// What some processor reads fastest with: others lose up to half by one of them.
const WALKS: [Walk; 4] = [
    Walk::new(1, None),
    Walk::new(1, Some(4 << 10)),
    Walk::new(1, Some(16 << 10)),
    Walk::new(4, None),
];

impl Walk {
    const fn new(streams: usize, ahead: Option<usize>) -> Self {
        Walk { streams, ahead }
    }
}

/// Bytes per second of reading so many bytes, or what part of them there is room for, when they were read just before:
/// the best over kinds of pages and ways of walking. Each thread reads what it has written.
pub(super) fn bandwidth(threads: usize, bytes: usize) -> f64 {
    let room = available_bytes().map_or(u64::MAX, |b| b / SHARE_OF_MEMORY);
    let bytes = bytes.min(usize::try_from(room).unwrap_or(bytes));
    let rate = |pages| reading(threads, bytes, pages);
    [Pages::Huge, Pages::Small]
        .map(rate)
        .into_iter()
        .fold(0.0, f64::max)
}

/// The best rate over ways of walking, in one kind of pages.
fn reading(threads: usize, bytes: usize, pages: Pages) -> f64 {
    let share = bytes / threads / LINE / MOST_STREAMS * LINE * MOST_STREAMS;
    let mut parts: Vec<HugeBuf> = (0..threads)
        .map(|_| HugeBuf::with_pages(share, pages))
        .collect();
    std::thread::scope(|scope| {
        for part in &mut parts {
            scope.spawn(|| part.bytes_mut().fill(1));
        }
    });
    let times = LEAST_BYTES.div_ceil(threads * share);
    let rate = |walk: Walk| {
        best(threads, (times * threads * share) as f64, |thread| {
            for _ in 0..times {
                black_box(sum(black_box(parts[thread].bytes()), walk));
            }
        })
    };
    WALKS.map(rate).into_iter().fold(0.0, f64::max)
}

const LINE: usize = 64;
/// Shares are a multiple of so many lines.
const MOST_STREAMS: usize = 4;

/// Reads every line, in vectors where the processor has them.
fn sum(bytes: &[u8], walk: Walk) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        unsafe fn wide(bytes: &[u8], walk: Walk) -> u64 {
            // SAFETY: the processor has the feature.
            unsafe { sum_with::<avx2::Ymm>(bytes, walk) }
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { wide(bytes, walk) };
        }
    }
    // SAFETY: needs no feature.
    unsafe { sum_with::<[u64; 8]>(bytes, walk) }
}

/// Sums of what lines hold. Loads are written out: compilers make gathers of single words, at a sixth of the speed.
///
/// # Safety
/// The processor has the vectors.
trait Sum: Copy {
    unsafe fn zero() -> Self;
    unsafe fn add(self, line: &[u8; LINE]) -> Self;
    unsafe fn together(self) -> u64;
}

impl Sum for [u64; 8] {
    #[inline(always)]
    unsafe fn zero() -> Self {
        [0; 8]
    }
    #[inline(always)]
    unsafe fn add(mut self, line: &[u8; LINE]) -> Self {
        for (sum, word) in self.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
        self
    }
    #[inline(always)]
    unsafe fn together(self) -> u64 {
        self.iter().fold(0, |a, b| a ^ b)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Two halves of a line.
    #[derive(Clone, Copy)]
    pub(super) struct Ymm(__m256i, __m256i);

    // SAFETY (of every block below): the trait's contract gives the processor; a line has 64 bytes.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl super::Sum for Ymm {
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Ymm(_mm256_setzero_si256(), _mm256_setzero_si256()) }
        }
        #[inline(always)]
        unsafe fn add(self, line: &[u8; super::LINE]) -> Self {
            unsafe {
                let p = line.as_ptr().cast();
                Ymm(
                    _mm256_xor_si256(self.0, _mm256_loadu_si256(p)),
                    _mm256_xor_si256(self.1, _mm256_loadu_si256(p.add(1))),
                )
            }
        }
        #[inline(always)]
        unsafe fn together(self) -> u64 {
            let mut words = [0_u64; 4];
            unsafe {
                let all = _mm256_xor_si256(self.0, self.1);
                _mm256_storeu_si256(words.as_mut_ptr().cast(), all);
            }
            words.iter().fold(0, |a, b| a ^ b)
        }
    }
}

#[inline(always)]
unsafe fn sum_with<S: Sum>(bytes: &[u8], walk: Walk) -> u64 {
    let lines = bytes.as_chunks::<LINE>().0;
    let run = lines.len() / walk.streams;
    // SAFETY: passed on.
    unsafe {
        let mut sum = S::zero();
        for i in 0..run {
            for stream in 0..walk.streams {
                let line = &lines[stream * run + i];
                if let Some(ahead) = walk.ahead {
                    prefetch(line, ahead);
                }
                sum = sum.add(line);
            }
        }
        sum.together()
    }
}

#[inline(always)]
fn prefetch(line: &[u8; LINE], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which no address makes fail.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(ahead).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (line, ahead);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_in_cache_is_read_no_slower_than_half_of_memory() {
        let [small, large] = [1 << 20, 256 << 20].map(|bytes| bandwidth(1, bytes));
        assert!(small > 1e6 && large > 1e6);
        assert!(small > large / 2.0, "{small} {large}");
    }

    #[test]
    fn every_walk_reads_every_line_once() {
        let mut bytes = vec![0_u8; 16 * LINE];
        for (i, line) in bytes.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
            line[i] = i as u8 + 1;
        }
        // SAFETY: needs no feature.
        let expected = unsafe { sum_with::<[u64; 8]>(&bytes, WALKS[0]) };
        assert_ne!(expected, 0);
        for walk in WALKS {
            assert_eq!(sum(&bytes, walk), expected, "{walk:?}");
            let without = sum(&bytes[..15 * LINE + LINE / 2], walk);
            assert_ne!(without, expected, "{walk:?}");
        }
    }
}
