//! Factors that divide rotation frequencies, as configurations describe them.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::config::Config;
use super::rules::{HfRule, RopeFactors, shared};
use crate::error::ArchError;

/// Tensors that a GGUF file would hold, by name.
pub(crate) type Made = BTreeMap<String, Vec<f32>>;

/// The factors that a configuration asks for.
pub(crate) fn factors(config: &Config<'_>, rule: &HfRule) -> Result<Made, ArchError> {
    let (own, base) = (&rule.rope_factors, &shared().rope_factors);
    let places = match own.scaling.is_empty() {
        true => &base.scaling,
        false => &own.scaling,
    };
    let mut made = Made::new();
    let Some((kind, table)) = places.iter().find_map(|p| scaling(config, p)) else {
        return Ok(made);
    };
    match kind {
        "llama3" => {
            made.insert("rope_freqs.weight".to_owned(), llama3(config, table, own)?);
        }
        "proportional" => {
            made.insert(
                "rope_freqs.weight".to_owned(),
                proportional(config, table, own)?,
            );
        }
        "longrope" | "su" => {
            for (key, name) in [("long_factor", "long"), ("short_factor", "short")] {
                let list = table.get(key).and_then(Json::as_array);
                let list = list.ok_or_else(|| ArchError::ConfigMissing {
                    what: key.to_owned(),
                    rule: "the scaling longrope".to_owned(),
                })?;
                let numbers = list.iter().filter_map(Json::as_f64).map(|x| x as f32);
                made.insert(format!("rope_factors_{name}.weight"), numbers.collect());
            }
        }
        _ => {}
    }
    Ok(made)
}

fn scaling<'a>(config: &Config<'a>, path: &str) -> Option<(&'a str, &'a Json)> {
    let table = config.find(path)?;
    let kind = table.get("rope_type").or_else(|| table.get("type"))?;
    Some((kind.as_str()?, table))
}

/// Only a share of the pairs turns; a factor beyond all positions stops the others.
fn proportional(
    config: &Config<'_>,
    table: &Json,
    own: &RopeFactors,
) -> Result<Vec<f32>, ArchError> {
    const STOPPED: f32 = 1e30;
    let dims = own.dims.as_ref().or(shared().rope_factors.dims.as_ref());
    let pairs = dims.map_or(Ok(0), |r| config.size(r))? / 2;
    let share = table.get("partial_rotary_factor").and_then(Json::as_f64);
    let turning = (share.unwrap_or(1.0) * pairs as f64).floor() as usize;
    let factor = table.get("factor").and_then(Json::as_f64).unwrap_or(1.0) as f32;
    let one = |i: usize| if i < turning { factor } else { STOPPED };
    Ok((0..pairs).map(one).collect())
}

/// Long waves are stretched by the whole factor, short ones not at all.
fn llama3(config: &Config<'_>, table: &Json, own: &RopeFactors) -> Result<Vec<f32>, ArchError> {
    let base = &shared().rope_factors;
    let dims = own.dims.as_ref().or(base.dims.as_ref());
    let theta = own.theta.as_ref().or(base.theta.as_ref());
    let dims = dims.map_or(Ok(0), |r| config.size(r))?;
    let theta = match theta.map_or(Ok(None), |r| config.eval(&r.0))? {
        Some(crate::expr::Val::Num(x)) => x,
        _ => 10_000.0,
    };
    let number = |key: &str, default: f64| table.get(key).and_then(Json::as_f64).unwrap_or(default);
    let factor = number("factor", 8.0);
    let (low, high) = (
        number("low_freq_factor", 1.0),
        number("high_freq_factor", 4.0),
    );
    let trained = number("original_max_position_embeddings", 8192.0);
    let one = |i: usize| {
        let wave = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / dims as f64);
        if wave < trained / high {
            1.0
        } else if wave > trained / low {
            factor
        } else {
            let smooth = (trained / wave - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok((0..dims / 2).map(|i| one(i) as f32).collect())
}
