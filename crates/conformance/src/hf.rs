//! Goldens of Hugging Face checkpoints: what Transformers computed for a tiny one.
//!
//! A golden is `NAME.json` (the configuration, shapes and spreads of tensors) and `NAME.f32` (the rows). The weights
//! follow from the names of the tensors, so that a directory can be written from it anywhere.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tokkata_archs::Registry;
use tokkata_core::DType;
use tokkata_formats::{ModelFile, SafetensorsWriter};
use tokkata_ir::Device;

use crate::fixture::noise;
use crate::golden::{Rows, floats, ids, sample};
use crate::models::{Failure, Feeding, Target, load_for, nmse};

/// Largest error of a checkpoint in F32.
pub const AGREES: f64 = 1e-9;

/// A tiny checkpoint and what Transformers made of it.
#[derive(Clone, Debug)]
pub struct HfGolden {
    /// The file's stem: an architecture string, perhaps with a variant after `+`.
    pub name: String,
    /// The program that made the rows, and its version.
    pub oracle: String,
    /// What was computed.
    pub rows: Rows,
    /// Positions.
    pub positions: usize,
    /// Seed of the ids.
    pub seed: u32,
    /// Every so many columns of a row are kept.
    pub stride: usize,
    /// `config.json`.
    pub config: Json,
    /// Tensors in the order of the file.
    pub tensors: Vec<Spread>,
    /// The rows.
    pub want: Vec<f32>,
}

/// A tensor whose values are `centre + spread · u`, u uniform in −1..1.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Its name.
    pub name: String,
    /// Its sizes, slowest first.
    pub shape: Vec<usize>,
    centre: f32,
    spread: f32,
}

impl Spread {
    /// Its values.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        if self.dtype() == DType::I64 {
            return self.listed();
        }
        let len = self.shape.iter().product();
        (0..len)
            .map(|i| self.centre + self.spread * noise(&self.name, i))
            .collect()
    }

    /// The experts of each token, all of them different; `spread` is how many there are.
    fn listed(&self) -> Vec<f32> {
        let used = self.shape.last().copied().unwrap_or(1).max(1);
        let rows = self.shape.iter().product::<usize>() / used;
        let first = |row| ((noise(&self.name, row) + 1.0) * (self.spread / 2.0)).floor();
        let expert = |i: usize| (first(i / used) + (i % used) as f32) % self.spread;
        (0..rows * used).map(expert).collect()
    }

    /// Tables of experts are whole numbers.
    fn dtype(&self) -> DType {
        match self.name.ends_with("tid2eid") {
            true => DType::I64,
            false => DType::F32,
        }
    }

    /// Its values as a file holds them.
    fn bytes(&self) -> Vec<u8> {
        let values = self.values().into_iter();
        match self.dtype() {
            DType::I64 => values.flat_map(|v| (v as i64).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        }
    }

    fn parse(name: &str, entry: &Json) -> Option<Self> {
        let shape = entry.get(0)?.as_array()?.iter();
        Some(Spread {
            name: name.to_owned(),
            shape: shape
                .map(|d| Some(d.as_u64()? as usize))
                .collect::<Option<_>>()?,
            centre: entry.get(1)?.as_f64()? as f32,
            spread: entry.get(2)?.as_f64()? as f32,
        })
    }
}

impl HfGolden {
    /// The folder of the committed goldens.
    #[must_use]
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens-hf")
    }

    /// Reads a golden.
    ///
    /// # Errors
    /// Files that cannot be read or say something else.
    pub fn read(folder: &Path, name: &str) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json")));
        let text = text.map_err(|e| format!("{name}: {e}"))?;
        let json: Json = serde_json::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
        let rows = std::fs::read(folder.join(format!("{name}.f32")));
        let want = floats(&rows.map_err(|e| format!("{name}: {e}"))?);
        Self::parse(name, &json, want).ok_or_else(|| format!("{name}: found no golden"))
    }

    fn parse(name: &str, json: &Json, want: Vec<f32>) -> Option<Self> {
        let number = |key: &str| json.get(key)?.as_u64();
        let word = json.get("rows")?.as_str()?;
        let tensors = json.get("tensors")?.as_object()?.iter();
        Some(HfGolden {
            name: name.to_owned(),
            oracle: json.get("oracle")?.as_str()?.to_owned(),
            rows: Rows::ALL.iter().find(|r| r.1 == word)?.0,
            positions: number("positions")? as usize,
            seed: number("seed")? as u32,
            stride: number("stride")? as usize,
            config: json.get("config")?.clone(),
            tensors: tensors
                .map(|(n, e)| Spread::parse(n, e))
                .collect::<Option<_>>()?,
            want,
        })
    }

    /// Writes the checkpoint as a directory of `config.json` and one safetensors file.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write_directory(&self, folder: &Path) -> Result<(), Failure> {
        let config = self.config.to_string();
        std::fs::write(folder.join("config.json"), config).map_err(|e| e.to_string())?;
        let write = || {
            let mut writer = SafetensorsWriter::new(folder.join("model.safetensors"), []);
            for tensor in &self.tensors {
                writer.declare(&tensor.name, tensor.dtype(), &tensor.shape)?;
            }
            let mut output = writer.create()?;
            for tensor in &self.tensors {
                output.write(&tensor.bytes())?;
            }
            output.finish()
        };
        let written: tokkata_formats::Result<_> = write();
        written.map(|_| ()).map_err(|e| e.to_string())
    }

    /// The name without its variant: an architecture string, or a model type that one stands for.
    #[must_use]
    pub fn arch(&self) -> &str {
        self.name.split('+').next().unwrap_or(&self.name)
    }

    /// Ids of the vocabulary.
    fn ids_of(&self, seed: u32, len: usize) -> Vec<u32> {
        let text = self.config.get("text_config").unwrap_or(&self.config);
        let vocabulary = text.get("vocab_size").and_then(Json::as_u64);
        ids(seed, len, vocabulary.unwrap_or(1) as u32)
    }

    /// The ids that were fed.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.ids_of(self.seed, self.positions)
    }

    /// The error of a model against these rows.
    ///
    /// # Errors
    /// The text of whatever failed.
    pub fn error(
        &self,
        file: &ModelFile,
        registry: &Registry,
        device: &dyn Device,
    ) -> Result<f64, Failure> {
        let decoder = self.rows == Rows::Decoder;
        let encoder = if decoder { self.ids() } else { Vec::new() };
        let fed = match decoder {
            true => self.ids_of(self.seed.wrapping_add(1), self.positions / 2),
            false => self.ids(),
        };
        let target = Target {
            output: self.rows.output(),
            encoder: &encoder,
            ..Target::new(device, self.positions, Feeding::WHOLE)
        };
        let got = load_for(file, registry, &target)?.logits(&fed, Feeding::WHOLE)?;
        let width = got.len() / fed.len();
        Ok(nmse(&sample(&got, width, self.stride), &self.want))
    }
}
