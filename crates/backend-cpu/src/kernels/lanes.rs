//! Sixteen floats at once: what the vector kernels are written in, once per instruction set.
//!
//! Every set computes the same bits: operations are single IEEE operations and reductions have a fixed order.
//! Kernels are `#[inline(always)]` functions over [`Lanes`]; [`simd_fn!`] compiles them for every set and
//! chooses by [`Kernel`](super::Kernel), which only a processor with the instructions can hold.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Floats of a vector.
pub(crate) const N: usize = 16;

/// Sixteen floats.
pub(crate) trait Lanes: Copy {
    /// Enough registers to keep eight accumulators of this kind beside their operands.
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
    fn max(self, b: Self) -> Self;
    fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// `2^self` for integers in −126..=127.
    fn pow2(self) -> Self;
    /// `self < b ? yes : no` per lane.
    fn pick_less(self, b: Self, yes: Self, no: Self) -> Self;
    /// All lanes: halves are added until one is left.
    fn sum(self) -> f32;
    /// The largest lane.
    fn largest(self) -> f32;

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
            match set.level() {
                // SAFETY: holding the level proves that the processor has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::caps::Level::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::caps::Level::Avx512 => unsafe { avx512($($arg),*) },
                _ => $kernel::<$crate::kernels::lanes::Portable>($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

/// `out = f(x)`, sixteen at a time.
#[inline(always)]
pub(crate) fn map<L: Lanes>(x: &[f32], out: &mut [f32], f: impl Fn(L) -> L) {
    let whole = out.len() / N * N;
    for (o, x) in out[..whole].chunks_exact_mut(N).zip(x[..whole].chunks_exact(N)) {
        f(L::load(x)).store(o);
    }
    let (tail, rest) = (&mut out[whole..], &x[whole..]);
    if !tail.is_empty() {
        f(L::load_part(&rest[..tail.len()], 0.0)).store_part(tail);
    }
}

/// `out = f(a, b)`, sixteen at a time.
#[inline(always)]
pub(crate) fn map2<L: Lanes>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(L, L) -> L) {
    let n = out.len();
    let whole = n / N * N;
    let both = a[..whole].chunks_exact(N).zip(b[..whole].chunks_exact(N));
    for (o, (a, b)) in out[..whole].chunks_exact_mut(N).zip(both) {
        f(L::load(a), L::load(b)).store(o);
    }
    if whole < n {
        let (a, b) = (L::load_part(&a[whole..n], 0.0), L::load_part(&b[whole..n], 0.0));
        f(a, b).store_part(&mut out[whole..]);
    }
}

/// Sum of `f(x)` over four vectors of lanes; zeros fill the last.
#[inline(always)]
pub(crate) fn reduce<L: Lanes>(x: &[f32], f: impl Fn(L, L) -> L) -> f32 {
    let mut acc = [L::zero(); 4];
    let whole = x.len() / (4 * N) * 4 * N;
    for quad in x[..whole].chunks_exact(4 * N) {
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = f(L::load(&quad[i * N..]), *acc);
        }
    }
    for (part, acc) in x[whole..].chunks(N).zip(&mut acc) {
        *acc = f(L::load_part(part, 0.0), *acc);
    }
    acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum()
}
