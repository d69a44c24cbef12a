//! Softmax attention.

use tokkata_ir::spec::{AttentionSpec, HeadNorm, KvPlace, OutGate, Qkv, RopeSpec, Temperature};
use tokkata_ir::{AttentionOp, BinaryKind, KvSource, Op, RopeOp, ValueId};

use super::Builder;

/// Queries, keys, values and an interleaved gate.
struct Parts {
    q: ValueId,
    k: Option<ValueId>,
    v: Option<ValueId>,
    gate: Option<ValueId>,
}

impl Builder<'_> {
    pub(crate) fn attention(&mut self, a: &AttentionSpec, x: ValueId) -> ValueId {
        let parts = self.qkv(a, x);
        let q = self
            .at("attn_q")
            .positioned(parts.q, a.q_norm.as_ref(), a.rope.as_ref(), a.dim_k);
        let q = self.tempered(q, a.temperature);
        let k = parts.k.map(|k| {
            self.at("attn_k")
                .positioned(k, a.k_norm.as_ref(), a.rope.as_ref(), a.dim_k)
        });
        let v = parts.v.map(|v| {
            self.at("attn_v")
                .positioned(v, a.v_norm.as_ref(), None, a.dim_v)
        });
        if matches!(a.kv, KvPlace::Cross(_)) {
            self.layer_output("cross_q", q);
        }
        let chosen = self.reads(&a.reads, x, None);
        self.at("attn");
        let (source, mut ins) = self.place(a.kv, q, k, v);
        ins.extend(chosen.map(|c| c.ids));
        let op = Op::Attention(AttentionOp {
            n_heads: a.n_heads,
            n_kv_heads: a.n_kv_heads,
            dim_k: a.dim_k,
            dim_v: a.dim_v,
            scale: a.scale,
            cap: a.cap,
            sinks: a.sinks,
            alibi: a.alibi,
            bucket: a.bucket,
            mask: a.mask,
            source,
            entries: None,
            selection: chosen.map(|c| c.selection),
        });
        let mut y = self.one(op, &ins, a.n_heads * a.dim_v);
        if let Some(gate) = parts.gate {
            let gate = self.at("attn_gate").unary(gate, super::stack::SIGMOID);
            y = self.binary(BinaryKind::Mul, y, gate);
        }
        y = self.gated(y, a.gate.as_ref(), x, a.dim_v);
        y = self.at("attn_sub_norm").norm_opt(y, a.sub_norm.as_ref());
        let y = self.at("attn_output").matmul(y, &a.out);
        self.affine(y, a.out_scale, 0.0)
    }

    /// Writes keys and values where they belong and says where attention finds them.
    pub(crate) fn place(
        &mut self,
        place: KvPlace,
        q: ValueId,
        k: Option<ValueId>,
        v: Option<ValueId>,
    ) -> (KvSource, Vec<ValueId>) {
        match place {
            KvPlace::Own(slot) => {
                let ins: Vec<ValueId> = [k, v].into_iter().flatten().collect();
                self.push(Op::CacheWrite { slot }, &ins, &[]);
                (KvSource::Cache(slot), vec![q])
            }
            KvPlace::Shared(slot) => (KvSource::Cache(slot), vec![q]),
            KvPlace::Cross(slot) => (KvSource::Cross(slot), vec![q]),
            KvPlace::None => {
                let (k, v) = (k.expect("own keys"), v.expect("own values"));
                (KvSource::Rows, vec![q, k, v])
            }
        }
    }

    /// Writes the keys and values of rows that nothing attends from.
    pub(crate) fn keep(&mut self, a: &AttentionSpec, x: ValueId) {
        let (Qkv::Split { k: Some(k), v, .. }, KvPlace::Own(slot)) = (&a.qkv, a.kv) else {
            unreachable!("a drafter's layers have keys of their own");
        };
        let raw = self.at("attn_k").matmul(x, k);
        let k = self.positioned(raw, a.k_norm.as_ref(), a.rope.as_ref(), a.dim_k);
        let v = v.as_ref().map_or(raw, |v| self.at("attn_v").matmul(x, v));
        let v = self
            .at("attn_v")
            .positioned(v, a.v_norm.as_ref(), None, a.dim_v);
        self.at("attn").push(Op::CacheWrite { slot }, &[k, v], &[]);
    }

    fn qkv(&mut self, a: &AttentionSpec, x: ValueId) -> Parts {
        let (nq, nk, nv) = (
            a.n_heads * a.dim_k,
            a.n_kv_heads * a.dim_k,
            a.n_kv_heads * a.dim_v,
        );
        match &a.qkv {
            Qkv::Fused(p) => {
                let all = self.at("attn_qkv").matmul(x, p);
                let all = self.clamped(all, a.clamp);
                let n = nq + nk + nv;
                let q = self.slice(all, n, 0, nq);
                let k = Some(self.slice(all, n, nq, nk));
                let v = Some(self.slice(all, n, nq + nk, nv));
                Parts {
                    q,
                    k,
                    v,
                    gate: None,
                }
            }
            Qkv::Split { q, k, v } => {
                let q = self.at("attn_q").matmul(x, q);
                let q = self.clamped(q, a.clamp);
                let k = k.as_ref().map(|p| self.at("attn_k").matmul(x, p));
                let k = k.map(|k| self.clamped(k, a.clamp));
                let v = v.as_ref().map(|p| self.at("attn_v").matmul(x, p));
                let v = v.map(|v| self.clamped(v, a.clamp)).or(k);
                if !a.q_gate {
                    return Parts {
                        q,
                        k,
                        v,
                        gate: None,
                    };
                }
                let gate = self.at("attn_gate").slice(q, 2 * a.dim_k, a.dim_k, a.dim_k);
                let q = self.at("attn_q").slice(q, 2 * a.dim_k, 0, a.dim_k);
                Parts {
                    q,
                    k,
                    v,
                    gate: Some(gate),
                }
            }
        }
    }

    fn clamped(&mut self, x: ValueId, limit: Option<f32>) -> ValueId {
        let width = self.width(x);
        limit.map_or(x, |l| self.one(Op::Clamp { lo: -l, hi: l }, &[x], width))
    }

    /// Norm and rotation in their order.
    pub(crate) fn positioned(
        &mut self,
        x: ValueId,
        norm: Option<&HeadNorm>,
        rope: Option<&RopeSpec>,
        dim: u32,
    ) -> ValueId {
        match norm {
            Some(n) if n.after_rope => {
                let x = self.rope(x, rope, dim);
                self.head_norm(x, n, dim)
            }
            Some(n) => {
                let x = self.head_norm(x, n, dim);
                self.rope(x, rope, dim)
            }
            None => self.rope(x, rope, dim),
        }
    }

    fn head_norm(&mut self, x: ValueId, n: &HeadNorm, dim: u32) -> ValueId {
        let y = self.norm(x, &n.norm);
        let Some(gain) = n.gain else { return y };
        // One gain per head: spread over the head by multiplying runs of a constant row.
        let heads = self.width(x) / dim;
        let ones = self.affine(y, 0.0, 1.0);
        let per_head = self.slice(ones, dim, 0, 1);
        debug_assert_eq!(self.width(per_head), heads);
        let per_head = self.weighted(BinaryKind::Mul, per_head, gain);
        let width = self.width(y);
        self.one(
            Op::PerRun {
                kind: BinaryKind::Mul,
                width: dim,
            },
            &[y, per_head],
            width,
        )
    }

    pub(crate) fn rope(&mut self, x: ValueId, rope: Option<&RopeSpec>, head_dim: u32) -> ValueId {
        let Some(r) = rope else { return x };
        self.rotated(x, rotation(r, head_dim))
    }

    pub(crate) fn rotated(&mut self, x: ValueId, op: RopeOp) -> ValueId {
        let width = self.width(x);
        self.one(Op::Rope(op), &[x], width)
    }

    pub(crate) fn tempered(&mut self, q: ValueId, t: Option<Temperature>) -> ValueId {
        let width = self.width(q);
        t.map_or(q, |t| {
            self.one(
                Op::PosScale {
                    coef: t.coef,
                    length: t.length,
                    offset: t.offset,
                },
                &[q],
                width,
            )
        })
    }

    /// The output times a gate computed from the mixer's input.
    pub(crate) fn gated(
        &mut self,
        y: ValueId,
        gate: Option<&OutGate>,
        x: ValueId,
        dim_v: u32,
    ) -> ValueId {
        let Some(g) = gate else { return y };
        self.at("attn_gate");
        let gate = self.matmul(x, &g.proj);
        let gate = self.unary(gate, g.act);
        if !g.per_head {
            return self.binary(BinaryKind::Mul, y, gate);
        }
        let width = self.width(y);
        self.one(
            Op::PerRun {
                kind: BinaryKind::Mul,
                width: dim_v,
            },
            &[y, gate],
            width,
        )
    }
}

/// The op that rotates every head of a row forwards, by the row's own position.
pub(crate) fn rotation(r: &RopeSpec, head_dim: u32) -> RopeOp {
    RopeOp {
        pairing: r.pairing,
        head_dim,
        offset: r.offset,
        freqs: r.freqs,
        magnitude: r.magnitude,
        channels: r.channels,
        inverse: false,
        back: 0,
    }
}
