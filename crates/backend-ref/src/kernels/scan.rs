//! Recurrences: a state per sequence, updated row by row.

use tokkata_ir::{Scan, SlotId};

use crate::args::Args;
use crate::cache::Caches;
use crate::real::{Real, softplus};

/// Runs a recurrence over each sequence. States are `f32` in their slot, in the order of the op's `S`.
pub(crate) fn scan<R: Real>(
    args: &Args<'_, R>,
    scan: &Scan,
    slot: SlotId,
    caches: &mut Caches<R>,
) -> Vec<R> {
    let inputs: Vec<_> = (0..args.node.ins.len()).map(|i| args.mat(i)).collect();
    let mut out = Vec::new();
    caches.carry(args.step, slot, |rows, state| {
        for row in rows {
            let x: Vec<&[R]> = inputs.iter().map(|m| m.row(row)).collect();
            update(args, scan, &x, state, &mut out);
        }
    });
    out
}

/// One row: the state moves on and the row's output is appended.
fn update<R: Real>(args: &Args<'_, R>, scan: &Scan, x: &[&[R]], state: &mut [R], out: &mut Vec<R>) {
    match *scan {
        Scan::Mamba1 { a, d, .. } => mamba1(x, args.weight(a), args.weight(d), state, out),
        Scan::Mamba2 {
            heads,
            groups,
            a,
            d,
            dt_bias,
            ..
        } => {
            let heads = Heads {
                heads: heads as usize,
                groups: groups as usize,
                a: args.weight(a),
                d: args.weight(d),
                dt_bias: args.maybe(dt_bias),
            };
            mamba2(x, &heads, state, out);
        }
        Scan::Wkv6 { head_dim, first } => {
            wkv6(x, head_dim as usize, args.weight(first), state, out);
        }
        Scan::Gla { head_dim, scale } => gla(x, head_dim as usize, R::from(scale), state, out),
        Scan::Wkv7 { head_dim } => wkv7(x, head_dim as usize, state, out),
        Scan::GatedDelta {
            k_heads,
            v_heads,
            dim_k,
            dim_v,
            tiled,
            scale,
        } => {
            let delta = Delta {
                k_heads: k_heads as usize,
                v_heads: v_heads as usize,
                dim_k: dim_k as usize,
                dim_v: dim_v as usize,
                tiled,
                scale,
            };
            gated_delta(x, &delta, state, out);
        }
        Scan::Decay { slopes, .. } => decay(x, args.floats(slopes), state, out),
    }
}

/// State `[I, N]` (Gu and Dao, 2023).
fn mamba1<R: Real>(x: &[&[R]], a: &[f32], d: &[f32], state: &mut [R], out: &mut Vec<R>) {
    let [x, dt, b, c] = *x else {
        panic!("mamba1 takes x, dt, B, C")
    };
    let n = b.len();
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let delta = softplus(dt[i]);
        let mut y = R::from(d[i]) * x[i];
        for j in 0..n {
            s[j] = (delta * R::from(a[i * n + j])).exp() * s[j] + delta * x[i] * b[j];
            y += s[j] * c[j];
        }
        out.push(y);
    }
}

/// Heads of a Mamba-2 layer.
struct Heads<'a> {
    heads: usize,
    groups: usize,
    a: &'a [f32],
    d: &'a [f32],
    dt_bias: Option<&'a [f32]>,
}

/// State `[H, P, N]` (Dao and Gu, 2024).
fn mamba2<R: Real>(x: &[&[R]], op: &Heads<'_>, state: &mut [R], out: &mut Vec<R>) {
    let [x, dt, b, c] = *x else {
        panic!("mamba2 takes x, dt, B, C")
    };
    let (n, p) = (b.len() / op.groups, x.len() / op.heads);
    for (i, s) in state.chunks_exact_mut(n).enumerate() {
        let head = i / p;
        let group = head / (op.heads / op.groups) * n;
        let bias = op.dt_bias.map_or(R::ZERO, |w| R::from(w[head]));
        let delta = softplus(dt[head] + bias);
        let keep = (delta * R::from(op.a[head])).exp();
        let mut y = R::from(op.d[head]) * x[i];
        for j in 0..n {
            s[j] = keep * s[j] + delta * x[i] * b[group + j];
            y += s[j] * c[group + j];
        }
        out.push(y);
    }
}

