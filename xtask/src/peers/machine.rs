//! What the machine gives: memory bandwidth and clock, measured between the runs.

use std::hint::black_box;
use std::time::Instant;

use tokkata_backend_cpu::rates;

/// Bytes per second of the fastest reads of memory.
pub(super) fn bandwidth(threads: usize) -> f64 {
    rates::bandwidth(threads)
}

/// Clock of a busy core: a chain of multiplications takes three cycles each.
pub(super) fn clock() -> f64 {
    let steps = 50_000_000_u64;
    let once = |_| {
        let start = Instant::now();
        let (mut x, mut i) = (black_box(3_u64), 0);
        // No iterator: a build that is not optimised would measure that.
        while i < steps {
            x = x.wrapping_mul(x | i);
            i += 1;
        }
        black_box(x);
        4.0 * steps as f64 / start.elapsed().as_secs_f64()
    };
    (0..3).map(once).fold(0.0, f64::max)
}
