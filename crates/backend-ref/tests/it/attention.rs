//! Attention by hand: tiny heads whose scores are chosen so that softmax weights are simple fractions.

use tokkata_conformance::fixture::{Fixture, Rows};
use tokkata_ir::op::BucketBias;
use tokkata_ir::{AttentionOp, CacheKind, ConstData, KvSource, Mask, Op, SlotDef, SlotId, ValueId};

use crate::support::{BOTH, feed, near, run};

const LN2: f32 = std::f32::consts::LN_2;
const LN3: f32 = 1.098_612_3;

/// One head of one column over the step's own rows.
fn one_head() -> AttentionOp {
    AttentionOp {
        n_heads: 1,
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: 1,
        scale: 1.0,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Full,
        source: KvSource::Rows,
        entries: None,
        selection: None,
    }
}

/// Rows of q, k, v through an attention over the step's own rows.
#[track_caller]
fn over_rows(
    build: impl FnOnce(&mut Fixture) -> AttentionOp,
    [q, k, v]: [&[f32]; 3],
    expected: &[f32],
) {
    let mut fixture = Fixture::default();
    let op = build(&mut fixture);
    let width = |heads: u32, dim: u32| [heads * dim];
    let q_id = fixture.input(&width(op.n_heads, op.dim_k));
    let k_id = fixture.input(&width(op.n_kv_heads, op.dim_k));
    let v_id = fixture.input(&width(op.n_kv_heads, op.dim_v));
    let rows = q.len() / (op.n_heads * op.dim_k) as usize;
    let out_width = width(op.n_heads, op.dim_v);
    let out = fixture.op(Op::Attention(op), &[q_id, k_id, v_id], &out_width);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    let feed = feed(&[(q_id, q), (k_id, k), (v_id, v)]);
    for precision in BOTH {
        near(
            &run(&fixture, precision, &[Rows::first(rows)], &feed, out),
            expected,
        );
    }
}

#[test]
fn weights_follow_the_scores() {
    // Scores 0, ln 2, ln 3 weigh 1 : 2 : 3.
    let k = [0.0, LN2, LN3];
    over_rows(
        |_| one_head(),
        [&[1.0; 3], &k, &[6.0, 0.0, 12.0]],
        &[7.0; 3],
    );
    let doubled = |_: &mut Fixture| AttentionOp {
        scale: 2.0,
        ..one_head()
    };
    // 1 : 4 : 9
    over_rows(doubled, [&[1.0; 3], &k, &[14.0, 0.0, 28.0]], &[19.0; 3]);
}

#[test]
fn masks_choose_by_position() {
    let table = [
        (Mask::Full, [3.0, 3.0, 3.0, 3.0, 3.0]),
        (Mask::Causal, [1.0, 1.5, 2.0, 2.5, 3.0]),
        (Mask::Window(2), [1.0, 1.5, 2.5, 3.5, 4.5]),
        (Mask::Chunk(2), [1.0, 1.5, 3.0, 3.5, 5.0]),
        (Mask::Symmetric(2), [1.5, 2.0, 3.0, 4.0, 4.5]),
    ];
    let v = [1.0, 2.0, 3.0, 4.0, 5.0];
    for (mask, expected) in table {
        println!("{mask:?}");
        let op = move |_: &mut Fixture| AttentionOp { mask, ..one_head() };
        over_rows(op, [&[0.0; 5], &[1.0; 5], &v], &expected);
    }
}

#[test]
fn a_sink_takes_weight_and_gives_nothing() {
    let op = |f: &mut Fixture| AttentionOp {
        sinks: Some(f.vector(&[1], &[LN2])),
        mask: Mask::Causal,
        ..one_head()
    };
    // Row 0: 1 of 1 + 2; row 1: 1 of 1 + 1 + 2 each.
    over_rows(op, [&[0.0; 2], &[0.0; 2], &[3.0, 5.0]], &[1.0, 2.0]);
}

#[test]
fn caps_bend_the_scaled_score() {
    // cap 1: tanh(0.5493061 · 2 / 1) would be 0.8; scores 0 and 0.8 weigh 1 : 2.2255409
    let op = |_: &mut Fixture| AttentionOp {
        scale: 2.0,
        cap: Some(1.0),
        ..one_head()
    };
    let expected = 2.225_540_9 / 3.225_540_9;
    over_rows(
        op,
        [&[1.0; 2], &[0.0, 0.549_306_15], &[0.0, 1.0]],
        &[expected; 2],
    );
}

#[test]
fn slopes_fall_with_distance() {
    let op = |f: &mut Fixture| AttentionOp {
        n_heads: 2,
        alibi: Some(f.constant(ConstData::F32(vec![LN2, 0.0]))),
        mask: Mask::Causal,
        ..one_head()
    };
    // Head 0 of row 2 weighs 1 : 2 : 4, head 1 all alike; both share one key head.
    let expected = [7.0, 7.0, 7.0 / 3.0, 3.5, 1.0, 7.0 / 3.0];
    over_rows(op, [&[0.0; 6], &[1.0; 3], &[7.0, 0.0, 0.0]], &expected);
}

#[test]
fn grouped_heads_share_keys_in_runs() {
    let op = |_: &mut Fixture| AttentionOp {
        n_heads: 4,
        n_kv_heads: 2,
        dim_k: 2,
        ..one_head()
    };
    let q = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
    // One row: every head sees its group's only value.
    over_rows(
        op,
        [&q, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0]],
        &[5.0, 5.0, 6.0, 6.0],
    );
}

