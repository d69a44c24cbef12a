//! A small decoder replayed every way there is: alone and in a batch, whole and in chunks, on one and more workers,
//! fused and not, on every kernel set and over blocks of any size. All give the same bits; the reference agrees.

use tokkata_backend_cpu::CpuBackend;
use tokkata_backend_cpu::caps::Caps;
use tokkata_backend_ref::{Precision, RefBackend};
use tokkata_conformance::fixture::{Feed, Fixture, Rows, Run, noises, small_limits};
use tokkata_core::DType;
use tokkata_ir::{
    Act, ArenaLayout, AttentionOp, BackendError, BinaryKind, CacheKind, ConstData, Device,
    GatherIndex, GroupId, KvSource, Lead, Limits, LoadOptions, Mask, NormKind, Op, Pairing, Port,
    RopeOp, SlotDef, SlotId, ValType, ValueId, WeightId,
};

const D: u32 = 64;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const DIM: u32 = 32;
const FF: u32 = 96;
const VOCAB: u32 = 50;
const CTX: u32 = 700;

/// A decoder under construction.
struct Decoder {
    fixture: Fixture,
    dtype: DType,
    x: ValueId,
    weights: u32,
}

impl Decoder {
    fn noise(&mut self, len: u32, scale: f32) -> Vec<f32> {
        self.weights += 1;
        noises(&format!("w{}", self.weights), len as usize)
            .iter()
            .map(|x| x * scale)
            .collect()
    }

    fn matrix(&mut self, n: u32, k: u32) -> WeightId {
        let values = self.noise(n * k, 2.0 / (k as f32).sqrt());
        self.fixture.matrix(self.dtype, &[n, k], &values)
    }

    fn product(&mut self, x: ValueId, n: u32, k: u32) -> ValueId {
        let weight = self.matrix(n, k);
        self.fixture.op(
            Op::Matmul {
                weight,
                scale: None,
                bias: None,
            },
            &[x],
            &[n],
        )
    }

    fn norm(&mut self, x: ValueId, width: u32, run: u32) -> ValueId {
        let values: Vec<f32> = self.noise(run, 0.2).iter().map(|x| x + 1.0).collect();
        let weight = Some(self.fixture.vector(&[run], &values));
        let op = Op::Norm {
            kind: NormKind::Rms,
            eps: 1e-5,
            width: run,
            weight,
            bias: None,
        };
        self.fixture.op(op, &[x], &[width])
    }

    fn rope(&mut self, x: ValueId, width: u32) -> ValueId {
        let freqs = (0..DIM / 2)
            .map(|i| 10000f32.powf(-(i as f32) / (DIM / 2) as f32))
            .collect();
        let freqs = self.fixture.constant(ConstData::F32(freqs));
        let op = RopeOp {
            pairing: Pairing::Halves,
            head_dim: DIM,
            offset: 0,
            freqs,
            magnitude: 1.0,
            channels: None,
            inverse: false,
            back: 0,
        };
        self.fixture.op(Op::Rope(op), &[x], &[width])
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let op = Op::Binary {
            kind: BinaryKind::Add,
            a_scale: 1.0,
            b_scale: 1.0,
        };
        self.fixture.op(op, &[a, b], &[D])
    }

    fn layer(&mut self, slot: SlotId, mask: Mask) {
        let h = self.norm(self.x, D, D);
        let q = self.product(h, HEADS * DIM, D);
        let k = self.product(h, KV_HEADS * DIM, D);
        let v = self.product(h, KV_HEADS * DIM, D);
        let q = self.norm(q, HEADS * DIM, DIM);
        let q = self.rope(q, HEADS * DIM);
        let k = self.rope(k, KV_HEADS * DIM);
        self.fixture.node(Op::CacheWrite { slot }, &[k, v], &[]);
        let attention = AttentionOp {
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            dim_k: DIM,
            dim_v: DIM,
            scale: 0.2,
            cap: None,
            sinks: None,
            alibi: None,
            bucket: None,
            mask,
            source: KvSource::Cache(slot),
            entries: None,
            selection: None,
        };
        let o = self
            .fixture
            .op(Op::Attention(attention), &[q], &[HEADS * DIM]);
        let o = self.product(o, D, HEADS * DIM);
        self.x = self.add(self.x, o);
        let h = self.norm(self.x, D, D);
        let (gate, up) = (self.product(h, FF, D), self.product(h, FF, D));
        let op = Op::Gate {
            act: Act::Silu,
            clamp: tokkata_ir::op::GateClamp::None,
        };
        let h = self.fixture.op(op, &[gate, up], &[FF]);
        let down = self.product(h, D, FF);
        self.x = self.add(self.x, down);
    }
}

