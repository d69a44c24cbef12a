//! Speed of the matmul kernels against this machine's arithmetic and memory.
//!
//! `cargo run --release -p tokkata-backend-cpu --example matmul_bench -- [threads] [set] [formats] [shapes] [tuning]`
//!
//! Prints, per format, shape and number of rows, multiply–adds per core cycle, bytes of weights per
//! second and the share of the bandwidth that plain sequential reads reach in the same run. The
//! clock is that of a chain of dependent additions. Times are processor time of the slowest worker,
//! so that other programs disturb them less; the first shape fits caches and shows the arithmetic.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokkata_backend_cpu::caps::Caps;
use tokkata_backend_cpu::kernels::{Activations, Kernel, Scratch, Store};
use tokkata_backend_cpu::layout::{Matrix, Order, Part};
use tokkata_backend_cpu::memory::{HugeBuf, Slab};
use tokkata_backend_cpu::pool::Pool;
use tokkata_core::DType;

/// Outputs and inputs of the measured products.
const SHAPES: [(usize, usize); 4] = [(128, 1024), (3072, 1024), (8192, 2048), (151_936, 1024)];
const ROWS: [usize; 9] = [1, 2, 4, 8, 12, 16, 32, 64, 252];
/// Time per measurement; the best repetition counts.
const BUDGET: Duration = Duration::from_millis(150);
/// Weights that one repetition streams, so that caches do not help single rows.
const STREAMED_BYTES: usize = 600 << 20;
/// Multiply–adds above which one repetition is enough work.
const HEAVY: f64 = 3e9;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let caps = args.next().map_or_else(Caps::detect, |name| {
        Caps::limited_to(&name).expect("a set of this machine")
    });
    let mut kernel = Kernel::new(&caps).expect("a kernel set");
    let wanted = args
        .next()
        .unwrap_or_else(|| "F16,BF16,Q4_0,Q8_0,Q4_K,Q5_K,Q6_K".to_owned());
    let shapes = args
        .next()
        .and_then(|a| a.parse().ok())
        .unwrap_or(SHAPES.len());
    if let Some(text) = args.next() {
        kernel = kernel.tuned(&text.parse().expect("a tuning"));
    }
    let pool = Pool::new(threads);
    let (ghz, bandwidth) = (clock_ghz(), bandwidth(&pool));
    println!(
        "{} on {threads} threads, {ghz:.2} GHz, reads {bandwidth:.1} GB/s",
        caps.level().name()
    );
    for name in wanted.split(',') {
        let dtype = DType::from_name(name).expect("an element type");
        for &(n, k) in &SHAPES[..shapes] {
            measure(&Setup {
                kernel,
                pool: &pool,
                ghz,
                bandwidth,
                dtype,
                n,
                k,
            });
        }
    }
}

struct Setup<'a> {
    kernel: Kernel,
    pool: &'a Pool,
    ghz: f64,
    bandwidth: f64,
    dtype: DType,
    n: usize,
    k: usize,
}

fn measure(setup: &Setup<'_>) {
    let matrices = matrices(setup);
    let rate = matrices[0].bytes() as f64 / SPENT.load(Ordering::Relaxed) as f64;
    println!(
        "{:7} {:>6}x{:<5} packed at {rate:.2} GB/s",
        setup.dtype.name(),
        setup.n,
        setup.k
    );
    for rows in ROWS {
        let macs = (rows * setup.n * setup.k) as f64;
        let count = if macs > HEAVY || setup.n == SHAPES[0].0 {
            1
        } else {
            matrices.len()
        };
        let seconds = best_seconds(|| multiply(setup, &matrices[..count], rows)) / count as f64;
        let per_cycle = macs / seconds / setup.ghz / 1e9 / setup.pool.count() as f64;
        let rate = matrices[0].bytes() as f64 / seconds / 1e9;
        println!(
            "{:7} {:>6}x{:<5} rows {rows:<4} {per_cycle:6.1} MAC/cycle/core {rate:7.1} GB/s ({:3.0} %) {:9.1} us",
            setup.dtype.name(),
            setup.n,
            setup.k,
            100.0 * rate / setup.bandwidth,
            seconds * 1e6
        );
    }
}

/// Enough copies that one repetition does not fit caches.
fn matrices(setup: &Setup<'_>) -> Vec<Matrix> {
    let part = Part {
        dtype: setup.dtype,
        rows: setup.n,
    };
    let raw = raw_rows(setup.dtype, setup.k);
    let source = |_: usize, rows: std::ops::Range<usize>, to: &mut [u8]| {
        let bytes = to.len() / rows.len().max(1);
        to.chunks_exact_mut(bytes)
            .for_each(|row| row.copy_from_slice(&raw[..bytes]));
        Ok(())
    };
    let slab = Slab::default();
    let pack = || {
        let parts = (&[part][..], Order::Sequential);
        Matrix::pack_in(&slab, setup.pool, setup.k, parts, &source).expect("a matrix")
    };
    let first = pack();
    let count = (STREAMED_BYTES / first.bytes()).clamp(1, 200);
    let matrices: Vec<_> = std::iter::once(first)
        .chain((1..count).map(|_| pack()))
        .collect();
    SPENT.store(
        (0..3).map(|_| packing_ns(&pack)).min().unwrap_or(0),
        Ordering::Relaxed,
    );
    matrices
}

