//! The settings of libraries that know many schemes.

use serde_json::Value;

use super::Scheme;
use super::config::{Settings, block, group_size, off, one_of, only, shown, text, unknown};
use crate::error::Fault;

/// 4-bit tables or 8-bit rows; what a weight really is stands beside it.
pub(super) fn bitsandbytes(settings: &Settings) -> Result<Scheme, Fault> {
    const KNOWN: &[&str] = &[
        "quant_method",
        "load_in_4bit",
        "load_in_8bit",
        "_load_in_4bit",
        "_load_in_8bit",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight",
        "llm_int8_skip_modules",
        // Activations above the threshold are computed apart from the others by that library only.
        "llm_int8_threshold",
    ];
    only(settings, KNOWN)?;
    if let Some(storage) = text(settings, "bnb_4bit_quant_storage")?.filter(|&s| s != "uint8") {
        return Err(unknown("bnb_4bit_quant_storage", storage, "uint8"));
    }
    let on = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(false);
    match (on("load_in_4bit"), on("load_in_8bit")) {
        (true, false) => Ok(Scheme::Table4 {
            block: 64,
            offset: 0,
        }),
        (false, true) => Ok(Scheme::Int8),
        _ => Err(unknown(
            "load_in_4bit",
            "4 bits and 8 bits alike",
            "one of load_in_4bit and load_in_8bit",
        )),
    }
}

/// One group of settings for all linear layers.
pub(super) fn compressed_tensors(settings: &Settings) -> Result<Scheme, Fault> {
    const KNOWN: &[&str] = &[
        "quant_method",
        "config_groups",
        "format",
        "global_compression_ratio",
        "ignore",
        "kv_cache_scheme",
        "quantization_status",
        "sparsity_config",
        "transform_config",
        "version",
    ];
    only(settings, KNOWN)?;
    for key in ["sparsity_config", "transform_config"] {
        match settings.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(table)) if table.is_empty() => {}
            Some(other) => return Err(unknown(key, &shown(other), "nothing")),
        }
    }
    let groups = object_of(settings, "config_groups")?;
    let mut all = groups.values().map(|g| group(settings, g));
    let first = all
        .next()
        .unwrap_or_else(|| Err(unknown("config_groups", "nothing", "one group")))?;
    for other in all {
        if other? != first {
            return Err(unknown(
                "config_groups",
                "groups that differ",
                "the same settings for all",
            ));
        }
    }
    Ok(first)
}

fn object_of<'a>(settings: &'a Settings, key: &'static str) -> Result<&'a Settings, Fault> {
    let found = settings.get(key);
    let table = found.and_then(Value::as_object);
    table.ok_or_else(|| unknown(key, &found.map_or("nothing".to_owned(), shown), "an object"))
}

fn group(settings: &Settings, group: &Value) -> Result<Scheme, Fault> {
    const KNOWN: &[&str] = &[
        "actorder",
        "block_structure",
        "dynamic",
        "group_size",
        "num_bits",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "strategy",
        "symmetric",
        "type",
        "zp_dtype",
    ];
    let group = group
        .as_object()
        .ok_or_else(|| unknown("config_groups", &shown(group), "objects"))?;
    let own = text(group, "format")?.or(text(settings, "format")?);
    let weights = object_of(group, "weights")?;
    only(weights, KNOWN)?;
    off(weights, "dynamic")?;
    if let Some(order) = text(weights, "actorder")?.filter(|&o| o != "static" && o != "weight") {
        return Err(unknown("actorder", order, "static or weight"));
    }
    let bits = one_of(weights, "num_bits", &[4, 8], "4 or 8")?.unwrap_or(8) as u8;
    let per_group = match text(weights, "strategy")? {
        Some("group" | "tensor_group") => group_size(weights)?,
        Some("channel" | "tensor" | "block") | None => None,
        Some(other) => {
            return Err(unknown(
                "strategy",
                other,
                "tensor, channel, group or block",
            ));
        }
    };
    let blocks = weights.get("block_structure").filter(|b| !b.is_null());
    let blocks = blocks
        .map(|b| block(b).ok_or_else(|| unknown("block_structure", &shown(b), "two numbers")));
    match (own, text(weights, "type")?, bits) {
        (Some("pack-quantized"), Some("int"), _) => Ok(Scheme::Packed {
            bits,
            group: per_group,
        }),
        (Some("nvfp4-pack-quantized"), Some("float"), 4) => Ok(Scheme::Nvfp4Global),
        (Some("float-quantized" | "naive-quantized"), Some("float"), 8) => Ok(Scheme::Fp8 {
            block: blocks.transpose()?,
        }),
        (Some("int-quantized" | "naive-quantized"), Some("int"), 8) => Ok(Scheme::Int8Scaled {
            block: blocks.transpose()?,
        }),
        (format, kind, bits) => {
            let found = format!(
                "{} of {bits}-bit {}",
                format.unwrap_or("none"),
                kind.unwrap_or("numbers")
            );
            Err(unknown(
                "format",
                &found,
                "pack-quantized, nvfp4-pack-quantized, float-quantized or int-quantized",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_differ_are_refused() {
        let text = r#"{"format": "pack-quantized", "config_groups": {
            "a": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}},
            "b": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}}"#;
        let value: Value = serde_json::from_str(text).expect("JSON");
        let settings = value.as_object().expect("an object");
        let fault = compressed_tensors(settings).unwrap_err();
        assert!(fault.to_string().contains("groups that differ"), "{fault}");
    }
}
