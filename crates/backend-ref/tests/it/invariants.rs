//! A row's numbers depend on that row alone: batches, chunks and blocks change no bit.

use tokkata_backend_ref::{Precision, RefBackend, RefInstance};
use tokkata_conformance::fixture::{Feed, Fixture, Rows, Run, noises, small_limits};
use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, BinaryKind, CacheKind, ConstData, Executor, GatherIndex, GroupId, KvSource,
    Limits, LoadOptions, Mask, NormKind, Op, Pairing, RopeOp, Scan, SlotDef, SlotId, ValueId,
    WeightId,
};

use crate::support::{BOTH, feed};

const D: u32 = 24;
const HEADS: u32 = 3;
const WINDOW: u32 = 5;

fn matrix(f: &mut Fixture, name: &str, n: u32, k: u32) -> WeightId {
    let scale = (3.0 / k as f32).sqrt();
    let values: Vec<f32> = noises(name, (n * k) as usize)
        .iter()
        .map(|x| x * scale)
        .collect();
    f.matrix(DType::F32, &[n, k], &values)
}

fn product(f: &mut Fixture, name: &str, x: ValueId, n: u32) -> ValueId {
    let k = f.program().plans[0].value(x).shape.width() as u32;
    let weight = matrix(f, name, n, k);
    f.op(
        Op::Matmul {
            weight,
            scale: None,
            bias: None,
        },
        &[x],
        &[n],
    )
}

fn add(f: &mut Fixture, a: ValueId, b: ValueId) -> ValueId {
    let op = Op::Binary {
        kind: BinaryKind::Add,
        a_scale: 1.0,
        b_scale: 1.0,
    };
    f.op(op, &[a, b], &[D])
}

fn attend(f: &mut Fixture, x: ValueId, slot: SlotId, mask: Mask) -> ValueId {
    let norm = Op::Norm {
        kind: NormKind::Rms,
        eps: 1e-6,
        width: D,
        weight: None,
        bias: None,
    };
    let h = f.op(norm, &[x], &[D]);
    let name = |part: &str| format!("{part}{}", slot.group);
    let q = product(f, &name("q"), h, D);
    let k = product(f, &name("k"), h, D / HEADS);
    let v = product(f, &name("v"), h, D / HEADS);
    let freqs = f.constant(ConstData::F32(vec![1.0, 0.1, 0.01, 0.001]));
    let rope = RopeOp {
        pairing: Pairing::Halves,
        head_dim: D / HEADS,
        offset: 0,
        freqs,
        magnitude: 1.0,
        channels: None,
        inverse: false,
        back: 0,
    };
    let q = f.op(Op::Rope(rope.clone()), &[q], &[D]);
    let k = f.op(Op::Rope(rope), &[k], &[D / HEADS]);
    f.node(Op::CacheWrite { slot }, &[k, v], &[]);
    let op = AttentionOp {
        n_heads: HEADS,
        n_kv_heads: 1,
        dim_k: D / HEADS,
        dim_v: D / HEADS,
        scale: 0.35,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask,
        source: KvSource::Cache(slot),
        entries: None,
        selection: None,
    };
    let mixed = f.op(Op::Attention(op), &[q], &[D]);
    add(f, x, mixed)
}

