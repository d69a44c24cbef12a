//! The op-level suite: every op, format and awkward size of a backend against the reference in f64.
//!
//! A backend's own test instantiates it in a line:
//!
//! ```ignore
//! tokkata_conformance::suite!(tokkata_conformance::ops::Subject::new(Box::new(MyBackend::new())));
//! ```
//!
//! Expected errors are computed, not chosen: rounding to f32 a known number of times, and, where a backend
//! declares that it rounds activations further, what such rounding does to the reference's own result.

mod adapters;
mod attention;
mod case;
mod elementwise;
mod experts;
mod fused;
mod invariance;
mod linear;
mod measure;
mod numbers;
mod recurrent;
mod rows;
mod selection;
mod within;

use tokkata_core::DType;
use tokkata_ir::{BackendError, Device, LoadOptions};

pub use crate::fixture::Kinds;
pub use case::{Case, Rounds};
pub use measure::{Rounding, Verdict};

/// How a backend rounds where it is allowed to.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Activations of a product with a weight of this format.
    pub matmul: fn(DType) -> Rounding,
    /// The same of 2,048 columns or more, where that differs.
    pub large: Option<fn(DType) -> Rounding>,
    /// Queries of an attention over a cache of this type.
    pub attention: fn(DType) -> Rounding,
    /// Beginnings of the names of cases that the backend does not run.
    pub unsupported: &'static [&'static str],
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            matmul: |_| Rounding::None,
            large: None,
            attention: |_| Rounding::None,
            unsupported: &[],
        }
    }
}

/// A device under test.
pub struct Subject {
    /// The device.
    pub device: Box<dyn Device>,
    /// How programs are loaded on it.
    pub options: LoadOptions,
    /// How it rounds.
    pub profile: Profile,
    /// What rows of steps are.
    pub kinds: Kinds,
}

impl Subject {
    /// A device with default options that computes in f32.
    #[must_use]
    pub fn new(device: Box<dyn Device>) -> Self {
        Subject {
            device,
            options: LoadOptions::default(),
            profile: Profile::default(),
            kinds: Kinds::default(),
        }
    }
}

/// Parts of the suite; each is a test of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Products, per format and size.
    Matmul,
    /// Table look-ups, chosen rows, pools and draws.
    Rows,
    /// Norms, statistics and rotary positions.
    Norms,
    /// Elementwise ops.
    Elementwise,
    /// Ops that move columns.
    Columns,
    /// Attention over rows and caches.
    Attention,
    /// Chosen keys and attention over them.
    Selection,
    /// Mixtures of experts.
    Experts,
    /// Convolutions, shifts and recurrences.
    Recurrent,
    /// What adapters add.
    Adapters,
    /// Runs of ops whose last values alone are seen.
    Fused,
}

impl Family {
    fn cases(self) -> Vec<Case> {
        match self {
            Family::Matmul => linear::products(),
            Family::Rows => rows::cases(),
            Family::Norms => linear::norms(),
            Family::Elementwise => elementwise::cases(),
            Family::Columns => elementwise::columns(),
            Family::Attention => attention::cases(),
            Family::Selection => selection::cases(),
            Family::Experts => experts::cases(),
            Family::Recurrent => recurrent::cases(),
            Family::Adapters => adapters::cases(),
            Family::Fused => fused::cases(),
        }
    }
}

/// Every case of a family and what its comparison found.
#[must_use]
pub fn measure(subject: &Subject, family: Family) -> Vec<(String, Result<Verdict, BackendError>)> {
    let cases = family.cases().into_iter();
    let measured = cases.map(|case| {
        let verdict = measure::run(subject, &case);
        (case.name, verdict)
    });
    measured.collect()
}

/// Of each eight cases the third with `TOKKATA_SHARD=3/8` in the environment, so that several processes share a test; else all.
fn ours(cases: impl IntoIterator<Item = Case>) -> impl Iterator<Item = Case> {
    let asked = std::env::var("TOKKATA_SHARD");
    let asked = asked.map(|text| shard(&text).expect("TOKKATA_SHARD is like 3/8"));
    of_shard(cases, asked.unwrap_or((1, 1)))
}

fn of_shard<T>(
    all: impl IntoIterator<Item = T>,
    (nth, of): (usize, usize),
) -> impl Iterator<Item = T> {
    all.into_iter().skip(nth - 1).step_by(of)
}

fn shard(text: &str) -> Option<(usize, usize)> {
    let (nth, of) = text.split_once('/')?;
    let (nth, of) = (nth.parse().ok()?, of.parse().ok()?);
    (1..=of).contains(&nth).then_some((nth, of))
}

