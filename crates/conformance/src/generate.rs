//! Weights of tiny models from nothing but names: an engine that skips a part of a model shall differ visibly.
//!
//! Norms lie near 1, linear weights have variance 1/fan-in, biases are small and decays stay in the range that
//! trained models have; every value follows from the tensor's name and its index.

use tokkata_archs::beside::PREFIX;
use tokkata_core::{Array, DType, Metadata, Value};
use tokkata_formats::{GgufWriter, ModelFile};
use tokkata_quant::QuantError;

use crate::fixture::{encoded, noise};
use crate::golden::Golden;
use crate::models::Failure;

/// How the values of a tensor are spread: `centre + spread · u`, u uniform in −1..1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    centre: f32,
    spread: f32,
}

/// Beginnings, middles or ends of names and the spread of what they name; the first that fits counts.
const SPREADS: &[(&str, f32, f32)] = &[
    (".scale", 1.0, 0.0),
    ("input_scale", 1.0, 0.0),
    ("layer_output_scale", 1.0, 0.3),
    ("rope_f", 2.5, 1.5),
    ("ssm_a", -1.1, 0.9),
    ("ssm_d", 1.0, 0.5),
    ("time_mix_decay.weight", -3.0, 2.0),
    ("time_mix_w0", -3.0, 2.0),
    ("time_mix_lerp", 0.5, 0.5),
    ("channel_mix_lerp", 0.5, 0.5),
    ("attn_sinks", 0.0, 1.0),
    ("attn_rel_b", 0.0, 1.0),
    ("token_embd_norm.bias", 0.0, 0.2),
    ("token_embd", 0.0, 1.0),
    ("position_embd", 0.0, 0.5),
    ("token_types", 0.0, 0.5),
    ("norm.weight", 1.0, 0.3),
    ("norm_1.weight", 1.0, 0.3),
    ("norm_2.weight", 1.0, 0.3),
    (".bias", 0.0, 0.2),
];

/// Experts of a token in a table of them: as many different ones below eight as a row has.
fn listed(name: &str, shape: &[usize]) -> Vec<f32> {
    let k = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().product::<usize>() / k.max(1);
    let first = |row| ((noise(name, row) + 1.0) * 4.0) as usize;
    let expert = |row, j| ((first(row) + 3 * j) % 8) as f32;
    (0..rows)
        .flat_map(|row| (0..k).map(move |j| (row, j)))
        .map(|(row, j)| expert(row, j))
        .collect()
}

/// Tokens that a drafter of fewer knows: every second one and then some.
fn known(shape: &[usize]) -> Vec<f32> {
    (0..shape[0]).map(|i| (i + i / 2) as f32).collect()
}

/// Tables of numbers are integers in files.
fn dtype(name: &str) -> DType {
    match name {
        _ if name.contains("tid2eid") => DType::I32,
        _ if name.ends_with("d2t") => DType::I64,
        _ => DType::F32,
    }
}

fn spread(name: &str, shape: &[usize]) -> Spread {
    let named = SPREADS.iter().find(|s| name.contains(s.0));
    if let Some(&(_, centre, spread)) = named {
        return Spread { centre, spread };
    }
    let fan_in = shape.last().copied().unwrap_or(1);
    Spread {
        centre: 0.0,
        spread: (3.0 / fan_in as f32).sqrt(),
    }
}

/// The values of a tensor.
#[must_use]
pub fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    match dtype(name) {
        DType::I32 => return listed(name, shape),
        DType::I64 => return known(shape),
        _ => {}
    }
    let Spread { centre, spread } = spread(name, shape);
    let len = shape.iter().product();
    (0..len).map(|i| centre + spread * noise(name, i)).collect()
}

/// The model of a golden as a GGUF file.
///
/// # Errors
/// Names and shapes that the format does not take.
pub fn gguf(golden: &Golden) -> Result<Vec<u8>, Failure> {
    changed(golden, |_, _| {})
}

/// The model of a golden as a GGUF file, every tensor's values changed by its name.
///
/// # Errors
/// As [`gguf`].
pub fn changed(golden: &Golden, change: impl Fn(&str, &mut [f32])) -> Result<Vec<u8>, Failure> {
    whole(golden, DType::F32, change)
}

/// The model of a golden, opened, its matrices of whole blocks in this format.
///
/// # Errors
/// As [`model`].
pub fn kept_as(golden: &Golden, matrices: DType) -> Result<ModelFile, Failure> {
    ModelFile::from_bytes(whole(golden, matrices, |_, _| {})?).map_err(|e| e.to_string())
}

/// All tensors in one file.
fn whole(
    golden: &Golden,
    matrices: DType,
    change: impl Fn(&str, &mut [f32]),
) -> Result<Vec<u8>, Failure> {
    let all: Vec<Named<'_>> = golden.tensors.iter().map(|t| (&*t.0, t)).collect();
    written(
        &golden.name,
        with_vocabulary(golden),
        &all,
        matrices,
        change,
    )
}

