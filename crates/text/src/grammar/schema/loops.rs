//! Schemas that lead back to themselves before any text was read.
//!
//! Such a loop allows nothing that the schema does not allow without it, and costs a parser that follows it dearly. JSON
//! Schema forbids it (Core, 9.4.1), and so do we, by name, before anything is compiled.

use std::collections::HashMap;

use serde_json::Value;

use crate::grammar::GrammarError;

/// Keywords whose schemas describe the value itself, not a part of it.
const SAME_VALUE: [&str; 3] = ["anyOf", "oneOf", "allOf"];
/// Keywords whose schemas describe parts.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Whether a place is being looked at, or was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Open,
    Done,
}

/// Refuses a schema that has a loop of references around no value.
pub(super) fn check(root: &Value) -> Result<(), GrammarError> {
    let mut seen = HashMap::new();
    let mut places = vec![root];
    while let Some(place) = places.pop() {
        follow(root, place, &mut seen)?;
        places.extend(inside(place));
    }
    Ok(())
}

/// Looks for a loop from a place on; `seen` knows places by their address.
fn follow<'s>(
    root: &'s Value,
    from: &'s Value,
    seen: &mut HashMap<*const Value, Seen>,
) -> Result<(), GrammarError> {
    // Places on the way, each with those that are still to be looked at from there.
    let mut way = vec![(from, leads(root, from))];
    if seen.insert(from, Seen::Open) == Some(Seen::Done) {
        seen.insert(from, Seen::Done);
        return Ok(());
    }
    while let Some((place, left)) = way.last_mut() {
        let Some(next) = left.pop() else {
            seen.insert(*place, Seen::Done);
            way.pop();
            continue;
        };
        match seen.get(&std::ptr::from_ref(next)) {
            Some(Seen::Done) => {}
            Some(Seen::Open) => return Err(refused(next)),
            None => {
                seen.insert(next, Seen::Open);
                way.push((next, leads(root, next)));
            }
        }
    }
    Ok(())
}

fn refused(schema: &Value) -> GrammarError {
    let mut text = schema.to_string();
    if text.len() > 60 {
        let cut = (0..=57).rev().find(|&i| text.is_char_boundary(i));
        text.truncate(cut.unwrap_or(0));
        text += "...";
    }
    GrammarError::Refused(format!(
        "the schema {text} leads back to itself before it says anything about the value"
    ))
}

/// The schemas that a schema holds its own value against.
fn leads<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Value> {
    let lists = SAME_VALUE.iter().filter_map(|&k| schema.get(k)?.as_array());
    let mut found: Vec<&Value> = lists.flatten().collect();
    let pointer = schema.get("$ref").and_then(Value::as_str);
    let pointer = pointer.and_then(|text| text.strip_prefix('#'));
    found.extend(pointer.and_then(|pointer| root.pointer(pointer)));
    found
}

/// The schemas inside a schema, of whatever value.
fn inside(schema: &Value) -> Vec<&Value> {
    let Value::Object(fields) = schema else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (keyword, value) in fields {
        match value {
            Value::Array(schemas) => found.extend(schemas),
            Value::Object(schemas) if MAPS.contains(&keyword.as_str()) => {
                found.extend(schemas.values());
            }
            Value::Object(_) => found.push(value),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn loops_around_no_value_are_refused() {
        let many = vec![json!({"$ref": "#"}); 2000];
        for schema in [
            json!({"$ref": "#"}),
            json!({"anyOf": many}),
            json!({"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}}),
            json!({"properties": {"x": {"allOf": [{"$ref": "#/properties/x"}]}}}),
        ] {
            let error = check(&schema).expect_err("a loop").to_string();
            assert!(error.contains("leads back to itself"), "{error}");
            assert!(error.len() < 200, "{error}");
        }
    }

    #[test]
    fn recursion_through_values_is_not() {
        for schema in [
            json!({"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}),
            json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "array", "items": {"$ref": "#"}}}}),
            json!({"$ref": "#/$defs/missing"}),
            json!({"$ref": "elsewhere"}),
            json!(true),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
        let chain = (0..20_000).map(|i| {
            (
                format!("d{i}"),
                json!({"$ref": format!("#/$defs/d{}", i + 1)}),
            )
        });
        let chain: serde_json::Map<String, Value> = chain.collect();
        assert_eq!(
            check(&json!({"$ref": "#/$defs/d0", "$defs": chain})),
            Ok(())
        );
    }
}
