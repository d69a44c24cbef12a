//! Adapters of whole models against the same models with weights that have what the adapters add.

use std::path::Path;

use tokkata_archs::{AdapterFile, FileWeights, Registry};
use tokkata_core::{DType, Metadata, Value};
use tokkata_formats::{GgufWriter, ModelFile};
use tokkata_ir::adapter::form_of;
use tokkata_ir::{Device, Program, Recipe, WeightId};

use crate::fixture::noise;
use crate::generate;
use crate::golden::{AGREES, Golden, Rows, sample};
use crate::models::{Failure, Feeding, Loaded, Target, load_for, nmse};

/// What llama.cpp divides by the rank.
const ALPHA: f32 = 6.0;

/// Tensors to which llama.cpp adds nothing, whatever an adapter has for them: its graphs multiply by them directly.
const UNHEARD: [(&str, &str); 2] = [
    (
        "deepseek2",
        "attn_q_a attn_q_b attn_kv_a_mqa attn_k_b attn_v_b output",
    ),
    (
        "rwkv7",
        "time_mix_w1 time_mix_w2 time_mix_v1 time_mix_v2 time_mix_a1 time_mix_a2 time_mix_g1 time_mix_g2",
    ),
];

/// An adapter that follows from names: a pair for each of these tensors of a golden's file.
pub struct Tuned<'a> {
    /// Whose.
    pub golden: &'a Golden,
    /// Part of every name, so that adapters differ.
    pub name: &'a str,
    /// Rank of every pair.
    pub rank: usize,
    /// Tensors, slowest dimension first.
    pub tensors: Vec<(String, Vec<usize>)>,
}

/// Parts of a pair: shape and elements.
type Part = (Vec<usize>, Vec<f32>);

