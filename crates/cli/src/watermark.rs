//! A watermark as a flag says it, under vLLM's names.

use serde_json::Value;
use tokkata::{Repeats, Watermark};

use crate::args::object;

/// JSON, or the name of a file that holds it.
pub(crate) fn parse(text: &str) -> Result<Watermark, String> {
    if text.trim_start().starts_with('{') {
        return read(text);
    }
    let held = std::fs::read_to_string(text);
    let held = held.map_err(|e| format!("it is no JSON object, and a file of this name: {e}"))?;
    read(&held)
}

fn read(text: &str) -> Result<Watermark, String> {
    let mut fields = object(text)?;
    let mut take = |name: &str| fields.remove(name);
    let wrong = |name: &str, wanted: &str| format!("expected {wanted} for {name}");
    for (name, known) in [("algorithm", "gumbel"), ("prf", "philox")] {
        match take(name) {
            Some(value) if value != known => {
                return Err(format!("found {value} for {name}, expected \"{known}\""));
            }
            _ => {}
        }
    }
    let key = take("key").and_then(|k| k.as_u64());
    let key = key.ok_or_else(|| wrong("key", "a whole number below 2^64"))?;
    let mut mark = Watermark::new(key);
    let count = |value: &Value| value.as_u64().filter(|&n| n > 0).map(|n| n as usize);
    if let Some(value) = take("context_width").filter(|v| !v.is_null()) {
        let width = count(&value).filter(|&n| n <= Watermark::WIDEST);
        let wanted = format!("a whole number from 1 to {}", Watermark::WIDEST);
        mark.width = width.ok_or_else(|| wrong("context_width", &wanted))?;
    }
    if let Some(value) = take("deduplicate_contexts") {
        mark.repeats = match value.as_str() {
            Some("none") => Repeats::None,
            Some("single_turn") => Repeats::Answer,
            Some("all") => Repeats::Everything,
            _ => return Err(wrong("deduplicate_contexts", "none, single_turn or all")),
        };
    }
    let reach = "deduplicate_contexts_max_history";
    match take(reach) {
        None => {}
        Some(Value::Null) => mark.reach = None,
        Some(value) => {
            let found = count(&value);
            mark.reach = Some(found.ok_or_else(|| wrong(reach, "a whole number above 0"))?);
        }
    }
    match fields.keys().next() {
        Some(name) => Err(format!("{name} means nothing here")),
        None => Ok(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_vllm() {
        let mark = parse(r#"{"algorithm":"gumbel","key":18446744073709551615}"#);
        assert_eq!(mark, Ok(Watermark::new(u64::MAX)));
        let all = r#" {"key": 0, "context_width": 16, "deduplicate_contexts": "all",
            "deduplicate_contexts_max_history": null, "prf": "philox"}"#;
        let want = Watermark {
            width: 16,
            repeats: Repeats::Everything,
            reach: None,
            ..Watermark::new(0)
        };
        assert_eq!(parse(all), Ok(want));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (text, want) in [
            ("{}", "expected a whole number below 2^64 for key"),
            (
                r#"{"key":-1}"#,
                "expected a whole number below 2^64 for key",
            ),
            (
                r#"{"key":1,"algorithm":"sbw"}"#,
                "found \"sbw\" for algorithm, expected \"gumbel\"",
            ),
            (
                r#"{"key":1,"context_width":65}"#,
                "expected a whole number from 1 to 64 for context_width",
            ),
            (
                r#"{"key":1,"deduplicate_contexts":"some"}"#,
                "expected none, single_turn or all for deduplicate_contexts",
            ),
            (r#"{"key":1,"alpha":0.5}"#, "alpha means nothing here"),
        ] {
            assert_eq!(parse(text), Err(want.to_owned()));
        }
        let error = parse("nowhere.json").expect_err("no such file");
        assert!(
            error.starts_with("it is no JSON object, and a file of this name: "),
            "{error}"
        );
    }
}
