//! Embedding, residual steps and head.

use tokkata_ir::spec::{
    BlockSpec, BranchSpec, ClassifierSpec, EmbedSpec, FrameSpec, FramesSpec, HeadSpec, LayerSpec,
    PerLayerEmbed, PerLayerInject, Proj, Skip, Source, StackSpec, StepSpec,
};
use tokkata_ir::{
    Act, BinaryKind, Conv1dOp, GatherIndex, Lead, Op, PlanRole, PoolKind, Shape, ValType, ValueDef,
    ValueId, WeightId,
};

use super::Builder;

/// Values that outlive the layer that made them.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    /// Embedding after its norm.
    pub(crate) embed: ValueId,
    /// Per-layer embeddings of all layers.
    pub(crate) per_layer: Option<ValueId>,
}

impl Builder<'_> {
    pub(crate) fn stack(&mut self, stack: &StackSpec) {
        let embed = stack.embed.as_ref();
        let mut x = match (&stack.frames, embed) {
            (Some(frames), _) => self.frames(frames),
            (None, embed) => self.embed(embed.expect("a stack has an input stage")),
        };
        let per_layer = embed.and_then(|e| e.per_layer.as_ref());
        let per_layer = per_layer.map(|p| self.per_layer_embed(p, x));
        let carry = Carry {
            embed: x,
            per_layer,
        };
        x = match &stack.frame {
            Some(FrameSpec::AltUp(a)) => self.altup(stack, a, carry),
            Some(FrameSpec::Connected(c)) => self.connected(stack, c, x),
            Some(FrameSpec::Banked(b)) => self.banked(stack, b, x),
            None => self.layers(stack, x, carry),
        };
        self.head(&stack.head, x);
    }

    fn layers(&mut self, stack: &StackSpec, mut x: ValueId, carry: Carry) -> ValueId {
        let mut states = self.states(stack, x);
        let mut inputs = Vec::with_capacity(stack.layers.len() + 1);
        for (i, layer) in stack.layers.iter().enumerate() {
            self.enter(Some(i as u32));
            if let (true, Some(states)) = (layer.join_states, states) {
                x = self.joined(states);
            }
            inputs.push(x);
            x = self.layer(layer, i as u32, x, carry);
            if let (Some(which), Some(states)) = (layer.store_state, &mut states) {
                states.store(which, x);
            }
        }
        self.enter(None);
        inputs.push(x);
        if let Some(taps) = self.tapped {
            self.taps(taps, &inputs);
        }
        x
    }

    pub(crate) fn gather(&mut self, table: WeightId, index: GatherIndex) -> ValueId {
        self.gather_beside(table, index, None)
    }

    /// Rows of a table, or of embeddings where rows are flagged so.
    fn gather_beside(
        &mut self,
        table: WeightId,
        index: GatherIndex,
        embeds: Option<ValueId>,
    ) -> ValueId {
        let width = self.spec.weights[table.index()].cols() as u32;
        let def = ValueDef {
            shape: Shape::rows(&[width]),
            dtype: ValType::F32,
        };
        let ins: Vec<ValueId> = embeds.into_iter().collect();
        self.push(Op::Gather { table, index }, &ins, &[def])[0]
    }

    fn embed(&mut self, e: &EmbedSpec) -> ValueId {
        self.at("embed");
        let embeds = self.plan.input("embeds");
        let mut x = self.gather_beside(e.table, GatherIndex::Token, embeds);
        x = self.affine(x, e.scale, 0.0);
        if let Some(types) = e.types {
            let row = self.gather(types, GatherIndex::Fixed(0));
            x = self.binary(BinaryKind::Add, x, row);
        }
        if let Some((table, offset)) = e.positions {
            let row = self.gather(table, GatherIndex::Position { offset });
            x = self.binary(BinaryKind::Add, x, row);
        }
        self.norm_opt(x, e.norm.as_ref())
    }

    /// Rows of the frames that the port `frames` holds, several in a row.
    fn frames(&mut self, f: &FramesSpec) -> ValueId {
        let mut frames = f.per_row();
        let mut x = self.input("frames", frames * f.channels);
        for (i, conv) in f.convs.iter().enumerate() {
            let width = self.spec.weights[conv.weight.index()].rows() as u32;
            let op = Conv1dOp {
                weight: conv.weight,
                bias: conv.bias,
                kernel: conv.kernel,
                stride: conv.stride,
                padding: conv.padding,
                frames,
            };
            frames /= conv.stride;
            x = self
                .at(&format!("conv{}", i + 1))
                .one(Op::Conv1d(op), &[x], frames * width);
            x = self.unary(x, f.act);
        }
        self.at("embed");
        let row = self.gather(f.positions, GatherIndex::Position { offset: 0 });
        self.binary(BinaryKind::Add, x, row)
    }

    fn per_layer_embed(&mut self, p: &PerLayerEmbed, x: ValueId) -> ValueId {
        self.at("per_layer_embed");
        let rows = self.gather(p.table, GatherIndex::Token);
        let rows = self.affine(rows, p.scale, 0.0);
        let proj = self.matmul(x, &p.proj);
        let proj = self.affine(proj, p.proj_scale, 0.0);
        let proj = self.norm(proj, &p.norm);
        let sum = self.binary(BinaryKind::Add, proj, rows);
        self.affine(sum, p.combine_scale, 0.0)
    }

    pub(crate) fn layer(
        &mut self,
        layer: &LayerSpec,
        index: u32,
        input: ValueId,
        carry: Carry,
    ) -> ValueId {
        let mut x = input;
        for step in &layer.steps {
            x = self.step(step, x, input);
        }
        if let Some(inject) = &layer.per_layer {
            let all = carry.per_layer.expect("per-layer embeddings were built");
            x = self.per_layer_inject(inject, index, x, all);
        }
        if let Some(weight) = layer.embed_skip {
            let skip = self
                .at("embed_skip")
                .weighted(BinaryKind::Mul, carry.embed, weight);
            x = self.binary(BinaryKind::Add, x, skip);
        }
        if let Some(weight) = layer.out_scale {
            x = self.at("layer_out").weighted(BinaryKind::Mul, x, weight);
        }
        if let Some(scale) = layer.rescale {
            x = self.at("layer_out").affine(x, scale, 0.0);
        }
        self.at("layer_out").norm_opt(x, layer.end_norm.as_ref())
    }

    fn per_layer_inject(
        &mut self,
        p: &PerLayerInject,
        index: u32,
        x: ValueId,
        all: ValueId,
    ) -> ValueId {
        let out = self.at("per_layer").per_layer_value(p, index, x, all);
        self.binary(BinaryKind::Add, x, out)
    }

    /// What a layer's own embedding adds.
    pub(crate) fn per_layer_value(
        &mut self,
        p: &PerLayerInject,
        index: u32,
        x: ValueId,
        all: ValueId,
    ) -> ValueId {
        let gate = self.matmul(x, &p.gate);
        let dim = self.width(gate);
        let total = self.width(all);
        let own = self.slice(all, total, index * dim, dim);
        let op = Op::Gate {
            act: p.act,
            clamp: tokkata_ir::op::GateClamp::None,
        };
        let mixed = self.one(op, &[gate, own], dim);
        let out = self.matmul(mixed, &p.proj);
        self.norm_opt(out, p.norm.as_ref())
    }

    pub(crate) fn step(&mut self, step: &StepSpec, x: ValueId, layer_input: ValueId) -> ValueId {
        let (sum, normed) = self.step_sum(step, x, layer_input);
        let skip = if step.skip == Skip::Stream { x } else { normed };
        let width = self.width(x);
        let add = Op::Binary {
            kind: BinaryKind::Add,
            a_scale: step.skip_scale,
            b_scale: 1.0,
        };
        let mut out = self.one(add, &[skip, sum], width);
        out = self.norm_opt(out, step.post_add.as_ref());
        if let Some(norm) = &step.readd {
            out = self.binary(BinaryKind::Add, out, layer_input);
            out = self.norm(out, norm);
        }
        out
    }

    /// What a step adds to the stream, and the first branch's normed input.
    pub(crate) fn step_sum(
        &mut self,
        step: &StepSpec,
        x: ValueId,
        layer_input: ValueId,
    ) -> (ValueId, ValueId) {
        let mut sum: Option<ValueId> = None;
        let mut normed = x;
        let mut previous = x;
        for (i, branch) in step.branches.iter().enumerate() {
            let (y, n) = self.branch(branch, x, layer_input, previous);
            if i == 0 {
                normed = n;
            }
            previous = y;
            sum = Some(sum.map_or(y, |s| self.binary(BinaryKind::Add, s, y)));
        }
        let sum = sum.expect("a step has branches");
        let sum = self.affine(sum, step.scale, 0.0);
        (self.norm_opt(sum, step.post_norm.as_ref()), normed)
    }

    /// The branch's output and its normed input.
    fn branch(
        &mut self,
        b: &BranchSpec,
        x: ValueId,
        layer_input: ValueId,
        previous: ValueId,
    ) -> (ValueId, ValueId) {
        let source = match b.source {
            Source::Stream => x,
            Source::LayerInput => layer_input,
            Source::Previous => previous,
            Source::Beside => self
                .beside
                .expect("a drafter has something beside its stream"),
        };
        let role = block_role(&b.block);
        let n = self.at(role).norm_opt(source, b.norm.as_ref());
        let y = match &b.block {
            BlockSpec::Attention(a) => self.attention(a, n),
            BlockSpec::Ffn(f) => self.ffn(f, n),
            BlockSpec::Moe(m) => self.moe(m, n, x, layer_input),
            BlockSpec::Linear(p) => self.matmul(n, p),
            other => self.mixer(other, n),
        };
        let y = self.at(role).norm_opt(y, b.post_norm.as_ref());
        (self.affine(y, b.scale, 0.0), n)
    }

    pub(crate) fn head(&mut self, head: &HeadSpec, x: ValueId) {
        self.at("output_norm");
        if self.plan.role == PlanRole::Encoder {
            let hidden = self.norm_opt(x, head.norm.as_ref());
            self.output("hidden", hidden);
            return;
        }
        let hidden = self.norm_opt(x, head.norm.as_ref());
        self.output("hidden", hidden);
        let draft = self.spec.drafts.first();
        let own = draft.filter(|d| d.connected.is_none() && self.spec.taps.is_none());
        if let Some(draft) = own {
            self.draft_input(if draft.post_norm { hidden } else { x });
        }
        if head.output.is_some() {
            self.logits(head, x);
        }
        if matches!(self.plan.role, PlanRole::Main | PlanRole::Embed) {
            let rows = self.at("pool").projected(hidden, &head.dense);
            self.output("rows", rows);
        }
        if let Some(kind) = head.pool {
            let pooled = self.at("pool").pooled(hidden, kind);
            let pooled = self.projected(pooled, &head.dense);
            self.output("pooled", pooled);
        }
        if let Some(c) = &head.classifier {
            let pooled = self.at("pool").pooled(hidden, c.pool);
            let scores = self.classifier(c, pooled);
            self.output("scores", scores);
        }
    }

    /// What the first multi-token-prediction head reads, where the trunk has one.
    pub(crate) fn draft_input(&mut self, x: ValueId) {
        if self.plan.role == PlanRole::Main && !self.spec.drafts.is_empty() {
            self.output("draft_input", x);
        }
    }

    fn projected(&mut self, x: ValueId, dense: &[Proj]) -> ValueId {
        dense.iter().fold(x, |x, p| self.matmul(x, p))
    }

    /// One vector per sequence.
    fn pooled(&mut self, rows: ValueId, kind: PoolKind) -> ValueId {
        let def = ValueDef {
            shape: Shape {
                lead: Lead::Seqs,
                dims: vec![self.width(rows)],
            },
            dtype: ValType::F32,
        };
        self.push(Op::Pool(kind), &[rows], &[def])[0]
    }

    fn classifier(&mut self, c: &ClassifierSpec, x: ValueId) -> ValueId {
        self.at("classifier");
        let mut x = c.dense.as_ref().map_or(x, |p| self.matmul(x, p));
        x = self.unary(x, c.act);
        x = self.norm_opt(x, c.norm.as_ref());
        x = c.out.as_ref().map_or(x, |p| self.matmul(x, p));
        let width = self.width(x);
        if c.softmax {
            self.one(Op::Softmax { width }, &[x], width)
        } else {
            x
        }
    }

    fn logits(&mut self, head: &HeadSpec, x: ValueId) {
        let output = head.output.as_ref().expect("the head has an output matrix");
        let width = self.width(x);
        let def = ValueDef {
            shape: Shape {
                lead: Lead::LogitRows,
                dims: vec![width],
            },
            dtype: ValType::F32,
        };
        let x = self.push(Op::SelectRows, &[x], &[def])[0];
        let x = self.norm_opt(x, head.norm.as_ref());
        let x = self.affine(x, head.hidden_scale.unwrap_or(1.0), 0.0);
        let mut logits = self.at("output").matmul(x, output);
        logits = self.affine(logits, head.scale.unwrap_or(1.0), 0.0);
        let width = self.width(logits);
        if let Some(cap) = head.cap {
            logits = self.one(Op::Softcap { cap }, &[logits], width);
        }
        if let Some((first, last)) = head.suppress {
            logits = self.one(Op::Suppress { first, last }, &[logits], width);
        }
        self.output("logits", logits);
        let def = ValueDef {
            shape: Shape {
                lead: Lead::LogitRows,
                dims: vec![1],
            },
            dtype: ValType::I32,
        };
        let token = self.at("sample").push(Op::Sample, &[logits], &[def])[0];
        self.output("tokens", token);
    }
}

/// Role of a block in sites and dumps.
fn block_role(block: &BlockSpec) -> &'static str {
    match block {
        BlockSpec::Attention(_) => "attn",
        BlockSpec::Mla(_) => "mla",
        BlockSpec::Ffn(_) => "ffn",
        BlockSpec::Moe(_) => "moe",
        BlockSpec::Linear(_) => "linear",
        BlockSpec::Mamba(_) => "mamba",
        BlockSpec::Rwkv6(_) => "rwkv6",
        BlockSpec::Rwkv7(_) => "rwkv7",
        BlockSpec::ChannelMix(_) => "channel_mix",
        BlockSpec::Delta(_) => "delta",
        BlockSpec::ShortConv(_) => "short_conv",
        BlockSpec::Lightning(_) => "lightning",
        BlockSpec::Laurel(_) => "laurel",
        BlockSpec::Summary(_) => "summary",
        BlockSpec::Activation(_) => "activation",
    }
}

/// Activation of a weightless gate.
pub(crate) const SIGMOID: Act = Act::Sigmoid;