impl Tuned<'_> {
    /// The parts `a` and `b` of a tensor's pair, as the file has them.
    fn parts(&self, tensor: &str, shape: &[usize]) -> [Part; 2] {
        let (matrices, dims) = shape.split_at(shape.len() - 2);
        let (n, k, r) = (dims[0], dims[1], self.rank);
        let table = tensor.ends_with("token_embd.weight");
        let part = |letter: &str, dims: [usize; 2], fan_in: usize| -> Part {
            let name = format!("{}.{tensor}.{letter}", self.name);
            let shape = [matrices, &dims].concat();
            let spread = (3.0 / fan_in as f32).sqrt();
            let len = shape.iter().product();
            (shape, (0..len).map(|i| spread * noise(&name, i)).collect())
        };
        match table {
            true => [part("a", [n, r], r), part("b", [k, r], k)],
            false => [part("a", [r, k], k), part("b", [n, r], r)],
        }
    }

    /// The adapter as a GGUF file.
    ///
    /// # Errors
    /// Names that the format does not take.
    pub fn gguf(&self) -> Result<Vec<u8>, Failure> {
        let mut metadata = Metadata::default();
        metadata.insert("general.type", Value::from("adapter"));
        metadata.insert("general.architecture", Value::from(self.golden.arch()));
        metadata.insert("adapter.type", Value::from("lora"));
        metadata.insert("adapter.lora.alpha", Value::F32(ALPHA));
        let text = |e: tokkata_formats::FormatError| e.to_string();
        let mut writer = GgufWriter::new("adapter.gguf", metadata).map_err(text)?;
        let mut data = Vec::new();
        for (tensor, shape) in &self.tensors {
            for (ending, (shape, x)) in ["lora_a", "lora_b"]
                .into_iter()
                .zip(self.parts(tensor, shape))
            {
                let name = format!("{tensor}.{ending}");
                writer.declare(&name, DType::F32, &shape).map_err(text)?;
                data.push(x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
        writer
            .to_bytes(data.iter().map(Vec::as_slice))
            .map_err(text)
    }

    /// Adds to a tensor, times a scale, what the adapter does.
    fn merge(&self, tensor: &str, scale: f64, values: &mut [f32]) {
        let Some((_, shape)) = self.tensors.iter().find(|(name, _)| name == tensor) else {
            return;
        };
        let (n, k, r) = (shape[shape.len() - 2], shape[shape.len() - 1], self.rank);
        let [(_, a), (_, b)] = self.parts(tensor, shape);
        let scale = scale * f64::from(ALPHA) / r as f64;
        let table = tensor.ends_with("token_embd.weight");
        for (i, value) in values.iter_mut().enumerate() {
            let (e, row, col) = (i / (n * k), i / k % n, i % k);
            let term = |j: usize| match table {
                true => f64::from(a[row * r + j]) * f64::from(b[col * r + j]),
                false => f64::from(a[(e * r + j) * k + col]) * f64::from(b[(e * n + row) * r + j]),
            };
            let sum: f64 = (0..r).map(term).sum();
            *value = (f64::from(*value) + scale * sum) as f32;
        }
    }
}

/// Tensors of a file that a recipe reads.
fn sources<'a>(recipe: &'a Recipe, out: &mut Vec<&'a str>) {
    match recipe {
        Recipe::Source(name) => out.push(name),
        Recipe::Rows { of, .. }
        | Recipe::Permute { of, .. }
        | Recipe::Map { of, .. }
        | Recipe::Reshape { of, .. }
        | Recipe::Transpose { of, .. } => sources(of, out),
        Recipe::Concat(parts) => parts.iter().for_each(|part| sources(part, out)),
        Recipe::Zeros { .. } => {}
    }
}

/// Tensors of a golden that a program multiplies by or looks rows up in.
fn adaptable(golden: &Golden, program: &Program) -> Vec<(String, Vec<usize>)> {
    let mut names = Vec::new();
    for (i, def) in program.weights.iter().enumerate() {
        if form_of(program, WeightId(i as u32)).is_some() {
            sources(&def.recipe, &mut names);
        }
    }
    let tied = !golden.tensors.iter().any(|t| t.0 == "output.weight");
    let fits = |(name, shape): &&(String, Vec<usize>)| {
        let table = name == "token_embd.weight" && tied;
        shape.len() > 1 && !table && names.contains(&name.as_str())
    };
    golden.tensors.iter().filter(fits).cloned().collect()
}

fn target<'a>(device: &'a dyn Device, golden: &Golden, adapters: u32) -> Target<'a> {
    let feeding = Feeding {
        chunk: usize::MAX,
        sequences: if adapters > 0 { 3 } else { 1 },
        block_size: 16,
        ..Feeding::WHOLE
    };
    Target {
        output: (golden.rows == Rows::Vectors).then_some("hidden"),
        adapters,
        ..Target::new(device, golden.positions, feeding)
    }
}

/// The first and the second adapter of a golden: of what llama.cpp takes, and of everything.
#[must_use]
pub fn both(golden: &Golden, tensors: Vec<(String, Vec<usize>)>) -> [Tuned<'_>; 2] {
    let unheard = UNHEARD.iter().find(|(arch, _)| *arch == golden.arch());
    let heard = |name: &str| {
        let name = name.trim_end_matches(".weight");
        let part = name.rsplit('.').next().unwrap_or(name);
        !unheard.is_some_and(|(_, names)| names.split(' ').any(|n| n == part))
    };
    let some = tensors.iter().filter(|(name, _)| heard(name)).skip(1);
    let some = some.cloned().collect();
    [("one", 4, some), ("two", 7, tensors)].map(|(name, rank, tensors)| Tuned {
        golden,
        name,
        rank,
        tensors,
    })
}

/// The first adapter of a golden, of which its oracle may have been asked too.
///
/// # Errors
/// A golden that does not load.
pub fn first<'a>(
    golden: &'a Golden,
    registry: &Registry,
    device: &dyn Device,
) -> Result<Tuned<'a>, Failure> {
    let file = generate::model(golden)?;
    let loaded = load_for(&file, registry, &target(device, golden, 2))?;
    let [first, _] = both(golden, adaptable(golden, loaded.program()));
    Ok(first)
}