/// Runs a family and panics with every case that fails, or that is unsupported without being declared so.
///
/// # Panics
/// When a case fails.
pub fn check(subject: &Subject, family: Family) {
    let mut faults = Vec::new();
    for case in ours(family.cases()) {
        if let Err(fault) = judge(subject, &case) {
            faults.push(format!("{}: {fault}", case.name));
        }
    }
    assert!(
        faults.is_empty(),
        "{} of {family:?} on {}:\n{}",
        faults.len(),
        subject.device.name(),
        faults.join("\n")
    );
}

fn judge(subject: &Subject, case: &Case) -> Result<(), String> {
    let declared = subject.profile.unsupported;
    let declared = declared.iter().any(|prefix| case.name.starts_with(prefix));
    match (measure::run(subject, case), declared) {
        (Err(BackendError::Unsupported { .. }), true) => Ok(()),
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), true) => Err("declared unsupported, but it runs".to_owned()),
        (Ok(verdict), false) => verdict.fault().map_or(Ok(()), Err),
    }
}

/// Every fusion that the device declares is done in some case of [`Family::Fused`].
///
/// # Panics
/// When one is done in none.
pub fn check_fusions(subject: &Subject) {
    let rules = subject.device.fusions();
    let mut unseen: Vec<&str> = rules.iter().map(|r| r.name).collect();
    for case in Family::Fused.cases() {
        let groups = tokkata_ir::fusion::groups(&case.fixture.program().plans[0], rules);
        unseen.retain(|name| groups.values().all(|g| g.name != *name));
    }
    assert!(unseen.is_empty(), "no case does {}", unseen.join(", "));
}

/// Rows alone have the bits that they have in a batch.
///
/// # Panics
/// When a bit differs.
pub fn check_invariance(subject: &Subject) {
    invariance::check(subject);
}

/// What is not a number gets from attention's inputs to where the reference lets it, and nowhere else.
///
/// # Panics
/// When it gets elsewhere.
pub fn check_numbers(subject: &Subject) {
    numbers::check(subject);
}

/// A step that asks for a row that a table does not have fails by its name.
///
/// # Panics
/// When it does not.
pub fn check_unknown_rows(subject: &Subject) {
    rows::check_unknown(subject);
}

/// Runs a check on a subject, or says that it is skipped because its device is not there.
pub fn on(subject: impl Into<Option<Subject>>, check: impl FnOnce(&Subject)) {
    match subject.into() {
        Some(subject) => check(&subject),
        None => eprintln!("skipped: the device is not there"),
    }
}

/// Instantiates the op-level suite for a backend: one test per family, one of rows alone, one of what is not a number,
/// one of draws.
///
/// The argument is an expression that gives a [`Subject`], or an `Option` of one: where there is none, tests say that they
/// are skipped.
#[macro_export]
macro_rules! suite {
    ($subject:expr) => {
        $crate::suite!($subject =>
            matmul: Matmul, rows: Rows, norms: Norms, elementwise: Elementwise, columns: Columns,
            attention: Attention, selection: Selection, experts: Experts, recurrent: Recurrent,
            adapters: Adapters, fused: Fused);

        #[test]
        fn every_fusion_is_seen() {
            $crate::ops::on($subject, $crate::ops::check_fusions);
        }

        #[test]
        fn alone_is_batched() {
            $crate::ops::on($subject, $crate::ops::check_invariance);
        }

        #[test]
        fn not_a_number() {
            $crate::ops::on($subject, $crate::ops::check_numbers);
        }

        #[test]
        fn unknown_rows() {
            $crate::ops::on($subject, $crate::ops::check_unknown_rows);
        }

        #[test]
        fn draws() {
            $crate::ops::on($subject, $crate::draws::check);
        }
    };
    ($subject:expr => $($name:ident: $family:ident),*) => {
        $(#[test]
        fn $name() {
            $crate::ops::on($subject, |s| $crate::ops::check(s, $crate::ops::Family::$family));
        })*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_each_case_once() {
        assert_eq!(shard("3/8"), Some((3, 8)));
        let of = |nth| of_shard(0..10, (nth, 3)).collect::<Vec<_>>();
        assert_eq!(
            [of(1), of(2), of(3)],
            [vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]]
        );
        for wrong in ["", "3", "0/8", "9/8", "a/8", "3/8/2"] {
            assert_eq!(shard(wrong), None, "{wrong}");
        }
    }
}
