//! Look-ups, chosen rows, pools and the draw.

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::fixture::{Feed, Fixture, Rows};
use tokkata_core::DType;
use tokkata_ir::sample::{Fixed, NOT_A_NUMBER, Parameters, Sampler};
use tokkata_ir::{GatherIndex, Lead, LoadOptions, Op, PoolKind, ValType, WeightId};

use crate::support::{BOTH, feed, near, run};

fn gather(index: GatherIndex, rows: &Rows) -> Vec<f32> {
    let mut fixture = Fixture::default();
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5];
    let table = fixture.table(DType::F16, &[4, 2], &values);
    let out = fixture.op(Op::Gather { table, index }, &[], &[2]);
    run(
        &fixture,
        BOTH[0],
        std::slice::from_ref(rows),
        &Feed::default(),
        out,
    )
}

#[test]
fn rows_of_a_table_by_token_position_or_fixed() {
    let rows = Rows {
        tokens: vec![3, 0],
        ..Rows::of(0, 1..3)
    };
    assert_eq!(gather(GatherIndex::Token, &rows), [3.0, 3.5, 0.0, 0.5]);
    assert_eq!(
        gather(GatherIndex::Position { offset: 1 }, &rows),
        [2.0, 2.5, 3.0, 3.5]
    );
    assert_eq!(gather(GatherIndex::Fixed(1), &rows), [1.0, 1.5, 1.0, 1.5]);
}

#[test]
fn embeddings_take_the_place_of_the_table() {
    let mut fixture = Fixture::default();
    let table = fixture.table(DType::F32, &[2, 1], &[5.0, 6.0]);
    let embeds = fixture.input(&[1]);
    fixture.program_mut().plans[0].inputs[0].name = "embeds".to_owned();
    let op = Op::Gather {
        table,
        index: GatherIndex::Token,
    };
    let out = fixture.op(op, &[embeds], &[1]);
    let token = Rows {
        tokens: vec![1],
        ..Rows::first(1)
    };
    let image = Rows {
        embeds: true,
        ..Rows::of(1, 0..1)
    };
    let feed = Feed {
        embeds: Some(vec![9.0]),
        ..Feed::default()
    };
    assert_eq!(
        run(&fixture, BOTH[0], &[token.clone(), image], &feed, out),
        [6.0, 9.0]
    );
    assert_eq!(
        run(&fixture, BOTH[1], &[token], &Feed::default(), out),
        [6.0]
    );
}

fn two_sequences() -> [Rows; 2] {
    let first = Rows {
        logits: vec![2],
        ..Rows::first(3)
    };
    [
        first,
        Rows {
            logits: vec![0, 1],
            ..Rows::of(1, 4..6)
        },
    ]
}

const FIVE_ROWS: [f32; 10] = [1.0, 10.0, 2.0, 20.0, 6.0, 60.0, 4.0, 40.0, 5.0, 50.0];

#[test]
fn logit_rows_in_their_order() {
    let mut fixture = Fixture::default();
    let x = fixture.input(&[2]);
    let out = fixture.value(Lead::LogitRows, &[2], ValType::F32);
    fixture.node(Op::SelectRows, &[x], &[out]);
    let found = run(
        &fixture,
        BOTH[0],
        &two_sequences(),
        &feed(&[(x, &FIVE_ROWS)]),
        out,
    );
    assert_eq!(found, [6.0, 60.0, 4.0, 40.0, 5.0, 50.0]);
}

#[test]
fn one_vector_per_sequence() {
    let table = [
        (PoolKind::Mean, [3.0, 30.0, 4.5, 45.0]),
        (PoolKind::First, [1.0, 10.0, 4.0, 40.0]),
        (PoolKind::Last, [6.0, 60.0, 5.0, 50.0]),
    ];
    for (kind, expected) in table {
        let mut fixture = Fixture::default();
        let x = fixture.input(&[2]);
        let out = fixture.value(Lead::Seqs, &[2], ValType::F32);
        fixture.node(Op::Pool(kind), &[x], &[out]);
        for precision in BOTH {
            let found = run(
                &fixture,
                precision,
                &two_sequences(),
                &feed(&[(x, &FIVE_ROWS)]),
                out,
            );
            near(&found, &expected);
        }
    }
}

fn draw(logits: &[f32], sampler: Sampler) -> Vec<i32> {
    let mut fixture = Fixture::default();
    let x = fixture.input_of(Lead::LogitRows, &[3], ValType::F32);
    let out = fixture.value(Lead::LogitRows, &[1], ValType::I32);
    fixture.node(Op::Sample, &[x], &[out]);
    let device = RefBackend::default();
    let mut run = fixture.load(&device, &LoadOptions::default()).unwrap();
    let rows = Rows {
        logits: vec![0, 1],
        tokens: vec![0, 2],
        sampler,
        ..Rows::first(2)
    };
    run.step(&[rows], &feed(&[(x, logits)])).unwrap();
    run.ints(out)
}

#[test]
fn tokens_are_drawn_per_logit_row() {
    let logits = [0.0, 2.0, 1.0, 3.0, 3.0, 0.0];
    assert_eq!(draw(&logits, Sampler::default()), [1, 0]);
    let bias = Sampler {
        bias: vec![(2, Fixed::new(1.5).unwrap())],
        ..Sampler::default()
    };
    assert_eq!(draw(&logits, bias), [2, 0]);
}

#[test]
fn penalties_count_the_tokens_up_to_each_row() {
    let sampler = Sampler {
        record: Parameters {
            presence: 1.5,
            ..Parameters::default()
        }
        .record(),
        ..Sampler::default()
    };
    assert_eq!(draw(&[3.0, 2.0, 2.5, 2.0, 2.0, 3.0], sampler), [2, 1]);
}

#[test]
fn a_row_whose_logits_are_not_numbers_says_so_alone() {
    let logits = [0.0, f32::NAN, 1.0, 3.0, 3.0, 0.0];
    assert_eq!(draw(&logits, Sampler::default()), [NOT_A_NUMBER, 0]);
}

#[test]
fn weights_of_another_size_are_an_error() {
    let mut fixture = Fixture::default();
    let weight = fixture.vector(&[2], &[1.0, 2.0]);
    assert_eq!(weight, WeightId(0));
    fixture.program_mut().weights[0].shape = vec![3];
    let error = fixture
        .load(&RefBackend::default(), &LoadOptions::default())
        .err()
        .unwrap();
    let text = "weights: weight.0 has 2 elements where the plan expects 3";
    assert_eq!(error.to_string(), text);
}
