//! A thousand answers of a random model at temperature 1, each after a schema of the JSON-Schema-Test-Suite.
//!
//! `cargo test -p tokkata --test it constrained:: -- --nocapture` prints the figures.

use crate::json_prefix::is_prefix;
use crate::tiny::{Tiny, tiny};
use serde_json::{Map, Value as Json, json};
use tokkata::FinishReason;
use tokkata::grammar::{Grammar, GrammarSource, Trigger};

const ANSWERS: u64 = 1_000;
/// Schemas of the suite that can be followed, without those that refer to others.
const SUITE: &str = include_str!("../../../text/tests/grammar/schemas.json");
const MAX_LENGTH: u64 = 6;
const MAX_ITEMS: u64 = 3;
const MAX_NUMBER: i64 = 1_000;
const MAX_DEPTH: usize = 4;

/// Keywords that tell which type a schema without one is about.
const TYPES: [(&str, &[&str]); 4] = [
    (
        "object",
        &[
            "properties",
            "required",
            "patternProperties",
            "additionalProperties",
            "minProperties",
            "maxProperties",
        ],
    ),
    ("array", &["items", "prefixItems", "minItems", "maxItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    (
        "number",
        &[
            "minimum",
            "maximum",
            "multipleOf",
            "exclusiveMinimum",
            "exclusiveMaximum",
        ],
    ),
];

/// A schema that allows only short answers, all of which the given one allows, too.
fn bounded(schema: &Json, depth: usize) -> Json {
    let scalars = json!({"type": ["null", "boolean", "integer", "string"]});
    let mut fields = match schema {
        Json::Object(fields) => fields.clone(),
        Json::Bool(false) => return json!(false),
        _ => Map::new(),
    };
    let settled = ["enum", "const", "anyOf", "oneOf", "allOf", "$ref"];
    let settled = settled.iter().any(|key| fields.contains_key(*key));
    if !fields.contains_key("type") {
        let told = |(_, keys): &&(&str, &[&str])| keys.iter().any(|key| fields.contains_key(*key));
        let found: Vec<&str> = TYPES.iter().filter(told).map(|(name, _)| *name).collect();
        if !found.is_empty() && depth < MAX_DEPTH {
            fields.insert("type".into(), json!(found));
        } else if !settled {
            fields.insert("type".into(), scalars["type"].clone());
        }
    }
    bound_here(&mut fields);
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key).filter(|inner| **inner != json!(false)) {
            *inner = bounded(inner, depth + 1);
        }
    }
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        if let Some(Json::Object(inner)) = fields.get_mut(key) {
            inner
                .values_mut()
                .for_each(|schema| *schema = bounded(schema, depth + 1));
        }
    }
    for key in ["prefixItems", "anyOf", "oneOf", "allOf"] {
        if let Some(Json::Array(inner)) = fields.get_mut(key) {
            inner
                .iter_mut()
                .for_each(|schema| *schema = bounded(schema, depth + 1));
        }
    }
    Json::Object(fields)
}

/// Adds the bounds that a schema's types need.
fn bound_here(fields: &mut Map<String, Json>) {
    let types = match fields.get("type") {
        Some(Json::String(name)) => vec![name.clone()],
        Some(Json::Array(names)) => names
            .iter()
            .filter_map(Json::as_str)
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    };
    let has = |name: &str| types.iter().any(|t| t == name);
    let least =
        |fields: &Map<String, Json>, key: &str| fields.get(key).and_then(Json::as_u64).unwrap_or(0);
    if has("string") && !fields.contains_key("pattern") && !fields.contains_key("format") {
        let most = MAX_LENGTH.max(least(fields, "minLength"));
        fields.entry("maxLength").or_insert_with(|| json!(most));
    }
    if has("array") {
        let listed = fields
            .get("prefixItems")
            .and_then(Json::as_array)
            .map_or(0, Vec::len) as u64;
        let most = MAX_ITEMS.max(least(fields, "minItems")).max(listed);
        fields.entry("maxItems").or_insert_with(|| json!(most));
        fields.entry("items").or_insert_with(|| json!({}));
    }
    if has("object") {
        let closed = !fields.contains_key("patternProperties");
        fields
            .entry("additionalProperties")
            .or_insert_with(|| json!(!closed));
    }
    if has("number") || has("integer") {
        let told = |keys: [&str; 2]| keys.iter().find_map(|key| fields.get(*key)?.as_f64());
        let low = told(["minimum", "exclusiveMinimum"]);
        let high = told(["maximum", "exclusiveMaximum"]);
        let range = MAX_NUMBER as f64;
        if low.is_none() {
            fields.insert("minimum".into(), json!(high.unwrap_or(0.0).floor() - range));
        }
        if high.is_none() {
            fields.insert("maximum".into(), json!(low.unwrap_or(0.0).ceil() + range));
        }
    }
}

