//! Hugging Face and MLX directories in canonical terms.
//!
//! A directory's `config.json` becomes metadata under GGUF's keys, and its tensors appear under canonical names, by
//! the rules of a descriptor's `[hf]` table: what a converter to GGUF would do, done while weights are read. A
//! setting that no rule reads is refused unless it is known to change no number, and so is a tensor.

mod config;
mod factors;
mod folds;
mod keys;
mod names;
mod normal;
pub mod rules;

use std::collections::BTreeMap;

use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::ModelFile;
use tokkata_ir::{Recipe, read_f32};

use crate::error::ArchError;
use crate::registry::Registry;
use crate::schema::Descriptor;
use crate::source::FileWeights;
use crate::view::{Found, View};
use config::Config;
use names::Names;

/// A directory as the resolver sees it.
#[derive(Debug)]
pub struct HfView<'a> {
    file: &'a ModelFile,
    metadata: Metadata,
    tensors: BTreeMap<String, Found>,
    made: factors::Made,
}

impl<'a> HfView<'a> {
    /// Reads the directory of `file` by the descriptor that knows its class.
    ///
    /// # Errors
    /// [`ArchError`] names the class, setting or tensor that no rule covers.
    pub fn new(registry: &Registry, file: &'a ModelFile) -> Result<Self, ArchError> {
        let root = file
            .directory()
            .map(tokkata_formats::Directory::config)
            .ok_or(ArchError::NoConfig)?;
        let stored = names::stored(file);
        let descriptor = choose(registry, root, file)?;
        let rule = &descriptor.hf;
        let config = Config::new(root, rule, file);
        config.check()?;
        let arch = rule.arch.as_ref().or(descriptor.names.first());
        let arch = arch.map_or("", String::as_str);
        let mut metadata = keys::metadata(&config, rule, arch, stored.len() as u64)?;
        if let Some(pooling) = pooling(file) {
            metadata.insert(format!("{arch}.pooling_type"), Value::U32(pooling));
        }
        let count = |key: &str| metadata.uint(&format!("{arch}.{key}")).unwrap_or(0);
        let (layers, experts) = (count("block_count"), count("expert_count"));
        let names = Names::new(&stored, &config, rule);
        let mut tensors = names.all(layers as u32, experts as usize)?;
        expect_rows(&metadata, arch, &tensors)?;
        let made = factors::factors(&config, rule)?;
        for (name, values) in &made {
            tensors.insert(name.clone(), constant(name, values));
        }
        Ok(HfView {
            file,
            metadata,
            tensors,
            made,
        })
    }

    /// Canonical tensors by name.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, Found> {
        &self.tensors
    }

    /// Tensors that follow from the configuration and are in no file.
    #[must_use]
    pub fn made(&self) -> &BTreeMap<String, Vec<f32>> {
        &self.made
    }
}

/// The embedding has a row for each token that the configuration counts.
fn expect_rows(
    metadata: &Metadata,
    arch: &str,
    tensors: &BTreeMap<String, Found>,
) -> Result<(), ArchError> {
    let table = tensors.get("token_embd.weight");
    let rows = table.and_then(|t| t.shape.first().copied());
    let counted = metadata.uint(&format!("{arch}.vocab_size"));
    match (rows, counted) {
        (Some(rows), Some(counted)) if rows as u64 != counted => Err(ArchError::ConfigValue {
            key: "vocab_size".to_owned(),
            value: counted.to_string(),
            expected: format!("{rows}, the rows of the token embedding"),
        }),
        _ => Ok(()),
    }
}

/// How rows become one vector, by the file in which sentence encoders keep it: GGUF's number for it.
fn pooling(file: &ModelFile) -> Option<u32> {
    let config = file
        .directory()?
        .read_json("1_Pooling/config.json")
        .ok()??;
    let kinds = [
        ("pooling_mode_mean_tokens", 1),
        ("pooling_mode_cls_token", 2),
        ("pooling_mode_lasttoken", 3),
    ];
    let on = |key: &str| config.get(key).and_then(serde_json::Value::as_bool) == Some(true);
    kinds.into_iter().find(|k| on(k.0)).map(|k| k.1)
}

fn constant(name: &str, values: &[f32]) -> Found {
    Found {
        dtype: DType::F32,
        shape: vec![values.len()],
        recipe: Recipe::Source(name.to_owned()),
    }
}

/// The descriptor that reads a configuration's class.
fn choose<'r>(
    registry: &'r Registry,
    root: &serde_json::Value,
    file: &ModelFile,
) -> Result<&'r Descriptor, ArchError> {
    let class = root.get("architectures").and_then(|a| a.get(0)?.as_str());
    let class = class.ok_or(ArchError::NoClass)?;
    let mut reads = false;
    for descriptor in registry.descriptors() {
        if !descriptor.hf.classes.iter().any(|c| c == class) {
            continue;
        }
        reads = true;
        let config = Config::new(root, &descriptor.hf, file);
        let rule = descriptor.hf.when.as_ref();
        if rule.map_or(Ok(true), |r| config.truth(r))? {
            return Ok(descriptor);
        }
    }
    let class = class.to_owned();
    match reads {
        true => Err(ArchError::ClassVariant { class }),
        false => Err(ArchError::UnknownClass { class }),
    }
}

impl View for HfView<'_> {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensor(&self, name: &str) -> Option<Found> {
        self.tensors.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, ArchError> {
        if let Some(values) = self.made.get(name) {
            return Ok(values.clone());
        }
        let wrong = |what: String| ArchError::Tensor {
            name: name.to_owned(),
            what,
        };
        let found = self.tensors.get(name);
        let found = found.ok_or_else(|| wrong("is absent".to_owned()))?;
        let rows = found.shape.iter().rev().skip(1).product();
        read_f32(&FileWeights(self.file), &found.recipe, 0, rows).map_err(|e| wrong(e.to_string()))
    }
}
