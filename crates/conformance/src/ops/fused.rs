//! Runs of ops of which only the last values are seen, so that a device may fuse what lies between, keep it in place or
//! leave it out.

use tokkata_core::DType;
use tokkata_ir::op::GateClamp;
use tokkata_ir::{
    Act, AttentionOp, BinaryKind, CacheKind, ConstData, Conv1dOp, KvSource, Lead, Limits, Mask,
    NormKind, Op, Pairing, RopeOp, RouteOp, Score, SelectOp, Selection, SlotDef, SlotId, ValType,
    ValueId,
};

use super::case::{Case, LARGE, Rounds};
use super::linear::{matrix, sum_ulps};
use crate::fixture::{Fixture, Rows, noises, small_limits};

/// Formats whose kernels differ most.
const FORMATS: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q6_K,
];

/// Columns of the residual stream; blocks of every format divide them.
const D: u32 = 256;
/// Columns of one that a block of a device does not have at once.
const WIDE: u32 = 4608;
const HEADS: u32 = 4;
const DIM: u32 = 32;
const EXPERTS: u32 = 6;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in FORMATS {
        for kind in [NormKind::Rms, NormKind::Layer, NormKind::L2] {
            cases.push(normed_products(dtype, kind, (D, true)));
            cases.push(normed_products(dtype, kind, (D, false)));
        }
        cases.push(feed_forward(dtype, [D, 512]));
    }
    cases.extend([DType::Q4_K, DType::Q6_K].map(|dtype| feed_forward(dtype, [1024, 2048])));
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K] {
        for kind in [NormKind::Rms, NormKind::Layer] {
            cases.push(normed_products(dtype, kind, (WIDE, true)));
        }
    }
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        cases.push(attention(dtype));
    }
    cases.extend(FORMATS.map(frames));
    cases.push(selection());
    cases.extend([elementwise(), columns(), convolution(), experts(), head()]);
    cases
}

/// A fixture and the width of its values.
struct Net(Fixture);

impl Net {
    fn new(kv_dtype: DType) -> Self {
        Net(Fixture::new(Limits {
            kv_dtype,
            ..small_limits()
        }))
    }

    fn width(&self, x: ValueId) -> u32 {
        self.0.program().plans[0].value(x).shape.width() as u32
    }

    /// An op whose output is as wide as its first input.
    fn op(&mut self, op: Op, ins: &[ValueId]) -> ValueId {
        let width = self.width(ins[0]);
        self.0.op(op, ins, &[width])
    }

    /// A product whose outputs are about as large as its inputs.
    fn product(&mut self, dtype: DType, x: ValueId, n: u32) -> ValueId {
        let k = self.width(x);
        let scale = (3.0 / k as f32).sqrt();
        let name = format!("product{}", self.0.program().weights.len());
        let values: Vec<f32> = noises(&name, (n * k) as usize)
            .iter()
            .map(|x| x * scale)
            .collect();
        let op = Op::Matmul {
            weight: self.0.matrix(dtype, &[n, k], &values),
            scale: None,
            bias: None,
        };
        self.0.op(op, &[x], &[n])
    }

    fn norm(&mut self, kind: NormKind, x: ValueId, weighted: bool) -> ValueId {
        let width = self.width(x);
        let values: Vec<f32> = noises("norm", width as usize)
            .iter()
            .map(|x| x + 2.0)
            .collect();
        let op = Op::Norm {
            kind,
            eps: 1e-5,
            width,
            weight: weighted.then(|| self.0.vector(&[width], &values)),
            bias: weighted.then(|| self.0.vector(&[width], &noises("bias", width as usize))),
        };
        self.op(op, &[x])
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let op = Op::Binary {
            kind: BinaryKind::Add,
            a_scale: 1.0,
            b_scale: 1.0,
        };
        self.op(op, &[a, b])
    }

