//! Running a case on a subject and on the oracle, and comparing them.

use tokkata_backend_ref::{Precision, RefBackend};
use tokkata_ir::{BackendError, Device, LoadOptions, ValType, ValueId};

use super::case::{Case, Rounds};
use super::{Profile, Subject, within};
use crate::fixture::{Feed, Kinds};

/// How inputs may be rounded before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Not at all.
    None,
    /// To halves.
    F16,
    /// To this many significant bits.
    Bits(u32),
    /// To 127 steps of the largest magnitude of each run of this many columns.
    Q8 {
        /// Columns that share a scale.
        block: usize,
    },
    /// To 32,512 of them: a byte with a sign, and another one below it.
    Q16 {
        /// Columns that share a scale.
        block: usize,
    },
}

impl Rounding {
    /// Rounds a row in place.
    pub fn apply(self, row: &mut [f32]) {
        match self {
            Rounding::None => {}
            Rounding::F16 => {
                for x in row {
                    *x = tokkata_quant::num::f16_to_f32(tokkata_quant::num::f32_to_f16(*x));
                }
            }
            Rounding::Bits(kept) => row.iter_mut().for_each(|x| *x = round_bits(*x, kept)),
            Rounding::Q8 { block } => row.chunks_mut(block).for_each(|run| to_steps(run, 127.0)),
            Rounding::Q16 { block } => row
                .chunks_mut(block)
                .for_each(|run| to_steps(run, 32_512.0)),
        }
    }
}

/// The nearest number of so few significant bits, ties to even.
fn round_bits(x: f32, kept: u32) -> f32 {
    let last = 1 << (f32::MANTISSA_DIGITS - kept);
    let odd = u32::from(x.to_bits() & last != 0);
    f32::from_bits((x.to_bits() + last / 2 - 1 + odd) & !(last - 1))
}

fn to_steps(run: &mut [f32], steps: f32) {
    let largest = run.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    if largest > 0.0 {
        let step = largest / steps;
        run.iter_mut().for_each(|x| *x = (*x / step).round() * step);
    }
}

/// What a comparison found, over all steps and outputs of a case.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Normalised mean square error.
    pub nmse: f64,
    /// Largest error over the rms of the output, or of its row.
    pub worst: f64,
    /// Expected rms error over the output's rms; `None` where bits must be equal.
    pub expected: Option<f64>,
    /// Numbers compared.
    pub count: usize,
}

impl Verdict {
    /// What is wrong, if anything is.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let Some(expected) = self.expected else {
            let differs = self.nmse != 0.0 || self.worst != 0.0;
            return differs.then(|| format!("bits differ: {self:?}"));
        };
        // The rms of few numbers strays from its expectation.
        let rms = expected * (1.0 + 4.0 / (2.0 * self.count as f64).sqrt());
        let fits = self.nmse <= rms * rms && self.worst <= 8.0 * expected;
        (!fits).then(|| format!("{self:?}"))
    }
}

/// Values of every output of a case, over all steps: `[output][step and element]`.
pub(super) type Outputs = Vec<Vec<f64>>;

/// Runs a case on a subject and judges it.
pub(crate) fn run(subject: &Subject, case: &Case) -> Result<Verdict, BackendError> {
    let found = outputs(
        (subject.device.as_ref(), subject.kinds),
        &subject.options,
        case,
    )?;
    let exact = oracle(case, Rounding::None)?;
    let rounding = rounding(&subject.profile, case.rounds);
    let rounded = match rounding {
        Rounding::None => None,
        _ => Some(oracle(case, rounding)?),
    };
    let mut verdict = Verdict {
        nmse: 0.0,
        worst: 0.0,
        expected: case.ulps.map(|ulps| ulps / f64::from(1 << 24)),
        count: usize::MAX,
    };
    for (i, exact) in exact.iter().enumerate() {
        let run = match case.by_rows {
            true => width(case, case.outputs[i]),
            false => exact.len(),
        };
        let errors = Errors::between(&found[i], exact, run);
        verdict.nmse = verdict.nmse.max(errors.nmse);
        verdict.worst = verdict.worst.max(errors.worst);
        verdict.count = verdict.count.min(exact.len());
        if let (Some(expected), Some(rounded)) = (&mut verdict.expected, &rounded) {
            let more = Errors::between(&rounded[i], exact, run).nmse;
            *expected = (*expected * *expected + more).sqrt();
        }
    }
    Ok(verdict)
}

