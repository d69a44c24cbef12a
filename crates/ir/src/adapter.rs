//! Low-rank additions to the weights of a loaded program, which rows go through or not (LoRA: Hu et al., 2021).
//!
//! A program that is built for adapters has an [`Op::Adapt`] behind each product and each look-up of tokens. What it adds
//! comes after loading: an [`Adapter`] holds a pair of matrices for some of the weights, an executor attaches it and gives
//! it a number, and each row says which one it goes through.

mod attached;
mod ways;

use crate::backend::BackendError;
use crate::ids::WeightId;
use crate::op::{AdaptForm, Op};
use crate::program::{Lead, Node, Plan, Program};
pub use attached::Attached;
pub use ways::{Addends, Ways, addition, additions};

/// What is added to a weight `[E, N, K]` (or `[N, K]`, where E is 1): `b[e] · a[e]` to each of its matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// The weight.
    pub weight: WeightId,
    /// Rows of `a` and columns of `b`.
    pub rank: u32,
    /// `[E, rank, K]`.
    pub a: Vec<f32>,
    /// `[E, N, rank]`, scaled.
    pub b: Vec<f32>,
}

impl LowRank {
    /// `b` as kernels like to read it, its columns one after the other: `[E, rank, N]`. Of an adapter of this program.
    ///
    /// # Panics
    /// Where the program does not add to the weight.
    #[must_use]
    pub fn turned(&self, program: &Program) -> Vec<f32> {
        let form = form_of(program, self.weight).expect("an adapter is checked before");
        let (_, rows, _) = matrices(form, &program.weights[self.weight.index()].shape);
        let rank = self.rank as usize;
        let turned = |b: &[f32]| -> Vec<f32> {
            let column = |j: usize| b.iter().skip(j).step_by(rank).copied();
            (0..rank).flat_map(column).collect()
        };
        let matrices = self.b.chunks_exact((rows * rank).max(1));
        matrices.flat_map(turned).collect()
    }
}

/// Additions to weights of one program, at most one to each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapter {
    pairs: Vec<LowRank>,
}

impl Adapter {
    /// An adapter of these pairs.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] names the weight that two are for.
    pub fn new(mut pairs: Vec<LowRank>, program: &Program) -> Result<Self, BackendError> {
        pairs.sort_by_key(|pair| pair.weight);
        let twice = pairs.windows(2).find(|w| w[0].weight == w[1].weight);
        let twice = twice.map(|w| w[0].weight);
        let adapter = Adapter { pairs };
        match twice {
            Some(weight) => Err(wrong(program, weight, "has two additions")),
            None => adapter.check(program).map(|()| adapter),
        }
    }

    /// What it adds, by weight.
    #[must_use]
    pub fn pairs(&self) -> &[LowRank] {
        &self.pairs
    }

    /// What it adds to a weight, if anything.
    #[must_use]
    pub fn pair(&self, weight: WeightId) -> Option<&LowRank> {
        let found = self.pairs.binary_search_by_key(&weight, |p| p.weight);
        found.ok().map(|i| &self.pairs[i])
    }

    /// The largest rank of its pairs.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.pairs.iter().map(|p| p.rank).max().unwrap_or(0)
    }

    /// Its floats, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let floats = self.pairs.iter().map(|p| p.a.len() + p.b.len());
        floats.sum::<usize>() as u64 * 4
    }

    /// Its matrices one after the other, each from a multiple of so many floats on, `b` as [`LowRank::turned`] gives it; by pair
    /// where both begin.
    ///
    /// # Panics
    /// Where it is no adapter of the program.
    #[must_use]
    pub fn packed(
        &self,
        program: &Program,
        align: usize,
    ) -> (Vec<f32>, Vec<(&LowRank, [usize; 2])>) {
        let mut floats = Vec::new();
        let mut place = |pair: &LowRank| {
            [pair.a.clone(), pair.turned(program)].map(|part| {
                floats.resize(floats.len().next_multiple_of(align), 0.0);
                let at = floats.len();
                floats.extend(part);
                at
            })
        };
        let places = self.pairs.iter().map(|pair| (pair, place(pair)));
        let places = places.collect();
        (floats, places)
    }

    /// The pairs of the weights that `map` knows, under the names that it gives them.
    #[must_use]
    pub fn part(&self, map: impl Fn(WeightId) -> Option<WeightId>) -> Self {
        let own = |pair: &LowRank| {
            Some(LowRank {
                weight: map(pair.weight)?,
                ..pair.clone()
            })
        };
        let mut pairs: Vec<LowRank> = self.pairs.iter().filter_map(own).collect();
        pairs.sort_by_key(|pair| pair.weight);
        Adapter { pairs }
    }

    /// Whether every pair has the shape of its weight, and an op that adds it.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] names the weight.
    fn check(&self, program: &Program) -> Result<(), BackendError> {
        for pair in &self.pairs {
            let Some(def) = program.weights.get(pair.weight.index()) else {
                return Err(BackendError::Adapter(format!(
                    "{} is no weight",
                    pair.weight
                )));
            };
            let Some(form) = form_of(program, pair.weight) else {
                return Err(wrong(
                    program,
                    pair.weight,
                    "is no weight that can be added to",
                ));
            };
            let (matrices, rows, cols) = matrices(form, &def.shape);
            let rank = pair.rank as usize;
            if pair.a.len() != matrices * rank * cols || pair.b.len() != matrices * rows * rank {
                return Err(wrong(program, pair.weight, "has another shape"));
            }
        }
        Ok(())
    }
}

