//! RWKV time mixes and the channel mix.

use tokkata_ir::spec::{ChannelMixSpec, LowRank, Rwkv6Spec, Rwkv7Spec};
use tokkata_ir::{Act, BinaryKind, NormKind, Op, Scan, SlotId, ValueId, WeightId};

use super::Builder;

impl Builder<'_> {
    /// The row before minus this one.
    fn shifted(&mut self, x: ValueId, slot: SlotId) -> ValueId {
        let width = self.width(x);
        let before = self.one(Op::Shift { slot }, &[x], width);
        self.binary(BinaryKind::Sub, before, x)
    }

    /// `x + delta ⊙ mix`.
    fn lerp(&mut self, x: ValueId, delta: ValueId, mix: WeightId) -> ValueId {
        let part = self.weighted(BinaryKind::Mul, delta, mix);
        self.binary(BinaryKind::Add, part, x)
    }

    /// Key and value heads repeated to as many as queries have.
    fn repeat_heads(&mut self, x: ValueId, dim: u32, heads: u32) -> ValueId {
        let times = heads * dim / self.width(x);
        if times == 1 {
            x
        } else {
            self.one(
                Op::Repeat {
                    width: dim,
                    times,
                    tiled: false,
                },
                &[x],
                heads * dim,
            )
        }
    }

    pub(crate) fn rwkv6(&mut self, r: &Rwkv6Spec, x: ValueId) -> ValueId {
        let d = self.width(x);
        let heads = d / r.head_dim;
        let delta = self.at("time_mix").shifted(x, r.shift);
        let base = self.lerp(x, delta, r.lerp_x);
        let low = self.matmul(base, &r.w1);
        let low = self.unary(low, Act::Tanh);
        let mixes = self.one(
            Op::HeadMatmul {
                weight: r.w2,
                heads: 5,
            },
            &[low],
            5 * d,
        );
        let inputs: Vec<ValueId> = (0..5).map(|i| self.mixed(r, x, delta, mixes, i)).collect();
        let [w, k, v, rec, g] = inputs[..] else {
            unreachable!("five mixes")
        };
        let rec = self.at("time_mix_r").matmul(rec, &r.r);
        let k = self.at("time_mix_k").matmul(k, &r.k);
        let v = self.at("time_mix_v").matmul(v, &r.v);
        let g = self.at("time_mix_g").matmul(g, &r.g);
        let g = self.unary(g, r.gate_act);
        let mut k = self.repeat_heads(k, r.head_dim, heads);
        let v = self.repeat_heads(v, r.head_dim, heads);
        let w = self.at("time_mix_w").decay6(r, w);
        if r.scale_k {
            let kw = self.binary(BinaryKind::Mul, k, w);
            k = self.binary(BinaryKind::Sub, k, kw);
        }
        let op = Op::Scan {
            scan: r.scan.clone(),
            slot: r.slot,
        };
        let y = self.at("wkv").one(op, &[rec, k, v, w], d);
        let y = self.norm_opt(y, r.out_norm.as_ref());
        let y = self.binary(BinaryKind::Mul, y, g);
        self.at("time_mix_output").matmul(y, &r.out)
    }

    /// `x + delta ⊙ (static mix + data-dependent mix)`.
    fn mixed(
        &mut self,
        r: &Rwkv6Spec,
        x: ValueId,
        delta: ValueId,
        mixes: ValueId,
        i: u32,
    ) -> ValueId {
        let d = self.width(x);
        let own = self.slice(mixes, 5 * d, i * d, d);
        let mix = self.weighted(BinaryKind::Add, own, r.lerps[i as usize]);
        let part = self.binary(BinaryKind::Mul, mix, delta);
        self.binary(BinaryKind::Add, part, x)
    }

    /// `exp(−exp(base + up(tanh(down x))))`.
    fn decay6(&mut self, r: &Rwkv6Spec, x: ValueId) -> ValueId {
        let low = self.matmul(x, &r.decay_w1);
        let low = self.unary(low, Act::Tanh);
        let w = self.matmul(low, &r.decay_w2);
        let w = self.weighted(BinaryKind::Add, w, r.decay);
        let w = self.unary(w, Act::NegExp);
        self.unary(w, Act::Exp)
    }

    pub(crate) fn rwkv7(&mut self, r: &Rwkv7Spec, x: ValueId) -> ValueId {
        let (d, dim) = (self.width(x), r.head_dim);
        let heads = d / dim;
        let delta = self.at("time_mix").shifted(x, r.shift);
        let inputs: Vec<ValueId> = r.lerps.iter().map(|&m| self.lerp(x, delta, m)).collect();
        let rec = self.at("time_mix_r").matmul(inputs[0], &r.r);
        let w = self.at("time_mix_w").low_rank7(&r.w, inputs[1], Act::Tanh);
        let w = self.unary(w, Act::Sigmoid);
        let w = self.affine(w, -0.606_531, 0.0);
        let w = self.unary(w, Act::Exp);
        let k = self.at("time_mix_k").matmul(inputs[2], &r.k);
        let v = self.at("time_mix_v").matmul(inputs[3], &r.v);
        let (k, v) = (
            self.repeat_heads(k, dim, heads),
            self.repeat_heads(v, dim, heads),
        );
        let v = self.value_residual(r, v, inputs[3]);
        let a = self
            .at("time_mix_a")
            .low_rank7(&r.a, inputs[4], Act::Identity);
        let a = self.unary(a, Act::Sigmoid);
        let kk = self.weighted(BinaryKind::Mul, k, r.k_k);
        let l2 = Op::Norm {
            kind: NormKind::L2Max,
            eps: 1e-12,
            width: dim,
            weight: None,
            bias: None,
        };
        let kk = self.one(l2, &[kk], d);
        let k = self.scaled_key(k, a, r.k_a);
        let op = Op::Scan {
            scan: Scan::Wkv7 { head_dim: dim },
            slot: r.slot,
        };
        let y = self.at("wkv").one(op, &[rec, w, k, v, kk, a], d);
        let y = self.norm_opt(y, r.out_norm.as_ref());
        let bonus = self.binary(BinaryKind::Mul, k, rec);
        let bonus = self.weighted(BinaryKind::Mul, bonus, r.r_k);
        let bonus = self.one(Op::SumRuns { width: dim }, &[bonus], heads);
        let bonus = self.one(
            Op::PerRun {
                kind: BinaryKind::Mul,
                width: dim,
            },
            &[v, bonus],
            d,
        );
        let mut y = self.binary(BinaryKind::Add, y, bonus);
        if let Some((g1, g2)) = &r.g {
            let g = self.at("time_mix_g").matmul(inputs[5], g1);
            let g = self.unary(g, Act::Sigmoid);
            let g = self.matmul(g, g2);
            y = self.binary(BinaryKind::Mul, y, g);
        }
        self.at("time_mix_output").matmul(y, &r.out)
    }

    fn low_rank7(&mut self, l: &LowRank, x: ValueId, act: Act) -> ValueId {
        let low = self.matmul(x, &l.down);
        let low = self.unary(low, act);
        let up = self.matmul(low, &l.up);
        self.weighted(BinaryKind::Add, up, l.base)
    }

    /// The first layer's value is kept; later ones move towards it.
    fn value_residual(&mut self, r: &Rwkv7Spec, v: ValueId, input: ValueId) -> ValueId {
        let (Some(mix), Some(first)) = (&r.v_mix, self.first_value) else {
            self.first_value = Some(v);
            return v;
        };
        let gate = self.low_rank7(mix, input, Act::Identity);
        let gate = self.unary(gate, Act::Sigmoid);
        let gap = self.binary(BinaryKind::Sub, first, v);
        let part = self.binary(BinaryKind::Mul, gap, gate);
        self.binary(BinaryKind::Add, v, part)
    }

    /// `k + (a − 1) ⊙ (k ⊙ k_a)`.
    fn scaled_key(&mut self, k: ValueId, a: ValueId, k_a: WeightId) -> ValueId {
        let ka = self.weighted(BinaryKind::Mul, k, k_a);
        let less = self.affine(a, 1.0, -1.0);
        let part = self.binary(BinaryKind::Mul, less, ka);
        self.binary(BinaryKind::Add, k, part)
    }

    pub(crate) fn channel_mix(&mut self, c: &ChannelMixSpec, x: ValueId) -> ValueId {
        let delta = self.at("channel_mix").shifted(x, c.shift);
        let k = self.lerp(x, delta, c.lerp_k);
        let k = self.matmul(k, &c.key);
        let k = self.unary(k, Act::Relu2);
        let y = self.matmul(k, &c.value);
        let (Some(receptance), Some(mix)) = (&c.receptance, c.lerp_r) else {
            return y;
        };
        let r = self.lerp(x, delta, mix);
        let r = self.matmul(r, receptance);
        let r = self.unary(r, Act::Sigmoid);
        self.binary(BinaryKind::Mul, r, y)
    }
}
