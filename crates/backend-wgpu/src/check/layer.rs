//! A layer of a decoder: norms, products in formats that people use, rotations, attention, a gate; a prompt and a reply's row.

use std::sync::Arc;

use tokkata_core::DType;
use tokkata_ir::op::GateClamp;
use tokkata_ir::{
    Act, ArenaLayout, AttentionOp, Axis, BackendError, BinaryKind, CacheGroup, CacheKind,
    ConstData, ConstId, Delta, Device, DeviceId, Executor, GroupId, KvSource, Lead, Limits,
    LoadOptions, Mask, Node, NormKind, Op, Pairing, Plan, PlanRole, Port, Program, Recipe, Refusal,
    RopeOp, SeqRows, SeqSlot, Shape, Site, SlotDef, SlotId, Source, Uses, ValType, ValueDef,
    ValueId, WeightDef, WeightId, WeightSource, Work,
};

use crate::error::{lost, unsupported};

/// Columns of the residual stream, and of a head.
const D: u32 = 256;
const DIM: u32 = 64;
/// Rows of the prompt: more than a tile, and than a unit of keys.
const PROMPT: u32 = 100;

/// Columns of rows that are wider than workgroups share of several at once, and replies that are made of them together.
const WIDE: u32 = 2304;
const REPLIES: u32 = 3;

/// Makes weights so small that the factors of their blocks are.
const SMALL: f32 = 1.0 / 256.0;

/// A number in −1 to 1 that follows from two others.
fn noise(name: u32, i: u32) -> f32 {
    let mut x = name.wrapping_mul(0x9E37_79B9) ^ i.wrapping_mul(0x85EB_CA6B);
    x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
    x = (x ^ (x >> 12)).wrapping_mul(0x297A_2D39);
    (x >> 8) as f32 / 8_388_608.0 - 1.0
}

fn noises(name: u32, n: u32) -> Vec<f32> {
    (0..n).map(|i| noise(name, i)).collect()
}

struct Weight {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Weights by their numbers, which are their names.
#[derive(Default)]
struct Weights(Vec<Weight>);

impl Weights {
    fn get(&self, name: &str) -> Option<&Weight> {
        self.0.get(name.parse::<usize>().ok()?)
    }
}

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        self.get(name).map(|w| (w.dtype, w.shape.clone()))
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let found = self
            .get(name)
            .and_then(|w| w.bytes.get(offset as usize..)?.get(..out.len()));
        let absent = || BackendError::Weight(format!("tensor {name} is absent"));
        out.copy_from_slice(found.ok_or_else(absent)?);
        Ok(())
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        tokkata_quant::dequantize(dtype, raw, out).map_err(|e| BackendError::Weight(e.to_string()))
    }
}

/// A program of one plan on its way.
struct Build {
    program: Program,
    weights: Weights,
    /// What weights are multiplied by.
    factor: f32,
}

impl Build {
    fn weight(
        &mut self,
        dtype: DType,
        shape: &[u32],
        uses: Uses,
    ) -> Result<WeightId, BackendError> {
        let id = self.program.weights.len() as u32;
        let n = shape.iter().product();
        let mut values = noises(100 + id, n);
        values.iter_mut().for_each(|x| *x *= self.factor);
        let cols = shape.last().map_or(1, |&c| c as usize);
        let bad = || unsupported(format!("a check with {dtype}"));
        let row = dtype.row_bytes(cols).ok_or_else(bad)?;
        let mut bytes = vec![0; row * values.len() / cols];
        tokkata_quant::quantize(dtype, &values, cols, None, &mut bytes).map_err(|_| bad())?;
        self.weights.0.push(Weight {
            dtype,
            shape: shape.iter().map(|&d| d as usize).collect(),
            bytes,
        });
        let name = id.to_string();
        self.program.weights.push(WeightDef {
            recipe: Recipe::Source(name.clone()),
            site: Site::global(&name),
            name,
            shape: shape.to_vec(),
            axes: vec![Axis::Other; shape.len()],
            uses,
        });
        Ok(WeightId(id))
    }

    fn value(&mut self, width: u32) -> ValueId {
        let plan = &mut self.program.plans[0];
        let shape = Shape {
            lead: Lead::Rows,
            dims: vec![width],
        };
        let dtype = ValType::F32;
        plan.values.push(ValueDef { shape, dtype });
        ValueId(plan.values.len() as u32 - 1)
    }