/// Token to hidden state through full attention, a window, a convolution and a recurrence.
fn model(kv_dtype: DType, block_size: u32) -> (Fixture, ValueId) {
    let mut f = Fixture::new(Limits {
        kv_dtype,
        ..small_limits()
    });
    let kv = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: D / HEADS,
        dim_v: Some(D / HEADS),
    };
    let full = f.cache(CacheKind::Full, block_size, vec![kv.clone()]);
    let window = f.cache(CacheKind::Window(WINDOW), block_size, vec![kv]);
    let table = f.table(DType::F32, &[50, D], &noises("embd", 50 * D as usize));
    let x = f.op(
        Op::Gather {
            table,
            index: GatherIndex::Token,
        },
        &[],
        &[D],
    );
    let x = attend(
        &mut f,
        x,
        SlotId {
            group: full,
            slot: 0,
        },
        Mask::Causal,
    );
    let x = attend(
        &mut f,
        x,
        SlotId {
            group: window,
            slot: 0,
        },
        Mask::Window(WINDOW),
    );
    let weight = f.vector(&[D, 4], &noises("conv", 4 * D as usize));
    let conv = Op::Conv {
        weight,
        bias: None,
        kernel: 4,
        slot: Some(f.state(3 * D)),
    };
    let x = f.op(conv, &[x], &[D]);
    let slopes = f.constant(ConstData::F32(vec![0.5, 0.25, 0.125]));
    let scan = Scan::Decay {
        heads: HEADS,
        slopes,
    };
    let slot = f.state(D * D / HEADS);
    let y = f.op(Op::Scan { scan, slot }, &[x, x, x], &[D]);
    (f, y)
}

fn open(fixture: &Fixture, precision: Precision) -> Run {
    fixture
        .load(&RefBackend { precision }, &LoadOptions::default())
        .unwrap()
}

fn tokens(seq: usize, at: std::ops::Range<usize>) -> Rows {
    let tokens = at
        .clone()
        .map(|p| ((seq * 31 + p * p * 7 + p) % 50) as u32)
        .collect();
    Rows {
        tokens,
        ..Rows::of(seq, at)
    }
}

fn whole(
    fixture: &Fixture,
    out: ValueId,
    precision: Precision,
    seq: usize,
    len: usize,
) -> Vec<f32> {
    let mut run = open(fixture, precision);
    run.step(&[tokens(seq, 0..len)], &Feed::default()).unwrap();
    run.floats(out)
}

#[test]
fn the_model_fits_its_shapes() {
    let (fixture, _) = model(DType::F32, 16);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
}

#[test]
fn chunked_is_whole_for_every_block_size_and_cache_type() {
    for precision in BOTH {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            let (fixture, out) = model(dtype, 16);
            let expected = whole(&fixture, out, precision, 1, 40);
            for block_size in [1, 16, small_limits().ctx] {
                let (fixture, out) = model(dtype, block_size);
                for chunk in [1, 7, 40] {
                    let mut run = open(&fixture, precision);
                    let mut found = Vec::new();
                    for start in (0..40).step_by(chunk) {
                        let rows = tokens(1, start..(start + chunk).min(40));
                        run.step(&[rows], &Feed::default()).unwrap();
                        found.extend(run.floats(out));
                    }
                    assert_eq!(
                        found, expected,
                        "{precision:?} {dtype} {block_size} {chunk}"
                    );
                }
            }
        }
    }
}

#[test]
fn batched_is_alone() {
    for precision in BOTH {
        let (fixture, out) = model(DType::Q8_0, 16);
        let alone: Vec<Vec<f32>> = (0..3)
            .map(|seq| whole(&fixture, out, precision, seq, 9 + 4 * seq))
            .collect();
        let mut run = open(&fixture, precision);
        let mut found = vec![Vec::new(); 3];
        let steps = [
            [0..9, 0..4, 0..1],
            [9..9, 4..5, 1..16],
            [9..9, 5..13, 16..17],
        ];
        for step in steps {
            let rows: Vec<Rows> = (0..3).rev().map(|s| tokens(s, step[s].clone())).collect();
            run.step(&rows, &Feed::default()).unwrap();
            let mut floats = run.floats(out).into_iter();
            for (s, rows) in (0..3).rev().zip(&rows) {
                found[s].extend(floats.by_ref().take(rows.at.len() * D as usize));
            }
        }
        assert_eq!(found, alone);
    }
}

#[test]
fn blocks_out_of_the_window_are_never_read() {
    let (fixture, out) = model(DType::F32, 2);
    let expected = whole(&fixture, out, Precision::F32, 0, 20);
    let mut run = open(&fixture, Precision::F32);
    run.step(&[tokens(0, 0..19)], &Feed::default()).unwrap();
    let last = Rows {
        gone_below: 15,
        ..tokens(0, 19..20)
    };
    run.step(&[last], &Feed::default()).unwrap();
    assert_eq!(run.floats(out), expected[19 * D as usize..]);
}

