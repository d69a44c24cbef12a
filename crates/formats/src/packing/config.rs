//! The quantisation that `config.json` speaks of.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{GptqZeros, Scheme};
use crate::error::{Fault, Quoted};

pub(super) type Settings = Map<String, Value>;

/// Settings of no influence on a stored number: how it was found, and how some library computes with it.
const HISTORY: &[&str] = &[
    "activation_scheme",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "do_fuse",
    "dequantize",
    "exllama_config",
    "fuse_max_seq_len",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "pad_token_id",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// The scheme of a model, and of the modules that differ from it.
#[derive(Debug)]
pub(crate) struct Quantisation {
    base: Scheme,
    overrides: HashMap<String, Option<Scheme>>,
}

impl Quantisation {
    /// Reads MLX's `quantization`, or else the `quantization_config` of Hugging Face.
    pub(crate) fn read(config: &Value) -> Result<Option<Self>, Fault> {
        if let Some(settings) = object(config, "quantization")? {
            return mlx(settings).map(Some);
        }
        let Some(settings) = object(config, "quantization_config")? else {
            return Ok(None);
        };
        let base = match text(settings, "quant_method")? {
            Some("gptq") => gptq(settings)?,
            Some("awq") => awq(settings)?,
            Some("fp8") => fp8(settings)?,
            Some("mxfp4") => mxfp4(settings)?,
            Some("bitsandbytes") => super::more::bitsandbytes(settings)?,
            Some("compressed-tensors") => super::more::compressed_tensors(settings)?,
            other => {
                let found =
                    other.map_or("no method".to_owned(), |name| Quoted::new(name).to_string());
                return Err(unknown(
                    "quant_method",
                    &found,
                    "gptq, awq, fp8, mxfp4, bitsandbytes or compressed-tensors",
                ));
            }
        };
        Ok(Some(Self {
            base,
            overrides: HashMap::new(),
        }))
    }

    pub(super) fn base(&self) -> Scheme {
        self.base
    }

    /// The scheme of a module; `None` where the configuration says that it is not packed.
    pub(super) fn of(&self, module: &str) -> Option<Scheme> {
        self.overrides
            .get(module)
            .copied()
            .unwrap_or(Some(self.base))
    }
}

pub(super) fn unknown(key: &str, found: &str, expected: &'static str) -> Fault {
    Fault::Quantisation {
        key: Quoted::new(key),
        found: found.to_owned(),
        expected,
    }
}

/// A value as it may stand in a message.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::String(text) => Quoted::new(text).to_string(),
        Value::Null => "null".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

pub(super) fn object<'a>(config: &'a Value, key: &str) -> Result<Option<&'a Settings>, Fault> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(settings)) => Ok(Some(settings)),
        Some(other) => Err(unknown(key, &shown(other), "an object")),
    }
}

pub(super) fn text<'a>(settings: &'a Settings, key: &str) -> Result<Option<&'a str>, Fault> {
    match settings.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(unknown(key, &shown(other), "text")),
    }
}

/// A number that must be one of a few.
pub(super) fn one_of(
    settings: &Settings,
    key: &str,
    allowed: &[u64],
    expected: &'static str,
) -> Result<Option<u64>, Fault> {
    match settings.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|n| allowed.contains(n)) {
            Some(number) => Ok(Some(number)),
            None => Err(unknown(key, &shown(value), expected)),
        },
    }
}

/// Refuses settings outside `known` and those that only tell history.
pub(super) fn only(settings: &Settings, known: &[&str]) -> Result<(), Fault> {
    let strange =
        |key: &&String| !known.contains(&key.as_str()) && !HISTORY.contains(&key.as_str());
    match settings.iter().find(|(key, _)| strange(key)) {
        None => Ok(()),
        Some((key, value)) => Err(unknown(key, &shown(value), "no such setting")),
    }
}

/// Refuses a switch that is on.
pub(super) fn off(settings: &Settings, key: &str) -> Result<(), Fault> {
    match settings.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(value) => Err(unknown(key, &shown(value), "false")),
    }
}

const MLX_KEYS: &[&str] = &["bits", "group_size", "mode", "quant_method"];

fn mlx(settings: &Settings) -> Result<Quantisation, Fault> {
    let base = mlx_scheme(settings)?;
    let mut overrides = HashMap::new();
    for (key, value) in settings
        .iter()
        .filter(|(key, _)| !MLX_KEYS.contains(&key.as_str()))
    {
        let scheme = match value {
            Value::Bool(false) => None,
            Value::Bool(true) => Some(base),
            Value::Object(own) => {
                only(own, MLX_KEYS)?;
                Some(mlx_scheme(own)?)
            }
            other => return Err(unknown(key, &shown(other), "false, true or an object")),
        };
        overrides.insert(key.clone(), scheme);
    }
    Ok(Quantisation { base, overrides })
}

