//! Attention behind many positions: however keys are divided among workgroups and whatever is computed beside it, a row has the
//! same bits, and they are near the reference.

mod products;
mod tiles;

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::fixture::{Feed, Fixture, Rows, Run, noises};
use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, CacheKind, ConstData, Device, KvSource, Limits, LoadOptions, Mask, NormKind, Op,
    Pairing, RopeOp, SlotDef, SlotId, ValueId,
};

use crate::WgpuDevice;
use crate::gpu::Abilities;
use crate::launch::{SPAN, Split};

/// Rows of a step.
const ROWS: usize = 256;
/// Positions behind which rows are looked at: more than a span.
const FAR: usize = SPAN as usize + 70;

/// What a model asks of its attention.
#[derive(Clone, Copy)]
struct Case {
    heads: u32,
    kv_heads: u32,
    dim: u32,
    /// How heads are turned, from which column on, and how many pairs.
    turned: (Pairing, u32, u32),
    mask: Mask,
    dtype: DType,
    sinks: bool,
}

const CASES: [Case; 5] = [
    Case {
        heads: 8,
        kv_heads: 2,
        dim: 64,
        turned: (Pairing::Halves, 0, 32),
        mask: Mask::Causal,
        dtype: DType::F16,
        sinks: false,
    },
    Case {
        heads: 3,
        kv_heads: 1,
        dim: 32,
        turned: (Pairing::Halves, 0, 16),
        mask: Mask::Window(300),
        dtype: DType::Q8_0,
        sinks: true,
    },
    Case {
        heads: 2,
        kv_heads: 2,
        dim: 128,
        turned: (Pairing::Halves, 0, 64),
        mask: Mask::Causal,
        dtype: DType::F32,
        sinks: false,
    },
    // Two queries of a key, and columns on both sides that are not turned.
    Case {
        heads: 4,
        kv_heads: 2,
        dim: 96,
        turned: (Pairing::Adjacent, 32, 16),
        mask: Mask::Causal,
        dtype: DType::BF16,
        sinks: false,
    },
    // Two workgroups that share a key.
    Case {
        heads: 6,
        kv_heads: 1,
        dim: 64,
        turned: (Pairing::Halves, 0, 12),
        mask: Mask::Causal,
        dtype: DType::F16,
        sinks: false,
    },
];

/// Heads with a norm and a rotation, a cache write, and attention; queries, keys, values, and what comes of them.
fn fixture(case: Case) -> (Fixture, [ValueId; 3], ValueId) {
    let Case {
        heads,
        kv_heads,
        dim,
        ..
    } = case;
    let mut f = Fixture::new(Limits {
        rows: ROWS as u32,
        seqs: 4,
        logit_rows: 4,
        ctx: FAR as u32 + 8,
        kv_dtype: case.dtype,
        ..Limits::default()
    });
    let slot = SlotDef::Kv {
        n_kv_heads: kv_heads,
        dim_k: dim,
        dim_v: Some(dim),
    };
    let group = f.cache(CacheKind::Full, 32, vec![slot]);
    let slot = SlotId { group, slot: 0 };
    let ins = [heads, kv_heads, kv_heads].map(|n| f.input(&[n * dim]));
    let weight = f.vector(&[dim], &noises("norm", dim as usize));
    let (pairing, offset, pairs) = case.turned;
    let freqs = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32));
    let freqs = f.constant(ConstData::F32(freqs.collect()));
    let turned = |f: &mut Fixture, x: ValueId, n: u32| {
        let norm = Op::Norm {
            kind: NormKind::Rms,
            eps: 1e-5,
            width: dim,
            weight: Some(weight),
            bias: None,
        };
        let normed = f.op(norm, &[x], &[n * dim]);
        let rope = Op::Rope(RopeOp {
            head_dim: dim,
            offset,
            pairing,
            freqs,
            channels: None,
            magnitude: 1.0,
            inverse: false,
            back: 0,
        });
        f.op(rope, &[normed], &[n * dim])
    };
    let q = turned(&mut f, ins[0], heads);
    let k = turned(&mut f, ins[1], kv_heads);
    f.node(Op::CacheWrite { slot }, &[k, ins[2]], &[]);
    let sinks = noises("sinks", heads as usize);
    let sinks = case.sinks.then(|| f.vector(&[heads], &sinks));
    let op = AttentionOp {
        n_heads: heads,
        n_kv_heads: kv_heads,
        dim_k: dim,
        dim_v: dim,
        scale: (dim as f32).powf(-0.5),
        mask: case.mask,
        source: KvSource::Cache(slot),
        sinks,
        cap: None,
        alibi: None,
        bucket: None,
        entries: None,
        selection: None,
    };
    let out = f.op(Op::Attention(op), &[q], &[heads * dim]);
    f.show(&[out]);
    (f, ins, out)
}