    fn rope(&mut self, x: ValueId) -> ValueId {
        let freqs = (0..DIM / 2).map(|i| 100f32.powf(-(i as f32) / 16.0));
        let op = RopeOp {
            back: 0,
            pairing: Pairing::Halves,
            head_dim: DIM,
            offset: 0,
            freqs: self.0.constant(ConstData::F32(freqs.collect())),
            magnitude: 1.0,
            channels: None,
            inverse: false,
        };
        self.op(Op::Rope(op), &[x])
    }

    /// A case that sees these values alone.
    fn case(mut self, name: &str, outputs: &[ValueId]) -> Case {
        self.0.show(outputs);
        Case::new(format!("fused/{name}"), self.0, outputs.to_vec())
    }
}

/// A norm whose readers are all products, and of which one is not.
fn normed_products(dtype: DType, kind: NormKind, (width, weighted): (u32, bool)) -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[width]);
    let h = net.norm(kind, x, weighted);
    let outputs = [5, 17, 32].map(|n| net.product(dtype, h, n));
    let rounds = match width >= LARGE {
        true => Rounds::WithinLarge(dtype),
        false => Rounds::Within(dtype),
    };
    net.case(
        &format!("norm/{dtype}/{kind:?}/{width}/{weighted}"),
        &outputs,
    )
    .ulps(6.0 + 2.0 * sum_ulps(width))
    .rounds(rounds)
    .all_rows(2.0)
}

fn feed_forward(dtype: DType, [width, inner]: [u32; 2]) -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[width]);
    let h = net.norm(NormKind::Rms, x, true);
    let [gate, up] = [0, 1].map(|_| net.product(dtype, h, inner));
    let op = Op::Gate {
        act: Act::Silu,
        clamp: GateClamp::None,
    };
    let h = net.op(op, &[gate, up]);
    let down = net.product(dtype, h, width);
    let y = net.add(x, down);
    net.case(&format!("feed_forward/{dtype}/{width}"), &[y])
        .ulps(16.0 + 2.0 * sum_ulps(inner))
        .rounds(Rounds::Within(dtype))
        .all_rows(1.0)
}

fn attention(dtype: DType) -> Case {
    let mut net = Net::new(DType::F32);
    let slot = SlotDef::Kv {
        n_kv_heads: 2,
        dim_k: DIM,
        dim_v: Some(DIM),
    };
    let group = net.0.cache(CacheKind::Full, 16, vec![slot]);
    let slot = SlotId { group, slot: 0 };
    let x = net.0.input(&[D]);
    let h = net.norm(NormKind::Rms, x, true);
    let [q, k, v] = [HEADS, 2, 2].map(|heads| net.product(dtype, h, heads * DIM));
    let (q, k) = (net.rope(q), net.rope(k));
    net.0.node(Op::CacheWrite { slot }, &[k, v], &[]);
    let op = AttentionOp {
        entries: None,
        selection: None,
        n_heads: HEADS,
        n_kv_heads: 2,
        dim_k: DIM,
        dim_v: DIM,
        scale: 0.2,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Causal,
        source: KvSource::Cache(slot),
    };
    let o = net.op(Op::Attention(op), &[q]);
    let o = net.product(dtype, o, D);
    let y = net.add(o, x);
    net.case(&format!("attention/{dtype}"), &[y])
        .ulps(16.0 + 2.0 * sum_ulps(D))
        .rounds(Rounds::Within(dtype))
        .mixed_steps()
}

/// Ops that may run in the place of their input.
fn elementwise() -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[100]);
    let affine = Op::Affine {
        scale: 1.5,
        offset: -0.25,
    };
    let a = net.op(affine, &[x]);
    let b = net.op(Op::Unary(Act::Silu), &[a]);
    let c = net.add(b, a);
    let d = net.op(Op::Softcap { cap: 2.0 }, &[c]);
    let e = net.add(d, x);
    let f = net.op(Op::Unary(Act::Sigmoid), &[e]);
    net.case("elementwise", &[f]).ulps(12.0).all_rows(2.0)
}