/// A decoder of three layers, one with a window; gives its logits.
fn decoder(dtype: DType, kv: DType, block: u32) -> (Fixture, ValueId) {
    decoder_of(dtype, kv, (block, CTX))
}

/// The same for so many positions.
fn decoder_of(dtype: DType, kv: DType, (block, ctx): (u32, u32)) -> (Fixture, ValueId) {
    let limits = Limits {
        rows: CTX + 8,
        ctx,
        kv_dtype: kv,
        logit_rows: CTX,
        ..small_limits()
    };
    let mut fixture = Fixture::new(limits);
    let slot = SlotDef::Kv {
        n_kv_heads: KV_HEADS,
        dim_k: DIM,
        dim_v: Some(DIM),
    };
    let full = fixture.cache(CacheKind::Full, block, vec![slot.clone(), slot.clone()]);
    let window = fixture.cache(CacheKind::Window(40), block, vec![slot]);
    let table = fixture.table(
        DType::F32,
        &[VOCAB, D],
        &noises("table", (VOCAB * D) as usize),
    );
    let x = fixture.op(
        Op::Gather {
            table,
            index: GatherIndex::Token,
        },
        &[],
        &[D],
    );
    let mut d = Decoder {
        fixture,
        dtype,
        x,
        weights: 0,
    };
    d.layer(
        SlotId {
            group: full,
            slot: 0,
        },
        Mask::Causal,
    );
    d.layer(
        SlotId {
            group: window,
            slot: 0,
        },
        Mask::Window(40),
    );
    d.layer(
        SlotId {
            group: full,
            slot: 1,
        },
        Mask::Causal,
    );
    let picked = d.fixture.value(Lead::LogitRows, &[D], ValType::F32);
    let x = d.x;
    d.fixture.node(Op::SelectRows, &[x], &[picked]);
    let weight = Some(d.fixture.vector(&[D], &[1.0; D as usize]));
    let normed = d.fixture.value(Lead::LogitRows, &[D], ValType::F32);
    d.fixture.node(
        Op::Norm {
            kind: NormKind::Rms,
            eps: 1e-5,
            width: D,
            weight,
            bias: None,
        },
        &[picked],
        &[normed],
    );
    let weight = d.matrix(VOCAB, D);
    let logits = d.fixture.value(Lead::LogitRows, &[VOCAB], ValType::F32);
    d.fixture.node(
        Op::Matmul {
            weight,
            scale: None,
            bias: None,
        },
        &[normed],
        &[logits],
    );
    let plan = &mut d.fixture.program_mut().plans[0];
    plan.outputs.retain(|p| p.value == logits);
    (d.fixture, logits)
}

fn tokens(seq: usize, len: usize) -> Vec<u32> {
    noises(&format!("tokens{seq}"), len)
        .iter()
        .map(|x| ((x + 1.0) * 24.9) as u32)
        .collect()
}

fn options(threads: usize) -> LoadOptions {
    LoadOptions {
        threads,
        ..LoadOptions::default()
    }
}

fn part(seq: usize, at: std::ops::Range<usize>) -> Rows {
    let tokens = tokens(seq, at.end)[at.clone()].to_vec();
    Rows {
        tokens,
        logits: vec![at.len() - 1],
        ..Rows::of(seq, at)
    }
}

/// Logits of the last row of each sequence after its steps.
fn feed(run: &mut Run, logits: ValueId, steps: &[Vec<Rows>]) -> Vec<f32> {
    let mut last = Vec::new();
    for step in steps {
        run.step(step, &Feed::default()).unwrap();
        last = run.floats(logits);
    }
    last
}

fn run_on(fixture: &Fixture, options: &LoadOptions) -> Run {
    fixture.load(&CpuBackend, options).unwrap()
}

fn alone(fixture: &Fixture, logits: ValueId, len: usize) -> Vec<f32> {
    feed(
        &mut run_on(fixture, &options(1)),
        logits,
        &[vec![part(0, 0..len)]],
    )
}

fn nmse(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    error / want.iter().map(|&b| square(b)).sum::<f64>()
}