#[test]
fn a_write_without_a_block_touches_no_other() {
    let mut f = Fixture::new(Limits {
        kv_dtype: DType::F32,
        ..small_limits()
    });
    let slot = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: None,
    };
    let group = f.cache(CacheKind::Window(2), 2, vec![slot]);
    let k = f.input(&[1]);
    f.node(
        Op::CacheWrite {
            slot: SlotId { group, slot: 0 },
        },
        &[k],
        &[],
    );
    let mut run = open(&f, Precision::F32);
    let rows = Rows {
        gone_below: 4,
        ..Rows::first(6)
    };
    let values = vec![(k, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
    run.step(
        &[rows],
        &Feed {
            values,
            ..Feed::default()
        },
    )
    .unwrap();
    let blocks = run.blocks[group.index()].clone();
    let stored: Vec<f32> = blocks
        .into_iter()
        .flat_map(|b| run.export(group, b))
        .filter(|&x| x != 0.0)
        .collect();
    assert_eq!(stored, [5.0, 6.0]);
}

#[test]
fn blocks_travel_in_canonical_form() {
    let (fixture, out) = model(DType::F16, 16);
    let mut first = open(&fixture, Precision::F32);
    first.step(&[tokens(0, 0..20)], &Feed::default()).unwrap();
    let mut second = open(&fixture, Precision::F32);
    for (g, blocks) in (0..).zip(first.blocks.clone()) {
        for block in blocks {
            let data = first.export(GroupId(g), block);
            second.import(GroupId(g), block, &data);
        }
    }
    for run in [&mut first, &mut second] {
        run.step(&[tokens(0, 20..21)], &Feed::default()).unwrap();
    }
    assert_eq!(first.floats(out), second.floats(out));
}

#[test]
fn exports_list_keys_then_values_by_position() {
    let mut f = Fixture::new(Limits {
        kv_dtype: DType::F32,
        ..small_limits()
    });
    let slot = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: Some(2),
    };
    let group = f.cache(CacheKind::Full, 64, vec![slot]);
    let [k, v] = [1, 2].map(|w| f.input(&[w]));
    f.node(
        Op::CacheWrite {
            slot: SlotId { group, slot: 0 },
        },
        &[k, v],
        &[],
    );
    let mut run = open(&f, Precision::F32);
    let values = vec![(k, vec![1.0, 2.0]), (v, vec![3.0, 4.0, 5.0, 6.0])];
    run.step(
        &[Rows::first(2)],
        &Feed {
            values,
            ..Feed::default()
        },
    )
    .unwrap();
    let block = run.block_of(group, 0, 0);
    let data = run.export(group, block);
    assert_eq!(
        (data.len(), &data[..3], &data[64..69]),
        (192, &[1.0, 2.0, 0.0][..], &[3.0, 4.0, 5.0, 6.0, 0.0][..])
    );
    let other = run.block_of(group, 1, 0);
    assert_ne!(other, block);
    run.copy(group, block, other);
    assert_eq!(run.export(group, other), data);
}

#[test]
fn caches_round_as_their_type() {
    let rounded = |dtype: DType, keys: &[f32]| {
        let mut f = Fixture::new(Limits {
            kv_dtype: dtype,
            ..small_limits()
        });
        let slot = SlotDef::Kv {
            n_kv_heads: 1,
            dim_k: 64,
            dim_v: None,
        };
        let group = f.cache(CacheKind::Full, 1, vec![slot]);
        let k = f.input(&[64]);
        f.node(
            Op::CacheWrite {
                slot: SlotId { group, slot: 0 },
            },
            &[k],
            &[],
        );
        let mut run = open(&f, Precision::F64);
        let values = vec![(k, keys.to_vec())];
        run.step(
            &[Rows::first(1)],
            &Feed {
                values,
                ..Feed::default()
            },
        )
        .unwrap();
        let block = run.block_of(group, 0, 0);
        run.export(group, block)
    };
    let keys = noises("keys", 64);
    assert_eq!(rounded(DType::F32, &keys), keys);
    for dtype in [DType::F16, DType::Q8_0] {
        let mut bytes = vec![0; dtype.row_bytes(64).unwrap()];
        tokkata_quant::quantize(dtype, &keys, 64, None, &mut bytes).unwrap();
        let stored = tokkata_quant::dequantize_vec(dtype, &bytes, 64).unwrap();
        assert_eq!(rounded(dtype, &keys), stored);
    }
}

