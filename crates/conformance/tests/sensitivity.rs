//! The suite notices small faults: its bounds lie close above what correct arithmetic does.

use std::ops::Range;
use std::sync::Arc;

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::ops::{Family, Subject, check, check_invariance, measure};
use tokkata_ir::{
    ArenaLayout, BackendError, Device, Executor, LoadOptions, Loaded, Program, Progress, Refusal,
    SeqRows, SeqSlot, Ticket, ValueId, WeightSource, Work,
};

/// Rows and sequences of a step.
#[derive(Clone, Copy, Default)]
struct Step {
    n_rows: usize,
    n_seqs: usize,
}

type Fault = fn(Step, &mut [f32]);

/// Something with a fault in the values that it gives out.
struct Faulty<T> {
    inner: T,
    fault: Fault,
    /// Of the work taken last.
    step: Step,
}

impl<T> Faulty<T> {
    fn new(inner: T, fault: Fault) -> Self {
        Faulty {
            inner,
            fault,
            step: Step::default(),
        }
    }
}

impl Device for Faulty<RefBackend> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn available_bytes(&self) -> Option<u64> {
        None
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, BackendError> {
        let inner = self.inner.load(program, weights, options)?;
        Ok(Box::new(Faulty::new(inner, self.fault)))
    }
}

impl Loaded for Faulty<Box<dyn Loaded>> {
    fn block_bytes(&self) -> Vec<u64> {
        self.inner.block_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner.available_bytes()
    }

    fn open(self: Box<Self>, arena: ArenaLayout) -> Result<Box<dyn Executor>, BackendError> {
        Ok(Box::new(Faulty::new(self.inner.open(arena)?, self.fault)))
    }
}

impl Executor for Faulty<Box<dyn Executor>> {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn arena(&self) -> &ArenaLayout {
        self.inner.arena()
    }

    fn submit(&mut self, work: Work) -> Result<Ticket, Refusal> {
        self.step = Step {
            n_rows: work.rows.iter().map(SeqRows::len).sum(),
            n_seqs: work.rows.len(),
        };
        self.inner.submit(work)
    }

    fn poll(&mut self) -> Result<Option<Progress>, BackendError> {
        self.inner.poll()
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        self.inner.wait()
    }

    fn stop(&mut self, slot: SeqSlot) {
        self.inner.stop(slot);
    }

    fn rows(&self, ticket: &Ticket, value: ValueId) -> Result<usize, BackendError> {
        self.inner.rows(ticket, value)
    }

    fn read(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.inner.read(ticket, value, rows, out)?;
        (self.fault)(self.step, out);
        Ok(())
    }

    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        self.inner.read_ints(ticket, value, rows, out)
    }

    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError> {
        self.inner.exported(ticket, i)
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }
}

fn faulty(fault: Fault) -> Subject {
    Subject::new(Box::new(Faulty::new(RefBackend::default(), fault)))
}

const FAMILIES: [Family; 10] = [
    Family::Matmul,
    Family::Rows,
    Family::Norms,
    Family::Elementwise,
    Family::Columns,
    Family::Attention,
    Family::Selection,
    Family::Experts,
    Family::Recurrent,
    Family::Fused,
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
        if let (17.., Some(x)) = (step.n_rows, x.last_mut()) {
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
        if let (2.., Some(x)) = (step.n_seqs, x.last_mut()) {
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