/// Matrices of a weight that a form of [`Op::Adapt`] adds to, and the rows and columns of each.
#[must_use]
pub fn matrices(form: AdaptForm, shape: &[u32]) -> (usize, usize, usize) {
    let product = |dims: &[u32]| dims.iter().map(|&d| d as usize).product();
    let (rows, cols) = shape.split_at(shape.len().saturating_sub(1));
    match (form, rows) {
        (AdaptForm::Heads | AdaptForm::Experts, [count @ .., n]) => {
            (product(count), *n as usize, product(cols))
        }
        _ => (1, product(rows), product(cols)),
    }
}

/// Inputs of a row that an [`Op::Adapt`] multiplies: one, or one for each head or expert; none of another node.
#[must_use]
pub fn parts(program: &Program, plan: &Plan, node: &Node) -> u32 {
    let Op::Adapt { weight, form } = node.op else {
        return 0;
    };
    let (_, rows, _) = matrices(form, &program.weights[weight.index()].shape);
    (plan.value(node.outs[0]).shape.width() / rows.max(1)) as u32
}

/// How an [`Op::Adapt`] multiplies a row of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Inputs of a row, as [`parts`] counts them.
    pub parts: u32,
    /// Outputs of each.
    pub rows: u32,
    /// Columns of each.
    pub columns: u32,
    /// Columns of a row.
    pub stride: u32,
    /// Columns from an input to the next one; 0: all of a row share it.
    pub apart: u32,
}

impl Runs {
    /// Those of a node, for a form that multiplies.
    #[must_use]
    pub fn new(
        program: &Program,
        plan: &Plan,
        node: &Node,
        (weight, form): (WeightId, AdaptForm),
    ) -> Self {
        let (_, rows, columns) = matrices(form, &program.weights[weight.index()].shape);
        let (columns, stride) = (columns as u32, plan.value(node.ins[0]).shape.width() as u32);
        Runs {
            parts: parts(program, plan, node),
            rows: rows as u32,
            columns,
            stride,
            apart: if stride == columns { 0 } else { columns },
        }
    }

    /// Whether every input begins at a multiple of so many columns and has as many.
    #[must_use]
    pub fn come_in(&self, columns: u32) -> bool {
        let own = [self.columns, self.stride, self.apart];
        own.iter().all(|n| n.is_multiple_of(columns))
    }
}

/// Most inputs that an [`Op::Adapt`] of a program multiplies in a step; 0 where it has none.
#[must_use]
pub fn most_parts(program: &Program) -> u32 {
    let of = |plan: &Plan, node: &Node| {
        let most = |lead| match lead {
            Lead::Rows => program.limits.rows,
            Lead::LogitRows => program.limits.logit_rows,
            Lead::Seqs => program.limits.seqs,
        };
        let lead = node.outs.first().map(|&out| plan.value(out).shape.lead);
        lead.map_or(0, most) * parts(program, plan, node)
    };
    let plans = program.plans.iter();
    let all = plans.flat_map(|plan| plan.nodes.iter().map(move |node| of(plan, node)));
    all.max().unwrap_or(0)
}

/// How a program's plans add to a weight, if they do. Where they do so in several ways it has one matrix.
#[must_use]
pub fn form_of(program: &Program, weight: WeightId) -> Option<AdaptForm> {
    let mut nodes = program.plans.iter().flat_map(|p| &p.nodes);
    nodes.find_map(|node| match node.op {
        Op::Adapt { weight: own, form } if own == weight => Some(form),
        _ => None,
    })
}

fn wrong(program: &Program, weight: WeightId, what: &str) -> BackendError {
    let name = program
        .weights
        .get(weight.index())
        .map_or("?", |w| w.name.as_str());
    BackendError::Adapter(format!("{name} {what}"))
}

/// The adapters of an executor by number, the first of which is 1.
#[derive(Clone, Debug)]
pub struct Places<T>(Vec<Option<T>>);

