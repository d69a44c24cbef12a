//! Latent attention, state spaces, delta rules and convolutions.

use tokkata_ir::op::GateClamp;
use tokkata_ir::spec::{
    BlockSpec, ConvSpec, DeltaInput, DeltaSpec, LightningSpec, MambaLayout, MambaSpec, MlaForm,
    MlaQuery, MlaSpec, RopeSpec, ShortConvSpec, XParts,
};
use tokkata_ir::{Act, AttentionOp, BinaryKind, NormKind, Op, ValueId};

use super::Builder;
use super::indexer::Chosen;

impl Builder<'_> {
    pub(crate) fn mixer(&mut self, block: &BlockSpec, x: ValueId) -> ValueId {
        match block {
            BlockSpec::Mla(m) => self.mla(m, x),
            BlockSpec::Mamba(m) => self.mamba(m, x),
            BlockSpec::Delta(d) => self.delta(d, x),
            BlockSpec::ShortConv(c) => self.short_conv(c, x),
            BlockSpec::Lightning(l) => self.lightning(l, x),
            BlockSpec::Rwkv6(r) => self.rwkv6(r, x),
            BlockSpec::Rwkv7(r) => self.rwkv7(r, x),
            BlockSpec::ChannelMix(c) => self.channel_mix(c, x),
            BlockSpec::Laurel(l) => self.laurel(l, x),
            BlockSpec::Summary(s) => self.summary(s, x),
            BlockSpec::Activation(act) => self.unary(x, *act),
            BlockSpec::Attention(_)
            | BlockSpec::Ffn(_)
            | BlockSpec::Moe(_)
            | BlockSpec::Linear(_) => {
                unreachable!("built elsewhere")
            }
        }
    }

    fn concat(&mut self, groups: u32, ins: &[ValueId], width: u32) -> ValueId {
        self.one(Op::Concat { groups }, ins, width)
    }

    fn mla(&mut self, m: &MlaSpec, x: ValueId) -> ValueId {
        let dim_k = m.dim_nope + m.dim_rope;
        let at_end = |r: &RopeSpec| RopeSpec {
            offset: m.dim_nope,
            ..r.clone()
        };
        let q_rope = m.rope.as_ref().map(at_end);
        let k_rope = m.rope.as_ref().map(|r| RopeSpec {
            offset: 0,
            ..r.clone()
        });
        let (q, low) = self.mla_query(&m.q, x);
        let chosen = self.reads(&m.reads, x, low);
        let q = self.rope(q, q_rope.as_ref(), dim_k);
        let both = self.at("attn_kv_a").matmul(x, &m.kv_a);
        let latent = self.slice(both, m.kv_rank + m.dim_rope, 0, m.kv_rank);
        let latent = self.norm(latent, &m.kv_norm);
        let k_pe = (m.dim_rope > 0).then(|| {
            let k_pe = self.slice(both, m.kv_rank + m.dim_rope, m.kv_rank, m.dim_rope);
            let k_pe = self.norm_opt(k_pe, m.k_rope_norm.as_ref());
            self.rope(k_pe, k_rope.as_ref(), m.dim_rope)
        });
        let y = match &m.form {
            MlaForm::Absorbed { k_b, v_b } => {
                let y = self.mla_absorbed(m, *k_b, (q, latent, k_pe), chosen);
                let op = Op::HeadMatmul {
                    weight: *v_b,
                    heads: m.n_heads,
                };
                self.at("attn_v_b").one(op, &[y], m.n_heads * m.dim_v)
            }
            MlaForm::Expanded { kv_b } => {
                let kv = self.at("attn_kv_b").matmul(latent, kv_b);
                self.mla_expanded(m, (q, kv, k_pe), chosen)
            }
        };
        let y = self.gated(y, m.gate.as_ref(), x, m.dim_v);
        self.at("attn_output").matmul(y, &m.out)
    }

    /// Queries and, where they have one, their low rank.
    pub(crate) fn mla_query(&mut self, q: &MlaQuery, x: ValueId) -> (ValueId, Option<ValueId>) {
        match q {
            MlaQuery::Full(p) => (self.at("attn_q").matmul(x, p), None),
            MlaQuery::LowRank { a, norm, b } => {
                let low = self.at("attn_q_a").matmul(x, a);
                let low = self.norm(low, norm);
                (self.at("attn_q_b").matmul(low, b), Some(low))
            }
        }
    }

    fn mla_absorbed(
        &mut self,
        m: &MlaSpec,
        k_b: tokkata_ir::WeightId,
        (q, latent, k_pe): (ValueId, ValueId, Option<ValueId>),
        chosen: Option<Chosen>,
    ) -> ValueId {
        let (h, dim_k, wide) = (m.n_heads, m.dim_nope + m.dim_rope, m.kv_rank + m.dim_rope);
        let nope = self.at("attn_k_b").slice(q, dim_k, 0, m.dim_nope);
        let nope = self.one(
            Op::HeadMatmul {
                weight: k_b,
                heads: h,
            },
            &[nope],
            h * m.kv_rank,
        );
        let (q, k) = match k_pe {
            Some(k_pe) => {
                let pe = self.slice(q, dim_k, m.dim_nope, m.dim_rope);
                let q = self.at("attn_q").concat(h, &[nope, pe], h * wide);
                let k = self.at("attn_k").concat(1, &[latent, k_pe], wide);
                (q, k)
            }
            None => (nope, latent),
        };
        let q = self.tempered(q, m.temperature);
        self.mla_attention(m, [1, wide, m.kv_rank], (q, k, None), chosen)
    }

    fn mla_expanded(
        &mut self,
        m: &MlaSpec,
        (q, kv, k_pe): (ValueId, ValueId, Option<ValueId>),
        chosen: Option<Chosen>,
    ) -> ValueId {
        let (h, dim_k) = (m.n_heads, m.dim_nope + m.dim_rope);
        let q = self.tempered(q, m.temperature);
        let k = self.at("attn_k").mla_keys(m, kv, k_pe);
        let v = self
            .at("attn_v")
            .slice(kv, m.dim_nope + m.dim_v, m.dim_nope, m.dim_v);
        self.mla_attention(m, [h, dim_k, m.dim_v], (q, k, Some(v)), chosen)
    }

    /// Keys of every head: their own columns, then the shared rotated ones.
    fn mla_keys(&mut self, m: &MlaSpec, kv: ValueId, k_pe: Option<ValueId>) -> ValueId {
        let width = m.n_heads * (m.dim_nope + m.dim_rope);
        let Some(k_pe) = k_pe else {
            return self.slice(kv, m.dim_nope + m.dim_v, 0, m.dim_nope);
        };
        if m.dim_nope == 0 {
            let op = Op::Repeat {
                width: m.dim_rope,
                times: m.n_heads,
                tiled: true,
            };
            return self.one(op, &[k_pe], width);
        }
        let nope = self.slice(kv, m.dim_nope + m.dim_v, 0, m.dim_nope);
        self.concat(m.n_heads, &[nope, k_pe], width)
    }

    fn mla_attention(
        &mut self,
        m: &MlaSpec,
        dims: [u32; 3],
        (q, k, v): (ValueId, ValueId, Option<ValueId>),
        chosen: Option<Chosen>,
    ) -> ValueId {
        let [n_kv_heads, dim_k, dim_v] = dims;
        let (source, mut ins) = self.at("attn").place(m.kv, q, Some(k), v);
        ins.extend(chosen.map(|c| c.ids));
        let op = AttentionOp {
            n_heads: m.n_heads,
            n_kv_heads,
            dim_k,
            dim_v,
            scale: m.scale,
            cap: None,
            sinks: m.sinks,
            alibi: None,
            bucket: None,
            mask: m.mask,
            source,
            entries: None,
            selection: chosen.map(|c| c.selection),
        };
        self.one(Op::Attention(op), &ins, m.n_heads * dim_v)
    }

    fn conv(&mut self, x: ValueId, c: &ConvSpec) -> ValueId {
        let width = self.width(x);
        let op = Op::Conv {
            weight: c.weight,
            bias: c.bias,
            kernel: c.kernel,
            slot: c.slot,
        };
        self.one(op, &[x], width)
    }

    fn silu_gate(&mut self, z: ValueId, y: ValueId) -> ValueId {
        let width = self.width(y);
        self.one(
            Op::Gate {
                act: Act::Silu,
                clamp: GateClamp::None,
            },
            &[z, y],
            width,
        )
    }

    fn mamba(&mut self, m: &MambaSpec, x: ValueId) -> ValueId {
        let i = m.inner;
        let all = self.at("ssm_in").matmul(x, &m.input);
        let n = self.width(all);
        let bc = m.groups * m.state;
        let (z, x, whole_dt) = match m.layout {
            MambaLayout::XZ => (self.slice(all, n, i, i), self.slice(all, n, 0, i), None),
            MambaLayout::ZXbcDt => {
                let dt = self.slice(all, n, 2 * i + 2 * bc, m.heads);
                (
                    self.slice(all, n, 0, i),
                    self.slice(all, n, i, i + 2 * bc),
                    Some(dt),
                )
            }
            MambaLayout::HeadZX => {
                let p = i / m.heads;
                (
                    self.slice(all, 2 * p, 0, p),
                    self.slice(all, 2 * p, p, p),
                    None,
                )
            }
        };
        let x = self.at("ssm_conv").conv(x, &m.conv);
        let x = self.unary(x, Act::Silu);
        let (x, dt, b, c) = match whole_dt {
            Some(dt) => {
                let w = i + 2 * bc;
                let [b, c] = [i, i + bc].map(|at| self.slice(x, w, at, bc));
                (self.slice(x, w, 0, i), dt, b, c)
            }
            None => {
                let [dt, b, c] = self.mamba_inputs(m, x);
                (x, dt, b, c)
            }
        };
        let op = Op::Scan {
            scan: m.scan.clone(),
            slot: m.slot,
        };
        let y = self.at("ssm_scan").one(op, &[x, dt, b, c], i);
        let y = self.silu_gate(z, y);
        let y = self.at("ssm_norm").norm_opt(y, m.out_norm.as_ref());
        self.at("ssm_out").matmul(y, &m.out)
    }

    /// dt, B and C from x.
    fn mamba_inputs(&mut self, m: &MambaSpec, x: ValueId) -> [ValueId; 3] {
        let all = self
            .at("ssm_x")
            .matmul(x, m.x_proj.as_ref().expect("the layout projects x"));
        let n = self.width(all);
        let (r, s) = (m.dt_rank, m.state);
        let starts = match m.x_parts {
            XParts::DtBC => [0, r, r + s],
            XParts::BCDt => [2 * s, 0, s],
        };
        let dt = self.slice(all, n, starts[0], r);
        let b = self.slice(all, n, starts[1], s);
        let c = self.slice(all, n, starts[2], s);
        let dt = self.norm_opt(dt, m.dt_norm.as_ref());
        let b = self.norm_opt(b, m.b_norm.as_ref());
        let c = self.norm_opt(c, m.c_norm.as_ref());
        let dt = self
            .at("ssm_dt")
            .matmul(dt, m.dt_proj.as_ref().expect("the layout widens dt"));
        [dt, b, c]
    }

    fn short_conv(&mut self, s: &ShortConvSpec, x: ValueId) -> ValueId {
        let d = self.width(x);
        let all = self.at("shortconv_in").matmul(x, &s.input);
        let [b, c, x] = [0, 1, 2].map(|i| self.slice(all, 3 * d, i * d, d));
        let bx = self.binary(BinaryKind::Mul, b, x);
        let y = self.at("shortconv").conv(bx, &s.conv);
        let y = self.binary(BinaryKind::Mul, c, y);
        self.at("shortconv_out").matmul(y, &s.out)
    }

    fn lightning(&mut self, l: &LightningSpec, x: ValueId) -> ValueId {
        let dim = l.head_dim;
        let all = self.at("attn_qkv").matmul(x, &l.qkv);
        let all = self.unary(all, Act::Silu);
        let [q, k, v] = [0, 1, 2].map(|i| self.slice(all, 3 * dim, i * dim, dim));
        let scan = tokkata_ir::Scan::Decay {
            heads: l.heads,
            slopes: l.slopes,
        };
        let y = self
            .at("attn")
            .one(Op::Scan { scan, slot: l.slot }, &[q, k, v], l.heads * dim);
        let y = self.norm(y, &l.out_norm);
        let gate = self.at("attn_gate").matmul(x, &l.gate);
        let gate = self.unary(gate, Act::Sigmoid);
        let y = self.binary(BinaryKind::Mul, y, gate);
        self.at("attn_output").matmul(y, &l.out)
    }

    fn delta(&mut self, d: &DeltaSpec, x: ValueId) -> ValueId {
        let (keys, values) = (d.k_heads * d.dim_k, d.v_heads * d.dim_v);
        let (parts, grouped_z) = self.delta_qkv(d, x);
        let [q, k, v] = self.delta_convs(d, parts, [keys, keys, values]);
        let l2 = |width| Op::Norm {
            kind: NormKind::L2Max,
            eps: d.l2_eps,
            width,
            weight: None,
            bias: None,
        };
        let q = self.at("attn_q").one(l2(d.dim_k), &[q], keys);
        let k = self.at("attn_k").one(l2(d.dim_k), &[k], keys);
        let (g, beta) = self.delta_gates(d, x);
        let op = Op::Scan {
            scan: d.scan.clone(),
            slot: d.slot,
        };
        let y = self.at("delta").one(op, &[q, k, v, g, beta], values);
        let y = self.at("delta_norm").norm(y, &d.out_norm);
        let z = match &d.z {
            Some(DeltaInput::Grouped) => grouped_z,
            Some(input) => Some(self.at("delta_z").delta_input(input, x)),
            None => None,
        };
        let y = match z {
            Some(z) => self.one(
                Op::Gate {
                    act: d.z_act,
                    clamp: GateClamp::None,
                },
                &[z, y],
                values,
            ),
            None => y,
        };
        self.at("delta_out").matmul(y, &d.out)
    }

    /// What goes into the convolutions, and z where it is stored among it.
    fn delta_qkv(&mut self, d: &DeltaSpec, x: ValueId) -> (Vec<ValueId>, Option<ValueId>) {
        let (keys, values) = (d.k_heads * d.dim_k, d.v_heads * d.dim_v);
        self.at("attn_qkv");
        if d.qkvz_grouped {
            let all = self.matmul(x, &d.qkv[0]);
            let per = d.v_heads / d.k_heads * d.dim_v;
            let group = 2 * d.dim_k + 2 * per;
            let q = self.slice(all, group, 0, d.dim_k);
            let k = self.slice(all, group, d.dim_k, d.dim_k);
            let v = self.slice(all, group, 2 * d.dim_k, per);
            let z = self.slice(all, group, 2 * d.dim_k + per, per);
            let joined = self.concat(1, &[q, k, v], 2 * keys + values);
            return (vec![joined], Some(z));
        }
        let parts: Vec<ValueId> = d.qkv.iter().map(|p| self.matmul(x, p)).collect();
        if d.convs.len() == 3 && parts.len() == 1 {
            let n = self.width(parts[0]);
            let cut = [(0, keys), (keys, keys), (2 * keys, values)];
            return (
                cut.map(|(at, len)| self.slice(parts[0], n, at, len))
                    .to_vec(),
                None,
            );
        }
        (parts, None)
    }

    fn delta_convs(
        &mut self,
        d: &DeltaSpec,
        parts: Vec<ValueId>,
        widths: [u32; 3],
    ) -> [ValueId; 3] {
        self.at("delta_conv");
        let done: Vec<ValueId> = parts
            .into_iter()
            .zip(&d.convs)
            .map(|(x, c)| {
                let y = self.conv(x, c);
                self.unary(y, Act::Silu)
            })
            .collect();
        if let [q, k, v] = done[..] {
            return [q, k, v];
        }
        let n = widths.iter().sum();
        let starts = [0, widths[0], widths[0] + widths[1]];
        std::array::from_fn(|i| self.slice(done[0], n, starts[i], widths[i]))
    }

    fn delta_input(&mut self, input: &DeltaInput, x: ValueId) -> ValueId {
        match input {
            DeltaInput::Full(p) => self.matmul(x, p),
            DeltaInput::LowRank(a, b) => {
                let low = self.matmul(x, a);
                self.matmul(low, b)
            }
            DeltaInput::Grouped => unreachable!("grouped inputs are cut from another projection"),
        }
    }

    /// Log decay and write strength.
    fn delta_gates(&mut self, d: &DeltaSpec, x: ValueId) -> (ValueId, ValueId) {
        let r = d.v_heads / d.k_heads;
        let both = self.at("delta_beta").matmul(x, &d.beta);
        let (beta, alpha) = match (d.beta_alpha_grouped, &d.alpha) {
            (true, _) => (self.slice(both, 2 * r, 0, r), self.slice(both, 2 * r, r, r)),
            (false, input) => (both, self.at("delta_alpha").delta_input(input, x)),
        };
        let beta = self.at("delta_beta").unary(beta, Act::Sigmoid);
        let mut g = alpha;
        if let Some(bias) = d.decay.dt_bias {
            g = self.at("delta_alpha").weighted(BinaryKind::Add, g, bias);
        }
        let g = match d.decay.lower_bound {
            Some(bound) => {
                let g = self.weighted(BinaryKind::Mul, g, d.decay.a);
                let g = self.unary(g, Act::Sigmoid);
                self.affine(g, bound, 0.0)
            }
            None => {
                let g = self.unary(g, Act::Softplus);
                self.weighted(BinaryKind::Mul, g, d.decay.a)
            }
        };
        (g, beta)
    }
}
