//! Measuring importance while a model reads text, by llama-imatrix's rules.

use tokkata_engine::{Engine, Fed};
use tokkata_ir::{Op, PlanRole, Program, Recipe, ValueId};

use super::{Importance, ImportanceError, Inputs};
use crate::error::Result;
use crate::perplexity::Watch;

/// Which products are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collected {
    /// Those of the layers.
    #[default]
    Layers,
    /// The output matrix's, too.
    LayersAndOutput,
}

impl Collected {
    fn wants(self, weight: &str) -> bool {
        weight.starts_with("blk.") || (self == Self::LayersAndOutput && weight == "output.weight")
    }
}

/// One product: what goes into it, and whose columns that weighs.
#[derive(Clone, Debug, PartialEq)]
struct Tap {
    weight: String,
    input: ValueId,
    width: usize,
    routes: Option<Routes>,
}

/// Which experts rows go through.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Routes {
    experts: ValueId,
    per_row: usize,
    count: usize,
}

/// Adds up squared inputs of products. The model must have been opened with
/// [`product_inputs`](crate::OpenOptions::product_inputs).
#[derive(Debug)]
pub struct Collector {
    taps: Vec<Tap>,
    /// What was measured.
    pub importance: Importance,
}

impl Collector {
    /// A collector of the main plan's products.
    #[must_use]
    pub fn new(program: &Program, collected: Collected) -> Self {
        let mut taps: Vec<Tap> = Vec::new();
        for tap in all_taps(program) {
            let wanted = tap.routes.is_some() || collected.wants(&tap.weight);
            // Parts of one tensor with one input count once.
            if wanted && !taps.contains(&tap) {
                taps.push(tap);
            }
        }
        Collector {
            taps,
            importance: Importance::default(),
        }
    }

    /// Adds the inputs that a step left.
    ///
    /// # Errors
    /// [`ImportanceError::NotFinite`] names the weight; the device's.
    fn observe(&mut self, engine: &mut Engine, fed: &Fed) -> Result<()> {
        for tap in &self.taps {
            let values = engine.read(fed, tap.input, None)?;
            if values.is_empty() {
                continue;
            }
            let entry = self.importance.entries.entry(tap.weight.clone());
            let entry = entry.or_default();
            match tap.routes {
                None => values
                    .chunks(tap.width)
                    .for_each(|row| entry.add(row, 0, 1)),
                Some(routes) => {
                    let ids = engine.read_ints(fed, routes.experts)?;
                    add_routed(entry, &values, tap.width, (&ids, routes));
                }
            }
            if !entry.sums.iter().all(|sum| sum.is_finite()) {
                let weight = tap.weight.clone();
                return Err(ImportanceError::NotFinite { weight }.into());
            }
        }
        Ok(())
    }
}

impl Watch for Collector {
    fn keeps(&self) -> Vec<ValueId> {
        let inputs = self.taps.iter().map(|t| t.input);
        let experts = self.taps.iter().filter_map(|t| Some(t.routes?.experts));
        inputs.chain(experts).collect()
    }

    fn see(&mut self, engine: &mut Engine, fed: &Fed) -> Result<()> {
        self.observe(engine, fed)
    }
}

/// Rows have one input for all their experts or one for each.
fn add_routed(entry: &mut Inputs, values: &[f32], width: usize, (ids, routes): (&[i32], Routes)) {
    let rows = ids.len() / routes.per_row.max(1);
    let each = values.len() / rows.max(1) / width;
    // By expert number first, as llama.cpp adds up.
    for slot in 0..routes.per_row {
        for row in 0..rows {
            let at = (row * each + slot % each.max(1)) * width;
            let expert = usize::try_from(ids[row * routes.per_row + slot]);
            if let Ok(expert) = expert.map(|e| e.min(routes.count - 1)) {
                entry.add(&values[at..at + width], expert, routes.count);
            }
        }
    }
}

/// What goes into every product of the main plan: the weight's name, the value and its columns. Products of experts are
/// left out, whose rows are several.
pub(crate) fn product_values(program: &Program) -> Vec<(String, ValueId, usize)> {
    let plain = all_taps(program).into_iter().filter(|t| t.routes.is_none());
    plain.map(|t| (t.weight, t.input, t.width)).collect()
}

fn all_taps(program: &Program) -> Vec<Tap> {
    let Some((_, plan)) = program.plan(PlanRole::Main) else {
        return Vec::new();
    };
    let mut taps = Vec::new();
    for node in &plan.nodes {
        let (weight, top_k) = match node.op {
            Op::Matmul { weight, .. } | Op::HeadMatmul { weight, .. } => (weight, None),
            Op::Experts { weight, top_k, .. } => (weight, Some(top_k)),
            _ => continue,
        };
        let def = &program.weights[weight.index()];
        let mut names = Vec::new();
        sources(&def.recipe, &mut names);
        let routes = top_k.map(|per_row| Routes {
            experts: node.ins[1],
            per_row: per_row as usize,
            count: def.shape[0] as usize,
        });
        let input = node.ins[0];
        // Heads of their own matrices have columns of their own.
        let width = routes.map_or(plan.value(input).shape.width(), |_| def.cols());
        taps.extend(names.into_iter().map(|weight| Tap {
            weight,
            input,
            width,
            routes,
        }));
    }
    taps
}

/// Tensors whose columns are the weight's columns.
fn sources(recipe: &Recipe, names: &mut Vec<String>) {
    match recipe {
        Recipe::Source(name) => names.push(name.clone()),
        Recipe::Rows { of, .. } | Recipe::Permute { of, .. } | Recipe::Map { of, .. } => {
            sources(of, names);
        }
        Recipe::Concat(parts) => parts.iter().for_each(|part| sources(part, names)),
        Recipe::Transpose { .. } | Recipe::Reshape { .. } | Recipe::Zeros { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_have_sums_of_their_own() {
        let routes = Routes {
            experts: ValueId(0),
            per_row: 2,
            count: 3,
        };
        let ids = [0, 2, 2, 0];
        let mut shared = Inputs::default();
        add_routed(&mut shared, &[1.0, 2.0, 3.0, 4.0], 2, (&ids, routes));
        assert_eq!(shared.counts, [2, 0, 2]);
        assert_eq!(shared.sums, [10.0, 20.0, 0.0, 0.0, 10.0, 20.0]);
        let mut own = Inputs::default();
        add_routed(&mut own, &[1.0, 2.0, 3.0, 4.0], 1, (&ids, routes));
        assert_eq!(own.sums, [1.0 + 16.0, 0.0, 4.0 + 9.0]);
    }

    #[test]
    fn parts_of_a_tensor_are_found_in_recipes() {
        let rows = |name: &str| Recipe::Rows {
            of: Box::new(Recipe::Source(name.into())),
            start: 0,
            len: 1,
        };
        let mut names = Vec::new();
        sources(&Recipe::Concat(vec![rows("a"), rows("b")]), &mut names);
        assert_eq!(names, ["a", "b"]);
    }
}