/// A decoder's attention with a learned bias: bucket b adds ln(b + 1).
fn bucketed(bidirectional: bool, buckets: u32, f: &mut Fixture) -> AttentionOp {
    let values: Vec<f32> = (1..=buckets).map(|b| (b as f32).ln()).collect();
    let bias = BucketBias {
        table: f.vector(&[buckets, 1], &values),
        buckets,
        max_distance: 16,
        bidirectional,
    };
    let mask = if bidirectional {
        Mask::Full
    } else {
        Mask::Causal
    };
    AttentionOp {
        bucket: Some(bias),
        mask,
        ..one_head()
    }
}

#[test]
fn buckets_count_back_from_the_row() {
    // Distances 0, 1, 2 have buckets 0, 1, 2: row 2 weighs key 0 by 3, key 1 by 2, key 2 by 1.
    let op = |f: &mut Fixture| bucketed(false, 8, f);
    over_rows(
        op,
        [&[0.0; 3], &[0.0; 3], &[6.0, 0.0, 0.0]],
        &[6.0, 4.0, 3.0],
    );
}

#[test]
fn far_distances_share_buckets() {
    // Eight buckets, four exact, up to 16: distance 4 is bucket 4, 6 is 4 + ⌊4·ln 1.5 / ln 4⌋ = 5, 8 is 6,
    // 12 is 4 + ⌊4·ln 3 / ln 4⌋ = 7, 16 and beyond are 7.
    let op = |f: &mut Fixture| bucketed(false, 8, f);
    let buckets = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7];
    let rows = buckets.len();
    let mut first = vec![0.0; rows];
    first[0] = 1.0;
    let weight = |row: usize| buckets[row] as f32 + 1.0;
    let expected: Vec<f32> = (0..rows)
        .map(|row| weight(row) / (0..=row).map(weight).sum::<f32>())
        .collect();
    over_rows(op, [&vec![0.0; rows], &vec![0.0; rows], &first], &expected);
}

#[test]
fn keys_after_the_row_have_their_own_buckets() {
    // Four buckets: 0 and 1 behind, 2 and 3 ahead; 1 ahead is 2 + 1. Key 1 seen from row 0 weighs 4, key 0 from row 1 weighs 2.
    let op = |f: &mut Fixture| bucketed(true, 4, f);
    over_rows(op, [&[0.0; 2], &[0.0; 2], &[0.0, 1.0]], &[0.8, 1.0 / 3.0]);
}

fn cached(kind: CacheKind, dim_v: Option<u32>) -> (Fixture, SlotId) {
    let mut fixture = Fixture::default();
    fixture.program_mut().limits.kv_dtype = tokkata_core::DType::F32;
    let slot = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 2,
        dim_v,
    };
    let group = fixture.cache(kind, 2, vec![slot.clone(), slot]);
    (fixture, SlotId { group, slot: 1 })
}

#[test]
fn values_can_be_the_first_columns_of_the_keys() {
    let (mut fixture, slot) = cached(CacheKind::Full, None);
    let k = fixture.input(&[2]);
    let q = fixture.input(&[4]);
    fixture.node(Op::CacheWrite { slot }, &[k], &[]);
    let op = AttentionOp {
        n_heads: 2,
        dim_k: 2,
        mask: Mask::Causal,
        source: KvSource::Cache(slot),
        ..one_head()
    };
    let out = fixture.op(Op::Attention(op), &[q], &[2]);
    tokkata_backend_ref::shape::check(&fixture.program().plans[0], fixture.program()).unwrap();
    // Head 0 weighs row 1's keys 1 : 1, head 1 by their second column 1 : 3.
    let feed = feed(&[
        (k, &[2.0, 0.0, 6.0, LN3]),
        (q, &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
    ]);
    for precision in BOTH {
        near(
            &run(&fixture, precision, &[Rows::first(2)], &feed, out),
            &[2.0, 2.0, 4.0, 5.0],
        );
    }
}

#[test]
fn each_key_head_starts_its_own_values() {
    let mut f = Fixture::default();
    let slot = SlotDef::Kv {
        n_kv_heads: 2,
        dim_k: 2,
        dim_v: None,
    };
    let group = f.cache(CacheKind::Full, 4, vec![slot]);
    let slot = SlotId { group, slot: 0 };
    let k = f.input(&[4]);
    let q = f.input(&[4]);
    f.node(Op::CacheWrite { slot }, &[k], &[]);
    let source = KvSource::Cache(slot);
    let op = AttentionOp {
        n_heads: 2,
        n_kv_heads: 2,
        dim_k: 2,
        source,
        ..one_head()
    };
    let out = f.op(Op::Attention(op), &[q], &[2]);
    let feed = feed(&[(k, &[1.0, 2.0, 3.0, 4.0]), (q, &[0.0; 4])]);
    for precision in BOTH {
        near(
            &run(&f, precision, &[Rows::first(1)], &feed, out),
            &[1.0, 3.0],
        );
    }
}

#[test]
fn cross_attention_reads_what_an_encoder_wrote() {
    let (mut fixture, slot) = cached(CacheKind::Cross, Some(1));
    let [k, v, q]: [ValueId; 3] = [2, 1, 2].map(|w| fixture.input(&[w]));
    fixture.node(Op::CacheWrite { slot }, &[k, v], &[]);
    let op = AttentionOp {
        dim_k: 2,
        source: KvSource::Cross(slot),
        ..one_head()
    };
    let out = fixture.op(Op::Attention(op), &[q], &[1]);
    let rows = Rows {
        enc_len: 3,
        ..Rows::first(3)
    };
    let keys = [0.0, 0.0, LN2, 0.0, LN3, 0.0];
    let feed = feed(&[
        (k, &keys),
        (v, &[6.0, 0.0, 12.0]),
        (q, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
    ]);
    for precision in BOTH {
        near(
            &run(&fixture, precision, std::slice::from_ref(&rows), &feed, out),
            &[7.0, 6.0, 7.0],
        );
    }
}