#[test]
fn batches_chunks_and_workers_change_no_bit() {
    for dtype in [DType::F32, DType::Q8_0, DType::Q4_0] {
        let (fixture, logits) = decoder(dtype, DType::F16, 16);
        let want = alone(&fixture, logits, 530);
        let chunks: Vec<Vec<Rows>> = [0..100, 100..101, 101..356, 356..513, 513..529, 529..530]
            .map(|at| vec![part(0, at)])
            .into();
        let beside = vec![
            vec![part(1, 0..30), part(0, 0..100)],
            vec![part(0, 100..529), part(1, 30..31), part(2, 0..64)],
            vec![part(2, 64..65), part(0, 529..530), part(3, 0..1)],
        ];
        for threads in [1, 2, 3] {
            let mut run = run_on(&fixture, &options(threads));
            assert_eq!(
                feed(&mut run, logits, &[vec![part(0, 0..530)]]),
                want,
                "{dtype} whole on {threads}"
            );
            assert_eq!(
                feed(&mut run, logits, &chunks),
                want,
                "{dtype} in chunks on {threads}"
            );
            let all = feed(&mut run, logits, &beside);
            assert_eq!(
                all[VOCAB as usize..][..VOCAB as usize],
                want,
                "{dtype} in a batch on {threads}"
            );
        }
    }
}

#[test]
fn however_many_keys_are_dealt_out_no_bit_changes() {
    let (fixture, logits) = decoder_of(DType::F32, DType::F16, (64, 4608));
    let begin = (0..9).map(|n| vec![part(0, n * 500..(n + 1) * 500)]);
    let steps: Vec<Vec<Rows>> = begin
        .chain([4500..4532, 4532..4540, 4540..4541].map(|at| vec![part(0, at)]))
        .collect();
    let want = feed(&mut run_on(&fixture, &options(1)), logits, &steps);
    let oracle = RefBackend {
        precision: Precision::F64,
    };
    let mut oracle = fixture.load(&oracle, &options(1)).unwrap();
    let error = nmse(&want, &feed(&mut oracle, logits, &steps));
    assert!(error <= 2f64.powi(-30), "{error:e}");
    // Whole items, spans and chunks, by the number of workers.
    for threads in [2, 3, 8] {
        let got = feed(&mut run_on(&fixture, &options(threads)), logits, &steps);
        assert_eq!(got, want, "on {threads}");
    }
}

#[test]
fn fusing_and_kernel_sets_change_no_bit() {
    let (fixture, logits) = decoder(DType::Q4_0, DType::F32, 32);
    let want = alone(&fixture, logits, 70);
    for set in Caps::all() {
        for no_fuse in [false, true] {
            let cpu_features = Some(set.level().name().to_owned());
            let options = LoadOptions {
                cpu_features,
                no_fuse,
                ..options(2)
            };
            let got = feed(
                &mut run_on(&fixture, &options),
                logits,
                &[vec![part(0, 0..70)]],
            );
            assert_eq!(got, want, "{set:?} no_fuse {no_fuse}");
        }
    }
}

/// The plan up to a node and the plan from it on; the second is fed with what it reads of the first.
fn halves(cut: usize) -> (Fixture, Fixture, ValueId, Vec<ValueId>) {
    let ((mut first, logits), (mut second, _)) = (
        decoder(DType::Q4_0, DType::F16, 16),
        decoder(DType::Q4_0, DType::F16, 16),
    );
    let (a, b) = (
        &mut first.program_mut().plans[0],
        &mut second.program_mut().plans[0],
    );
    b.nodes.drain(..cut);
    a.nodes.truncate(cut);
    let mut crossing: Vec<ValueId> = a.nodes.iter().flat_map(|n| n.outs.clone()).collect();
    crossing.retain(|v| b.nodes.iter().any(|n| n.ins.contains(v)));
    let port = |value: &ValueId| Port {
        name: format!("cut{}", value.0),
        value: *value,
    };
    a.outputs = crossing.iter().map(port).collect();
    b.inputs.extend(crossing.iter().map(port));
    (first, second, logits, crossing)
}

#[test]
fn plans_cut_at_random_ops_over_two_instances_change_no_bit() {
    let unfused = LoadOptions {
        no_fuse: true,
        ..options(2)
    };
    let (whole, logits) = decoder(DType::Q4_0, DType::F16, 16);
    let nodes = whole.program().plans[0].nodes.len();
    let step = [part(0, 0..70)];
    let want = feed(&mut run_on(&whole, &unfused), logits, &[step.to_vec()]);
    for noise in noises("cuts", 8) {
        let cut = 1 + ((noise + 1.0) / 2.0 * (nodes - 2) as f32) as usize;
        let (first, second, logits, crossing) = halves(cut);
        let (mut first, mut second) = (run_on(&first, &unfused), run_on(&second, &unfused));
        first.step(&step, &Feed::default()).unwrap();
        for (g, blocks) in (0..).zip(first.blocks.clone()) {
            for block in blocks {
                let data = first.export(GroupId(g), block);
                second.import(GroupId(g), block, &data);
            }
        }
        let values = crossing.iter().map(|&v| (v, first.floats(v))).collect();
        let fed = Feed {
            values,
            ..Feed::default()
        };
        second.step(&step, &fed).unwrap();
        assert_eq!(second.floats(logits), want, "cut after {cut} of {nodes}");
    }
}

