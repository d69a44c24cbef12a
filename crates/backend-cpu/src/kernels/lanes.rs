//! Sixteen floats at once: what the vector kernels are written in, once per instruction set.
//!
//! Every set computes the same bits: operations are single IEEE operations and reductions have a fixed order.
//! Kernels are `#[inline(always)]` functions over [`Lanes`]; [`simd_fn!`] compiles them for every set and
//! chooses by [`Kernel`](super::Kernel), which only a processor with the instructions can hold.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// Floats of a vector.
pub(crate) const N: usize = 16;

/// Sixteen floats.
pub(crate) trait Lanes: Copy {
    /// Enough registers to keep sixteen accumulators of this kind beside their operands.
    const MANY: bool;

    fn splat(x: f32) -> Self;
    /// # Safety
    /// `p` is valid for sixteen floats.
    unsafe fn read(p: *const f32) -> Self;
    /// # Safety
    /// `p` is valid for sixteen floats.
    unsafe fn write(self, p: *mut f32);
    /// Sixteen halves.
    ///
    /// # Safety
    /// `p` is valid for sixteen halves.
    unsafe fn read_half(p: *const u16) -> Self;
    /// # Safety
    /// `p` is valid for sixteen halves.
    unsafe fn write_half(self, p: *mut u16);
    /// Sixteen signed bytes.
    ///
    /// # Safety
    /// `p` is valid for sixteen bytes.
    unsafe fn read_i8(p: *const i8) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self · b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self + a · b`, rounded once, in the registers of `self`: where these are few, compilers move sums about.
    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        a.fma(b, self)
    }
    fn max(self, b: Self) -> Self;
    fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self · 2^n` for integers in −126..=127, rounded once.
    fn times_pow2(self, n: Self) -> Self;
    /// `self < b ? yes : no` per lane.
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self;
    /// All lanes: halves are added until one is left.
    fn sum(self) -> f32;
    /// The largest lane.
    fn largest(self) -> f32;

