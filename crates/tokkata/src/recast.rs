//! A model's tensors under canonical names and in chosen element types, made while they are read.
//!
//! This is what converting a directory, quantising while loading and writing safetensors have in common: the tensors of
//! any container as the resolver sees them, each with the type it is wanted in.

use std::collections::BTreeMap;

use tokkata_archs::{ArchError, FileWeights, Found, GgufView, HfView, Registry, View};
use tokkata_core::{DType, Metadata};
use tokkata_formats::ModelFile;
use tokkata_ir::{BackendError, Recipe, WeightSource, read_f32};
use tokkata_quant::mix::{MixOptions, ModelFacts, Preset, TensorFacts, mix};

/// The types that tensors are wanted in.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// As they are; what only a formula gives is F32.
    Keep,
    /// Matrices as they are, all else in F32.
    OwnMatrices,
    /// Matrices in this type, all else in F32.
    Matrices(DType),
    /// By a mix.
    Preset(&'static Preset),
}

/// Ends of names of tensors that are no matrices to a backend, whatever their shape.
const FLOATS: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
    "time_mix_first.weight",
];

/// Types of whole numbers, which no other type may stand for; readers of GGUF expect the third.
const WHOLE: [DType; 4] = [DType::I8, DType::I16, DType::I32, DType::I64];

/// The tensors of a model in chosen types.
pub struct Recast<'a> {
    file: &'a ModelFile,
    metadata: Metadata,
    tensors: BTreeMap<String, Found>,
    made: BTreeMap<String, Vec<f32>>,
    types: BTreeMap<String, DType>,
}

impl<'a> Recast<'a> {
    /// The tensors of `file`, in the types that `target` gives them.
    ///
    /// # Errors
    /// A directory that no descriptor reads.
    pub fn new(
        registry: &Registry,
        file: &'a ModelFile,
        target: Target,
    ) -> Result<Self, ArchError> {
        let mut recast = match file.directory() {
            Some(_) => {
                let view = HfView::new(registry, file)?;
                Recast {
                    file,
                    metadata: view.metadata().clone(),
                    tensors: view.tensors().clone(),
                    made: view.made().clone(),
                    types: BTreeMap::new(),
                }
            }
            None => {
                let view = GgufView(file);
                let found = |n: String| view.tensor(&n).map(|t| (n, t));
                Recast {
                    file,
                    metadata: view.metadata().clone(),
                    tensors: view.names().into_iter().filter_map(found).collect(),
                    made: BTreeMap::new(),
                    types: BTreeMap::new(),
                }
            }
        };
        recast.types = recast.types_for(target);
        Ok(recast)
    }

