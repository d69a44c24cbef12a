//! Chosen keys, attention over them, and matrices made doubly stochastic.

use tokkata_backend_ref::{RefBackend, shape};
use tokkata_conformance::fixture::{Feed, Fixture, Rows};
use tokkata_ir::{
    AttentionOp, CacheKind, KvSource, Lead, LoadOptions, Mask, Op, SelectOp, Selection, SlotDef,
    SlotId, ValType, ValueId,
};

use crate::support::{BOTH, feed, near, run, unary};

/// Keys of one column and queries of `heads`, all chosen from by `op`.
struct Chooser {
    fixture: Fixture,
    ids: ValueId,
    ins: Vec<ValueId>,
}

fn chooser(kind: CacheKind, op: impl FnOnce(SlotId) -> SelectOp) -> Chooser {
    let mut f = Fixture::default();
    let key = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 1,
        dim_v: Some(0),
    };
    let group = f.cache(kind, 4, vec![key]);
    let op = op(SlotId { group, slot: 0 });
    let (k, q) = (f.input(&[1]), f.input(&[op.n_heads]));
    let mut ins = vec![q];
    if op.summed {
        ins.push(f.input(&[op.n_heads]));
    }
    f.node(Op::CacheWrite { slot: op.slot }, &[k], &[]);
    let ids = f.value(Lead::Rows, &[op.choices(), op.top_k], ValType::I32);
    f.node(Op::Select(op), &ins, &[ids]);
    ins.insert(0, k);
    Chooser {
        fixture: f,
        ids,
        ins,
    }
}

fn summed(slot: SlotId, top_k: u32) -> SelectOp {
    SelectOp {
        slot,
        n_heads: 2,
        dim: 1,
        scale: 2.0,
        summed: true,
        top_k,
        unit: 1,
        local: 0,
    }
}

/// The choices of each row, all fed at once and one by one.
#[track_caller]
fn chosen(c: &Chooser, inputs: &[&[f32]], expected: &[&[i32]]) {
    shape::check(&c.fixture.program().plans[0], c.fixture.program()).unwrap();
    let rows = expected.len();
    let part = |first: usize, n: usize| Feed {
        values: (c.ins.iter().zip(inputs))
            .map(|(&id, x)| {
                let width = x.len() / rows;
                (id, x[first * width..(first + n) * width].to_vec())
            })
            .collect(),
        ..Feed::default()
    };
    for precision in BOTH {
        let load = || {
            c.fixture
                .load(&RefBackend { precision }, &LoadOptions::default())
        };
        let mut whole = load().unwrap();
        whole.step(&[Rows::first(rows)], &part(0, rows)).unwrap();
        assert_eq!(whole.ints(c.ids), expected.concat());
        let mut steps = load().unwrap();
        for (row, &expected) in expected.iter().enumerate() {
            let at = [Rows::of(0, row..row + 1)];
            steps.step(&at, &part(row, 1)).unwrap();
            assert_eq!(steps.ints(c.ids), expected, "row {row}");
        }
    }
}

#[test]
fn weighted_heads_choose_the_largest_and_the_earlier_of_equal_ones() {
    let c = chooser(CacheKind::Entries(1), |slot| summed(slot, 2));
    // Head 0 wants large keys, head 1 small ones at half the weight: scores of the last row are 3 · 2k or −1.5 · −2k.
    let keys = [1.0, -3.0, 0.5, 1.0, 0.0];
    let queries = [1.0, -1.0].repeat(5);
    let weights = [3.0, 1.5].repeat(5);
    let expected: [&[i32]; 5] = [&[0, -1], &[0, 1], &[0, 1], &[0, 1], &[0, 1]];
    chosen(&c, &[&keys, &queries, &weights], &expected);
    // A negative weight turns head 1's keys into the last; those that no head wants are equal, and the first wins.
    let weights = [3.0, -1.5].repeat(5);
    let expected: [&[i32]; 5] = [&[0, -1], &[0, 1], &[0, 2], &[0, 3], &[0, 3]];
    chosen(&c, &[&keys, &queries, &weights], &expected);
    let keys = [0.0, -0.0, 0.0, -0.0, 0.0];
    let expected: [&[i32]; 5] = [&[0, -1], &[0, 1], &[0, 1], &[0, 1], &[0, 1]];
    chosen(&c, &[&keys, &queries, &weights], &expected);
}

