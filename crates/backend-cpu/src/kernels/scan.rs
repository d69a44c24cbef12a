//! One row of each recurrence for one head: the state moves on, the head's output is written.

use super::lanes::{Lanes, N, simd_fn};
use super::math::exp;

/// Vectors of a row `[n]` in parts of sixteen: start and end of each.
#[inline(always)]
fn parts(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(N).map(move |at| (at, (at + N).min(n)))
}

#[inline(always)]
fn part<L: Lanes>(x: &[f32], (at, end): (usize, usize)) -> L {
    L::load_part(&x[at..end], 0.0)
}

/// Channels of Mamba-1 at one row.
pub(crate) struct Mamba1Row<'a> {
    pub(crate) x: &'a [f32],
    /// After softplus.
    pub(crate) delta: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    /// `[channels, N]`.
    pub(crate) a: &'a [f32],
    pub(crate) d: &'a [f32],
}

#[inline(always)]
fn mamba1<L: Lanes>(row: &Mamba1Row<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = row.b.len();
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let (delta, a) = (L::splat(row.delta[i]), &row.a[i * n..][..n]);
        let input = L::splat(row.delta[i] * row.x[i]);
        let mut sum = L::zero();
        for p in parts(n) {
            let keep = exp(delta.mul(part(a, p)));
            let new = keep.mul(part(s, p)).add(input.mul(part(row.b, p)));
            new.store_part(&mut s[p.0..p.1]);
            sum = new.mul(part(row.c, p)).add(sum);
        }
        out[i] = row.d[i] * row.x[i] + sum.sum();
    }
}

simd_fn! {
    /// State `[channels, N]`.
    pub(crate) fn mamba1_row(row: &Mamba1Row<'_>, state: &mut [f32], out: &mut [f32]) = mamba1;
}

/// A head of Mamba-2 at one row.
pub(crate) struct Mamba2Row<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) delta: f32,
    pub(crate) keep: f32,
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) d: f32,
}

#[inline(always)]
fn mamba2<L: Lanes>(row: &Mamba2Row<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = row.b.len();
    let keep = L::splat(row.keep);
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let input = L::splat(row.delta * row.x[i]);
        let mut sum = L::zero();
        for p in parts(n) {
            let new = keep.mul(part(s, p)).add(input.mul(part(row.b, p)));
            new.store_part(&mut s[p.0..p.1]);
            sum = new.mul(part(row.c, p)).add(sum);
        }
        out[i] = row.d * row.x[i] + sum.sum();
    }
}

simd_fn! {
    /// State `[P, N]`.
    pub(crate) fn mamba2_row(row: &Mamba2Row<'_>, state: &mut [f32], out: &mut [f32]) = mamba2;
}

/// A head of linear attention at one row.
pub(crate) struct LinearRow<'a> {
    pub(crate) r: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    /// Decay per key column, or one for all.
    pub(crate) keep: &'a [f32],
    /// Weight of the row's own key and value, added before the state moves (RWKV-6); otherwise the state moves
    /// first.
    pub(crate) bonus: Option<&'a [f32]>,
    pub(crate) scale: f32,
}

#[inline(always)]
fn linear<L: Lanes>(row: &LinearRow<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = row.v.len();
    out.fill(0.0);
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let (k, r) = (L::splat(row.k[i]), L::splat(row.r[i]));
        let keep = L::splat(row.keep[i % row.keep.len()]);
        let bonus = L::splat(row.bonus.map_or(0.0, |b| b[i]));
        for p in parts(n) {
            let (old, kv) = (part::<L>(s, p), k.mul(part(row.v, p)));
            let new = keep.mul(old).add(kv);
            let seen = if row.bonus.is_some() {
                bonus.mul(kv).add(old)
            } else {
                new
            };
            new.store_part(&mut s[p.0..p.1]);
            let o = part::<L>(out, p).add(r.mul(seen));
            o.store_part(&mut out[p.0..p.1]);
        }
    }
    if row.scale != 1.0 {
        out.iter_mut().for_each(|o| *o *= row.scale);
    }
}

simd_fn! {
    /// State `[Dk, Dv]`, rows by key column.
    pub(crate) fn linear_row(row: &LinearRow<'_>, state: &mut [f32], out: &mut [f32]) = linear;
}

/// A head of RWKV-7 at one row.
pub(crate) struct Wkv7Row<'a> {
    pub(crate) r: &'a [f32],
    pub(crate) w: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) kappa: &'a [f32],
    pub(crate) rate: &'a [f32],
}

#[inline(always)]
fn wkv7<L: Lanes>(row: &Wkv7Row<'_>, state: &mut [f32], out: &mut [f32]) {
    let n = row.r.len();
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let mut removed = L::zero();
        for p in parts(n) {
            removed = part::<L>(s, p).mul(part(row.kappa, p)).add(removed);
        }
        let (removed, v) = (L::splat(-removed.sum()), L::splat(row.v[i]));
        let mut sum = L::zero();
        for p in parts(n) {
            let kept = part::<L>(row.w, p).mul(part(s, p));
            let added = v.mul(part(row.k, p));
            let new = kept
                .add(added)
                .add(removed.mul(part(row.kappa, p)).mul(part(row.rate, p)));
            new.store_part(&mut s[p.0..p.1]);
            sum = new.mul(part(row.r, p)).add(sum);
        }
        out[i] = sum.sum();
    }
}

simd_fn! {
    /// State `[Dv, Dk]`, rows by value column.
    pub(crate) fn wkv7_row(row: &Wkv7Row<'_>, state: &mut [f32], out: &mut [f32]) = wkv7;
}

/// A value head of the gated delta rule at one row.
pub(crate) struct DeltaRow<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    /// Log decay, one or per key column.
    pub(crate) g: &'a [f32],
    pub(crate) beta: f32,
    pub(crate) scale: f32,
}

#[inline(always)]
fn delta<L: Lanes>(row: &DeltaRow<'_>, state: &mut [f32], error: &mut [f32], out: &mut [f32]) {
    let n = row.v.len();
    error.copy_from_slice(row.v);
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let (keep, k) = (exp(L::splat(row.g[i % row.g.len()])), L::splat(row.k[i]));
        for p in parts(n) {
            let kept = keep.mul(part(s, p));
            kept.store_part(&mut s[p.0..p.1]);
            let left = part::<L>(error, p).sub(kept.mul(k));
            left.store_part(&mut error[p.0..p.1]);
        }
    }
    out.fill(0.0);
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let (k, q) = (L::splat(row.k[i] * row.beta), L::splat(row.q[i]));
        for p in parts(n) {
            let new = part::<L>(s, p).add(k.mul(part(error, p)));
            new.store_part(&mut s[p.0..p.1]);
            let o = part::<L>(out, p).add(q.mul(new));
            o.store_part(&mut out[p.0..p.1]);
        }
    }
    out.iter_mut().for_each(|o| *o *= row.scale);
}

simd_fn! {
    /// State `[Dk, Dv]`.
    pub(crate) fn delta_row(row: &DeltaRow<'_>, state: &mut [f32], error: &mut [f32], out: &mut [f32]) = delta;
}
