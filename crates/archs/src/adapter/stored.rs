//! The containers of adapters.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokkata_formats::{ModelFile, TensorInfo};
use tokkata_ir::WeightSource;

use super::pairs::across;
use super::{AdapterError, Stored};
use crate::source::FileWeights;

type Pairs = BTreeMap<String, Stored>;
/// Shape, slowest first, and elements.
type Array = (Vec<usize>, Vec<f32>);

impl Stored {
    /// Whether the pair fits the tensor of the model's file.
    pub(super) fn check(&self, tensor: &str, base: &dyn WeightSource) -> Result<(), AdapterError> {
        let Some((_, shape)) = base.tensor(tensor) else {
            let what = format!("is for {tensor}, which the model does not have");
            return Err(wrong(&self.name, &what));
        };
        let (matrices, dims) = shape.split_at(shape.len().saturating_sub(2));
        let [n, k] = *dims else {
            return Err(wrong(&self.name, "is for a tensor that is no matrix"));
        };
        let rank = self.a.0.len().checked_sub(2).map_or(0, |i| self.a.0[i]);
        let of = |dims: [usize; 2]| [matrices, &dims].concat();
        let (a, b) = (of([rank, k]), of([n, rank]));
        if rank == 0 || self.a.0 != a || self.b.0 != b {
            let (found_a, found_b) = (&self.a.0, &self.b.0);
            let what = format!(
                "has parts of {found_a:?} and {found_b:?}, expected {a:?} and {b:?} for {tensor} of {shape:?}"
            );
            return Err(wrong(&self.name, &what));
        }
        Ok(())
    }
}

fn wrong(name: &str, what: &str) -> AdapterError {
    AdapterError::Tensor {
        name: name.to_owned(),
        what: what.to_owned(),
    }
}

fn setting(key: &str, found: &(impl ToString + ?Sized), expected: &str) -> AdapterError {
    AdapterError::Setting {
        key: key.to_owned(),
        found: found.to_string(),
        expected: expected.to_owned(),
    }
}

fn read(file: &ModelFile, tensor: &TensorInfo) -> Result<Array, AdapterError> {
    let source = FileWeights(file);
    let mut raw = vec![0; tensor.rows() * tensor.row_bytes()];
    source.read(&tensor.name, 0, &mut raw)?;
    let mut floats = vec![0.0; tensor.elements()];
    source.decode(tensor.dtype, &raw, &mut floats)?;
    Ok((tensor.shape.clone(), floats))
}

/// Both parts of every pair, by the name that they share.
fn bundle(
    parts: impl IntoIterator<Item = (String, bool, Array)>,
) -> Result<BTreeMap<String, [Array; 2]>, AdapterError> {
    let mut halves: BTreeMap<String, [Option<Array>; 2]> = BTreeMap::new();
    for (name, is_b, array) in parts {
        halves.entry(name).or_default()[usize::from(is_b)] = Some(array);
    }
    let whole = |(name, halves): (String, [Option<Array>; 2])| match halves {
        [Some(a), Some(b)] => Ok((name, [a, b])),
        [Some(_), None] => Err(wrong(&name, "has its first part alone, expected both")),
        _ => Err(wrong(&name, "has its second part alone, expected both")),
    };
    halves.into_iter().map(whole).collect()
}

fn scaled((shape, mut x): Array, scale: f32) -> Array {
    x.iter_mut().for_each(|x| *x *= scale);
    (shape, x)
}

fn turned((shape, x): Array) -> Array {
    let [n, k] = shape[..] else {
        return (shape, x);
    };
    (vec![k, n], across(&x, k))
}

/// An adapter as llama.cpp writes it.
pub(super) fn gguf(path: &Path, arch: &str) -> Result<Pairs, AdapterError> {
    let file = ModelFile::open(path)?;
    let metadata = file.metadata();
    for (key, expected) in [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", arch),
    ] {
        match metadata.str(key) {
            Some(found) if found == expected => {}
            found => return Err(setting(key, found.unwrap_or("nothing"), expected)),
        }
    }
    let activated = "adapter.alora.invocation_tokens";
    if metadata.get(activated).is_some() {
        return Err(setting(
            activated,
            "a list",
            "nothing: adapters are on for a whole sequence",
        ));
    }
    let alpha = metadata.number("adapter.lora.alpha").unwrap_or(0.0) as f32;
    let mut parts = Vec::new();
    for tensor in file.tensors() {
        let ends = |ending: &str| tensor.name.strip_suffix(ending).map(str::to_owned);
        let (base, is_b) = match (ends(".lora_a"), ends(".lora_b")) {
            (Some(base), _) => (base, false),
            (_, Some(base)) => (base, true),
            _ => {
                return Err(wrong(
                    &tensor.name,
                    "is neither NAME.lora_a nor NAME.lora_b",
                ));
            }
        };
        parts.push((base, is_b, read(&file, tensor)?));
    }
    let pair = |(base, [a, b]): (String, [Array; 2])| {
        // Without alpha the scale is the user's alone.
        let rank = b.0.last().copied().unwrap_or(1).max(1) as f32;
        let scale = if alpha == 0.0 { 1.0 } else { alpha / rank };
        // A table is kept by columns.
        let (a, b) = match base.ends_with("token_embd.weight") {
            true => (turned(b), a),
            false => (a, b),
        };
        let stored = Stored {
            name: format!("{base}.lora_a"),
            a,
            b: scaled(b, scale),
        };
        (base, stored)
    };
    Ok(bundle(parts)?.into_iter().map(pair).collect())
}

