//! The suite notices small faults: its bounds lie close above what correct arithmetic does.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::ops::{Family, Subject, check, check_invariance, measure};
use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, Device, Executor, LoadOptions, Loaded, Op, Program,
    Progress, Refusal, SeqRows, SeqSlot, Ticket, ValueId, WeightSource, Work,
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

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.inner.attach(adapter)
    }

    fn detach(&mut self, adapter: u32) {
        self.inner.detach(adapter);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }
}

fn faulty(fault: Fault) -> Subject {
    Subject::new(Box::new(Faulty::new(RefBackend::default(), fault)))
}

const FAMILIES: [Family; 11] = [
    Family::Matmul,
    Family::Rows,
    Family::Norms,
    Family::Elementwise,
    Family::Columns,
    Family::Attention,
    Family::Selection,
    Family::Experts,
    Family::Recurrent,
    Family::Adapters,
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

/// The reference with a change in the ops of a program; whether it changed any is kept.
struct Changed {
    change: fn(&mut Op) -> bool,
    any: Arc<AtomicBool>,
}

impl Device for Changed {
    fn name(&self) -> &'static str {
        "changed"
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
        let mut program = (*program).clone();
        let nodes = program.plans.iter_mut().flat_map(|p| &mut p.nodes);
        for node in nodes {
            let changed = (self.change)(&mut node.op);
            self.any.fetch_or(changed, Ordering::Relaxed);
        }
        RefBackend::default().load(Arc::new(program), weights, options)
    }
}

/// Cases of a family whose names begin so and in which a change of ops goes unnoticed.
fn unnoticed(family: Family, prefix: &str, change: fn(&mut Op) -> bool) -> Vec<String> {
    let any = Arc::new(AtomicBool::new(false));
    let device = Changed {
        change,
        any: Arc::clone(&any),
    };
    let verdicts = measure(&Subject::new(Box::new(device)), family);
    assert!(any.load(Ordering::Relaxed), "no op of {prefix} was changed");
    let own = verdicts.into_iter().filter(|v| v.0.starts_with(prefix));
    let passed = own.filter(|(_, verdict)| verdict.as_ref().unwrap().fault().is_none());
    passed.map(|(name, _)| name).collect()
}

#[test]
fn ops_that_are_changed_are_caught() {
    let frames = unnoticed(Family::Recurrent, "conv1d/", |op| match op {
        Op::Conv1d(c) => {
            c.bias = None;
            true
        }
        _ => false,
    });
    assert_eq!(frames, [""; 0], "without a bias");
    let later = |op: &mut Op| match op {
        Op::Conv1d(c) if c.padding > 0 => {
            c.padding -= 1;
            true
        }
        _ => false,
    };
    // Some cases have no padding.
    let frames = unnoticed(Family::Recurrent, "conv1d/", later);
    assert!(
        frames.iter().all(|name| name.contains("/0/")),
        "a frame later: {frames:?}"
    );
    let frames = unnoticed(Family::Fused, "fused/frames/", later);
    assert_eq!(frames, [""; 0], "a frame later");
    let turns = unnoticed(Family::Norms, "rope/", |op| match op {
        Op::Rope(r) => {
            let changed = r.back > 0;
            r.back = 0;
            changed
        }
        _ => false,
    });
    assert!(
        turns.iter().all(|name| name.ends_with("back=0")),
        "{turns:?}"
    );
    let experts = unnoticed(Family::Experts, "route_by_token", |op| match op {
        Op::Route(r) => r.table.take().is_some(),
        _ => false,
    });
    assert_eq!(experts, [""; 0], "experts by score");
    let all = unnoticed(Family::Selection, "select/summaries", |op| match op {
        Op::Attention(a) => a.selection.take().is_some(),
        _ => false,
    });
    // Summaries of seven positions are too few for any to be left out.
    let none_left_out = |name: &String| name.ends_with("chosen=false") || name.contains("/7/");
    assert!(all.iter().all(none_left_out), "{all:?}");
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