#[test]
fn block_sizes_and_cache_types_agree_with_the_reference() {
    // Errors of 2⁻²⁰ before a cache that rounds to steps of `step` fall on the other side of a step with a
    // probability of their quotient, and then cost the step: together 2⁻²⁰ · step.
    let steps = [
        (DType::F32, 2f64.powi(-20)),
        (DType::F16, 2f64.powi(-10)),
        (DType::BF16, 2f64.powi(-7)),
        (DType::Q8_0, 1.0 / 127.0),
    ];
    for (kv, bound) in steps.map(|(kv, step)| (kv, step * 2f64.powi(-20))) {
        let mut bits = None;
        for block in [16, 1, 12, 32, CTX] {
            let (fixture, logits) = decoder(DType::F32, kv, block);
            let steps = [vec![part(0, 0..70)], vec![part(0, 70..71)]];
            let got = feed(&mut run_on(&fixture, &options(2)), logits, &steps);
            let oracle = RefBackend {
                precision: Precision::F64,
            };
            let mut oracle = fixture.load(&oracle, &options(1)).unwrap();
            let error = nmse(&got, &feed(&mut oracle, logits, &steps));
            assert!(error <= bound, "{kv} in blocks of {block}: {error:e}");
            assert_eq!(
                *bits.get_or_insert_with(|| got.clone()),
                got,
                "{kv} in blocks of {block}"
            );
        }
    }
}

#[test]
fn blocks_move_between_instances() {
    for kv in [DType::F32, DType::F16, DType::Q8_0] {
        let (fixture, logits) = decoder(DType::F32, kv, 16);
        let want = alone(&fixture, logits, 41);
        let mut from = run_on(&fixture, &options(1));
        feed(&mut from, logits, &[vec![part(0, 0..40)]]);
        let mut to = run_on(&fixture, &options(1));
        for group in [GroupId(0), GroupId(1)] {
            for block in from.blocks[group.index()].clone() {
                let data = from.export(group, block);
                to.import(group, block, &data);
                assert_eq!(to.export(group, block), data);
            }
        }
        assert_eq!(
            feed(&mut to, logits, &[vec![part(0, 40..41)]]),
            want,
            "{kv}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (fixture, _) = decoder(DType::F32, DType::F32, 16);
    let program = fixture.program().clone().into();
    let loaded = CpuBackend.load(program, fixture.weights(), &options(1));
    let loaded = loaded.unwrap();
    let arena = ArenaLayout::new(&loaded.block_bytes(), u64::MAX);
    let error = loaded.open(arena).err();
    assert!(
        matches!(error, Some(BackendError::OutOfMemory { needed, available, .. }) if needed > available)
    );
}

#[test]
fn a_token_outside_the_table_is_an_error() {
    let (fixture, _) = decoder(DType::F32, DType::F32, 16);
    let mut run = run_on(&fixture, &options(2));
    let rows = Rows {
        tokens: vec![VOCAB],
        ..Rows::first(1)
    };
    let error = run.step(&[rows], &Feed::default()).unwrap_err();
    assert_eq!(error.to_string(), "cpu cannot run row 50 of a table of 50");
}

/// Threads of this process with a name.
#[cfg(target_os = "linux")]
fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names
        .filter(|n| n.as_ref().is_ok_and(|n| n.trim() == name))
        .count()
}

#[test]
fn models_share_workers_and_one_that_is_lost_takes_no_other_with_it() {
    let (fixture, logits) = decoder(DType::F32, DType::F32, 16);
    let (mut lost, mut other) = (run_on(&fixture, &options(6)), run_on(&fixture, &options(6)));
    let prompt = [vec![part(0, 0..64)]];
    let want = feed(&mut other, logits, &prompt);
    assert_eq!(feed(&mut lost, logits, &prompt), want);
    #[cfg(target_os = "linux")]
    assert_eq!(threads_called("tokkata-5"), 1);
    // A block that the window still sees is gone: a worker panics.
    let bad = Rows {
        gone_below: 60,
        ..part(0, 64..65)
    };
    for rows in [bad, part(1, 0..8)] {
        let error = lost.step(&[rows], &Feed::default()).unwrap_err();
        assert!(
            matches!(error, BackendError::Lost(ref why) if why.contains("has a block")),
            "{error}"
        );
    }
    assert_eq!(feed(&mut other, logits, &prompt), want);
}