/// An adapter as PEFT writes it.
pub(super) fn peft(path: &Path) -> Result<Pairs, AdapterError> {
    let folder = match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(Path::new(".")),
    };
    let config = Config::read(&folder.join("adapter_config.json"))?;
    let file = match path.is_dir() {
        true => ModelFile::open(path.join("adapter_model.safetensors"))?,
        false => ModelFile::open(path)?,
    };
    if let Some(other) = file.other_tensors().first() {
        return Err(wrong(&other.name, "is of a type that is not read"));
    }
    let (mut parts, mut tables) = (Vec::new(), Vec::new());
    for tensor in file.tensors() {
        let unknown = || wrong(&tensor.name, "is neither MODULE.lora_A nor MODULE.lora_B");
        let name = tensor.name.strip_prefix("base_model.model.");
        let name = name.ok_or_else(unknown)?;
        let ends = |ending: &str| name.strip_suffix(ending).map(str::to_owned);
        let found = [
            (".lora_A.weight", false, false),
            (".lora_B.weight", true, false),
            (".lora_embedding_A", false, true),
            (".lora_embedding_B", true, true),
        ]
        .into_iter()
        .find_map(|(ending, is_b, table)| Some((ends(ending)?, is_b, table)));
        let (module, is_b, table) = found.ok_or_else(unknown)?;
        if table {
            tables.push(module.clone());
        }
        parts.push((module, is_b, read(&file, tensor)?));
    }
    let mut pairs = Pairs::new();
    for (module, [a, b]) in bundle(parts)? {
        let rank = b.0.last().copied().unwrap_or(1).max(1) as f32;
        let scale = config.scale(&module, rank);
        // A table, and a weight that is kept by inputs, are those of the transposed map.
        let (a, b) = match tables.contains(&module) || config.by_inputs {
            true => (turned(b), turned(a)),
            false => (a, b),
        };
        let stored = Stored {
            name: format!("base_model.model.{module}"),
            a,
            b: scaled(b, scale),
        };
        pairs.insert(format!("{module}.weight"), stored);
    }
    Ok(pairs)
}

/// What `adapter_config.json` says.
struct Config {
    alpha: f32,
    /// Divided by the root of the rank.
    by_root: bool,
    /// Weights are stored `[inputs, outputs]`.
    by_inputs: bool,
    /// By the end of a module's name.
    alphas: BTreeMap<String, f32>,
}

impl Config {
    fn read(path: &Path) -> Result<Self, AdapterError> {
        let unreadable = |what: String| AdapterError::Config {
            file: path.display().to_string(),
            what,
        };
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        let root: Value = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
        let kind = root
            .get("peft_type")
            .and_then(Value::as_str)
            .unwrap_or("nothing");
        if kind != "LORA" {
            return Err(setting("peft_type", kind, "LORA"));
        }
        let bias = root.get("bias").and_then(Value::as_str).unwrap_or("none");
        if bias != "none" {
            return Err(setting(
                "bias",
                bias,
                "none: biases are not an adapter's to change",
            ));
        }
        for key in [
            "use_dora",
            "lora_bias",
            "modules_to_save",
            "layer_replication",
            "alora_invocation_tokens",
            "trainable_token_indices",
            "target_parameters",
        ] {
            let value = root.get(key).unwrap_or(&Value::Null);
            let empty = value.as_array().is_some_and(Vec::is_empty);
            if !(value.is_null() || value == &Value::Bool(false) || empty) {
                return Err(setting(
                    key,
                    value,
                    "nothing: only pairs of low rank are known",
                ));
            }
        }
        let alpha = root.get("lora_alpha").and_then(Value::as_f64);
        let alpha = alpha.ok_or_else(|| setting("lora_alpha", "nothing", "a number"))?;
        let is = |key: &str| root.get(key).and_then(Value::as_bool) == Some(true);
        let mut alphas = BTreeMap::new();
        for (module, value) in root
            .get("alpha_pattern")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let plain = module
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
            let value = value.as_f64().filter(|_| plain);
            let value =
                value.ok_or_else(|| setting("alpha_pattern", module, "names of modules"))?;
            alphas.insert(module.clone(), value as f32);
        }
        Ok(Config {
            alpha: alpha as f32,
            by_root: is("use_rslora"),
            by_inputs: is("fan_in_fan_out"),
            alphas,
        })
    }

    fn scale(&self, module: &str, rank: f32) -> f32 {
        let ends = |name: &str| module == name || module.ends_with(&format!(".{name}"));
        let own = self.alphas.iter().find(|(name, _)| ends(name));
        let alpha = own.map_or(self.alpha, |(_, &alpha)| alpha);
        alpha / if self.by_root { rank.sqrt() } else { rank }
    }
}