    fn node(&mut self, op: Op, ins: &[ValueId], outs: &[ValueId]) {
        self.program.plans[0].nodes.push(Node {
            site: Site::global(op.name()),
            op,
            ins: ins.to_vec(),
            outs: outs.to_vec(),
            device: DeviceId(0),
        });
    }

    fn op(&mut self, op: Op, ins: &[ValueId], width: u32) -> ValueId {
        let out = self.value(width);
        self.node(op, ins, &[out]);
        out
    }

    fn norm(&mut self, x: ValueId) -> Result<ValueId, BackendError> {
        let uses = Uses {
            vector: true,
            ..Uses::default()
        };
        let width = self.program.plans[0].value(x).shape.width() as u32;
        let weight = Some(self.weight(DType::F32, &[width], uses)?);
        let norm = Op::Norm {
            kind: NormKind::Rms,
            eps: 1e-5,
            width,
            weight,
            bias: None,
        };
        Ok(self.op(norm, &[x], width))
    }

    fn product(&mut self, x: ValueId, dtype: DType, width: u32) -> Result<ValueId, BackendError> {
        let uses = Uses {
            matmul: true,
            ..Uses::default()
        };
        let columns = self.program.plans[0].value(x).shape.width() as u32;
        let weight = self.weight(dtype, &[width, columns], uses)?;
        let product = Op::Matmul {
            weight,
            scale: None,
            bias: None,
        };
        Ok(self.op(product, &[x], width))
    }

    fn gated(&mut self, gate: ValueId, up: ValueId) -> ValueId {
        let silu = Op::Gate {
            act: Act::Silu,
            clamp: GateClamp::None,
        };
        self.op(silu, &[gate, up], D)
    }

    fn sum(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let sum = Op::Binary {
            kind: BinaryKind::Add,
            a_scale: 1.0,
            b_scale: 1.0,
        };
        self.op(sum, &[a, b], D)
    }

    fn rope(&mut self, x: ValueId, width: u32) -> ValueId {
        let rope = Op::Rope(RopeOp {
            pairing: Pairing::Halves,
            head_dim: DIM,
            offset: 0,
            freqs: ConstId(0),
            magnitude: 1.0,
            channels: None,
            inverse: false,
            back: 0,
        });
        self.op(rope, &[x], width)
    }

    fn attention(&mut self, x: ValueId) -> Result<ValueId, BackendError> {
        let slot = SlotId {
            group: GroupId(0),
            slot: 0,
        };
        let kv = D / 2;
        let q = self.product(x, DType::Q4_K, D)?;
        let k = self.product(x, DType::Q4_K, kv)?;
        // Factors of blocks are subnormal halves here.
        self.factor = SMALL;
        let v = self.product(x, DType::Q4_K, kv)?;
        self.factor = 1.0;
        let (q, k) = (self.rope(q, D), self.rope(k, kv));
        self.node(Op::CacheWrite { slot }, &[k, v], &[]);
        let op = AttentionOp {
            n_heads: D / DIM,
            n_kv_heads: kv / DIM,
            dim_k: DIM,
            dim_v: DIM,
            scale: 0.125,
            cap: None,
            sinks: None,
            alibi: None,
            bucket: None,
            mask: Mask::Causal,
            source: KvSource::Cache(slot),
            entries: None,
            selection: None,
        };
        Ok(self.op(Op::Attention(op), &[q], D))
    }
}

/// A program of nothing, with a cache.
fn build() -> Build {
    let limits = Limits {
        rows: PROMPT,
        seqs: 1,
        logit_rows: 1,
        ctx: 2 * PROMPT,
        kv_dtype: DType::F16,
        ..Limits::default()
    };
    let slot = SlotDef::Kv {
        n_kv_heads: D / 2 / DIM,
        dim_k: DIM,
        dim_v: Some(DIM),
    };
    let freqs = (0..DIM / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / DIM as f32));
    let plan = Plan {
        role: PlanRole::Main,
        inputs: Vec::new(),
        outputs: Vec::new(),
        values: Vec::new(),
        nodes: Vec::new(),
    };
    Build {
        program: Program {
            plans: vec![plan],
            weights: Vec::new(),
            caches: vec![CacheGroup {
                kind: CacheKind::Full,
                slots: vec![slot],
                dtype: DType::F16,
                block_size: 32,
            }],
            consts: vec![ConstData::F32(freqs.collect())],
            limits,
            n_vocab: 0,
            n_embd: D,
        },
        weights: Weights::default(),
        factor: 1.0,
    }
}