/// The model of a golden and the drafter beside it as two files, the second under names of its own.
///
/// # Errors
/// As [`gguf`].
pub fn apart(golden: &Golden) -> Result<(Vec<u8>, Option<Vec<u8>>), Failure> {
    if golden.guest().is_none() {
        return Ok((gguf(golden)?, None));
    }
    let (mut trunk, mut guest) = (Metadata::default(), Metadata::default());
    for (key, value) in with_vocabulary(golden).iter() {
        match key.strip_prefix(PREFIX) {
            Some(key) => guest.insert(key, value.clone()),
            None => trunk.insert(key, value.clone()),
        };
        if key.starts_with("tokenizer.") {
            guest.insert(key, value.clone());
        }
    }
    let own = |t| -> Option<Named<'_>> {
        let (name, _): &(String, Vec<usize>) = t;
        Some((name.strip_prefix(PREFIX)?, t))
    };
    let beside: Vec<Named<'_>> = golden.tensors.iter().filter_map(own).collect();
    let alone = golden.tensors.iter().filter(|t| own(t).is_none());
    let alone: Vec<Named<'_>> = alone.map(|t| (&*t.0, t)).collect();
    let model = written(&golden.name, trunk, &alone, DType::F32, |_, _| {})?;
    let drafter = written(&golden.name, guest, &beside, DType::F32, |_, _| {})?;
    Ok((model, Some(drafter)))
}

/// A tensor of a golden with its name in a file.
type Named<'a> = (&'a str, &'a (String, Vec<usize>));

fn written(
    name: &str,
    metadata: Metadata,
    tensors: &[Named<'_>],
    matrices: DType,
    change: impl Fn(&str, &mut [f32]),
) -> Result<Vec<u8>, Failure> {
    let mut writer =
        GgufWriter::new(format!("{name}.gguf"), metadata).map_err(|e| e.to_string())?;
    let mut data = Vec::new();
    for (stored, (name, shape)) in tensors {
        let dtype = match dtype(name) {
            DType::F32 if is_matrix(name, shape, matrices) => matrices,
            own => own,
        };
        writer
            .declare(stored, dtype, shape)
            .map_err(|e| e.to_string())?;
        let mut values = values(name, shape);
        change(name, &mut values);
        data.push(data_of(&values, dtype, shape).map_err(|e| e.to_string())?);
    }
    writer
        .to_bytes(data.iter().map(Vec::as_slice))
        .map_err(|e| e.to_string())
}

/// Whether a tensor is a matrix of whole blocks.
fn is_matrix(name: &str, shape: &[usize], dtype: DType) -> bool {
    let &[_, columns] = shape else { return false };
    // Shorter rows are no products'.
    name.ends_with(".weight") && columns >= 32 && columns.is_multiple_of(dtype.block_elems())
}

fn data_of(values: &[f32], dtype: DType, shape: &[usize]) -> Result<Vec<u8>, QuantError> {
    match dtype {
        DType::I32 => Ok(bytes_of(values, |v| (v as i32).to_le_bytes())),
        DType::I64 => Ok(bytes_of(values, |v| (v as i64).to_le_bytes())),
        _ => encoded(dtype, values, shape.last().copied().unwrap_or(1)),
    }
}

fn bytes_of<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| bytes(v)).collect()
}

/// The model of a golden, opened.
///
/// # Errors
/// Whatever keeps the file from being written or read.
pub fn model(golden: &Golden) -> Result<ModelFile, Failure> {
    kept_as(golden, DType::F32)
}

/// Metadata with a tokenizer that only counts, which the oracle needs to know how many ids there are.
fn with_vocabulary(golden: &Golden) -> Metadata {
    let mut metadata = golden.metadata.clone();
    if metadata.get("tokenizer.ggml.model").is_some() {
        return metadata;
    }
    let len = golden.vocabulary();
    let tokens = (0..len).map(|i| format!("t{i}").into()).collect();
    metadata.insert("tokenizer.ggml.model", Value::from("test"));
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens)));
    let scores = Value::Array(Array::F32(vec![0.0; len]));
    metadata.insert("tokenizer.ggml.scores", scores);
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(name: &str, shape: &[usize]) -> (f64, f64) {
        let values = values(name, shape);
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
        (mean, square - mean * mean)
    }

    #[test]
    fn weights_are_healthy() {
        let (mean, variance) = moments("blk.0.attn_q.weight", &[96, 64]);
        assert!(mean.abs() < 0.01 && (variance * 64.0 - 1.0).abs() < 0.05);
        assert!((moments("blk.0.attn_norm.weight", &[256]).0 - 1.0).abs() < 0.05);
        assert!(values("blk.1.ssm_a", &[16, 64]).iter().all(|&a| a < -0.1));
        let factors = values("rope_freqs.weight", &[64]);
        assert!(factors.iter().all(|f| (1.0..=4.0).contains(f)));
    }

    #[test]
    fn weights_depend_on_name_and_index_alone() {
        let (one, two) = (values("a.weight", &[8, 8]), values("a.weight", &[16, 8]));
        assert_eq!(one, two[..64]);
        assert_ne!(one, values("b.weight", &[8, 8]));
    }
}
