//! The JSON of a golden: metadata as `"type key": value`, shapes folded over layers.

use serde_json::{Map, Value as Json, json};
use tokkata_core::{Array, Metadata, Value};

use super::{Golden, Rows, Selected};
use crate::models::Failure;

/// A golden's description, without its rows.
#[must_use]
pub fn to_json(golden: &Golden) -> String {
    let metadata = golden.metadata.iter().filter_map(|(key, value)| {
        let (kind, json) = encode(value)?;
        Some(format!(
            "    {}: {json}",
            Json::from(format!("{kind} {key}"))
        ))
    });
    let tensors = fold(&golden.tensors)
        .into_iter()
        .map(|(name, shape)| format!("    {}: {}", Json::from(name), Json::from(shape)));
    let second = golden.second.as_deref();
    let second = second.map(|s| format!("  \"second\": {},\n", Json::from(s)));
    let optional = golden.optional.as_ref();
    let optional = optional.map(|o| format!(",\n  \"optional\": {}", Json::from(o.clone())));
    let selections = match golden.selections.is_empty() {
        true => String::new(),
        false => {
            let lines: Vec<String> = golden.selections.iter().map(selected).collect();
            format!(",\n  \"selections\": [\n{}\n  ]", lines.join(",\n"))
        }
    };
    let (metadata, tensors): (Vec<_>, Vec<_>) = (metadata.collect(), tensors.collect());
    format!(
        "{{\n  \"oracle\": {},\n{}  \"rows\": \"{}\",\n  \"positions\": {},\n  \"seed\": {},\n  \"stride\": {},\n  \"metadata\": {{\n{}\n  }},\n  \"tensors\": {{\n{}\n  }}{}{}\n}}\n",
        Json::from(golden.oracle.as_str()),
        second.unwrap_or_default(),
        golden.rows.name(),
        golden.positions,
        golden.seed,
        golden.stride,
        metadata.join(",\n"),
        tensors.join(",\n"),
        optional.unwrap_or_default(),
        selections,
    )
}

/// One layer's choices, a hexadecimal number of bits each.
fn selected(s: &Selected) -> String {
    let units: Vec<String> = s.units.iter().map(|u| format!("{u:x}")).collect();
    let (layer, margin, units) = (s.layer, float(s.margin), Json::from(units.join(" ")));
    format!("    {{\"layer\": {layer}, \"margin\": {margin}, \"units\": {units}}}")
}

fn unselected(json: &Json) -> Option<Selected> {
    let units = json["units"].as_str()?.split(' ');
    Some(Selected {
        layer: json["layer"].as_u64()?.try_into().ok()?,
        margin: unfloat(&json["margin"])?,
        units: units
            .map(|u| u64::from_str_radix(u, 16).ok())
            .collect::<Option<_>>()?,
    })
}

/// Reads a description.
///
/// # Errors
/// The text of the mistake.
pub fn from_json(name: &str, text: &str) -> Result<Golden, Failure> {
    let json: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let number = |key: &str| json[key].as_u64().ok_or(format!("{key} is no number"));
    let object = |key: &str| json[key].as_object().ok_or(format!("{key} is no object"));
    let rows = json["rows"].as_str().unwrap_or_default();
    let rows = Rows::ALL.iter().find(|r| r.1 == rows);
    Ok(Golden {
        name: name.to_owned(),
        oracle: json["oracle"].as_str().unwrap_or_default().to_owned(),
        second: json["second"].as_str().map(str::to_owned),
        rows: rows.ok_or("rows is no known kind")?.0,
        positions: number("positions")? as usize,
        seed: number("seed")? as u32,
        stride: number("stride")? as usize,
        metadata: metadata(object("metadata")?)?,
        tensors: unfold(object("tensors")?)?,
        optional: list(&json["optional"], |j| Some(j.as_str()?.to_owned())),
        selections: match json["selections"].is_null() {
            true => Vec::new(),
            false => {
                list(&json["selections"], unselected).ok_or("selections are no list of them")?
            }
        },
        want: Vec::new(),
        also: Vec::new(),
        adapted: Vec::new(),
    })
}

