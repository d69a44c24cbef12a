//! Metadata of GGUF in a safetensors header, whose own pairs are texts.
//!
//! One pair holds all values that are no plain text, as JSON: a key's type and its value, or values. Numbers are
//! written as texts, since JSON has no infinity and rounds large ones.

use serde_json::{Map, Value as Json, json};
use tokkata_core::{Array, Metadata, Value};

use crate::error::{Fault, Quoted};

/// The pair that holds the values.
const PAIR: &str = "tokkata.metadata";

/// Pairs for the header of a safetensors file, from which `read` makes the metadata again.
#[must_use]
pub fn metadata_pairs(metadata: &Metadata) -> Vec<(String, String)> {
    let mut typed = Map::new();
    let mut pairs = Vec::new();
    for (key, value) in metadata.iter() {
        match (value.as_str(), shown(value)) {
            (Some(text), _) => pairs.push((key.to_owned(), text.to_owned())),
            (None, text) => {
                typed.insert(key.to_owned(), encode(value));
                pairs.extend(text.map(|text| (key.to_owned(), text)));
            }
        }
    }
    if !typed.is_empty() {
        pairs.push((PAIR.to_owned(), Json::Object(typed).to_string()));
    }
    pairs
}

/// What people read in the header.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) => None,
        other => Some(scalar(other)),
    }
}

/// Gives the texts of a header their types back.
pub(crate) fn read(metadata: &mut Metadata) -> Result<(), Fault> {
    let Some(text) = metadata.str(PAIR) else {
        return Ok(());
    };
    let wrong = |reason: String| Fault::Json {
        what: "the metadata",
        reason: Quoted::new(reason),
    };
    let typed: Map<String, Json> = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let mut out = Metadata::default();
    for (key, value) in metadata.iter().filter(|(key, _)| *key != PAIR) {
        out.insert(key, value.clone());
    }
    for (key, value) in typed {
        let value = decode(&value).ok_or_else(|| wrong(format!("no value of {key}")))?;
        out.insert(key, value);
    }
    *metadata = out;
    Ok(())
}

macro_rules! numbers {
    ($($kind:ident $name:literal;)*) => {
        fn scalar(value: &Value) -> String {
            match value {
                $(Value::$kind(x) => x.to_string(),)*
                Value::Str(_) | Value::Array(_) => String::new(),
            }
        }

        fn encode(value: &Value) -> Json {
            match value {
                $(Value::$kind(x) => json!([$name, x.to_string()]),)*
                $(Value::Array(Array::$kind(list)) => {
                    json!([$name, list.iter().map(ToString::to_string).collect::<Vec<_>>()])
                })*
                Value::Str(bytes) => json!(["bytes", hex(bytes)]),
                Value::Array(Array::Str(list)) => match texts(list) {
                    Some(texts) => json!(["text", texts]),
                    None => json!(["bytes", list.iter().map(|b| hex(b)).collect::<Vec<_>>()]),
                },
            }
        }

        fn decode(value: &Json) -> Option<Value> {
            let kind = value.get(0)?.as_str()?;
            let (one, list) = (value.get(1)?.as_str(), value.get(1)?.as_array());
            let texts = || list?.iter().map(Json::as_str).collect::<Option<Vec<&str>>>();
            Some(match (kind, one) {
                $(($name, Some(text)) => Value::$kind(text.parse().ok()?),)*
                $(($name, None) => {
                    let list = texts()?.into_iter().map(str::parse);
                    Value::Array(Array::$kind(list.collect::<Result<_, _>>().ok()?))
                })*
                ("bytes", Some(text)) => Value::Str(unhex(text)?.into()),
                ("text", None) => Value::Array(Array::Str(texts()?.into_iter().map(Into::into).collect())),
                ("bytes", None) => {
                    let list = texts()?.into_iter().map(|t| Some(unhex(t)?.into()));
                    Value::Array(Array::Str(list.collect::<Option<_>>()?))
                }
                _ => return None,
            })
        }
    };
}

numbers! {
    U8 "u8"; I8 "i8"; U16 "u16"; I16 "i16"; U32 "u32"; I32 "i32"; U64 "u64"; I64 "i64";
    F32 "f32"; F64 "f64"; Bool "bool";
}

fn texts<T: AsRef<[u8]>>(list: &[T]) -> Option<Vec<&str>> {
    let texts = list.iter().map(|b| std::str::from_utf8(b.as_ref()).ok());
    texts.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(metadata: &Metadata) -> Result<Metadata, Fault> {
        let mut out = Metadata::default();
        for (key, text) in metadata_pairs(metadata) {
            out.insert(key, Value::from(text.as_str()));
        }
        read(&mut out).map(|()| out)
    }

    #[test]
    fn every_type_comes_back() {
        let mut metadata = Metadata::default();
        let values = [
            Value::from("256"),
            Value::U32(256),
            Value::I64(i64::MIN),
            Value::F32(f32::INFINITY),
            Value::F32(1e-5),
            Value::Bool(true),
            Value::Str(b"\xff\x00".as_slice().into()),
            Value::Array(Array::I32(vec![-1, 2])),
            Value::Array(Array::Bool(vec![true, false])),
            Value::Array(Array::Str(vec!["a\"b".into(), "".into()])),
            Value::Array(Array::Str(vec![b"\xfe".as_slice().into(), "b".into()])),
            Value::Array(Array::U8(Vec::new())),
        ];
        for (i, value) in values.into_iter().enumerate() {
            metadata.insert(format!("k{i}"), value);
        }
        let back = there_and_back(&metadata).expect("it is read");
        assert_eq!(back.len(), metadata.len());
        for (key, value) in metadata.iter() {
            assert_eq!(back.get(key), Some(value), "{key}");
        }
    }

    #[test]
    fn lies_are_refused() {
        for text in [
            "x",
            "{\"a\":1}",
            "{\"a\":[\"u8\",\"300\"]}",
            "{\"a\":[\"u9\",\"3\"]}",
            "{\"a\":[\"bytes\",\"0\"]}",
        ] {
            let mut metadata = Metadata::default();
            metadata.insert(PAIR, Value::from(text));
            assert!(read(&mut metadata).is_err(), "{text}");
        }
    }
}