impl<T> Places<T> {
    /// Room for so many.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Places((0..count).map(|_| None).collect())
    }

    /// The number of a free place.
    ///
    /// # Errors
    /// [`BackendError::Adapter`] when there is none.
    pub fn free(&self) -> Result<u32, BackendError> {
        let place = self.0.iter().position(Option::is_none);
        place.map(|i| i as u32 + 1).ok_or_else(|| {
            let most = self.0.len();
            BackendError::Adapter(format!("no more than {most} can be attached at once"))
        })
    }

    /// Puts something at a number that [`Places::free`] gave, or takes it away.
    pub fn set(&mut self, number: u32, what: Option<T>) {
        self.0[number as usize - 1] = what;
    }

    /// All there are.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// What has a number; nothing has 0.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.0.get((number as usize).checked_sub(1)?)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, Site, ValueId};
    use crate::program::{Limits, PlanRole, Shape, ValType, ValueDef};
    use crate::weight::{Axis, Recipe, Uses, WeightDef};

    #[test]
    fn places_are_numbered_from_one_and_given_again() {
        let mut places = Places::new(2);
        assert_eq!(places.get(0), None);
        for (number, name) in [(1, "a"), (2, "b")] {
            assert_eq!(places.free().unwrap(), number);
            places.set(number, Some(name));
        }
        let text = "adapters: no more than 2 can be attached at once";
        assert_eq!(places.free().unwrap_err().to_string(), text);
        places.set(1, None);
        assert_eq!((places.free().unwrap(), places.get(1)), (1, None));
        assert_eq!((places.get(2), places.get(3)), (Some(&"b"), None));
    }

    #[test]
    fn what_is_added_by_rank_lies_together() {
        let program = heads();
        let pair = LowRank {
            weight: WeightId(0),
            rank: 2,
            a: vec![0.0; 8],
            b: (0..12u8).map(f32::from).collect(),
        };
        let want = [0u8, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11];
        assert_eq!(pair.turned(&program), want.map(f32::from));
        let plan = &program.plans[0];
        let parts = plan.nodes.iter().map(|n| parts(&program, plan, n));
        assert_eq!(parts.collect::<Vec<_>>(), [0, 2]);
        assert_eq!(most_parts(&program), 2 * program.limits.rows);
        let runs = Runs::new(
            &program,
            plan,
            &plan.nodes[1],
            (WeightId(0), AdaptForm::Heads),
        );
        assert_eq!((runs.parts, runs.rows, runs.columns), (2, 3, 2));
        assert_eq!((runs.stride, runs.apart), (4, 2));
        assert!(runs.come_in(2) && !runs.come_in(4));
        let adapter = Adapter::new(vec![pair], &program).unwrap();
        let (floats, places) = adapter.packed(&program, 16);
        assert_eq!((floats.len(), places[0].1), (28, [0, 16]));
        assert_eq!(floats[16..], want.map(f32::from));
    }

    /// A product of two heads of `[3, 2]`, and what is added to it.
    fn heads() -> Program {
        let weight = WeightId(0);
        let (product, form) = (Op::HeadMatmul { weight, heads: 2 }, AdaptForm::Heads);
        let value = |columns| ValueDef {
            shape: Shape {
                lead: Lead::Rows,
                dims: vec![columns],
            },
            dtype: ValType::F32,
        };
        let node = |op: Op, ins: &[u32], out| Node {
            site: Site::global(op.name()),
            op,
            ins: ins.iter().map(|&v| ValueId(v)).collect(),
            outs: vec![ValueId(out)],
            device: DeviceId(0),
        };
        Program {
            plans: vec![Plan {
                role: PlanRole::Main,
                inputs: Vec::new(),
                outputs: Vec::new(),
                values: vec![value(4), value(6), value(6)],
                nodes: vec![
                    node(product, &[0], 1),
                    node(Op::Adapt { weight, form }, &[0, 1], 2),
                ],
            }],
            weights: vec![WeightDef {
                name: "w".to_owned(),
                recipe: Recipe::Source("w".to_owned()),
                site: Site::global("w"),
                shape: vec![2, 3, 2],
                axes: vec![Axis::Other; 3],
                uses: Uses::default(),
            }],
            caches: Vec::new(),
            consts: Vec::new(),
            limits: Limits::default(),
            n_vocab: 0,
            n_embd: 0,
        }
    }

    #[test]
    fn a_weight_is_a_row_of_matrices() {
        use AdaptForm::{Experts, Heads, Product, Tokens};
        assert_eq!(matrices(Experts, &[3, 4, 5]), (3, 4, 5));
        assert_eq!(matrices(Heads, &[3, 4, 5]), (3, 4, 5));
        assert_eq!(matrices(Product, &[3, 4, 5]), (1, 12, 5));
        assert_eq!(matrices(Tokens, &[4, 5]), (1, 4, 5));
    }
}