/// A plan cut after `cut` nodes: the second half is fed with what the first half left.
#[test]
fn plans_can_be_cut_in_two_and_looked_into() {
    let (fixture, out) = model(DType::F32, 16);
    let expected = whole(&fixture, out, Precision::F32, 0, 6);
    let nodes = fixture.program().plans[0].nodes.len();
    let rows = [tokens(0, 0..6)];
    for cut in 0..nodes - 1 {
        let part = |range: std::ops::Range<usize>| {
            let mut part = fixture.clone();
            let plan = &mut part.program_mut().plans[0];
            plan.nodes = plan.nodes[range].to_vec();
            let made = |v: &ValueId| plan.nodes.iter().any(|n| n.outs.contains(v));
            plan.outputs.retain(|p| made(&p.value));
            let device = RefBackend::default();
            part.mount(|p, w, a| device.open(p, w, a)).unwrap()
        };
        let (mut first, mut second) = (part(0..cut + 1), part(cut + 1..nodes));
        first.executor.machine().keep_all(true);
        first.step(&rows, &Feed::default()).unwrap();
        for (g, blocks) in (0..).zip(first.blocks.clone()) {
            for block in blocks {
                let data = first.export(GroupId(g), block);
                second.import(GroupId(g), block, &data);
            }
        }
        let machine = first.executor.machine();
        let ids = (0..fixture.program().plans[0].values.len() as u32).map(ValueId);
        let known = ids.filter(|&v| machine.value(v).is_some());
        let values = known.map(|v| (v, machine.floats(v).to_vec())).collect();
        let feed = Feed {
            values,
            ..Feed::default()
        };
        second.step(&rows, &feed).unwrap();
        assert_eq!(second.floats(out), expected, "cut after {cut}");
    }
}

#[test]
fn replays_stop_where_asked_and_keep_what_is_asked() {
    let mut f = Fixture::default();
    let x = f.input(&[1]);
    let ops = [2.0, 3.0, 5.0].map(|scale| Op::Affine { scale, offset: 0.0 });
    let mut values = vec![x];
    for op in ops {
        let last = values[values.len() - 1];
        values.push(f.op(op, &[last], &[1]));
    }
    f.program_mut().plans[0].outputs.drain(..2);
    let precision = Precision::F64;
    let mut run = f
        .mount(|p, w, a| RefBackend { precision }.open(p, w, a))
        .unwrap();
    let mut seen = |set: &dyn Fn(&mut Box<dyn RefInstance>)| {
        set(run.executor.machine());
        run.step(&[Rows::first(1)], &feed(&[(x, &[1.0])])).unwrap();
        let machine = run.executor.machine();
        let seen = values.iter().map(|&v| machine.value(v).map(|v| v[0]));
        seen.collect::<Vec<_>>()
    };
    assert_eq!(seen(&|_| {}), [None, None, None, Some(30.0)]);
    let (keep, stop) = (true, Some(1));
    assert_eq!(
        seen(&|i| i.keep_all(keep)),
        [Some(1.0), Some(2.0), Some(6.0), Some(30.0)]
    );
    assert_eq!(
        seen(&|i| i.stop_after(stop)),
        [Some(1.0), Some(2.0), Some(6.0), None]
    );
    assert_eq!(run.executor.memory_bytes(), 0);
}