fn metadata(json: &Map<String, Json>) -> Result<Metadata, Failure> {
    let mut metadata = Metadata::default();
    for (key, value) in json {
        let (kind, name) = key.split_once(' ').ok_or(format!("{key} has no type"))?;
        let value = decode(kind, value).ok_or(format!("{key} holds something else"))?;
        metadata.insert(name, value);
    }
    Ok(metadata)
}

/// One entry of the metadata, as goldens write it: `u32 key` and a JSON value (text without quotes will do).
///
/// # Errors
/// A key without a type, a value of another.
pub fn entry(key: &str, value: &str) -> Result<(String, Value), Failure> {
    let (kind, name) = key.split_once(' ').ok_or(format!("{key} has no type"))?;
    let json = serde_json::from_str(value).unwrap_or_else(|_| Json::from(value));
    let value = decode(kind, &json).ok_or(format!("{key} holds something else"))?;
    Ok((name.to_owned(), value))
}

/// Tensors as goldens write them: a name folded over layers and a JSON shape.
///
/// # Errors
/// A name or a shape that is none.
pub fn tensors(name: &str, shape: &str) -> Result<Vec<(String, Vec<usize>)>, Failure> {
    let shape: Json = serde_json::from_str(shape).map_err(|e| format!("{name}: {e}"))?;
    let mut map = Map::new();
    map.insert(name.to_owned(), shape);
    unfold(&map)
}

/// The type's name and the value; `None` for types that no tiny model has.
fn encode(value: &Value) -> Option<(&'static str, Json)> {
    Some(match value {
        Value::U32(v) => ("u32", json!(v)),
        Value::I32(v) => ("i32", json!(v)),
        Value::U64(v) => ("u64", json!(v)),
        Value::F32(v) => ("f32", float(*v)),
        Value::Bool(v) => ("bool", json!(v)),
        Value::Str(v) => ("str", json!(v.to_string())),
        Value::Array(Array::U32(v)) => ("[u32]", json!(v)),
        Value::Array(Array::I32(v)) => ("[i32]", json!(v)),
        Value::Array(Array::U64(v)) => ("[u64]", json!(v)),
        Value::Array(Array::F32(v)) => ("[f32]", v.iter().map(|v| float(*v)).collect()),
        Value::Array(Array::Bool(v)) => ("[bool]", json!(v)),
        Value::Array(Array::Str(v)) => ("[str]", v.iter().map(ToString::to_string).collect()),
        _ => return None,
    })
}

fn decode(kind: &str, json: &Json) -> Option<Value> {
    Some(match kind {
        "u32" => Value::U32(json.as_u64()?.try_into().ok()?),
        "i32" => Value::I32(json.as_i64()?.try_into().ok()?),
        "u64" => Value::U64(json.as_u64()?),
        "f32" => Value::F32(unfloat(json)?),
        "bool" => Value::Bool(json.as_bool()?),
        "str" => Value::Str(json.as_str()?.into()),
        "[u32]" => Value::Array(Array::U32(list(json, |j| j.as_u64()?.try_into().ok())?)),
        "[i32]" => Value::Array(Array::I32(list(json, |j| j.as_i64()?.try_into().ok())?)),
        "[u64]" => Value::Array(Array::U64(list(json, Json::as_u64)?)),
        "[f32]" => Value::Array(Array::F32(list(json, unfloat)?)),
        "[bool]" => Value::Array(Array::Bool(list(json, Json::as_bool)?)),
        "[str]" => Value::Array(Array::Str(list(json, |j| Some(j.as_str()?.into()))?)),
        _ => return None,
    })
}

fn list<T>(json: &Json, item: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
    json.as_array()?.iter().map(item).collect()
}

/// The shortest decimal that reads back as the same f32; text for what JSON has no number for.
fn float(value: f32) -> Json {
    if value.is_finite() {
        value
            .to_string()
            .parse::<f64>()
            .map_or(Json::Null, Json::from)
    } else {
        Json::from(value.to_string())
    }
}

