//! Settings of `config.json` as metadata under GGUF's keys.

use tokkata_core::{Array, Metadata, Value};

use super::config::Config;
use super::rules::{Formula, HfRule, ListRule, shared};
use crate::error::ArchError;
use crate::expr::Val;

/// Ends of keys whose values are fractions.
const FRACTIONS: &[&str] = &[
    "epsilon",
    "freq_base",
    "freq_base_swa",
    "factor",
    "_scale",
    ".scale",
    "softcapping",
    "clamp_kqv",
    "max_alibi_bias",
    "beta_fast",
    "beta_slow",
    "log_multiplier",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "alpha_n",
    "alpha_p",
    "xielu.beta",
    "xielu.eps",
    "altup.scale",
    "activation_sparsity_scale",
    "scaling.alpha",
    "gate_lower_bound",
    "near_ties",
    "magnitude",
];

/// Ends of keys whose values are true or false.
const FLAGS: &[&str] = &[
    "causal",
    "use_parallel_residual",
    "expert_weights_norm",
    "dt_b_c_rms",
    "scaling.finetuned",
    "scaling.truncate",
    "sliding_window_pattern",
    "swin_norm",
    "shift_logits",
    "recurrent_layers",
    "rope_pattern",
    "safe_gate",
    "prefix_lm",
    "kpool_select_tail",
];

/// The whole metadata of a configuration.
pub(crate) fn metadata(
    config: &Config<'_>,
    rule: &HfRule,
    arch: &str,
    tensors: u64,
) -> Result<Metadata, ArchError> {
    let mut out = Metadata::default();
    out.insert("general.architecture", Value::from(arch));
    let name = |key: &str| match key.strip_prefix('$') {
        Some(whole) => whole.to_owned(),
        None => format!("{arch}.{key}"),
    };
    for (key, formula) in HfRule::merged(&rule.keys, &shared().keys) {
        if let Some(found) = value(config, formula)? {
            out.insert(name(key), typed(key, &found)?);
        }
    }
    for key in ["block_count", "decoder_block_count", "expert_count"] {
        let found = out.uint(&format!("{arch}.{key}")).unwrap_or(0);
        // Each layer and each expert has a tensor at least.
        if found > tensors {
            return Err(ArchError::ConfigValue {
                key: key.to_owned(),
                value: found.to_string(),
                expected: format!("no more than the {tensors} tensors of the file"),
            });
        }
    }
    let layers = out.uint(&format!("{arch}.block_count")).unwrap_or(0);
    for (key, formula) in HfRule::merged(&rule.layer_keys, &shared().layer_keys) {
        let mut values = Vec::new();
        for layer in 0..layers {
            config.set_layer(u32::try_from(layer).ok());
            values.extend(value(config, formula)?);
        }
        config.set_layer(None);
        if layers > 0 && values.len() as u64 == layers {
            out.insert(name(key), array(key, &values)?);
        }
    }
    for (key, list) in &rule.lists {
        out.insert(name(key), listed(config, key, list)?);
    }
    Ok(match window_idles(&out, arch) {
        true => without_window(&out, arch),
        false => out,
    })
}

fn listed(config: &Config<'_>, key: &str, rule: &ListRule) -> Result<Value, ArchError> {
    let mut numbers = rule.usual.clone();
    if let Some(found) = rule.from.iter().find_map(|path| config.find(path)) {
        let read = |v: &serde_json::Value| v.as_u64().and_then(|n| i32::try_from(n).ok());
        let list = found.as_array().filter(|l| l.len() <= rule.len);
        let read = list.and_then(|l| l.iter().map(|v| Some(read(v)? as u32)).collect());
        numbers = read.ok_or_else(|| ArchError::ConfigValue {
            key: key.to_owned(),
            value: found.to_string(),
            expected: format!("a list of at most {} whole numbers", rule.len),
        })?;
    }
    numbers.resize(rule.len, 0);
    let numbers = numbers.into_iter().map(|n| n as i32);
    Ok(Value::Array(Array::I32(numbers.collect())))
}

fn window_idles(metadata: &Metadata, arch: &str) -> bool {
    let pattern = metadata.array(&format!("{arch}.attention.sliding_window_pattern"));
    matches!(pattern, Some(Array::Bool(slides)) if !slides.contains(&true))
}

/// A window that no layer has: readers of GGUF expect a layer that slides where a window is named.
fn without_window(metadata: &Metadata, arch: &str) -> Metadata {
    let mut out = Metadata::default();
    let window = format!("{arch}.attention.sliding_window");
    let kept = metadata.iter().filter(|(key, _)| !key.starts_with(&window));
    for (key, value) in kept {
        out.insert(key, value.clone());
    }
    out
}

fn value(config: &Config<'_>, formula: &Formula) -> Result<Option<Val>, ArchError> {
    formula.0.as_ref().map_or(Ok(None), |e| config.eval(e))
}

fn ends(list: &[&str], key: &str) -> bool {
    list.iter().any(|end| key.ends_with(end))
}

fn typed(key: &str, value: &Val) -> Result<Value, ArchError> {
    Ok(match value {
        Val::Text(text) => Value::from(text.as_str()),
        Val::Num(x) if ends(FRACTIONS, key) => Value::F32(*x as f32),
        Val::Num(x) if ends(FLAGS, key) && (*x == 0.0 || *x == 1.0) => Value::Bool(*x != 0.0),
        Val::Num(x) => Value::U32(whole(key, *x)?),
    })
}

fn array(key: &str, values: &[Val]) -> Result<Value, ArchError> {
    let number = |v: &Val| match v {
        Val::Num(x) => Ok(*x),
        Val::Text(text) => Err(ArchError::ConfigValue {
            key: key.to_owned(),
            value: text.clone(),
            expected: "a number for every layer".to_owned(),
        }),
    };
    let numbers = values.iter().map(number).collect::<Result<Vec<f64>, _>>()?;
    Ok(Value::Array(if ends(FLAGS, key) {
        Array::Bool(numbers.iter().map(|&x| x != 0.0).collect())
    } else if ends(FRACTIONS, key) {
        Array::F32(numbers.iter().map(|&x| x as f32).collect())
    } else {
        let wholes = numbers.iter().map(|&x| whole(key, x).map(|x| x as i32));
        Array::I32(wholes.collect::<Result<_, _>>()?)
    }))
}

fn whole(key: &str, x: f64) -> Result<u32, ArchError> {
    if x.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&x) {
        return Ok(x as u32);
    }
    Err(ArchError::ConfigValue {
        key: key.to_owned(),
        value: x.to_string(),
        expected: "a whole number".to_owned(),
    })
}