struct Errors {
    nmse: f64,
    worst: f64,
}

impl Errors {
    /// Errors over the rms of each run of so many numbers.
    fn between(found: &[f64], exact: &[f64], run: usize) -> Errors {
        assert_eq!(found.len(), exact.len(), "an output of another size");
        let runs = found.chunks(run.max(1)).zip(exact.chunks(run.max(1)));
        let (mut nmse, mut worst, mut count) = (0.0, 0.0_f64, 0.0);
        for errors in runs.map(|(found, exact)| Errors::of_run(found, exact)) {
            nmse += errors.nmse;
            worst = worst.max(errors.worst);
            count += 1.0;
        }
        Errors {
            nmse: nmse / f64::max(count, 1.0),
            worst,
        }
    }

    fn of_run(found: &[f64], exact: &[f64]) -> Errors {
        let squares = exact.iter().map(|x| x * x).sum::<f64>();
        let errors = found.iter().zip(exact).map(|(a, b)| (a - b).abs());
        let (mut sum, mut worst) = (0.0, 0.0_f64);
        for error in errors {
            // Infinite wherever an error is not a number, so that no comparison lets it pass.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            sum += error * error;
            worst = worst.max(error);
        }
        if sum == 0.0 {
            return Errors {
                nmse: 0.0,
                worst: 0.0,
            };
        }
        Errors {
            nmse: sum / squares,
            worst: worst / (squares / exact.len() as f64).sqrt(),
        }
    }
}

fn width(case: &Case, id: ValueId) -> usize {
    case.fixture.program().plans[0].value(id).shape.width()
}

fn rounding(profile: &Profile, rounds: Rounds) -> Rounding {
    match rounds {
        Rounds::Nothing => Rounding::None,
        Rounds::Matmul(dtype) | Rounds::Within(dtype) => (profile.matmul)(dtype),
        Rounds::Large(dtype) | Rounds::WithinLarge(dtype) => {
            profile.large.unwrap_or(profile.matmul)(dtype)
        }
        Rounds::Attention(dtype) => (profile.attention)(dtype),
    }
}

fn outputs(
    (device, kinds): (&dyn Device, Kinds),
    options: &LoadOptions,
    case: &Case,
) -> Result<Outputs, BackendError> {
    let mut run = case.fixture.load(device, options)?;
    run.kinds = kinds;
    let mut outputs = vec![Vec::new(); case.outputs.len()];
    for (rows, feed) in &case.steps {
        run.step(rows, feed)?;
        for (output, &id) in outputs.iter_mut().zip(&case.outputs) {
            match case.fixture.program().plans[0].value(id).dtype {
                ValType::F32 => output.extend(run.floats(id).into_iter().map(f64::from)),
                ValType::I32 => output.extend(run.ints(id).into_iter().map(f64::from)),
            }
        }
    }
    Ok(outputs)
}

/// The reference's values in f64, what the case says rounded. Equal bits are equal after rounding to f32.
fn oracle(case: &Case, rounding: Rounding) -> Result<Outputs, BackendError> {
    let device = RefBackend {
        precision: Precision::F64,
    };
    if case.ulps.is_none() {
        return outputs((&device, Kinds::Replies), &LoadOptions::default(), case);
    }
    let within = matches!(case.rounds, Rounds::Within(_) | Rounds::WithinLarge(_));
    if within && rounding != Rounding::None {
        return within::outputs(case, rounding);
    }
    let mut run = case.fixture.mount(|p, w, a| device.open(p, w, a))?;
    let mut outputs = vec![Vec::new(); case.outputs.len()];
    for (rows, feed) in &case.steps {
        let feed = round_first(case, feed, rounding);
        run.step(rows, &feed)?;
        for (output, &id) in outputs.iter_mut().zip(&case.outputs) {
            let value = run.executor.machine().value(id);
            output.extend(value.expect("outputs are kept"));
        }
    }
    Ok(outputs)
}

fn round_first(case: &Case, feed: &Feed, rounding: Rounding) -> Feed {
    let mut feed = feed.clone();
    if let Some((id, x)) = feed.values.first_mut() {
        let width = width(case, *id);
        x.chunks_mut(width).for_each(|row| rounding.apply(row));
    }
    feed
}