/// Products over columns that were moved.
fn columns() -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[96]);
    let [a, b] = [0, 1].map(|_| net.product(DType::F32, x, 64));
    let slice = Op::Slice {
        group: 64,
        start: 16,
        len: 32,
    };
    let a = net.0.op(slice, &[a], &[32]);
    let joined = net.0.op(Op::Concat { groups: 1 }, &[a, b], &[96]);
    let h = net.norm(NormKind::Rms, joined, false);
    let y = net.product(DType::F32, h, 33);
    net.case("columns", &[y])
        .ulps(8.0 + 3.0 * sum_ulps(96))
        .all_rows(1.0)
}

/// A gated convolution with a state.
fn convolution() -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[64]);
    let h = net.norm(NormKind::Rms, x, true);
    let [a, b] = [0, 1].map(|_| net.product(DType::F32, h, 48));
    let op = Op::Conv {
        weight: net.0.vector(&[48, 4], &noises("taps", 192)),
        bias: None,
        kernel: 4,
        slot: Some(net.0.state(3 * 48)),
    };
    let a = net.op(op, &[a]);
    let gate = Op::Gate {
        act: Act::Silu,
        clamp: GateClamp::None,
    };
    let h = net.op(gate, &[a, b]);
    let y = net.product(DType::F32, h, 64);
    let y = net.add(x, y);
    net.case("convolution", &[y])
        .ulps(16.0 + 3.0 * sum_ulps(64))
        .mixed_steps()
        .kept_steps()
}

/// Attention over what an indexer selects, both through products of one norm, and streams mixed by a balanced matrix.
fn selection() -> Case {
    let mut net = Net::new(DType::F32);
    let mut slot = |kind, dim_v| {
        let slot = SlotDef::Kv {
            n_kv_heads: 1,
            dim_k: DIM,
            dim_v,
        };
        let group = net.0.cache(kind, 16, vec![slot]);
        SlotId { group, slot: 0 }
    };
    let (latent, index) = (
        slot(CacheKind::Full, None),
        slot(CacheKind::Entries(1), Some(0)),
    );
    let x = net.0.input(&[D]);
    let h = net.norm(NormKind::Rms, x, true);
    let [q, k, iq, ik] = [HEADS, 1, 2, 1].map(|heads| net.product(DType::F32, h, heads * DIM));
    let weights = net.product(DType::F32, h, 2);
    let (q, k) = (net.rope(q), net.rope(k));
    net.0.node(Op::CacheWrite { slot: latent }, &[k], &[]);
    net.0.node(Op::CacheWrite { slot: index }, &[ik], &[]);
    let op = SelectOp {
        slot: index,
        n_heads: 2,
        dim: DIM,
        scale: 0.2,
        summed: true,
        top_k: 3,
        unit: 1,
        local: 0,
    };
    let ids = net.0.value(Lead::Rows, &[1, 3], ValType::I32);
    net.0.node(Op::Select(op), &[iq, weights], &[ids]);
    let op = AttentionOp {
        n_heads: HEADS,
        n_kv_heads: 1,
        dim_k: DIM,
        dim_v: DIM,
        scale: 0.2,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Causal,
        source: KvSource::Cache(latent),
        entries: None,
        selection: Some(Selection {
            unit: 1,
            choices: 1,
            tail: false,
        }),
    };
    let o = net.op(Op::Attention(op), &[q, ids]);
    let mixes = net.product(DType::F32, h, 16);
    let op = Op::Sinkhorn {
        n: 4,
        iterations: 3,
        eps: 1e-3,
    };
    let mixes = net.op(op, &[mixes]);
    let o = net.product(DType::F32, o, D);
    let y = net.op(
        Op::PerRun {
            kind: BinaryKind::Mul,
            width: 16,
        },
        &[o, mixes],
    );
    net.case("selection", &[y])
        .ulps(24.0 + 3.0 * sum_ulps(D))
        .mixed_steps()
}