/// A program, what it reads and what comes of it.
type Tried = (Program, Weights, [ValueId; 2]);

fn of(mut b: Build, input: ValueId, output: ValueId) -> Tried {
    let port = |name: &str, value| Port {
        name: name.to_owned(),
        value,
    };
    let plan = &mut b.program.plans[0];
    plan.inputs.push(port("in", input));
    plan.outputs.push(port("out", output));
    (b.program, b.weights, [input, output])
}

/// The layer.
fn layer() -> Result<Tried, BackendError> {
    let mut b = build();
    let x = b.value(D);
    let normed = b.norm(x)?;
    let mixed = b.attention(normed)?;
    let out = b.product(mixed, DType::Q6_K, D)?;
    let between = b.sum(x, out);
    let normed = b.norm(between)?;
    let gate = b.product(normed, DType::Q8_0, D)?;
    let up = b.product(normed, DType::Q8_0, D)?;
    let gated = b.gated(gate, up);
    let down = b.product(gated, DType::Q4_0, D)?;
    let last = b.sum(between, down);
    Ok(of(b, x, last))
}

/// Products of wide rows.
fn wide() -> Result<Tried, BackendError> {
    let mut b = build();
    let x = b.value(WIDE);
    let normed = b.norm(x)?;
    let gate = b.product(normed, DType::Q4_K, D)?;
    let up = b.product(normed, DType::Q4_K, D)?;
    let gated = b.gated(gate, up);
    let out = b.product(x, DType::Q6_K, D)?;
    let last = b.sum(gated, out);
    Ok(of(b, x, last))
}

/// What a device makes of the layer, for a prompt and the row behind it, and of wide rows.
pub(crate) fn outputs(device: &dyn Device) -> Result<Vec<Vec<f32>>, BackendError> {
    let layer = steps(device, layer()?, &[(PROMPT, true), (1, false)])?;
    let wide = steps(device, wide()?, &[(REPLIES, false)])?;
    Ok(vec![layer, wide])
}

/// What comes of steps of so many rows each, of a prompt or not.
fn steps(
    device: &dyn Device,
    (program, weights, [input, output]): Tried,
    steps: &[(u32, bool)],
) -> Result<Vec<f32>, BackendError> {
    let program = Arc::new(program);
    let width = program.plans[0].value(input).shape.width() as u32;
    let loaded = device.load(Arc::clone(&program), &weights, &LoadOptions::default())?;
    let blocks = program.caches[0].table_len(&program.limits) as u64;
    let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &[blocks]);
    let names = arena.deal(&[blocks]);
    let mut executor = loaded.open(arena)?;
    let slot = SeqSlot(0);
    let table = Delta::Table {
        group: GroupId(0),
        first: 0,
        blocks: names[0].clone(),
    };
    let mut deltas = vec![(slot, Delta::Clear), (slot, table)];
    let (mut all, mut first) = (Vec::new(), 0);
    for &(rows, prompt) in steps {
        let data = (first * width..(first + rows) * width).map(|i| noise(1, i));
        first += rows;
        let work = Work {
            deltas: std::mem::take(&mut deltas),
            rows: vec![SeqRows {
                prompt,
                ..SeqRows::tokens(slot, &vec![0; rows as usize])
            }],
            feeds: vec![(input, Source::Host(data.collect()))],
            keep: vec![output],
            ..Work::default()
        };
        all.extend(run(executor.as_mut(), work, output)?);
    }
    Ok(all)
}

/// Does a work and reads a value that it keeps.
fn run(executor: &mut dyn Executor, work: Work, output: ValueId) -> Result<Vec<f32>, BackendError> {
    let ticket = executor.submit(work).map_err(|refusal| match refusal {
        Refusal::Backend(error) => error,
        Refusal::Busy(_) => lost("it is busy"),
    })?;
    while let Some(news) = executor.wait()? {
        if let Some(failure) = news.failure {
            return Err(failure);
        }
        if news.done {
            break;
        }
    }
    let rows = executor.rows(&ticket, output)?;
    let mut out = vec![0.0; rows * D as usize];
    executor.read(&ticket, output, 0..rows, &mut out)?;
    Ok(out)
}
