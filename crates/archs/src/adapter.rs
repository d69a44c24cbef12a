//! Adapter files: pairs of low rank for the tensors of a model's file, brought to the weights of its program.
//!
//! GGUF holds them as llama.cpp writes them (`general.type = adapter`, `adapter.type = lora`, tensors `NAME.lora_a` and
//! `NAME.lora_b`), a directory as PEFT does (`adapter_config.json` beside `adapter_model.safetensors`). The names are
//! those of the model's own file. What a weight takes from a tensor (rows of it, rows in another order, several tensors
//! below each other) its pair takes from the tensor's pair, by the same [`Recipe`](tokkata_ir::Recipe).

mod pairs;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tokkata_formats::FormatError;
use tokkata_ir::adapter::{form_of, matrices};
use tokkata_ir::{AdaptForm, Adapter, BackendError, LowRank, Op, Program, WeightId, WeightSource};

use pairs::{Low, Maker};

/// What can be wrong with an adapter's file.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The container.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A setting that is missing or says something else.
    #[error("found {key} = {found}, expected {expected}")]
    Setting {
        /// The setting.
        key: String,
        /// What it says.
        found: String,
        /// What it may say.
        expected: String,
    },
    /// A tensor that does not fit.
    #[error("tensor {name} {what}")]
    Tensor {
        /// Its name in the adapter's file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The configuration cannot be read.
    #[error("{file} cannot be read: {what}")]
    Config {
        /// The file.
        file: String,
        /// Why.
        what: String,
    },
    /// The weights cannot be read, or the adapter does not fit the program.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A pair for a tensor of the model's file: `b[e] · a[e]` is added to each of its matrices.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Name in the adapter's file, without the ending that tells a from b.
    name: String,
    /// `[E, rank, K]`, slowest first.
    a: (Vec<usize>, Vec<f32>),
    /// `[E, N, rank]`, slowest first; scaled.
    b: (Vec<usize>, Vec<f32>),
}

/// An adapter as its file has it.
#[derive(Clone, Debug, Default)]
pub struct AdapterFile {
    /// By the name of the tensor in the model's file.
    pairs: BTreeMap<String, Stored>,
}

impl AdapterFile {
    /// Reads the adapter at `path`, a GGUF file or a directory of PEFT (or its `adapter_model.safetensors`), for a model of
    /// the architecture `arch`.
    ///
    /// # Errors
    /// A file that is no such adapter, or asks for what is not known: the setting or tensor by name.
    pub fn open(path: &Path, arch: &str) -> Result<Self, AdapterError> {
        let pairs = match path.is_dir() || path.extension().is_some_and(|e| e == "safetensors") {
            true => stored::peft(path)?,
            false => stored::gguf(path, arch)?,
        };
        Ok(AdapterFile { pairs })
    }

    /// The tensors of the model's file that it changes.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// It beside others, each times a scale: what all of them add together.
    ///
    /// # Errors
    /// A tensor of the adapter that the program does not use in a way that adapters can change, or of another shape.
    pub fn merge(
        all: &[(AdapterFile, f32)],
        program: &Program,
        base: &dyn WeightSource,
    ) -> Result<Adapter, AdapterError> {
        let mut sums: BTreeMap<WeightId, Vec<Low>> = BTreeMap::new();
        for (file, scale) in all {
            for (weight, lows) in file.lows(program, base)? {
                let scaled: Vec<Low> = lows.into_iter().map(|low| low.scaled(*scale)).collect();
                match sums.remove(&weight) {
                    None => sums.insert(weight, scaled),
                    Some(sum) => {
                        let both = sum.into_iter().zip(scaled).map(|(a, b)| a.beside(b));
                        sums.insert(weight, both.collect())
                    }
                };
            }
        }
        let pairs = sums.into_iter().map(|(weight, lows)| stack(weight, lows));
        Ok(Adapter::new(pairs.collect(), program)?)
    }

    /// Per weight what is added to each of its matrices.
    fn lows(
        &self,
        program: &Program,
        base: &dyn WeightSource,
    ) -> Result<Vec<(WeightId, Vec<Low>)>, AdapterError> {
        for (tensor, stored) in &self.pairs {
            stored.check(tensor, base)?;
        }
        let (mut found, mut used) = (Vec::new(), BTreeSet::new());
        for (i, def) in program.weights.iter().enumerate() {
            let weight = WeightId(i as u32);
            let Some(form) = form_of(program, weight) else {
                continue;
            };
            let mut maker = Maker::new(&self.pairs, base);
            let (count, rows, _) = matrices(form, &def.shape);
            let each = (0..count).map(|e| maker.rows(&def.recipe, e * rows, rows));
            let lows: Vec<Option<Low>> = each.collect::<Result<_, _>>()?;
            let names = maker.used();
            if let Some(name) = names.first() {
                if is_tied(program, weight) {
                    let name = self.pairs[*name].name.clone();
                    let what =
                        "is for a table that is the head too, and may mean either".to_owned();
                    return Err(AdapterError::Tensor { name, what });
                }
                let cols = def.cols();
                let filled = lows
                    .into_iter()
                    .map(|low| low.unwrap_or_else(|| Low::none(rows, cols)));
                found.push((weight, filled.collect()));
            }
            used.extend(names.into_iter().cloned());
        }
        match self.pairs.iter().find(|(name, _)| !used.contains(*name)) {
            None => Ok(found),
            Some((_, stored)) => Err(AdapterError::Tensor {
                name: stored.name.clone(),
                what: "is for a weight that this model does not multiply by".to_owned(),
            }),
        }
    }
}

/// Whether rows of a weight are looked up and multiplied by.
fn is_tied(program: &Program, weight: WeightId) -> bool {
    let forms = program
        .plans
        .iter()
        .flat_map(|p| &p.nodes)
        .filter_map(|n| match n.op {
            Op::Adapt { weight: own, form } if own == weight => Some(form == AdaptForm::Tokens),
            _ => None,
        });
    let forms: BTreeSet<bool> = forms.collect();
    forms.len() > 1
}

/// What is added to all matrices of a weight, of one rank.
fn stack(weight: WeightId, lows: Vec<Low>) -> LowRank {
    let rank = lows.iter().map(|low| low.rank).max().unwrap_or(0);
    let lows: Vec<Low> = lows.into_iter().map(|low| low.widened(rank)).collect();
    LowRank {
        weight,
        rank: rank as u32,
        a: lows.iter().flat_map(|low| low.a.iter().copied()).collect(),
        b: lows.iter().flat_map(|low| low.b.iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests;
