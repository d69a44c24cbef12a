//! Sums, products and other arithmetic on elements.

use tokkata_ir::BinaryKind;

use super::lanes::{Lanes, N, map, map2, simd_fn, with};

#[inline(always)]
fn combine<L: Lanes>(kind: BinaryKind, a: L, b: L) -> L {
    match kind {
        BinaryKind::Add => a.add(b),
        BinaryKind::Sub => a.sub(b),
        BinaryKind::Mul => a.mul(b),
        BinaryKind::Div => a.div(b),
    }
}

#[inline(always)]
fn binary<L: Lanes>(kind: BinaryKind, scales: (f32, f32), a: &[f32], b: &[f32], out: &mut [f32]) {
    if scales == (1.0, 1.0) {
        return map2!(L, a, b, out, |a, b| combine(kind, a, b));
    }
    let (sa, sb) = (L::splat(scales.0), L::splat(scales.1));
    map2!(L, a, b, out, |a, b| combine(kind, a.mul(sa), b.mul(sb)));
}

simd_fn! {
    /// `out = sa·a ∘ sb·b`.
    pub(crate) fn binary_run(kind: BinaryKind, scales: (f32, f32), a: &[f32], b: &[f32], out: &mut [f32]) = binary;
}

#[inline(always)]
fn with_scalar<L: Lanes>(kind: BinaryKind, a: &[f32], b: f32, out: &mut [f32]) {
    let b = L::splat(b);
    map!(L, a, out, |a| combine(kind, a, b));
}

simd_fn! {
    /// `out = a ∘ b` for one b.
    pub(crate) fn scalar_run(kind: BinaryKind, a: &[f32], b: f32, out: &mut [f32]) = with_scalar;
}

#[inline(always)]
fn affine<L: Lanes>(scale: f32, offset: f32, x: &[f32], out: &mut [f32]) {
    let (scale, offset) = (L::splat(scale), L::splat(offset));
    map!(L, x, out, |x| x.mul(scale).add(offset));
}

simd_fn! {
    /// `out = x · scale + offset`.
    pub(crate) fn affine_run(scale: f32, offset: f32, x: &[f32], out: &mut [f32]) = affine;
}

#[inline(always)]
fn clamp<L: Lanes>(lo: f32, hi: f32, x: &[f32], out: &mut [f32]) {
    let (lo, hi) = (L::splat(lo), L::splat(hi));
    map!(L, x, out, |x| hi.min(lo.max(x)));
}

simd_fn! {
    /// `out = clamp(x, lo, hi)`.
    pub(crate) fn clamp_run(lo: f32, hi: f32, x: &[f32], out: &mut [f32]) = clamp;
}

#[inline(always)]
fn add_scaled<L: Lanes>(x: &[f32], w: f32, out: &mut [f32]) {
    let w = L::splat(w);
    with!(L, out, x, |o, x| w.mul(x).add(o));
}

simd_fn! {
    /// `out += w · x`.
    pub(crate) fn add_scaled_run(x: &[f32], w: f32, out: &mut [f32]) = add_scaled;
}

#[inline(always)]
fn multiply_add<L: Lanes>(a: &[f32], b: &[f32], out: &mut [f32]) {
    for (o, (a, b)) in out.chunks_mut(N).zip(a.chunks(N).zip(b.chunks(N))) {
        L::load_part(a, 0.0)
            .mul(L::load_part(b, 0.0))
            .add(L::load_part(o, 0.0))
            .store_part(o);
    }
}

simd_fn! {
    /// `out += a · b`.
    pub(crate) fn multiply_add_run(a: &[f32], b: &[f32], out: &mut [f32]) = multiply_add;
}