#[test]
fn heads_choose_blocks_for_themselves_and_the_last_in_any_case() {
    let c = chooser(CacheKind::Entries(1), |slot| SelectOp {
        summed: false,
        unit: 2,
        local: 1,
        ..summed(slot, 2)
    });
    let keys = [1.0, 9.0, -9.0, 2.0, 3.0, 3.0, 0.0];
    let queries = [1.0, -1.0].repeat(7);
    let expected: [&[i32]; 7] = [
        &[0, -1, 0, -1],
        &[0, -1, 0, -1],
        &[0, 1, 0, 1],
        &[0, 1, 0, 1],
        &[0, 2, 1, 2],
        &[0, 2, 1, 2],
        &[0, 3, 1, 3],
    ];
    chosen(&c, &[&keys, &queries], &expected);
}

#[test]
fn entries_of_several_positions_count_when_they_are_whole() {
    let c = chooser(CacheKind::Entries(2), |slot| summed(slot, 1));
    // Of each two keys the second is kept.
    let keys = [9.0, 1.0, 9.0, 2.0, 9.0, 0.5];
    let expected: [&[i32]; 6] = [&[-1], &[0], &[0], &[1], &[1], &[1]];
    chosen(
        &c,
        &[&keys, &[1.0, 0.0].repeat(6), &[1.0, 0.0].repeat(6)],
        &expected,
    );
}

#[test]
fn attention_reads_the_chosen_units_that_it_sees() {
    let mut f = Fixture::default();
    let kv = SlotDef::Kv {
        n_kv_heads: 2,
        dim_k: 1,
        dim_v: Some(1),
    };
    let group = f.cache(CacheKind::Full, 4, vec![kv]);
    let slot = SlotId { group, slot: 0 };
    let [k, v, q]: [ValueId; 3] = [2, 2, 4].map(|w| f.input(&[w]));
    let ids = f.input_of(Lead::Rows, &[2, 2], ValType::I32);
    f.node(Op::CacheWrite { slot }, &[k, v], &[]);
    let op = AttentionOp {
        n_heads: 4,
        n_kv_heads: 2,
        dim_k: 1,
        dim_v: 1,
        scale: 1.0,
        cap: None,
        sinks: None,
        alibi: None,
        bucket: None,
        mask: Mask::Causal,
        source: KvSource::Cache(slot),
        entries: None,
        selection: Some(Selection {
            unit: 2,
            choices: 2,
            tail: false,
        }),
    };
    let tailed = AttentionOp {
        selection: op.selection.map(|s| Selection { tail: true, ..s }),
        ..op.clone()
    };
    let out = f.op(Op::Attention(op), &[q, ids], &[4]);
    let with_tail = f.op(Op::Attention(tailed), &[q, ids], &[4]);
    shape::check(&f.program().plans[0], f.program()).unwrap();
    let values: Vec<f32> = (0..5).flat_map(|p| [p as f32, 10.0 * p as f32]).collect();
    // The last row of five: the first key head's heads read unit 0, the others' unit 1 and the half unit 2.
    let chosen = [
        [-1.0; 4],
        [-1.0; 4],
        [-1.0; 4],
        [-1.0; 4],
        [0.0, -1.0, 1.0, 2.0],
    ]
    .concat();
    let feed = feed(&[
        (k, &[0.0; 10]),
        (v, &values),
        (q, &[0.0; 20]),
        (ids, &chosen),
    ]);
    for precision in BOTH {
        let found = run(&f, precision, &[Rows::first(5)], &feed, out);
        near(&found[..4], &[0.0; 4]);
        near(&found[16..], &[0.5, 0.5, 30.0, 30.0]);
        // Behind the last whole unit lies the row itself.
        let found = run(&f, precision, &[Rows::first(5)], &feed, with_tail);
        near(&found[..4], &[0.0; 4]);
        near(&found[8..12], &[2.0, 2.0, 20.0, 20.0]);
        near(&found[16..], &[5.0 / 3.0, 5.0 / 3.0, 30.0, 30.0]);
    }
}

#[test]
fn matrices_are_divided_by_the_sums_of_columns_and_rows_in_turns() {
    let ln3 = 3f32.ln();
    let op = |iterations, eps| Op::Sinkhorn {
        n: 2,
        iterations,
        eps,
    };
    // Rows become 1/2 1/2 and 1/4 3/4, columns then sum to 3/4 and 5/4.
    let x = [0.0, 0.0, 0.0, ln3];
    unary(op(1, 0.0), 4, &x, &[2.0 / 3.0, 0.4, 1.0 / 3.0, 0.6]);
    let twice = [7.0 / 11.0, 7.0 / 19.0, 4.0 / 11.0, 12.0 / 19.0];
    unary(op(2, 0.0), 4, &x, &twice);
    // Half on top: elements 1, 1, 3/4, 5/4; columns sum to 7/4 and 9/4, plus a half.
    let padded = [1.0 / 2.25, 1.0 / 2.75, 0.75 / 2.25, 1.25 / 2.75];
    unary(op(1, 0.5), 4, &x, &padded);
}