/// A row whose halves are small and whose codes are of all kinds.
fn raw_rows(dtype: DType, k: usize) -> Vec<u8> {
    let bytes = dtype.row_bytes(k).expect("whole blocks");
    (0..bytes)
        .map(|i| {
            if i % 2 == 1 {
                0x1c
            } else {
                ((i * 37) >> 3) as u8
            }
        })
        .collect()
}

/// Wall time of packing one matrix.
fn packing_ns(pack: &dyn Fn() -> Matrix) -> u64 {
    let start = Instant::now();
    black_box(pack());
    start.elapsed().as_nanos() as u64
}

fn multiply(setup: &Setup<'_>, matrices: &[Matrix], rows: usize) {
    let x: Vec<f32> = (0..rows * setup.k)
        .map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0)
        .collect();
    let mut a = Activations::default();
    let writer = a.begin(rows, setup.k, setup.kernel.forms(&matrices[0]));
    for (r, row) in x.chunks(setup.k).enumerate() {
        write_row(&setup.kernel, writer, r, row);
    }
    let mut y = vec![0.0; rows * setup.n];
    SPENT.store(0, Ordering::Relaxed);
    run(setup, matrices, &a, &mut y);
    black_box(&y);
}

/// Processor time of this thread.
#[allow(unsafe_code)]
fn processor_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the last repetition without its preparation.
static SPENT: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code)]
fn write_row(
    kernel: &Kernel,
    writer: tokkata_backend_cpu::kernels::RowWriter<'_>,
    r: usize,
    row: &[f32],
) {
    // SAFETY: only this thread writes, and nothing reads yet.
    unsafe { writer.write(kernel, r, row) };
}

#[allow(unsafe_code)]
fn run(setup: &Setup<'_>, matrices: &[Matrix], a: &Activations, y: &mut [f32]) {
    // SAFETY: workers get disjoint shares of the panels.
    let store = unsafe { Store::new(y, setup.n) };
    let body = |worker: &tokkata_backend_cpu::pool::Worker<'_>| {
        let (mut scratch, mut store) = (Scratch::default(), store);
        let first = matrices[0].share(0, worker.count());
        setup.kernel.matmul(
            &matrices[0],
            a,
            0..first.end.min(2),
            &mut scratch,
            &mut store,
        );
        let start = processor_ns();
        for matrix in matrices {
            let share = matrix.share(worker.index(), worker.count());
            setup
                .kernel
                .matmul(matrix, a, share, &mut scratch, &mut store);
        }
        SPENT.fetch_max(processor_ns() - start, Ordering::Relaxed);
    };
    setup.pool.run(&body).expect("no worker panics");
}

fn best_seconds(mut f: impl FnMut()) -> f64 {
    let (start, mut best, mut times) = (Instant::now(), f64::MAX, 0);
    while times < 3 || start.elapsed() < BUDGET {
        f();
        best = best.min(SPENT.load(Ordering::Relaxed) as f64 * 1e-9);
        times += 1;
    }
    best
}

/// Best of a few sequential reads of 1 GiB on all workers.
fn bandwidth(pool: &Pool) -> f64 {
    let mut buf = HugeBuf::zeroed(1 << 30);
    buf.bytes_mut().fill(1);
    let bytes = buf.bytes();
    let best = best_seconds(|| {
        SPENT.store(0, Ordering::Relaxed);
        pool.run(&|w| {
            let start = processor_ns();
            black_box(sum(&bytes[w.share(bytes.len())]));
            SPENT.fetch_max(processor_ns() - start, Ordering::Relaxed);
        })
        .expect("no worker panics");
    });
    bytes.len() as f64 / best / 1e9
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<64>().0;
    let mut sums = [0_u64; 8];
    for (i, line) in words.iter().enumerate() {
        prefetch(words, i + 256);
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

#[allow(unsafe_code)]
#[inline(always)]
fn prefetch(words: &[[u8; 64]], i: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(
            words.as_ptr().wrapping_add(i).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (words, i);
}

/// Cycles per nanosecond, from a chain of additions that take a cycle each.
fn clock_ghz() -> f64 {
    const STEPS: u64 = 20_000;
    let best = best_seconds(|| {
        let (start, mut x) = (Instant::now(), 0_u64);
        for i in 0..STEPS {
            x = black_box_chain(x, i);
        }
        black_box(x);
        SPENT.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    });
    STEPS as f64 * CHAIN as f64 / best / 1e9
}

/// Dependent single-cycle operations per step.
const CHAIN: u64 = 10;

#[inline(always)]
#[allow(unsafe_code)]
fn black_box_chain(mut x: u64, i: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: register arithmetic only.
    unsafe {
        std::arch::asm!(
            "add {x}, {i}", "add {x}, {i}", "add {x}, {i}", "add {x}, {i}", "add {x}, {i}",
            "add {x}, {i}", "add {x}, {i}", "add {x}, {i}", "add {x}, {i}", "add {x}, {i}",
            x = inout(reg) x, i = in(reg) i, options(nomem, nostack)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for _ in 0..CHAIN {
        x = black_box(x.wrapping_add(i));
    }
    x
}
