//! Runs of positions as one row, attention over them, and what reads a row's token or an earlier position.

use tokkata_backend_ref::{RefBackend, shape};
use tokkata_conformance::fixture::{Feed, Fixture, Rows, small_limits};
use tokkata_core::DType;
use tokkata_ir::{
    AttentionOp, CacheKind, CompressOp, ConstData, KvSource, Limits, LoadOptions, Mask, Op,
    Pairing, RopeOp, SlotDef, SlotId, ValueId,
};

use crate::support::{BOTH, feed, near, run};

const LN3: f32 = 1.098_612_3;

fn kv(dim_k: u32, dim_v: Option<u32>) -> SlotDef {
    SlotDef::Kv {
        n_kv_heads: 1,
        dim_k,
        dim_v,
    }
}

/// Runs of two positions over one column, or over two where they overlap.
fn compressor(overlap: bool, ape: &[f32]) -> (Fixture, [ValueId; 3]) {
    let mut f = Fixture::new(Limits {
        kv_dtype: DType::F32,
        ..small_limits()
    });
    let wide = if overlap { 2 } else { 1 };
    let group = f.cache(CacheKind::Window(2 * wide), 2, vec![kv(wide, Some(wide))]);
    let op = CompressOp {
        slot: SlotId { group, slot: 0 },
        ratio: 2,
        overlap,
        ape: f.vector(&[2, wide], ape),
    };
    let (x, s) = (f.input(&[wide]), f.input(&[wide]));
    let out = f.op(Op::Compress(op), &[x, s], &[1]);
    shape::check(&f.program().plans[0], f.program()).unwrap();
    (f, [x, s, out])
}

/// The rows fed at once, and one by one.
#[track_caller]
fn both_ways(f: &Fixture, [x, s, out]: [ValueId; 3], (xs, ss): (&[f32], &[f32]), want: &[f32]) {
    let width = xs.len() / want.len();
    let part = |rows: std::ops::Range<usize>| Feed {
        values: [(x, xs), (s, ss)]
            .map(|(id, all)| (id, all[rows.start * width..rows.end * width].to_vec()))
            .to_vec(),
        ..Feed::default()
    };
    for precision in BOTH {
        let load = || f.load(&RefBackend { precision }, &LoadOptions::default());
        let mut whole = load().unwrap();
        whole
            .step(&[Rows::first(want.len())], &part(0..want.len()))
            .unwrap();
        near(&whole.floats(out), want);
        let mut steps = load().unwrap();
        for (i, &want) in want.iter().enumerate() {
            steps
                .step(&[Rows::of(0, i..i + 1)], &part(i..i + 1))
                .unwrap();
            near(&steps.floats(out), &[want]);
        }
    }
}

#[test]
fn the_row_that_ends_a_run_holds_its_weighted_sum() {
    let (f, ids) = compressor(false, &[0.0, LN3]);
    // Scores 0 and 0 become 1 : 3 by the place in the run, then ln 3 and 0 become 3 : 3.
    let scores = [0.0, 0.0, LN3, 0.0, 5.0];
    let want = [0.0, 7.0, 0.0, 3.0, 0.0];
    both_ways(&f, ids, (&[4.0, 8.0, 2.0, 4.0, 9.0], &scores), &want);
}

#[test]
fn runs_that_overlap_take_the_first_columns_of_the_run_before() {
    let (f, ids) = compressor(true, &[0.0, 0.0, LN3, 0.0]);
    // Columns of a row: what the next run takes of it, what its own takes.
    let values = [10.0, 2.0, 20.0, 4.0, 90.0, 6.0, 90.0, 8.0];
    // The first run has none before. The second takes 10 and 20 by 1 : 3 and its own 6 and 8 by 1 : 1.
    let want = [0.0, 3.0, 0.0, (10.0 + 60.0 + 14.0) / 6.0];
    both_ways(&f, ids, (&values, &[0.0; 8]), &want);
}

#[test]
fn attention_reads_whole_entries_beside_its_window() {
    let mut f = Fixture::default();
    let window = f.cache(CacheKind::Window(1), 2, vec![kv(1, None)]);
    let entries = f.cache(CacheKind::Entries(2), 2, vec![kv(1, Some(0))]);
    let (window, entries) = (
        SlotId {
            group: window,
            slot: 0,
        },
        SlotId {
            group: entries,
            slot: 0,
        },
    );
    let [k, e, q] = [1, 1, 1].map(|w| f.input(&[w]));
    f.node(Op::CacheWrite { slot: window }, &[k], &[]);
    f.node(Op::CacheWrite { slot: entries }, &[e], &[]);
    let op = AttentionOp {
        n_heads: 1,
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: 1,
        scale: 1.0,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Window(1),
        source: KvSource::Cache(window),
        entries: Some(entries),
        selection: None,
    };
    let out = f.op(Op::Attention(op), &[q], &[1]);
    shape::check(&f.program().plans[0], f.program()).unwrap();
    let feed = feed(&[
        (k, &[1.0, 2.0, 3.0, 4.0, 5.0]),
        (e, &[99.0, 30.0, 99.0, 60.0, 99.0]),
        (q, &[0.0; 5]),
    ]);
    for precision in BOTH {
        let found = run(&f, precision, &[Rows::first(5)], &feed, out);
        near(&found, &[1.0, 16.0, 16.5, 94.0 / 3.0, 95.0 / 3.0]);
    }
}

#[test]
fn a_rotation_can_be_that_of_an_earlier_position() {
    let rotated = |back| {
        let mut f = Fixture::default();
        let op = RopeOp {
            pairing: Pairing::Halves,
            head_dim: 2,
            offset: 0,
            freqs: f.constant(ConstData::F32(vec![std::f32::consts::FRAC_PI_2])),
            magnitude: 1.0,
            channels: None,
            inverse: false,
            back,
        };
        let x = f.input(&[2]);
        let out = f.op(Op::Rope(op), &[x], &[2]);
        let feed = feed(&[(x, &[1.0, 0.0].repeat(5))]);
        run(&f, BOTH[1], &[Rows::first(5)], &feed, out)
    };
    let turns = [1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0, 1.0, 0.0];
    near(&rotated(0), &turns);
    // Rows before are rotated as position 0.
    near(
        &rotated(3),
        &[&[1.0, 0.0].repeat(3)[..], &turns[..4]].concat(),
    );
}