fn unfloat(json: &Json) -> Option<f32> {
    json.as_f64()
        .map(|v| v as f32)
        .or_else(|| json.as_str()?.parse().ok())
}

/// `blk.0.x`, `blk.1.x` and `blk.3.x` of one shape become `blk.0-1,3.x`.
fn fold(tensors: &[(String, Vec<usize>)]) -> Vec<(String, Vec<usize>)> {
    let mut folded: Vec<(String, String, Vec<usize>, Vec<usize>)> = Vec::new();
    for (name, shape) in tensors {
        let (head, layer, tail) = layer_of(name);
        let same = |f: &&mut (String, String, Vec<usize>, Vec<usize>)| {
            f.0 == head && f.1 == tail && f.2 == *shape && layer.is_some()
        };
        match folded.iter_mut().find(same) {
            Some(f) => f.3.extend(layer),
            None => folded.push((head, tail, shape.clone(), layer.into_iter().collect())),
        }
    }
    folded
        .into_iter()
        .map(|(head, tail, shape, layers)| (format!("{head}{}{tail}", ranges(layers)), shape))
        .collect()
}

/// `blk.`, 3 and `.attn_q.weight` of `blk.3.attn_q.weight`.
fn layer_of(name: &str) -> (String, Option<usize>, String) {
    let at = name.find("blk.").map(|i| i + 4);
    let split = at.and_then(|at| {
        let end = at + name[at..].find('.')?;
        Some((at, end, name[at..end].parse().ok()?))
    });
    match split {
        Some((at, end, layer)) => (name[..at].to_owned(), Some(layer), name[end..].to_owned()),
        None => (name.to_owned(), None, String::new()),
    }
}

fn ranges(mut layers: Vec<usize>) -> String {
    layers.sort_unstable();
    let runs = layers.chunk_by(|a, b| a + 1 == *b);
    let text = runs.map(|run| match run {
        [only] => only.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    text.collect::<Vec<_>>().join(",")
}

fn unfold(json: &Map<String, Json>) -> Result<Vec<(String, Vec<usize>)>, Failure> {
    let mut tensors = Vec::new();
    for (name, shape) in json {
        let shape = list(shape, |d| Some(d.as_u64()? as usize));
        let shape = shape.ok_or(format!("{name} has no shape"))?;
        for name in names(name).ok_or(format!("{name} is no list of layers"))? {
            tensors.push((name, shape.clone()));
        }
    }
    Ok(tensors)
}

/// Every tensor that a folded name stands for.
fn names(folded: &str) -> Option<Vec<String>> {
    let Some(at) = folded.find("blk.").map(|i| i + 4) else {
        return Some(vec![folded.to_owned()]);
    };
    let end = at + folded[at..].find('.')?;
    let mut names = Vec::new();
    for range in folded[at..end].split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for layer in first.parse::<usize>().ok()?..=last.parse().ok()? {
            names.push(format!("{}{layer}{}", &folded[..at], &folded[end..]));
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_reads_back() {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::from("x"));
        metadata.insert("x.eps", Value::F32(1e-5));
        metadata.insert("x.bound", Value::F32(f32::NEG_INFINITY));
        metadata.insert("x.pattern", Value::Array(Array::Bool(vec![true, false])));
        let tensor = |name: &str| (name.to_owned(), vec![4, 2]);
        let golden = Golden {
            name: "x".to_owned(),
            oracle: "o".to_owned(),
            second: Some("p".to_owned()),
            rows: Rows::Vectors,
            positions: 3,
            seed: 7,
            stride: 2,
            metadata,
            tensors: ["blk.0.q", "blk.1.q", "blk.3.q", "out"]
                .map(tensor)
                .to_vec(),
            optional: Some(vec!["out".to_owned()]),
            selections: vec![Selected {
                layer: 1,
                margin: 0.25,
                units: vec![1, 0x1f],
            }],
            want: Vec::new(),
            also: Vec::new(),
            adapted: Vec::new(),
        };
        let text = to_json(&golden);
        assert!(text.contains("\"blk.0-1,3.q\": [4,2]"), "{text}");
        assert_eq!(from_json("x", &text).unwrap(), golden);
    }
}