fn attach(
    tuned: &Tuned<'_>,
    scale: f32,
    file: &ModelFile,
    (loaded, folder): (&mut Loaded, &Path),
) -> Result<u32, Failure> {
    let path = folder.join(format!("{}.gguf", tuned.name));
    std::fs::write(&path, tuned.gguf()?).map_err(|e| e.to_string())?;
    let adapter = AdapterFile::open(&path, tuned.golden.arch()).map_err(|e| e.to_string())?;
    let program = loaded.program().clone();
    let merged = AdapterFile::merge(&[(adapter, scale)], &program, &FileWeights(file));
    loaded.attach(merged.map_err(|e| e.to_string())?)
}

/// What is wrong with a golden's adapters on a device, if something is.
///
/// # Errors
/// The text of whatever failed.
pub fn fault(
    golden: &Golden,
    registry: &Registry,
    device: &dyn Device,
    folder: &Path,
) -> Result<Option<String>, Failure> {
    let (file, ids) = (generate::model(golden)?, golden.ids());
    let mut loaded = load_for(&file, registry, &target(device, golden, 2))?;
    let tensors = adaptable(golden, loaded.program());
    let scales = [1.0, 0.5];
    let tuned = both(golden, tensors);
    for (tuned, scale) in tuned.iter().zip(scales) {
        attach(tuned, scale, &file, (&mut loaded, folder))?;
    }
    let rows = loaded.adapted(&ids, &[1, 0, 2])?;
    let bare = load_for(&file, registry, &target(device, golden, 0))?.adapted(&ids, &[0])?;
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    if bits(&rows[1]) != bits(&bare[0]) {
        return Ok(Some(
            "rows without an adapter differ from those of a model without".to_owned(),
        ));
    }
    for ((tuned, scale), got) in tuned.iter().zip(scales).zip([&rows[0], &rows[2]]) {
        let change = |name: &str, x: &mut [f32]| tuned.merge(name, f64::from(scale), x);
        let merged = ModelFile::from_bytes(generate::changed(golden, change)?);
        let merged = merged.map_err(|e| e.to_string())?;
        let want = load_for(&merged, registry, &target(device, golden, 0))?.adapted(&ids, &[0])?;
        let (error, moved) = (nmse(got, &want[0]), nmse(got, &bare[0]));
        if error.is_nan() || error > AGREES || moved < 1e-3 {
            return Ok(Some(format!(
                "adapter {}: {error:e} off, moved {moved:e}",
                tuned.name
            )));
        }
    }
    if !golden.adapted.is_empty() {
        let width = rows[0].len() / golden.positions;
        let error = nmse(&sample(&rows[0], width, golden.stride), &golden.adapted);
        if error.is_nan() || error > AGREES {
            return Ok(Some(format!("the oracle's adapter: {error:e} off")));
        }
    }
    loaded.detach(1);
    match loaded.adapted(&ids, &[1]) {
        Err(text) if text.contains("number 1 is not attached") => Ok(None),
        other => Ok(Some(format!(
            "an adapter that was let go: {:?}",
            other.is_ok()
        ))),
    }
}

/// Two adapters of every tensor that has a product of each of these goldens, beside rows of none, against the same
/// products with other weights.
///
/// # Panics
/// When one disagrees, or fewer than `least` load.
pub fn verify(device: &dyn Device, names: &[&str], folder: &Path, least: usize) {
    let registry = Registry::builtin();
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for name in names {
        let golden = Golden::read(&Golden::folder(), name).expect("golden");
        match fault(&golden, &registry, device, folder) {
            Ok(None) => ran += 1,
            Ok(Some(fault)) => wrong.push(format!("{name}: {fault}")),
            Err(error) if error.contains("cannot run") => println!("{name}: {error}"),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}: {}", device.name(), wrong.join("\n"));
    assert!(ran >= least, "{ran} goldens ran");
}
