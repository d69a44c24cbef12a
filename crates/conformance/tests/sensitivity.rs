//! The suite notices small faults: its bounds lie close above what correct arithmetic does.

use std::sync::Arc;

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::ops::{Family, Subject, check, check_invariance, measure};
use tokkata_ir::{
    Backend, BackendError, GroupId, Instance, LoadOptions, Program, StepInputs, StepState, ValueId,
    WeightSource,
};

/// The reference with something wrong in its outputs.
struct Faulty {
    fault: fn(&StepState, &mut [f32]),
}

struct FaultyInstance {
    inner: Box<dyn Instance>,
    fault: fn(&StepState, &mut [f32]),
    program: Arc<Program>,
    floats: Vec<Vec<f32>>,
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Instance>, BackendError> {
        Ok(Box::new(FaultyInstance {
            inner: RefBackend::default().load(Arc::clone(&program), weights, options)?,
            fault: self.fault,
            program,
            floats: Vec::new(),
        }))
    }
}

impl Instance for FaultyInstance {
    fn replay(
        &mut self,
        plan: usize,
        step: &StepState,
        inputs: &StepInputs<'_>,
    ) -> Result<(), BackendError> {
        self.inner.replay(plan, step, inputs)?;
        let values = 0..self.program.plans[plan].values.len();
        let floats = values.map(|v| self.inner.floats(ValueId(v as u32)).to_vec());
        self.floats = floats.collect();
        for floats in &mut self.floats {
            (self.fault)(step, floats);
        }
        Ok(())
    }

    fn floats(&self, value: ValueId) -> &[f32] {
        &self.floats[value.index()]
    }

    fn ints(&self, value: ValueId) -> &[i32] {
        self.inner.ints(value)
    }

    fn copy_block(&mut self, group: GroupId, from: u32, to: u32) {
        self.inner.copy_block(group, from, to);
    }

    fn export_block(&self, group: GroupId, block: u32) -> Vec<f32> {
        self.inner.export_block(group, block)
    }

    fn import_block(&mut self, group: GroupId, block: u32, data: &[f32]) {
        self.inner.import_block(group, block, data);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }
}

fn faulty(fault: fn(&StepState, &mut [f32])) -> Subject {
    Subject::new(Box::new(Faulty { fault }))
}

const FAMILIES: [Family; 8] = [
    Family::Matmul,
    Family::Rows,
    Family::Norms,
    Family::Elementwise,
    Family::Columns,
    Family::Attention,
    Family::Experts,
    Family::Recurrent,
];

/// Share of cases that do not pass.
fn caught(subject: &Subject, family: Family) -> f64 {
    let verdicts = measure(subject, family);
    let caught = verdicts
        .iter()
        .filter(|(_, v)| v.as_ref().unwrap().fault().is_some());
    caught.count() as f64 / verdicts.len() as f64
}

#[test]
fn a_relative_error_of_a_hundred_thousandth_is_caught() {
    let subject = faulty(|_, x| x.iter_mut().for_each(|x| *x *= 1.0 + 1e-5));
    for family in FAMILIES {
        let caught = caught(&subject, family);
        assert!(caught > 0.95, "{family:?}: {caught}");
    }
}

#[test]
fn one_element_in_the_last_row_is_caught() {
    let subject = faulty(|step, x| {
        if let (17.., Some(x)) = (step.n_rows(), x.last_mut()) {
            *x += 1e-3 * (x.abs() + 0.1);
        }
    });
    for family in [
        Family::Matmul,
        Family::Norms,
        Family::Columns,
        Family::Attention,
    ] {
        let caught = caught(&subject, family);
        assert!(caught > 0.95, "{family:?}: {caught}");
    }
}

#[test]
fn not_a_number_is_caught() {
    let subject = faulty(|_, x| x.iter_mut().for_each(|x| *x = f32::NAN));
    for family in FAMILIES {
        let caught = caught(&subject, family);
        assert!(caught > 0.95, "{family:?}: {caught}");
    }
}

#[test]
#[should_panic(expected = "other bits in a batch")]
fn a_bit_that_the_batch_decides_is_caught() {
    check_invariance(&faulty(|step, x| {
        if let (2.., Some(x)) = (step.n_seqs(), x.last_mut()) {
            *x = f32::from_bits(x.to_bits() ^ 1);
        }
    }));
}

#[test]
#[should_panic(expected = "declared unsupported, but it runs")]
fn a_stale_declaration_is_caught() {
    let mut subject = Subject::new(Box::new(RefBackend::default()));
    subject.profile.unsupported = &["pool"];
    check(&subject, Family::Rows);
}

#[test]
fn expected_errors_are_near_the_found_ones() {
    let subject = Subject::new(Box::new(RefBackend::default()));
    for (family, (median, most)) in FAMILIES.map(|f| (f, ratios(&subject, f))) {
        println!("{family:?}: found over expected is {median:.3} in the middle, at most {most:.3}");
        assert!(
            median.is_nan() || median > 0.05,
            "{family:?}: bounds are too wide"
        );
    }
}

/// Median and largest of found over expected errors; not numbers for a family without errors.
fn ratios(subject: &Subject, family: Family) -> (f64, f64) {
    let mut ratios = Vec::new();
    for (_, verdict) in measure(subject, family) {
        let verdict = verdict.unwrap();
        let found = verdict.nmse.sqrt();
        ratios.extend(verdict.expected.map(|e| found / e).filter(|&r| r > 0.0));
    }
    ratios.sort_by(f64::total_cmp);
    let at = |i: usize| ratios.get(i).copied().unwrap_or(f64::NAN);
    (at(ratios.len() / 2), at(ratios.len().saturating_sub(1)))
}
