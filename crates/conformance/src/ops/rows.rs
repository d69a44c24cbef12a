//! Look-ups, chosen rows, pools and draws.

use tokkata_core::DType;
use tokkata_ir::sample::{Parameters, Sampler, SamplerRecord};
use tokkata_ir::{GatherIndex, Lead, Op, PoolKind, ValType};

use super::Subject;
use super::case::{Case, ROWS};
use super::linear::formats;
use crate::fixture::{Feed, Fixture, Rows, noises};

const TABLE_ROWS: u32 = 23;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = formats().flat_map(token_gathers).collect();
    cases.push(gather(DType::F32, 7, GatherIndex::Position { offset: 2 }));
    cases.push(gather(DType::F16, 7, GatherIndex::Fixed(5)));
    cases.push(embeds());
    cases.extend([1, 7, 64].map(select));
    for kind in [PoolKind::Mean, PoolKind::First, PoolKind::Last] {
        cases.extend([1, 7, 64].map(|width| pool(kind, width)));
    }
    cases.push(sample("greedy", SamplerRecord::default()));
    cases.push(sample("warm", warm()));
    cases
}

fn token_gathers(dtype: DType) -> Vec<Case> {
    let widths = match dtype.block_elems() as u32 {
        1 => vec![1, 7, 100],
        block => vec![block, 3 * block],
    };
    let gather = |&width| gather(dtype, width, GatherIndex::Token);
    widths.iter().map(gather).collect()
}

fn tokens(rows: Rows) -> Rows {
    let tokens = rows.at.clone().map(|p| (p as u32 * 11 + 5) % TABLE_ROWS);
    Rows {
        tokens: tokens.collect(),
        ..rows
    }
}

/// Decoded rows, bit for bit.
fn gather(dtype: DType, width: u32, index: GatherIndex) -> Case {
    let mut fixture = Fixture::default();
    let values = noises("table", (TABLE_ROWS * width) as usize);
    let table = fixture.table(dtype, &[TABLE_ROWS, width], &values);
    let out = fixture.op(Op::Gather { table, index }, &[], &[width]);
    let case = Case::new(
        format!("gather/{dtype}/{width}/{index:?}"),
        fixture,
        vec![out],
    );
    let step = |case: Case, &n: &usize| case.step(vec![tokens(Rows::first(n))]);
    ROWS.iter().fold(case, step)
}

/// A token and a position that tables do not have, and the errors that they are.
pub(crate) fn check_unknown(subject: &Subject) {
    let mut f = Fixture::default();
    let table = f.table(DType::F32, &[TABLE_ROWS, 4], &noises("table", 92));
    let out = [GatherIndex::Token, GatherIndex::Position { offset: 2 }]
        .map(|index| f.op(Op::Gather { table, index }, &[], &[4]));
    let at = |token, position| Rows {
        tokens: vec![token],
        ..Rows::of(1, position..position + 1)
    };
    for (rows, row) in [
        (at(TABLE_ROWS, 0), 23),
        (at(u32::MAX, 0), u32::MAX),
        (at(3, 21), 23),
    ] {
        let mut run = (f.load(subject.device.as_ref(), &subject.options)).expect("it loads");
        let error = run.step(&[Rows::first(3), rows], &Feed::default());
        let error = error.expect_err("a row that is not there").to_string();
        let wanted = format!("cannot run row {row} of a table of 23");
        assert!(error.ends_with(&wanted), "{error}");
        // It stays fit for use.
        run.step(&[Rows::first(3)], &Feed::default())
            .expect("known rows");
        assert_eq!(run.floats(out[0]).len(), 12);
    }
}

fn embeds() -> Case {
    let mut fixture = Fixture::default();
    let table = fixture.table(DType::F32, &[TABLE_ROWS, 6], &noises("table", 138));
    let x = fixture.input(&[6]);
    fixture.program_mut().plans[0].inputs[0].name = "embeds".to_owned();
    let index = GatherIndex::Token;
    let out = fixture.op(Op::Gather { table, index }, &[x], &[6]);
    let mut case = Case::new("gather/embeds", fixture, vec![out]);
    let image = Rows {
        embeds: true,
        ..Rows::of(1, 0..3)
    };
    let rows = vec![tokens(Rows::of(0, 0..2)), image, tokens(Rows::of(2, 4..5))];
    let feed = Feed {
        embeds: Some(noises("embeds", 18)),
        ..Feed::default()
    };
    case.steps.push((rows, feed));
    case
}

fn mixed() -> Vec<Rows> {
    let rows = |seq, at, logits: &[usize]| Rows {
        logits: logits.to_vec(),
        ..Rows::of(seq, at)
    };
    vec![
        rows(0, 0..17, &[3, 16]),
        rows(1, 4..5, &[0]),
        rows(2, 9..12, &[]),
    ]
}

fn select(width: u32) -> Case {
    let mut fixture = Fixture::default();
    let x = fixture.input(&[width]);
    let out = fixture.value(Lead::LogitRows, &[width], ValType::F32);
    fixture.node(Op::SelectRows, &[x], &[out]);
    Case::new(format!("select_rows/{width}"), fixture, vec![out]).step(mixed())
}

fn pool(kind: PoolKind, width: u32) -> Case {
    let mut fixture = Fixture::default();
    let x = fixture.input(&[width]);
    let out = fixture.value(Lead::Seqs, &[width], ValType::F32);
    fixture.node(Op::Pool(kind), &[x], &[out]);
    let case = Case::new(format!("pool/{kind:?}/{width}"), fixture, vec![out]);
    case.ulps(1.5).step(mixed()).step(vec![Rows::first(1)])
}

fn warm() -> SamplerRecord {
    Parameters {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.05,
        seed: 11,
        ..Parameters::default()
    }
    .record()
}

/// Tokens, exactly.
fn sample(name: &str, record: SamplerRecord) -> Case {
    let mut fixture = Fixture::default();
    let x = fixture.input_of(Lead::LogitRows, &[101], ValType::F32);
    let out = fixture.value(Lead::LogitRows, &[1], ValType::I32);
    fixture.node(Op::Sample, &[x], &[out]);
    let name = format!("sample/{name}");
    let sampler = Sampler {
        record,
        ..Sampler::default()
    };
    let rows = mixed().into_iter().map(|r| Rows {
        sampler: sampler.clone(),
        ..r
    });
    Case::new(name, fixture, vec![out]).scaled_step(rows.collect(), 4.0)
}
