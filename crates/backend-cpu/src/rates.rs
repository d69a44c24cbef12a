//! How fast this machine reads memory and multiplies: the two rates of a roofline.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Barrier;
use std::time::Instant;

use crate::available::available_bytes;
use crate::caps::Caps;
use crate::kernels::Kernel;
use crate::kernels::matmul::simd::{ROWS, Simd, Task};
use crate::kernels::matmul::with_set;
use crate::memory::{HugeBuf, Pages};

/// Rates of a machine with all its threads at work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read from memory per second.
    pub bytes_per_s: f64,
    /// f32 multiplications and additions per second.
    pub flops_per_s: f64,
    /// Multiplications and additions of quantised weights' codes per second, in the instructions of the kernel set.
    pub code_ops_per_s: f64,
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let giga = [self.bytes_per_s, self.flops_per_s, self.code_ops_per_s].map(|x| x / 1e9);
        let [bytes, floats, codes] = giga;
        write!(
            f,
            "{bytes:.1} GB/s, {floats:.0} GFLOP/s (f32) and {codes:.0} GOP/s (codes)"
        )
    }
}

/// More than the caches of usual processors hold.
const BUFFER_BYTES: usize = 1 << 30;
/// No more than this part of the memory that is left.
const SHARE_OF_MEMORY: u64 = 4;
const PASSES: usize = 5;
/// Vectors of sixteen results that are multiplied and added, per measurement.
const VECTORS: usize = 1 << 21;

impl Rates {
    /// Measures for about two seconds, with `threads` threads.
    #[must_use]
    pub fn measure(threads: usize) -> Self {
        let kernel = Kernel::new(&Caps::detect()).expect("the best set is built");
        let [flops_per_s, code_ops_per_s] =
            [Arithmetic::Floats, Arithmetic::Codes].map(|of| arithmetic(threads, kernel, of));
        Rates {
            bytes_per_s: bandwidth(threads),
            flops_per_s,
            code_ops_per_s,
        }
    }
}

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

/// Bytes per second of reading a gibibyte, or what part of it there is room for: the best over kinds of pages and ways
/// of walking. Each thread reads memory that it has written.
#[must_use]
pub fn bandwidth(threads: usize) -> f64 {
    let room = available_bytes().map_or(u64::MAX, |b| b / SHARE_OF_MEMORY);
    let bytes = BUFFER_BYTES.min(usize::try_from(room).unwrap_or(BUFFER_BYTES));
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
    let rate = |walk: Walk| {
        best(threads, (threads * share) as f64, |thread| {
            black_box(sum(black_box(parts[thread].bytes()), walk));
        })
    };
    WALKS.map(rate).into_iter().fold(0.0, f64::max)
}

const LINE: usize = 64;
/// Shares are a multiple of so many lines.
const MOST_STREAMS: usize = 4;

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

/// What is multiplied.
#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Floats,
    Codes,
}

/// Multiplications and additions per second of a set's own instructions.
fn arithmetic(threads: usize, kernel: Kernel, of: Arithmetic) -> f64 {
    let each = match of {
        Arithmetic::Floats => 2 * ROWS,
        Arithmetic::Codes => 2 * 4 * ROWS,
    };
    best(threads, (threads * VECTORS * each) as f64, |_| {
        macro_rules! go {
            ($set:ty) => {
                // SAFETY: the kernel proves its set.
                unsafe { multiply::<$set>(of) }
            };
        }
        with_set!(kernel.level(), go);
    })
}

/// As the kernels do it: in two halves of the rows where registers are few.
unsafe fn multiply<S: Simd>(of: Arithmetic) {
    // SAFETY: passed on.
    unsafe {
        if S::WHOLE_COLS > 1 {
            sums::<S>(of);
        } else {
            sums::<S::Low>(of);
            sums::<S::High>(of);
        }
    }
}

unsafe fn sums<S: Simd>(of: Arithmetic) {
    // SAFETY: passed on.
    unsafe {
        if S::FLOAT_COLS > 4 {
            S::vectorize(Multiply::<S, 8>(of, PhantomData));
        } else {
            S::vectorize(Multiply::<S, 4>(of, PhantomData));
        }
    }
}

/// [`VECTORS`] products of one kind, into `N` sums: enough for every vector unit to be busy while results are on their way.
struct Multiply<S, const N: usize>(Arithmetic, PhantomData<S>);

impl<S: Simd, const N: usize> Task for Multiply<S, N> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: `vectorize` answers for the set.
        unsafe {
            match self.0 {
                Arithmetic::Floats => Self::floats(),
                Arithmetic::Codes => Self::codes(),
            }
        }
    }
}

/// Quads of a block.
const QUADS: usize = 8;

impl<S: Simd, const N: usize> Multiply<S, N> {
    #[inline(always)]
    unsafe fn floats() {
        let factor = black_box(0.999_f32);
        // SAFETY: the processor has the set.
        unsafe {
            let (mut sums, factor) = ([S::zero(); N], S::splat(&factor));
            for _ in 0..VECTORS / N {
                for sum in &mut sums {
                    *sum = S::fma(*sum, factor, factor);
                }
            }
            keep::<S, N>(sums);
        }
    }

    #[inline(always)]
    unsafe fn codes() {
        let (codes, quads) = black_box(([3_u8; LINE], [[1_i8; 4]; N]));
        // SAFETY: the processor has the set; both arrays outlive the loop.
        unsafe {
            let codes = S::codes(codes.as_ptr());
            let mut sums = [S::splat_int(&0); N];
            for _ in 0..VECTORS / N / QUADS {
                let mut parts = [S::narrow_start(sums[0]); N];
                for _ in 0..QUADS {
                    for (part, quad) in parts.iter_mut().zip(&quads) {
                        *part = S::narrow_dot(*part, codes, quad.as_ptr());
                    }
                }
                for (sum, part) in sums.iter_mut().zip(parts) {
                    *sum = S::narrow_end(*sum, part);
                }
            }
            let mut floats = [S::zero(); N];
            for (float, sum) in floats.iter_mut().zip(sums) {
                *float = S::floats_of(sum);
            }
            keep::<S, N>(floats);
        }
    }
}

/// Keeps sums from being left out.
#[inline(always)]
unsafe fn keep<S: Simd, const N: usize>(sums: [S::Floats; N]) {
    let mut out = [0.0_f32; ROWS];
    for sum in sums {
        // SAFETY: room for sixteen floats.
        unsafe { S::store(out.as_mut_ptr(), sum) };
        black_box(&out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_some_computer() {
        let kernel = Kernel::new(&Caps::detect()).unwrap();
        let floats = arithmetic(1, kernel, Arithmetic::Floats);
        let codes = arithmetic(1, kernel, Arithmetic::Codes);
        let read = [Pages::Huge, Pages::Small].map(|p| reading(1, 64 << 20, p));
        for rate in [floats, codes, read[0], read[1]] {
            // Emulators are slow.
            assert!(rate > 1e6 && rate < 1e14, "{rate}");
        }
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
