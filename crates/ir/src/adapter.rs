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
use crate::program::Program;
pub use attached::Attached;
pub use ways::{Ways, additions};

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

    /// Its floats, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let floats = self.pairs.iter().map(|p| p.a.len() + p.b.len());
        floats.sum::<usize>() as u64 * 4
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

    /// What has a number; nothing has 0.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.0.get((number as usize).checked_sub(1)?)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_weight_is_a_row_of_matrices() {
        use AdaptForm::{Experts, Heads, Product, Tokens};
        assert_eq!(matrices(Experts, &[3, 4, 5]), (3, 4, 5));
        assert_eq!(matrices(Heads, &[3, 4, 5]), (3, 4, 5));
        assert_eq!(matrices(Product, &[3, 4, 5]), (1, 12, 5));
        assert_eq!(matrices(Tokens, &[4, 5]), (1, 4, 5));
    }
}
