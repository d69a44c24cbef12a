//! Feed-forwards and mixtures of experts.

use tokkata_ir::op::GateClamp;
use tokkata_ir::spec::{
    ExpertForm, ExpertProj, FfnForm, FfnSpec, MoeSpec, RouterInput, SecondExperts,
};
use tokkata_ir::{Act, BinaryKind, Op, RouteOp, Shape, ValType, ValueDef, ValueId};

use super::Builder;

/// What experts do between their projections.
#[derive(Clone, Copy)]
struct Inner {
    act: Act,
    clamp: GateClamp,
    top_k: u32,
}

impl Builder<'_> {
    pub(crate) fn ffn(&mut self, f: &FfnSpec, x: ValueId) -> ValueId {
        let gate_op = Op::Gate {
            act: f.act,
            clamp: f.clamp,
        };
        let mut h = match &f.form {
            FfnForm::Gated { gate, up } => {
                let gate = self.at("ffn_gate").matmul(x, gate);
                let gate = self.sparse(gate, f.sparsity);
                let up = self.at("ffn_up").matmul(x, up);
                self.at("ffn_act").one(gate_op, &[gate, up], f.n_ff)
            }
            FfnForm::Fused(both) => {
                let both = self.at("ffn_up").matmul(x, both);
                let gate = self.slice(both, 2 * f.n_ff, 0, f.n_ff);
                let up = self.slice(both, 2 * f.n_ff, f.n_ff, f.n_ff);
                self.at("ffn_act").one(gate_op, &[gate, up], f.n_ff)
            }
            FfnForm::Plain(up) => {
                let up = self.at("ffn_up").matmul(x, up);
                self.at("ffn_act").unary(up, f.act)
            }
        };
        if let Some(div) = f.act_div {
            h = self.weighted(BinaryKind::Div, h, div);
        }
        h = self.norm_opt(h, f.sub_norm.as_ref());
        self.at("ffn_down").matmul(h, &f.down)
    }

    fn sparse(&mut self, gate: ValueId, z: Option<f32>) -> ValueId {
        let width = self.width(gate);
        z.map_or(gate, |z| self.one(Op::GaussianTopK { z }, &[gate], width))
    }

    pub(crate) fn moe(
        &mut self,
        m: &MoeSpec,
        x: ValueId,
        stream: ValueId,
        layer_input: ValueId,
    ) -> ValueId {
        let logits = self.router_logits(m, x, stream, layer_input);
        let (ids, weights) = self.route(m, logits, 1);
        let input = m
            .latent_in
            .as_ref()
            .map_or(x, |p| self.at("moe_latent").matmul(x, p));
        let inner = Inner {
            act: m.act,
            clamp: m.clamp,
            top_k: m.top_k,
        };
        let mut y = self.routed(&m.form, &m.down, inner, input, ids, weights, m.weigh_input);
        if let Some(second) = &m.second {
            y = self.second_level(m, second, logits, y);
        }
        y = self.norm_opt(y, m.latent_norm.as_ref());
        if let Some(p) = &m.latent_out {
            y = self.at("moe_latent").matmul(y, p);
        }
        if let Some(shared) = &m.shared {
            let s = self.shared_expert(m, shared, x);
            y = self.at("moe").binary(BinaryKind::Add, y, s);
        }
        self.affine(y, m.out_scale, 0.0)
    }

    fn router_logits(
        &mut self,
        m: &MoeSpec,
        x: ValueId,
        stream: ValueId,
        layer_input: ValueId,
    ) -> ValueId {
        let mut r = match m.router_input {
            RouterInput::Experts => x,
            RouterInput::LayerInput => layer_input,
            RouterInput::Stream => stream,
        };
        self.at("moe_router");
        if let Some((norm, scale, vector)) = &m.router_norm {
            r = self.norm(r, norm);
            r = self.affine(r, *scale, 0.0);
            if let Some(v) = vector {
                r = self.weighted(BinaryKind::Mul, r, *v);
            }
        }
        self.matmul(r, &m.router)
    }

    fn route(&mut self, m: &MoeSpec, logits: ValueId, id_divisor: u32) -> (ValueId, ValueId) {
        let op = RouteOp {
            n_experts: m.n_experts,
            top_k: m.top_k,
            score: m.score,
            select: m.select,
            bias: m.bias,
            table: m.table,
            groups: m.groups,
            softmax_chosen: m.softmax_chosen,
            sigmoid_chosen: m.sigmoid_chosen,
            near_ties: m.near_ties,
            renormalise: m.renormalise,
            scale: m.scale,
            id_divisor,
        };
        let lead = self.plan.value(logits).shape.lead;
        let shape = Shape {
            lead,
            dims: vec![m.top_k],
        };
        let ids = ValueDef {
            shape: shape.clone(),
            dtype: ValType::I32,
        };
        let weights = ValueDef {
            shape,
            dtype: ValType::F32,
        };
        let outs = self
            .at("moe_route")
            .push(Op::Route(op), &[logits], &[ids, weights]);
        (outs[0], outs[1])
    }

    #[allow(clippy::too_many_arguments, reason = "one expert bank is all of these")]
    fn routed(
        &mut self,
        form: &ExpertForm,
        down: &ExpertProj,
        inner: Inner,
        x: ValueId,
        ids: ValueId,
        weights: ValueId,
        weigh_input: bool,
    ) -> ValueId {
        let x = if weigh_input {
            self.weighed_copies(x, weights, inner.top_k)
        } else {
            x
        };
        let h = match form {
            ExpertForm::Gated { gate, up } => {
                let gate = self.at("moe_gate").experts(x, ids, gate, inner.top_k);
                let up = self.at("moe_up").experts(x, ids, up, inner.top_k);
                let width = self.width(up);
                self.at("moe_act").one(
                    Op::Gate {
                        act: inner.act,
                        clamp: inner.clamp,
                    },
                    &[gate, up],
                    width,
                )
            }
            ExpertForm::Fused(both) => {
                let both = self.at("moe_up").experts(x, ids, both, inner.top_k);
                let two = self.width(both) / inner.top_k;
                let gate = self.slice(both, two, 0, two / 2);
                let up = self.slice(both, two, two / 2, two / 2);
                let width = self.width(up);
                self.at("moe_act").one(
                    Op::Gate {
                        act: inner.act,
                        clamp: inner.clamp,
                    },
                    &[gate, up],
                    width,
                )
            }
            ExpertForm::Plain(up) => {
                let up = self.at("moe_up").experts(x, ids, up, inner.top_k);
                self.at("moe_act").unary(up, inner.act)
            }
        };
        let y = self.at("moe_down").experts(h, ids, down, inner.top_k);
        let width = self.width(y) / inner.top_k;
        let weights = if weigh_input {
            self.affine(weights, 0.0, 1.0)
        } else {
            weights
        };
        self.at("moe_combine")
            .one(Op::Combine, &[y, weights], width)
    }

    /// One copy of the row per chosen expert, times its weight.
    fn weighed_copies(&mut self, x: ValueId, weights: ValueId, top_k: u32) -> ValueId {
        let width = self.width(x);
        let copies = self.at("moe_input").one(
            Op::Repeat {
                width,
                times: top_k,
                tiled: true,
            },
            &[x],
            width * top_k,
        );
        self.one(
            Op::PerRun {
                kind: BinaryKind::Mul,
                width,
            },
            &[copies, weights],
            width * top_k,
        )
    }

    fn experts(&mut self, x: ValueId, ids: ValueId, p: &ExpertProj, top_k: u32) -> ValueId {
        let n = self.spec.weights[p.weight.index()].shape[1];
        let op = Op::Experts {
            weight: p.weight,
            scale: p.scale,
            bias: p.bias,
            top_k,
        };
        self.one(op, &[x, ids], n * top_k)
    }

    fn second_level(
        &mut self,
        m: &MoeSpec,
        s: &SecondExperts,
        logits: ValueId,
        first: ValueId,
    ) -> ValueId {
        let (ids, weights) = self.route(m, logits, s.group);
        let inner = Inner {
            act: m.act,
            clamp: m.clamp,
            top_k: m.top_k,
        };
        let y = self.routed(&s.form, &s.down, inner, first, ids, weights, false);
        let width = self.width(first);
        let add = Op::Binary {
            kind: BinaryKind::Add,
            a_scale: 1.0,
            b_scale: s.scale,
        };
        self.one(add, &[first, y], width)
    }

    fn shared_expert(&mut self, m: &MoeSpec, shared: &FfnSpec, x: ValueId) -> ValueId {
        let y = self.ffn(shared, x);
        let Some(gate) = &m.shared_gate else { return y };
        let gate = self.at("moe_shared_gate").matmul(x, gate);
        let gate = self.unary(gate, Act::Sigmoid);
        self.binary(BinaryKind::Mul, y, gate)
    }
}
