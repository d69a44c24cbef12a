//! Sixteen sub-blocks searched side by side.
//!
//! A search adds up terms in a fixed order; putting one sub-block in each lane keeps that order
//! inside a lane, so the results have the same bits whatever the width of the machine's vectors.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod plain;

use std::ops::{Add, Div, Mul, Sub};

/// Sub-blocks per search.
pub(super) const LANES: usize = 16;

/// One number of each of [`LANES`] sub-blocks.
pub(super) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Outcome of a comparison in each lane.
    type Mask: Copy;

    fn load(values: &[f32; LANES]) -> Self;
    fn from_bytes(values: &[u8; LANES]) -> Self;
    fn to_array(self) -> [f32; LANES];
    fn splat(value: f32) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    /// `self` where it is less than `other`, else `other`.
    fn min(self, other: Self) -> Self;
    /// `self` where it is greater than `other`, else `other`.
    fn max(self, other: Self) -> Self;
    fn lt(self, other: Self) -> Self::Mask;
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    fn any(mask: Self::Mask) -> bool;
    fn pick(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// The nearest integer, ties to even, for magnitudes up to 2^22.
    #[inline(always)]
    fn round(self) -> Self {
        self + Self::splat(MAGIC) - Self::splat(MAGIC)
    }

    /// The nearest integer within `low..=high`.
    #[inline(always)]
    fn code(self, low: f32, high: f32) -> Self {
        self.round().max(Self::splat(low)).min(Self::splat(high))
    }
}

/// Adding it leaves an integer in the low mantissa bits.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// The nearest integer, ties to even; wraps beyond 2^22 as upstream's does.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    ((value + MAGIC).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Work over lanes, compiled once per instruction set.
pub(super) trait Job {
    fn run<L: Lanes>(self);
}

/// Runs `job` with the widest instructions of this machine.
pub(super) fn run(job: impl Job) {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::detect() {
        return avx2.run(job);
    }
    job.run::<plain::Plain>();
}

/// Squares, lane by lane. Loops stand where closures would not always be inlined, and code outside
/// the function compiled for an instruction set would not use it.
#[inline(always)]
pub(super) fn squares<L: Lanes, const E: usize>(x: &[L; E]) -> [L; E] {
    let mut out = *x;
    for v in &mut out {
        *v = *v * *v;
    }
    out
}

/// Sums over the elements, from the first to the last.
#[inline(always)]
pub(super) fn total<L: Lanes, const E: usize>(x: &[L; E]) -> L {
    let mut sum = L::splat(0.0);
    for &v in x {
        sum = sum + v;
    }
    sum
}

/// Element `i` of up to [`LANES`] sub-blocks of `E` elements in lanes of vector `i`; zeros where `src` ends.
#[inline(always)]
pub(super) fn transpose<L: Lanes, const E: usize>(src: &[f32]) -> [L; E] {
    let mut columns = [[0.0; LANES]; E];
    for (s, sub) in src.chunks_exact(E).take(LANES).enumerate() {
        for (column, &x) in columns.iter_mut().zip(sub) {
            column[s] = x;
        }
    }
    let mut out = [L::splat(0.0); E];
    for (out, column) in out.iter_mut().zip(&columns) {
        *out = L::load(column);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on awkward numbers, as bits.
    struct Operations<'a>(&'a mut Vec<u32>);

    const LEFT: [f32; LANES] = [
        0.0, -0.0, 1.5, -1.5, 2.5, 0.5, 1e-40, -1e30, 3e30, 7.0, -8.25, 127.5, 0.1, 4e6, -4e6, 1.0,
    ];

    impl Operations<'_> {
        #[inline(always)]
        fn put<L: Lanes>(&mut self, value: L) {
            self.0.extend(value.to_array().map(f32::to_bits));
        }
    }

    impl Job for Operations<'_> {
        #[inline(always)]
        fn run<L: Lanes>(mut self) {
            let (a, b) = (L::load(&LEFT), L::splat(1.25));
            let bytes: [u8; LANES] = std::array::from_fn(|i| 17 * i as u8);
            for value in [
                a + b,
                a - b,
                a * b,
                a / b,
                a.abs(),
                a.abs().sqrt(),
                a.min(b),
                a.max(b),
            ] {
                self.put(value);
            }
            let between = L::both(a.lt(b), L::splat(-2.0).lt(a));
            self.put(L::pick(between, a, b));
            self.put(a.round());
            self.put(a.code(-4.0, 3.0));
            self.put(L::from_bytes(&bytes));
            self.0.push(u32::from(L::any(between)));
            self.0.push(u32::from(L::any(a.lt(L::splat(f32::MIN)))));
            self.put(total(&squares(&transpose::<L, 2>(&LEFT))));
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (mut plain, mut widest) = (Vec::new(), Vec::new());
        Operations(&mut plain).run::<plain::Plain>();
        run(Operations(&mut widest));
        assert_eq!(plain, widest);
    }

    #[test]
    fn nearest_rounds_ties_to_even_and_wraps() {
        let rounded = [0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 16_777_216.0].map(nearest);
        assert_eq!(rounded, [0, 2, 2, 0, -2, 2, 0x20_0000]);
    }
}
