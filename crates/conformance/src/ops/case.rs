//! A case: a small program, steps over it, and the error that its arithmetic is expected to have.

use tokkata_core::DType;
use tokkata_ir::{Lead, Op, ValType, ValueId};

use crate::fixture::{Feed, Fixture, Rows, noises};

/// Row counts of steps: one, few, and more than any unrolling.
pub(crate) const ROWS: [usize; 4] = [1, 2, 5, 17];

/// Columns from which a product is a large one.
pub(crate) const LARGE: u32 = 2048;

/// What a backend may round beyond f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Nothing.
    Nothing,
    /// The first input, as activations of a product with this format.
    Matmul(DType),
    /// The same, of 2,048 columns or more.
    Large(DType),
    /// The first input, as queries over a cache of this type.
    Attention(DType),
    /// What goes into every product, as activations of products with this format.
    Within(DType),
    /// The same, of 2,048 columns or more.
    WithinLarge(DType),
}

/// One program of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// Op, format and sizes.
    pub name: String,
    /// The program.
    pub fixture: Fixture,
    /// Steps in order.
    pub steps: Vec<(Vec<Rows>, Feed)>,
    /// Values compared after every step.
    pub outputs: Vec<ValueId>,
    /// Expected rms error in units of 2⁻²⁴ of the output's rms; `None` demands equal bits.
    pub ulps: Option<f64>,
    /// Whether errors are held against the rms of their row rather than of the whole output.
    pub by_rows: bool,
    /// Rounding that the backend's profile decides on.
    pub rounds: Rounds,
}

impl Case {
    /// A case without steps.
    pub(crate) fn new(name: impl Into<String>, fixture: Fixture, outputs: Vec<ValueId>) -> Self {
        Case {
            name: name.into(),
            fixture,
            steps: Vec::new(),
            outputs,
            ulps: None,
            by_rows: false,
            rounds: Rounds::Nothing,
        }
    }

    pub(crate) fn ulps(self, ulps: f64) -> Self {
        let ulps = Some(ulps);
        Case { ulps, ..self }
    }

    /// Rows are of different sizes, and rounding is relative to each row's own.
    pub(crate) fn by_rows(self) -> Self {
        Case {
            by_rows: true,
            ..self
        }
    }

    pub(crate) fn rounds(self, rounds: Rounds) -> Self {
        Case { rounds, ..self }
    }

    /// Adds a step whose inputs are noise.
    pub(crate) fn step(self, rows: Vec<Rows>) -> Self {
        self.scaled_step(rows, 1.0)
    }

    /// Adds a step whose inputs are noise in −scale..scale.
    pub(crate) fn scaled_step(mut self, rows: Vec<Rows>, scale: f32) -> Self {
        let plan = &self.fixture.program().plans[0];
        let noise = |id: ValueId| {
            let def = plan.value(id);
            let count = match def.shape.lead {
                Lead::Rows => rows.iter().map(|r| r.at.len()).sum(),
                Lead::LogitRows => rows.iter().map(|r| r.logits.len()).sum(),
                Lead::Seqs => rows.len(),
            };
            assert_eq!(def.dtype, ValType::F32, "integers are fed by hand");
            let name = format!("{}.{}.{}", self.name, self.steps.len(), id.0);
            let noise = noises(&name, count * def.shape.width());
            (id, noise.iter().map(|x| x * scale).collect())
        };
        let values = plan.inputs.iter().map(|p| noise(p.value)).collect();
        let feed = Feed {
            values,
            ..Feed::default()
        };
        self.steps.push((rows, feed));
        self
    }

    /// A step of one sequence from its start for each of [`ROWS`].
    pub(crate) fn all_rows(self, scale: f32) -> Self {
        let step = |case: Case, &n: &usize| case.scaled_step(vec![Rows::first(n)], scale);
        ROWS.iter().fold(self, step)
    }

    /// Prompt, decode and new sequences side by side, in three steps.
    pub(crate) fn mixed_steps(self) -> Self {
        self.step(vec![Rows::of(0, 0..17)])
            .step(vec![Rows::of(1, 0..5), Rows::of(0, 17..18)])
            .step(vec![
                Rows::of(0, 18..20),
                Rows::of(2, 0..1),
                Rows::of(1, 5..12),
            ])
    }
}

impl Case {
    /// Rows whose states are kept, after [`Case::mixed_steps`]: some of one sequence beside rows of another that keeps none
    /// and one that is new; then each goes on from one of its states, and again.
    pub(crate) fn kept_steps(self) -> Self {
        let keeps = |seq, at| Rows {
            keeps: true,
            ..Rows::of(seq, at)
        };
        let from = |rows: Rows, states: &[usize]| Rows {
            states: states.to_vec(),
            ..rows
        };
        self.step(vec![keeps(0, 20..23), Rows::of(1, 12..15), keeps(3, 0..2)])
            .step(vec![
                from(keeps(0, 22..25), &[2, 1, 0, 3]),
                keeps(3, 0..3),
                keeps(1, 15..16),
            ])
            .step(vec![
                from(Rows::of(0, 25..27), &[3, 1, 0, 2]),
                from(Rows::of(3, 1..4), &[1, 0]),
                Rows::of(1, 15..18),
            ])
    }
}

/// One op of floats over all rows: `width` columns to `out` columns, over every row count.
pub(crate) fn one_op(
    name: impl Into<String>,
    (width, out): (u32, u32),
    build: impl FnOnce(&mut Fixture) -> Op,
) -> Case {
    let mut fixture = Fixture::default();
    let op = build(&mut fixture);
    let x = fixture.input(&[width]);
    let y = fixture.op(op, &[x], &[out]);
    Case::new(name, fixture, vec![y])
}