    /// Metadata under GGUF's keys, without a tokenizer's.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Names, types and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        self.tensors
            .iter()
            .map(|(name, found)| (name.as_str(), self.types[name], found.shape.as_slice()))
    }

    /// The type that most matrices have in the file.
    #[must_use]
    pub fn usual_type(&self) -> DType {
        let mut counts: BTreeMap<&'static str, (usize, DType)> = BTreeMap::new();
        for found in self.tensors.values().filter(|t| t.shape.len() > 1) {
            let entry = counts.entry(found.dtype.name()).or_insert((0, found.dtype));
            entry.0 += found.shape.iter().product::<usize>();
        }
        let most = counts.into_values().max_by_key(|c| c.0);
        most.map_or(DType::F32, |c| c.1)
    }

    fn types_for(&self, target: Target) -> BTreeMap<String, DType> {
        let preset = match target {
            Target::Preset(preset) => Some(self.mixed(preset)),
            _ => None,
        };
        let chosen = |(name, found): (&String, &Found)| {
            if WHOLE.contains(&found.dtype) {
                return (name.clone(), DType::I32);
            }
            let matrix = found.shape.len() > 1
                && name.ends_with(".weight")
                && !FLOATS.iter().any(|end| name.ends_with(end));
            let dtype = match (target, matrix) {
                (Target::Keep, _) | (Target::OwnMatrices, true) => found.dtype,
                (Target::Matrices(dtype), true) => fitting(dtype, &found.shape),
                (Target::Preset(_), true) => {
                    let mixed = preset.as_ref().and_then(|p| p.get(name));
                    mixed.copied().unwrap_or(found.dtype)
                }
                (_, false) => DType::F32,
            };
            (name.clone(), dtype)
        };
        self.tensors.iter().map(chosen).collect()
    }

    fn mixed(&self, preset: &'static Preset) -> BTreeMap<String, DType> {
        let shapes: Vec<Vec<u64>> = self
            .tensors
            .values()
            .map(|t| t.shape.iter().rev().map(|&d| d as u64).collect())
            .collect();
        let facts: Vec<TensorFacts<'_>> = (self.tensors.iter().zip(&shapes))
            .map(|((name, found), shape)| TensorFacts {
                name,
                shape,
                dtype: found.dtype,
            })
            .collect();
        let architecture = self
            .metadata
            .str("general.architecture")
            .unwrap_or_default();
        let count = |key: &str| {
            let value = self.metadata.uint(&format!("{architecture}.{key}"));
            value.map_or(0, |n| n as usize)
        };
        let n_heads = count("attention.head_count");
        let model = ModelFacts {
            architecture,
            n_layers: count("block_count"),
            n_experts: count("expert_count"),
            n_heads,
            n_kv_heads: match count("attention.head_count_kv") {
                0 => n_heads,
                n => n,
            },
        };
        let choices = mix(preset, &model, &facts, &MixOptions::default());
        let names = self.tensors.keys().cloned();
        names.zip(choices.into_iter().map(|c| c.dtype)).collect()
    }

    /// Rows of a tensor as floats.
    fn floats(&self, name: &str, first: usize, rows: usize) -> Result<Vec<f32>, BackendError> {
        if let Some(values) = self.made.get(name) {
            return Ok(values.clone());
        }
        let absent = || BackendError::Weight(format!("tensor {name} is absent"));
        let found = self.tensors.get(name).ok_or_else(absent)?;
        read_f32(&FileWeights(self.file), &found.recipe, first, rows)
    }

    /// Rows of a tensor in its type.
    ///
    /// # Errors
    /// What cannot be read, or values that the type cannot hold.
    pub fn rows(&self, name: &str, first: usize, rows: usize) -> Result<Vec<u8>, BackendError> {
        let wrong = |e: String| BackendError::Weight(format!("tensor {name}: {e}"));
        let absent = || BackendError::Weight(format!("tensor {name} is absent"));
        let found = self.tensors.get(name).ok_or_else(absent)?;
        let cols = found.shape.last().copied().unwrap_or(1);
        let dtype = self.types[name];
        let row_bytes = dtype.row_bytes(cols).unwrap_or(0);
        let mut bytes = vec![0; rows * row_bytes];
        if dtype == found.dtype && !self.made.contains_key(name) {
            let source = FileWeights(self.file);
            tokkata_ir::RawRows::new(&source, &found.recipe)?.read(first, rows, &mut bytes)?;
            return Ok(bytes);
        }
        let values = self.floats(name, first, rows)?;
        if dtype == DType::I32 {
            let whole = values.iter().flat_map(|&v| (v as i32).to_le_bytes());
            return Ok(whole.collect());
        }
        let encoded = tokkata_quant::quantize(dtype, &values, cols, None, &mut bytes);
        encoded.map_err(|e| wrong(e.to_string()))?;
        Ok(bytes)
    }
}

/// The type, or F16 where its blocks do not fit the rows.
fn fitting(dtype: DType, shape: &[usize]) -> DType {
    let cols = shape.last().copied().unwrap_or(1);
    match dtype.row_bytes(cols) {
        Some(_) => dtype,
        None => DType::F16,
    }
}

impl View for Recast<'_> {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        let found = self.tensors.get(name)?;
        Some(Found {
            dtype: self.types[name],
            shape: found.shape.clone(),
            recipe: Recipe::Source(name.to_owned()),
        })
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        let shape = self.tensors.get(name).map(|t| t.shape.as_slice());
        let rows = shape.unwrap_or_default().iter().rev().skip(1).product();
        self.floats(name, 0, rows).map_err(|e| ArchError::Tensor {
            name: name.to_owned(),
            what: e.to_string(),
        })
    }
}

impl WeightSource for Recast<'_> {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        let found = self.tensors.get(name)?;
        Some((self.types[name], found.shape.clone()))
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let (dtype, shape) = WeightSource::tensor(self, name)
            .ok_or_else(|| BackendError::Weight(format!("tensor {name} is absent")))?;
        let cols = shape.last().copied().unwrap_or(1);
        let row_bytes = dtype.row_bytes(cols).unwrap_or(0).max(1);
        let (from, to) = (offset as usize, offset as usize + out.len());
        let (first, end) = (from / row_bytes, to.div_ceil(row_bytes));
        let bytes = self.rows(name, first, end - first)?;
        out.copy_from_slice(&bytes[from - first * row_bytes..][..out.len()]);
        Ok(())
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        FileWeights(self.file).decode(dtype, raw, out)
    }
}
