//! What is not a number goes where the reference lets it go, and nowhere else.

use tokkata_backend_ref::RefBackend;
use tokkata_ir::{BackendError, ValType, ValueId};

use super::case::Case;
use super::{Subject, attention, ours, selection};
use crate::fixture::{Feed, Rows};

/// A fault in a row of an input.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One input holds what is not a number.
    NotANumber(usize),
    /// The first two are so large, with other signs, that their products are −∞.
    Overflow,
}

pub(crate) fn check(subject: &Subject) {
    let reference = Subject::new(Box::new(RefBackend::default()));
    let mut faults = Vec::new();
    for case in ours(attention::cases().into_iter().chain(selection::cases())) {
        let inputs = case.fixture.program().plans[0].inputs.len();
        let each = (0..inputs).map(Fault::NotANumber).chain([Fault::Overflow]);
        for (fault, row) in each.flat_map(|fault| [(fault, 0), (fault, 2)]) {
            let found = places(subject, &case, (fault, row));
            let wanted = places(&reference, &case, (fault, row)).expect("the reference runs all");
            match found {
                Err(BackendError::Unsupported { .. }) => {}
                Err(error) => faults.push(format!("{}: {error}", case.name)),
                Ok(found) if found == wanted => {}
                Ok(_) => faults.push(format!("{}: {fault:?} in row {row}", case.name)),
            }
        }
    }
    assert!(
        faults.is_empty(),
        "what is not a number gets elsewhere than on the reference:\n{}",
        faults.join("\n")
    );
}

/// Which elements of the floats of a case are no numbers, after a step with a fault.
fn places(
    subject: &Subject,
    case: &Case,
    (fault, row): (Fault, usize),
) -> Result<Vec<bool>, BackendError> {
    let rows = |seq, count| Rows {
        enc_len: count,
        ..Rows::of(seq, 0..count)
    };
    let bare = Case {
        steps: Vec::new(),
        ..case.clone()
    };
    let mut step = bare.step(vec![rows(0, 5), rows(1, 7)]);
    let (rows, feed) = step.steps.remove(0);
    let feed = spoilt(case, feed, (fault, row));
    let mut run = (case.fixture).load(subject.device.as_ref(), &subject.options)?;
    run.kinds = subject.kinds;
    run.step(&rows, &feed)?;
    let floats = case.outputs.iter().filter(|&&id| is_float(case, id));
    let floats: Vec<f32> = floats.flat_map(|&id| run.floats(id)).collect();
    Ok(floats.iter().map(|x| x.is_nan()).collect())
}

fn is_float(case: &Case, id: ValueId) -> bool {
    let def = case.fixture.program().plans[0].value(id);
    def.dtype == ValType::F32
}

fn spoilt(case: &Case, mut feed: Feed, (fault, row): (Fault, usize)) -> Feed {
    for (i, (id, x)) in feed.values.iter_mut().enumerate() {
        let width = case.fixture.program().plans[0].value(*id).shape.width();
        let row = &mut x[row * width..][..width];
        match (fault, i) {
            (Fault::NotANumber(input), i) if input == i => row.fill(f32::NAN),
            (Fault::Overflow, 0) => row.fill(1e30),
            (Fault::Overflow, 1) => row.fill(-1e30),
            _ => {}
        }
    }
    feed
}
