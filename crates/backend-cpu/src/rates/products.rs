//! How fast the kernels multiply.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use tokkata_core::DType;

use super::{best, certain};
use crate::busy::Clock;
use crate::kernels::matmul::simd::{ROWS, Simd, Task};
use crate::kernels::matmul::with_set;
use crate::kernels::{Activations, Kernel, Scratch, Store};
use crate::layout::{Matrix, Order, Part};
use crate::pool::Pool;

/// Outputs, columns and rows of a product whose weights and activations fit into a core's cache.
const OUTPUTS: usize = 256;
const COLUMNS: usize = 1024;
const RANKS: usize = 256;
/// Vectors of sixteen results that are multiplied and added, per measurement.
const VECTORS: usize = 1 << 21;

/// Multiplications and additions per second that `threads` threads make of products with weights of a format, or `None`
/// where the layout does not know it. Each thread is measured by its own clock, which stands while others have its core.
pub(super) fn rate(threads: usize, kernel: Kernel, dtype: DType) -> Option<f64> {
    let matrix = matrix(dtype)?;
    let mut x = Activations::default();
    let writer = x.begin(RANKS, COLUMNS, kernel.forms(&matrix));
    let row: Vec<f32> = (0..COLUMNS).map(|i| (i * 29 % 63) as f32 - 31.0).collect();
    // SAFETY: one thread writes, and none reads yet.
    (0..RANKS).for_each(|r| unsafe { writer.write(&kernel, r, &row) });
    let (x, matrix) = (&x, &matrix);
    Some(std::thread::scope(|scope| {
        let one = |_| scope.spawn(move || product(kernel, matrix, x));
        let all: Vec<_> = (0..threads).map(one).collect();
        let rates = all.into_iter().map(|thread| thread.join().unwrap_or(0.0));
        rates.sum()
    }))
}

/// A matrix of small weights.
fn matrix(dtype: DType) -> Option<Matrix> {
    let parts = [Part {
        dtype,
        rows: OUTPUTS,
    }];
    let floats = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64);
    let source = |_: usize, _: Range<usize>, to: &mut [u8]| {
        let byte = |i: usize| {
            if floats {
                0x3c
            } else {
                (i * 37 % 251) as u8 & 0x3b
            }
        };
        to.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
        Ok(())
    };
    Matrix::pack(&Pool::new(1), COLUMNS, &parts, Order::Sequential, &source).ok()
}

/// Multiplications and additions per second of this thread.
fn product(kernel: Kernel, matrix: &Matrix, x: &Activations) -> f64 {
    let mut y = vec![0.0; RANKS * OUTPUTS];
    // SAFETY: no other thread has this vector.
    let mut store = unsafe { Store::new(&mut y, OUTPUTS) };
    let mut scratch = Scratch::default();
    let panels = matrix.share(0, 1);
    certain(|| {
        let clock = Clock::start();
        kernel.matmul(matrix, x, panels.clone(), &mut scratch, &mut store);
        let took = clock.ran().unwrap_or_else(|| clock.wall());
        (2 * RANKS * OUTPUTS * COLUMNS) as f64 / took.as_secs_f64().max(1e-9)
    })
}

/// Multiplications and additions of floats per second, in a set's own instructions.
pub(super) fn floats(threads: usize, kernel: Kernel) -> f64 {
    best(threads, (threads * VECTORS * 2 * ROWS) as f64, |_| {
        macro_rules! go {
            ($set:ty) => {
                // SAFETY: the kernel proves its set.
                unsafe { multiply::<$set>() }
            };
        }
        with_set!(kernel.level(), go);
    })
}

/// As the kernels do it: in two halves of the rows where registers are few.
unsafe fn multiply<S: Simd>() {
    // SAFETY: passed on.
    unsafe {
        if S::WHOLE_COLS > 1 {
            sums::<S>();
        } else {
            sums::<S::Low>();
            sums::<S::High>();
        }
    }
}

unsafe fn sums<S: Simd>() {
    // SAFETY: passed on.
    unsafe {
        if S::FLOAT_COLS > 4 {
            S::vectorize(Multiply::<S, 8>(PhantomData));
        } else {
            S::vectorize(Multiply::<S, 4>(PhantomData));
        }
    }
}

/// [`VECTORS`] products, into `N` sums: enough for every vector unit to be busy while results are on their way.
struct Multiply<S, const N: usize>(PhantomData<S>);

impl<S: Simd, const N: usize> Task for Multiply<S, N> {
    #[inline(always)]
    unsafe fn run(self) {
        let factor = black_box(0.999_f32);
        // SAFETY: `vectorize` answers for the set.
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
    use crate::caps::Caps;

    #[test]
    fn every_format_of_weights_has_a_rate_of_its_own() {
        let kernel = Kernel::new(&Caps::detect()).unwrap();
        let rates = [DType::Q4_0, DType::Q6_K, DType::F16].map(|d| rate(1, kernel, d).unwrap());
        // Emulators are slow.
        for rate in rates.into_iter().chain([floats(1, kernel)]) {
            assert!(rate > 1e6 && rate < 1e14, "{rate}");
        }
    }
}