fn mlx_scheme(settings: &Settings) -> Result<Scheme, Fault> {
    let bits = one_of(settings, "bits", &[2, 3, 4, 5, 6, 8], "2, 3, 4, 5, 6 or 8")?;
    let group = one_of(
        settings,
        "group_size",
        &[16, 32, 64, 128],
        "16, 32, 64 or 128",
    )?;
    let mode = text(settings, "mode")?.unwrap_or("affine");
    let fixed = |scheme, own_group, own_bits| {
        if group.is_some_and(|g| g != own_group) || bits.is_some_and(|b| b != own_bits) {
            let found = format!("{bits:?} bits in groups of {group:?}");
            return Err(unknown(
                "mode",
                &found,
                "the bits and group size of the mode",
            ));
        }
        Ok(scheme)
    };
    match mode {
        "affine" if group == Some(16) => Err(unknown("group_size", "16", "32, 64 or 128")),
        "affine" => Ok(Scheme::Affine {
            bits: bits.unwrap_or(4) as u8,
            group: group.unwrap_or(64) as usize,
        }),
        "mxfp4" => fixed(Scheme::Mxfp4, 32, 4),
        "mxfp8" => fixed(Scheme::Mxfp8, 32, 8),
        "nvfp4" => fixed(Scheme::Nvfp4, 16, 4),
        other => Err(unknown(
            "mode",
            &Quoted::new(other).to_string(),
            "affine, mxfp4, mxfp8 or nvfp4",
        )),
    }
}

/// A group size, of which −1 stands for the whole row.
pub(super) fn group_size(settings: &Settings) -> Result<Option<usize>, Fault> {
    match settings.get("group_size") {
        Some(value) if value.as_i64() == Some(-1) => Ok(None),
        None => Ok(Some(128)),
        Some(value) => match value.as_u64().filter(|n| (1..1 << 20).contains(n)) {
            Some(number) => Ok(Some(number as usize)),
            None => Err(unknown(
                "group_size",
                &shown(value),
                "-1 or a positive number",
            )),
        },
    }
}

fn gptq(settings: &Settings) -> Result<Scheme, Fault> {
    const KNOWN: &[&str] = &[
        "quant_method",
        "bits",
        "group_size",
        "desc_act",
        "sym",
        "checkpoint_format",
        "lm_head",
        "pack_dtype",
        "is_marlin_format",
        "dynamic",
    ];
    only(settings, KNOWN)?;
    off(settings, "is_marlin_format")?;
    off(settings, "dynamic")?;
    if let Some(pack) = text(settings, "pack_dtype")?.filter(|&pack| pack != "int32") {
        return Err(unknown(
            "pack_dtype",
            &Quoted::new(pack).to_string(),
            "int32",
        ));
    }
    let bits = one_of(settings, "bits", &[2, 3, 4, 8], "2, 3, 4 or 8")?.unwrap_or(4) as u8;
    let zeros = match text(settings, "checkpoint_format")? {
        None | Some("gptq") => GptqZeros::LessOne,
        Some("gptq_v2") => GptqZeros::Exact,
        Some(other) => {
            return Err(unknown(
                "checkpoint_format",
                &Quoted::new(other).to_string(),
                "gptq or gptq_v2",
            ));
        }
    };
    Ok(Scheme::Gptq {
        bits,
        group: group_size(settings)?,
        zeros,
    })
}

fn awq(settings: &Settings) -> Result<Scheme, Fault> {
    only(
        settings,
        &[
            "quant_method",
            "bits",
            "group_size",
            "zero_point",
            "version",
            "modules_to_not_convert",
        ],
    )?;
    one_of(settings, "bits", &[4], "4")?;
    if let Some(other) = text(settings, "version")?.filter(|v| !v.eq_ignore_ascii_case("gemm")) {
        return Err(unknown("version", &Quoted::new(other).to_string(), "gemm"));
    }
    match settings.get("zero_point") {
        None | Some(Value::Bool(true)) => {}
        Some(other) => return Err(unknown("zero_point", &shown(other), "true")),
    }
    match group_size(settings)? {
        Some(group) => Ok(Scheme::Awq { group }),
        None => Err(unknown("group_size", "-1", "a positive number")),
    }
}

fn fp8(settings: &Settings) -> Result<Scheme, Fault> {
    only(
        settings,
        &[
            "quant_method",
            "fmt",
            "weight_block_size",
            "scale_fmt",
            "expert_dtype",
            "modules_to_not_convert",
            "ignored_layers",
        ],
    )?;
    for (key, known) in [("scale_fmt", "ue8m0"), ("expert_dtype", "fp4")] {
        if let Some(other) = text(settings, key)?.filter(|&found| found != known) {
            return Err(unknown(key, &Quoted::new(other).to_string(), known));
        }
    }
    if let Some(other) = text(settings, "fmt")?.filter(|&fmt| fmt != "e4m3") {
        return Err(unknown("fmt", &Quoted::new(other).to_string(), "e4m3"));
    }
    let block = match settings.get("weight_block_size") {
        None | Some(Value::Null) => None,
        Some(value) => match block(value) {
            Some(block) => Some(block),
            None => {
                return Err(unknown(
                    "weight_block_size",
                    &shown(value),
                    "two positive numbers",
                ));
            }
        },
    };
    Ok(Scheme::Fp8 { block })
}

pub(super) fn block(value: &Value) -> Option<[usize; 2]> {
    let [rows, cols] = value.as_array()?.as_slice() else {
        return None;
    };
    let side = |n: &Value| {
        n.as_u64()
            .filter(|n| (1..1 << 20).contains(n))
            .map(|n| n as usize)
    };
    Some([side(rows)?, side(cols)?])
}

fn mxfp4(settings: &Settings) -> Result<Scheme, Fault> {
    only(settings, &["quant_method", "modules_to_not_convert"])?;
    Ok(Scheme::Mxfp4Experts)
}