/// Two convolutions of which the second halves the frames, as in front of an encoder of sound.
fn frames(dtype: DType) -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[2, 256]);
    let mut y = x;
    for (stride, frames) in [(1, 2), (2, 2)] {
        let scale = (3.0 / (3.0 * 256.0_f32)).sqrt();
        let name = format!("conv{stride}");
        let weight: Vec<f32> = noises(&name, 256 * 3 * 256)
            .iter()
            .map(|x| x * scale)
            .collect();
        let op = Conv1dOp {
            weight: net.0.matrix(dtype, &[256, 3 * 256], &weight),
            bias: Some(net.0.vector(&[256], &noises("bias", 256))),
            kernel: 3,
            stride,
            padding: 1,
            frames,
        };
        y = net.0.op(Op::Conv1d(op), &[y], &[frames / stride * 256]);
        y = net.op(Op::Unary(Act::Gelu), &[y]);
    }
    let y = net.norm(NormKind::Layer, y, true);
    let y = net.product(dtype, y, 33);
    net.case(&format!("frames/{dtype}"), &[y])
        .ulps(16.0 + 3.0 * sum_ulps(3 * 256))
        .rounds(Rounds::Within(dtype))
        .all_rows(1.0)
}

fn experts() -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[64]);
    let h = net.norm(NormKind::Rms, x, true);
    let scores = net.product(DType::F32, h, EXPERTS);
    let op = RouteOp {
        table: None,
        n_experts: EXPERTS,
        top_k: 2,
        score: Score::Softmax,
        select: None,
        bias: None,
        groups: None,
        softmax_chosen: false,
        sigmoid_chosen: false,
        near_ties: 0.0,
        renormalise: true,
        scale: 1.0,
        id_divisor: 1,
    };
    let ids = net.0.value(Lead::Rows, &[2], ValType::I32);
    let shares = net.0.value(Lead::Rows, &[2], ValType::F32);
    net.0.node(Op::Route(op), &[scores], &[ids, shares]);
    let op = Op::Experts {
        weight: matrix(&mut net.0, DType::F32, &[EXPERTS, 64, 64]),
        scale: None,
        bias: None,
        top_k: 2,
    };
    let routed = net.0.op(op, &[h, ids], &[2 * 64]);
    let y = net.0.op(Op::Combine, &[routed, shares], &[64]);
    let y = net.add(x, y);
    net.case("experts", &[y])
        .ulps(16.0 + 2.0 * sum_ulps(64))
        .all_rows(1.0)
}

/// Chosen rows through a norm into logits.
fn head() -> Case {
    let mut net = Net::new(DType::F32);
    let x = net.0.input(&[D]);
    let mut of = |op, from, width| {
        let out = net.0.value(Lead::LogitRows, &[width], ValType::F32);
        net.0.node(op, &[from], &[out]);
        out
    };
    let picked = of(Op::SelectRows, x, D);
    let norm = Op::Norm {
        kind: NormKind::Rms,
        eps: 1e-5,
        width: D,
        weight: None,
        bias: None,
    };
    let normed = of(norm, picked, D);
    let weight = matrix(&mut net.0, DType::F32, &[40, D]);
    let op = Op::Matmul {
        weight,
        scale: None,
        bias: None,
    };
    let mut of = |op, from, width| {
        let out = net.0.value(Lead::LogitRows, &[width], ValType::F32);
        net.0.node(op, &[from], &[out]);
        out
    };
    let logits = of(op, normed, 40);
    let capped = of(Op::Softcap { cap: 9.0 }, logits, 40);
    let rows = |seq, at, logits: &[usize]| Rows {
        logits: logits.to_vec(),
        ..Rows::of(seq, at)
    };
    net.case("head", &[capped])
        .ulps(10.0 + 2.0 * sum_ulps(D))
        .step(vec![rows(0, 0..17, &[3, 16]), rows(1, 4..5, &[0])])
        .step(vec![rows(0, 17..18, &[0])])
}