/// State `[H, N, N]`, rows by key column (Peng et al., 2024).
fn wkv6<R: Real>(x: &[&[R]], n: usize, first: &[f32], state: &mut [R], out: &mut Vec<R>) {
    let [r, k, v, w] = *x else {
        panic!("wkv6 takes r, k, v, w")
    };
    for (h, state) in state.chunks_exact_mut(n * n).enumerate() {
        let mut o = vec![R::ZERO; n];
        for (i, s) in state.chunks_exact_mut(n).enumerate() {
            let at = h * n + i;
            for j in 0..n {
                let kv = k[at] * v[h * n + j];
                o[j] += r[at] * (R::from(first[at]) * kv + s[j]);
                s[j] = w[at] * s[j] + kv;
            }
        }
        out.extend(o);
    }
}

/// State `[H, N, N]`, rows by key column (Yang et al., 2023).
fn gla<R: Real>(x: &[&[R]], n: usize, scale: R, state: &mut [R], out: &mut Vec<R>) {
    let [r, k, v, w] = *x else {
        panic!("gla takes r, k, v, w")
    };
    for (h, state) in state.chunks_exact_mut(n * n).enumerate() {
        let mut o = vec![R::ZERO; n];
        for (i, s) in state.chunks_exact_mut(n).enumerate() {
            let at = h * n + i;
            for j in 0..n {
                s[j] = w[at] * s[j] + k[at] * v[h * n + j];
                o[j] += r[at] * s[j];
            }
        }
        out.extend(o.iter().map(|&o| scale * o));
    }
}

/// State `[H, N, N]`, rows by value column (Peng et al., 2025).
fn wkv7<R: Real>(x: &[&[R]], n: usize, state: &mut [R], out: &mut Vec<R>) {
    let [r, w, k, v, kappa, rate] = *x else {
        panic!("wkv7 takes r, w, k, v, kappa, a")
    };
    for (row, s) in state.chunks_exact_mut(n).enumerate() {
        let head = row / n * n;
        let removed = (0..n).fold(R::ZERO, |sum, j| sum - s[j] * kappa[head + j]);
        let mut o = R::ZERO;
        for (s, at) in s.iter_mut().zip(head..) {
            *s = w[at] * *s + v[row] * k[at] + removed * kappa[at] * rate[at];
            o += *s * r[at];
        }
        out.push(o);
    }
}

/// Sizes of a gated delta layer.
struct Delta {
    k_heads: usize,
    v_heads: usize,
    dim_k: usize,
    dim_v: usize,
    tiled: bool,
    scale: f32,
}

/// State `[Hv, Dk, Dv]` (Yang, Kautz and Hatamizadeh, 2024; per-channel decay as in Kimi Linear, 2025).
fn gated_delta<R: Real>(x: &[&[R]], op: &Delta, state: &mut [R], out: &mut Vec<R>) {
    let [q, k, v, g, beta] = *x else {
        panic!("gated_delta takes q, k, v, g, beta")
    };
    let (dim_k, dim_v) = (op.dim_k, op.dim_v);
    for (h, state) in state.chunks_exact_mut(dim_k * dim_v).enumerate() {
        let key_head = if op.tiled {
            h % op.k_heads
        } else {
            h / (op.v_heads / op.k_heads)
        };
        let (q, k) = (
            &q[key_head * dim_k..][..dim_k],
            &k[key_head * dim_k..][..dim_k],
        );
        let mut error = v[h * dim_v..][..dim_v].to_vec();
        for (i, s) in state.chunks_exact_mut(dim_v).enumerate() {
            let keep = if g.len() == op.v_heads {
                g[h]
            } else {
                g[h * dim_k + i]
            }
            .exp();
            for j in 0..dim_v {
                s[j] = keep * s[j];
                error[j] = error[j] - s[j] * k[i];
            }
        }
        let mut o = vec![R::ZERO; dim_v];
        for (i, s) in state.chunks_exact_mut(dim_v).enumerate() {
            for j in 0..dim_v {
                s[j] += k[i] * beta[h] * error[j];
                o[j] += q[i] * s[j];
            }
        }
        out.extend(o.iter().map(|&o| R::from(op.scale) * o));
    }
}

/// State `[H, D, D]`, rows by key column (Qin et al., 2024).
fn decay<R: Real>(x: &[&[R]], slopes: &[f32], state: &mut [R], out: &mut Vec<R>) {
    let [q, k, v] = *x else {
        panic!("decay takes q, k, v")
    };
    let n = q.len() / slopes.len();
    for (h, state) in state.chunks_exact_mut(n * n).enumerate() {
        let keep = (-R::from(slopes[h])).exp();
        let mut o = vec![R::ZERO; n];
        for (i, s) in state.chunks_exact_mut(n).enumerate() {
            let at = h * n + i;
            for j in 0..n {
                s[j] = keep * s[j] + k[at] * v[h * n + j];
                o[j] += q[at] * s[j];
            }
        }
        out.extend(o);
    }
}
