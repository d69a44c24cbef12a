//! JSON schemas: what cannot be enforced is refused by name before compiling.

mod loops;

use serde_json::{Map, Value, json};

use super::GrammarError;

/// Keywords with a meaning for validation that masks cannot enforce.
const UNSUPPORTED: [&str; 21] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "$vocabulary",
    "contentSchema",
    "extends",
];

/// Keywords whose value is a schema, a list of schemas, or a map of schemas.
const APPLICATORS: [&str; 11] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "properties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "$defs",
    "definitions",
];
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// One optional space, or a new line with its indentation: replies stay finite and readable.
const WHITE_SPACE: &str = r"[ ]|\r?\n[ \t]{0,32}";

/// Checks a schema and settles how white space is written between its tokens.
pub(crate) fn prepare(mut schema: Value) -> Result<Value, GrammarError> {
    check(&mut schema, "#")?;
    loops::check(&schema)?;
    let mut fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => {
            return Err(GrammarError::Refused(
                "the schema `false` allows nothing".into(),
            ));
        }
        _ => {
            return Err(GrammarError::Refused(
                "a schema is an object or a boolean".into(),
            ));
        }
    };
    fields.insert(
        "x-guidance".into(),
        json!({ "whitespace_pattern": WHITE_SPACE }),
    );
    Ok(Value::Object(fields))
}

/// Refuses unsupported keywords and drops those that say nothing.
fn check(schema: &mut Value, at: &str) -> Result<(), GrammarError> {
    let Value::Object(fields) = schema else {
        return Ok(());
    };
    let idle: Vec<String> = fields
        .iter()
        .filter(|(k, v)| has_no_effect(k, v, fields))
        .map(|(k, _)| k.clone())
        .collect();
    fields.retain(|keyword, _| !idle.contains(keyword));
    for (keyword, value) in fields {
        if UNSUPPORTED.contains(&keyword.as_str()) {
            return Err(GrammarError::UnsupportedKeyword {
                keyword: keyword.clone(),
                at: at.to_owned(),
            });
        }
        if APPLICATORS.contains(&keyword.as_str()) {
            check_inside(keyword, value, &format!("{at}/{}", escape(keyword)))?;
        }
    }
    Ok(())
}

fn check_inside(keyword: &str, value: &mut Value, at: &str) -> Result<(), GrammarError> {
    match value {
        Value::Array(schemas) => schemas
            .iter_mut()
            .enumerate()
            .try_for_each(|(i, schema)| check(schema, &format!("{at}/{i}"))),
        Value::Object(schemas) if MAPS.contains(&keyword) => schemas
            .iter_mut()
            .try_for_each(|(name, schema)| check(schema, &format!("{at}/{}", escape(name)))),
        _ => check(value, at),
    }
}

fn has_no_effect(keyword: &str, value: &Value, fields: &Map<String, Value>) -> bool {
    match keyword {
        "uniqueItems" => *value == json!(false),
        "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
            *value == json!(true) || *value == json!({})
        }
        "not" => *value == json!(false),
        "then" | "else" => !fields.contains_key("if"),
        "if" => !fields.contains_key("then") && !fields.contains_key("else"),
        "minContains" | "maxContains" => !fields.contains_key("contains"),
        "dependencies" | "dependentRequired" | "dependentSchemas" | "$vocabulary" => {
            *value == json!({})
        }
        "$recursiveAnchor" => *value == json!(false),
        _ => false,
    }
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