struct Case {
    schema: Json,
    validators: [jsonschema::Validator; 2],
    grammar: Grammar,
}

fn cases(tiny: &Tiny) -> Vec<Case> {
    let suite: Vec<Json> = serde_json::from_str(SUITE).expect("JSON");
    let case = |case: &Json| {
        let original = &case["schema"];
        // What references stand for is not bounded, and bounds change which one of several schemas holds.
        let text = original.to_string();
        if text.contains("$ref") || text.contains("oneOf") {
            return None;
        }
        let schema = bounded(original, 0);
        let source = GrammarSource::JsonSchema(schema.clone());
        // Bounds may contradict the schema, as when a number must be larger than 1000.
        let grammar = tiny.model.checkpoint().grammar(source, Trigger::Now).ok()?;
        let validators =
            [original, &schema].map(|s| jsonschema::validator_for(s).expect("a schema"));
        Some(Case {
            schema,
            validators,
            grammar,
        })
    };
    suite.iter().filter_map(case).collect()
}

#[derive(Default)]
struct Tally {
    ended: usize,
    cut: usize,
    tokens: usize,
    prefixes: usize,
}

impl Tally {
    fn check(&mut self, case: &Case, (tokens, text, reason): (Vec<u32>, String, FinishReason)) {
        let mut walk = case.grammar.start();
        for &token in &tokens {
            walk.accept(token)
                .expect("the grammar takes its own tokens again");
        }
        for (at, _) in text.char_indices() {
            assert!(is_prefix(&text[..at]), "{}: {:?}", case.schema, &text[..at]);
            self.prefixes += 1;
        }
        self.tokens += tokens.len();
        if reason != FinishReason::EndOfText {
            assert_eq!(reason.as_str(), "length");
            self.cut += 1;
            return;
        }
        self.ended += 1;
        assert!(walk.is_accepting(), "{text}");
        let value = serde_json::from_str(&text);
        let value: Json = value.unwrap_or_else(|e| panic!("{}: {e}: {text}", case.schema));
        for validator in &case.validators {
            assert!(validator.is_valid(&value), "{}: {text}", case.schema);
        }
    }
}

#[test]
fn a_thousand_answers_follow_schemas_of_the_suite() {
    let mut tiny = tiny();
    let cases = cases(&tiny);
    assert!(cases.len() > 100, "{} schemas", cases.len());
    let mut tally = Tally::default();
    for (seed, case) in (0..ANSWERS).zip(cases.iter().cycle()) {
        let request = tiny.request(&case.grammar, seed);
        let answer = tiny.answer(request);
        tally.check(case, answer);
    }
    let Tally {
        ended,
        cut,
        tokens,
        prefixes,
    } = tally;
    println!(
        "{ANSWERS} answers after {} schemas: {ended} ended, all valid; {cut} cut by the limit; {tokens} tokens, {prefixes} prefixes of JSON",
        cases.len()
    );
    assert_eq!(ended + cut, ANSWERS as usize);
    assert!(cut * 20 < ANSWERS as usize, "{cut} of {ANSWERS} were cut");
}