    /// Vector `i` of the answer holds lane `i` of each of these.
    #[inline(always)]
    fn transpose(rows: [Self; N]) -> [Self; N] {
        let (mut lanes, mut columns) = ([[0.0; N]; N], [[0.0; N]; N]);
        for i in 0..N {
            rows[i].store(&mut lanes[i]);
        }
        for i in 0..N {
            for j in 0..N {
                columns[j][i] = lanes[i][j];
            }
        }
        let mut out = rows;
        for i in 0..N {
            out[i] = Self::load(&columns[i]);
        }
        out
    }
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }
    #[inline(always)]
    fn neg(self) -> Self {
        Self::splat(-0.0).sub(self)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.max(self.neg())
    }
    /// The first sixteen of `x`.
    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        assert!(x.len() >= N);
        // SAFETY: checked above.
        unsafe { Self::read(x.as_ptr()) }
    }
    /// Up to sixteen of `x`, then `fill`.
    #[inline(always)]
    fn load_part(x: &[f32], fill: f32) -> Self {
        if x.len() >= N {
            return Self::load(x);
        }
        let mut lanes = [fill; N];
        lanes[..x.len()].copy_from_slice(x);
        Self::load(&lanes)
    }
    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        assert!(out.len() >= N);
        // SAFETY: checked above.
        unsafe { self.write(out.as_mut_ptr()) }
    }
    /// As many lanes as `out` holds.
    #[inline(always)]
    fn store_part(self, out: &mut [f32]) {
        if out.len() == N {
            return self.store(out);
        }
        let mut lanes = [0.0; N];
        self.store(&mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Defines a function that runs a generic kernel with the vectors of the processor at hand.
macro_rules! simd_fn {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $kernel:ident;) => {
        $(#[$doc])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $vis fn $name(set: $crate::kernels::Kernel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                $kernel::<$crate::kernels::lanes::Avx2>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                $kernel::<$crate::kernels::lanes::Avx512>($($arg),*)
            }
            match set.level().vectors() {
                // SAFETY: holding the level proves that the processor has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::caps::Vectors::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::caps::Vectors::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::caps::Vectors::Neon => $kernel::<$crate::kernels::lanes::Neon>($($arg),*),
                _ => $kernel::<$crate::kernels::lanes::Portable>($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

// Loops are macros rather than functions of a closure: a closure is compiled without the features of the function
// around it, and vectors in it are no registers but calls.

/// `out = body(a)`, sixteen at a time; zeros fill the last vector.
macro_rules! map {
    ($lanes:ty, $x:expr, $out:expr, |$a:ident| $body:expr) => {{
        let (x, out): (&[f32], &mut [f32]) = ($x, $out);
        let (mut at, n) = (0, out.len());
        let x = &x[..n];
        while at + N <= n {
            let $a = <$lanes>::load(&x[at..]);
            ($body).store(&mut out[at..]);
            at += N;
        }
        if at < n {
            let $a = <$lanes>::load_part(&x[at..], 0.0);
            ($body).store_part(&mut out[at..]);
        }
    }};
}
pub(crate) use map;

/// `out = body(a, b)`, sixteen at a time; zeros fill the last vector.
macro_rules! map2 {
    ($lanes:ty, $x:expr, $y:expr, $out:expr, |$a:ident, $b:ident| $body:expr) => {{
        let (x, y, out): (&[f32], &[f32], &mut [f32]) = ($x, $y, $out);
        let (mut at, n) = (0, out.len());
        let (x, y) = (&x[..n], &y[..n]);
        while at + N <= n {
            let ($a, $b) = (<$lanes>::load(&x[at..]), <$lanes>::load(&y[at..]));
            ($body).store(&mut out[at..]);
            at += N;
        }
        if at < n {
            let ($a, $b) = (
                <$lanes>::load_part(&x[at..], 0.0),
                <$lanes>::load_part(&y[at..], 0.0),
            );
            ($body).store_part(&mut out[at..]);
        }
    }};
}
pub(crate) use map2;

/// `x = body(x)`.
macro_rules! in_place {
    ($lanes:ty, $x:expr, |$a:ident| $body:expr) => {{
        let x: &mut [f32] = $x;
        let (mut at, n) = (0, x.len());
        while at + N <= n {
            let $a = <$lanes>::load(&x[at..]);
            ($body).store(&mut x[at..]);
            at += N;
        }
        if at < n {
            let $a = <$lanes>::load_part(&x[at..], 0.0);
            ($body).store_part(&mut x[at..]);
        }
    }};
}
pub(crate) use in_place;

/// `x = body(x, y)`.
macro_rules! with {
    ($lanes:ty, $x:expr, $y:expr, |$a:ident, $b:ident| $body:expr) => {{
        let (x, y): (&mut [f32], &[f32]) = ($x, $y);
        let (mut at, n) = (0, x.len());
        let y = &y[..n];
        while at + N <= n {
            let ($a, $b) = (<$lanes>::load(&x[at..]), <$lanes>::load(&y[at..]));
            ($body).store(&mut x[at..]);
            at += N;
        }
        if at < n {
            let ($a, $b) = (
                <$lanes>::load_part(&x[at..], 0.0),
                <$lanes>::load_part(&y[at..], 0.0),
            );
            ($body).store_part(&mut x[at..]);
        }
    }};
}
pub(crate) use with;

/// Folds into four vectors of sums, `acc = body(x, acc)`, and adds them up; zeros fill the last.
macro_rules! reduce {
    ($lanes:ty, $x:expr, |$a:ident, $acc:ident| $body:expr) => {{
        let x: &[f32] = $x;
        let mut sums = [<$lanes>::zero(); 4];
        let (mut at, n) = (0, x.len());
        // Written out four times: sums that a counter picks would pass through memory.
        macro_rules! fold {
            ($i:literal) => {
                let ($a, $acc) = (<$lanes>::load(&x[at + $i * N..]), sums[$i]);
                sums[$i] = $body;
            };
        }
        while at + 4 * N <= n {
            fold!(0);
            fold!(1);
            fold!(2);
            fold!(3);
            at += 4 * N;
        }
        let mut next = 0;
        while at < n {
            let ($a, $acc) = (<$lanes>::load_part(&x[at..n.min(at + N)], 0.0), sums[next]);
            sums[next] = $body;
            (at, next) = (at + N, next + 1);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }};
}
pub(crate) use reduce;
