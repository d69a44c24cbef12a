//! A row's bits depend on that row alone: the same rows one sequence at a time and side by side.

use tokkata_core::DType;
use tokkata_ir::{BackendError, Lead, ValType, ValueId};

use super::Subject;
use super::case::Case;
use super::{adapters, attention, experts, fused, linear, ours, recurrent, selection};
use crate::fixture::{Feed, Rows};

/// Formats whose kernels differ most; a batch of five sequences of several rows each.
const FORMATS: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::Q4_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q6_K,
];

const BATCH: [usize; 5] = [1, 7, 2, 1, 12];

pub(crate) fn check(subject: &Subject) {
    let named = |case: &Case| {
        let formats = FORMATS.map(|d| format!("/{d}/"));
        let plain = !case.name.starts_with("matmul/") && !case.name.starts_with("experts/");
        plain || formats.iter().any(|f| case.name.contains(f))
    };
    let mut cases = linear::products();
    cases.extend(linear::norms());
    cases.extend(attention::cases());
    cases.extend(selection::cases());
    cases.extend(experts::cases());
    cases.extend(recurrent::cases());
    cases.extend(adapters::cases());
    cases.extend(fused::cases());
    let mut faults = Vec::new();
    cases.retain(|c| named(c) && only_rows_of_floats(c));
    for case in ours(cases) {
        match differs(subject, &case) {
            Ok(false) | Err(BackendError::Unsupported { .. }) => {}
            Ok(true) => faults.push(case.name.clone()),
            Err(error) => faults.push(format!("{}: {error}", case.name)),
        }
    }
    for case in ours(linear::formats().flat_map(linear::crowds)) {
        match switches(subject, &case) {
            Ok(None) | Err(BackendError::Unsupported { .. }) => {}
            Ok(Some(rows)) => faults.push(format!("{}: {rows} rows", case.name)),
            Err(error) => faults.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(
        faults.is_empty(),
        "rows have other bits in a batch:\n{}",
        faults.join("\n")
    );
}

fn only_rows_of_floats(case: &Case) -> bool {
    let plan = &case.fixture.program().plans[0];
    let ids = plan
        .inputs
        .iter()
        .map(|p| p.value)
        .chain(case.outputs.iter().copied());
    let mut defs = ids.map(|id| plan.value(id));
    defs.all(|d| d.dtype == ValType::F32 && d.shape.lead == Lead::Rows)
}

/// Rows of a sequence: of one in three through no adapter, where a case has two.
fn sequence(case: &Case, seq: usize) -> Rows {
    let rows = BATCH[seq];
    Rows {
        enc_len: rows,
        adapter: (seq % (case.fixture.adapters() + 1)) as u32,
        ..Rows::of(seq, 0..rows)
    }
}

fn differs(subject: &Subject, case: &Case) -> Result<bool, BackendError> {
    let bare = Case {
        steps: Vec::new(),
        ..case.clone()
    };
    let batch = bare.step((0..BATCH.len()).map(|s| sequence(case, s)).collect());
    let (rows, feed) = &batch.steps[0];
    let together = outputs(subject, case, rows, feed)?;
    let mut first = 0;
    for (seq, count) in BATCH.into_iter().enumerate() {
        let feed = part(case, feed, first..first + count);
        let alone = outputs(subject, case, &[sequence(case, seq)], &feed)?;
        for ((id, together), alone) in case.outputs.iter().zip(&together).zip(&alone) {
            let width = width(case, *id);
            let own = &together[first * width..(first + count) * width];
            if own
                .iter()
                .map(|x| x.to_bits())
                .ne(alone.iter().map(|x| x.to_bits()))
            {
                return Ok(true);
            }
        }
        first += count;
    }
    Ok(false)
}

/// How many rows have other bits alone than among the most of them, if so many do.
fn switches(subject: &Subject, case: &Case) -> Result<Option<usize>, BackendError> {
    let (rows, feed) = &case.steps[0];
    let together = outputs(subject, case, rows, feed)?;
    for count in linear::CROWDS {
        let feed = part(case, feed, 0..count);
        let alone = outputs(subject, case, &[Rows::first(count)], &feed)?;
        let own = &together[0][..alone[0].len()];
        let bits = own.iter().map(|x| x.to_bits());
        if bits.ne(alone[0].iter().map(|x| x.to_bits())) {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

fn width(case: &Case, id: ValueId) -> usize {
    case.fixture.program().plans[0].value(id).shape.width()
}

/// The inputs of some of a step's rows.
fn part(case: &Case, feed: &Feed, rows: std::ops::Range<usize>) -> Feed {
    let part = |(id, x): &(ValueId, Vec<f32>)| {
        let width = width(case, *id);
        (*id, x[rows.start * width..rows.end * width].to_vec())
    };
    Feed {
        values: feed.values.iter().map(part).collect(),
        ..Feed::default()
    }
}

fn outputs(
    subject: &Subject,
    case: &Case,
    rows: &[Rows],
    feed: &Feed,
) -> Result<Vec<Vec<f32>>, BackendError> {
    let mut run = case
        .fixture
        .load(subject.device.as_ref(), &subject.options)?;
    run.kinds = subject.kinds;
    run.step(rows, feed)?;
    Ok(case.outputs.iter().map(|&id| run.floats(id)).collect())
}