/// Rows of a step, and what they read: it follows from their sequences and positions.
fn step(run: &mut Run, ins: [ValueId; 3], rows: &[Rows]) {
    let values = ins.map(|value| {
        let width = run.program.plans[0].value(value).shape.width();
        let row = |seq: usize, at: usize| noises(&format!("{}.{seq}.{at}", value.0), width);
        let all = rows.iter().flat_map(|r| r.at.clone().map(|at| (r.seq, at)));
        (value, all.flat_map(|(seq, at)| row(seq, at)).collect())
    });
    let feed = Feed {
        values: values.into(),
        ..Feed::default()
    };
    run.step(rows, &feed).expect("a step");
}

/// A case on a device, with sequence 1 behind `FAR` positions.
struct Far {
    run: Run,
    ins: [ValueId; 3],
    out: ValueId,
    width: usize,
}

impl Far {
    fn new(device: &dyn Device, case: Case) -> Self {
        let (fixture, ins, out) = fixture(case);
        let mut run = fixture
            .load(device, &LoadOptions::default())
            .expect("a load");
        let mut at = 0;
        while at < FAR {
            let to = FAR.min(at + ROWS);
            step(&mut run, ins, &[Rows::of(1, at..to)]);
            at = to;
        }
        let width = (case.heads * case.dim) as usize;
        Far {
            run,
            ins,
            out,
            width,
        }
    }

    /// Its next two rows, one by one beside others or not.
    fn rows(&mut self, beside: bool) -> Vec<f32> {
        let mut all = Vec::new();
        for i in 0..2 {
            let own = Rows::of(1, FAR + i..FAR + i + 1);
            let (rows, first) = match beside {
                true => (vec![Rows::of(0, i..i + 1), own, Rows::of(2, i..i + 1)], 1),
                false => (vec![own], 0),
            };
            step(&mut self.run, self.ins, &rows);
            let found = self.run.floats(self.out);
            all.extend_from_slice(&found[first * self.width..][..self.width]);
        }
        all
    }

    /// The same two in one step.
    fn together(&mut self) -> Vec<f32> {
        step(&mut self.run, self.ins, &[Rows::of(1, FAR..FAR + 2)]);
        self.run.floats(self.out)
    }
}

/// Squared error of what was found, of all squares.
fn error<'a>(
    want: impl IntoIterator<Item = &'a f32>,
    found: impl IntoIterator<Item = &'a f32>,
) -> f64 {
    let (mut error, mut all) = (0.0, 0.0);
    for (&want, &found) in want.into_iter().zip(found) {
        error += f64::from(want - found).powi(2);
        all += f64::from(want).powi(2);
    }
    error / all
}

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

/// Steps that are recorded once have the bits of those that are recorded anew.
#[test]
fn replays_change_no_bit() {
    let open = |replays| {
        let most = Abilities {
            subgroups: true,
            replays,
            ..Abilities::BASE
        };
        WgpuDevice::open_as(0, most)
    };
    if let Err(why) = open(true) {
        eprintln!("skipped: wgpu: {why}");
        return;
    }
    for (i, case) in CASES.into_iter().enumerate() {
        let [anew, once] = [false, true].map(|replays| {
            let device = open(replays).expect("an adapter");
            let mut far = Far::new(&device, case);
            [far.rows(false), far.rows(true), far.rows(false)].map(|rows| bits(&rows))
        });
        assert_eq!(anew, once, "case {i}");
    }
}

#[test]
fn division_of_keys_changes_no_bit() {
    let open = |turning| {
        let most = Abilities {
            subgroups: true,
            turning,
            ..Abilities::BASE
        };
        WgpuDevice::open_as(0, most)
    };
    if let Err(why) = open(true) {
        eprintln!("skipped: wgpu: {why}");
        return;
    }
    for (i, case) in CASES.into_iter().enumerate() {
        let want = Far::new(&RefBackend::default(), case).rows(false);
        let mut first = None;
        for turning in [true, false] {
            let device = open(turning).expect("an adapter");
            let mut far = Far::new(&device, case);
            let found = first.get_or_insert_with(|| bits(&far.rows(false))).clone();
            for split in [Split::Whole, Split::Spans, Split::Units] {
                device.divide(Some(split));
                let said = format!("case {i}, {split:?}, turning {turning}");
                let alone = far.rows(false);
                let pairs = want.iter().zip(&alone);
                let error: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let all: f64 = want.iter().map(|&x| f64::from(x).powi(2)).sum();
                assert!(error < 1e-9 * all, "{said}: {} of all", error / all);
                assert_eq!(found, bits(&alone), "{said}");
                assert_eq!(found, bits(&far.rows(true)), "{said}, beside others");
                assert_eq!(found, bits(&far.together()), "{said}, together");
            }
        }
    }
}
