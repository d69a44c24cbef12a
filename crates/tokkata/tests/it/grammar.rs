//! Answers of a random model at temperature 1 follow their grammar, token by token.

use std::collections::BTreeSet;

use crate::tiny::{END, tiny};
use serde_json::{Value as Json, json};
use tokkata::answer::{Answer, OutputFormat, OutputParser};
use tokkata::grammar::{GrammarSource, ToolChoice, Trigger};
use tokkata::{ChatTemplate, EventKind, FinishReason};

fn schemas() -> Vec<Json> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 130}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "array", "maxItems": 4, "items": {"type": "boolean"}}),
        json!({"enum": ["red", "green", {"deep": [1, 2]}]}),
        json!({"type": "object", "properties": {"kind": {"const": "a-long-forced-constant"}, "tags": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "maxLength": 3}}}, "required": ["kind", "tags"], "additionalProperties": false}),
        json!({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-f]{2,5}$"}]}),
    ]
}

#[test]
fn json_answers_are_valid_and_every_prefix_is_accepted() {
    let mut tiny = tiny();
    let (mut ended, mut cut) = (0, 0);
    for schema in schemas() {
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let grammar = tiny.grammar(GrammarSource::JsonSchema(schema.clone()), Trigger::Now);
        for seed in 0..12 {
            let request = tiny.request(&grammar, seed);
            let (tokens, text, reason) = tiny.answer(request);
            let mut walk = grammar.start();
            for &token in &tokens {
                walk.accept(token).expect("every prefix is accepted");
            }
            if reason == FinishReason::MaxTokens {
                cut += 1;
                continue;
            }
            ended += 1;
            assert!(walk.is_accepting(), "{text}");
            let value: Json = serde_json::from_str(&text).expect("JSON");
            assert!(validator.is_valid(&value), "{schema}: {text}");
        }
    }
    assert!(cut * 20 < ended + cut, "{cut} of {} were cut", ended + cut);
}

#[test]
fn forced_text_takes_few_steps() {
    let mut tiny = tiny();
    let schema = json!({"const": "a-rather-long-constant-text-that-has-only-one-spelling"});
    let grammar = tiny.grammar(GrammarSource::JsonSchema(schema.clone()), Trigger::Now);
    let mut request = tiny.request(&grammar, 1);
    request.prompt = vec![65];
    let id = tiny.model.engine().submit(request).expect("a request");
    let (mut steps, mut text) = (0, Vec::new());
    while !tiny.model.engine().is_idle() {
        steps += 1;
        for event in tiny.model.engine().step() {
            assert_eq!(event.request, id);
            match event.kind {
                EventKind::Token { text: t, .. } | EventKind::Finished { text: t, .. } => {
                    text.extend(t);
                }
                _ => {}
            }
        }
    }
    let value: Json = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(value, schema["const"]);
    assert!(steps < 12, "{steps} steps");
}

#[test]
fn a_trigger_waits_for_its_text() {
    let mut tiny = tiny();
    let trigger = Trigger::Once(b"</think>".to_vec());
    let grammar = tiny.grammar(GrammarSource::Regex("[0-9]{3}".into()), trigger);
    let mut seen = 0;
    for seed in 0..20 {
        let mut request = tiny.request(&grammar, seed);
        // The bare word is one token of the vocabulary; make it likely.
        request.sampling.bias = vec![(END - 1, 3.0), (END, -3.0)];
        let (_, text, reason) = tiny.answer(request);
        let after = text.split_once("</think>").map(|(_, after)| after);
        if let (Some(after), FinishReason::EndOfText) = (after, reason) {
            seen += 1;
            let digits = after.bytes().all(|b| b.is_ascii_digit());
            assert!(after.len() == 3 && digits, "{text:?}");
        }
    }
    assert!(seen > 5, "{seen} answers came to the trigger");
}

/// A template in the manner of Hermes and Qwen.
const TOOL_TEMPLATE: &str = concat!(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n",
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}",
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
);

#[test]
fn required_calls_follow_their_tools_schemas() {
    let mut tiny = tiny();
    let template = ChatTemplate::parse(TOOL_TEMPLATE).expect("a template");
    let tool = |name: &str, parameters: &Json| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    let weather = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": false});
    let add = json!({"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"], "additionalProperties": false});
    let tools = [tool("weather", &weather), tool("add", &add)];
    let checkpoint = tiny.model.checkpoint();
    let grammar = |close| checkpoint.tool_grammar(&template, &tools, ToolChoice::Required, close);
    let (grammar, after) = (grammar(None).expect("a grammar"), grammar(Some("</think>")));
    let format = OutputFormat::derive(&template);
    let (mut named, mut ended) = (BTreeSet::new(), 0);
    for seed in 0..24 {
        let request = tiny.request(&grammar, seed);
        let (_, text, reason) = tiny.answer(request);
        // White space and further calls may fill an answer.
        if reason == FinishReason::MaxTokens {
            continue;
        }
        ended += 1;
        let mut parser = OutputParser::new(&format, "", &tools);
        let mut events = parser.push(&text);
        events.extend(parser.finish());
        let answer = Answer::from_events(events);
        assert!(!answer.tool_calls.is_empty(), "{text}");
        for call in answer.tool_calls {
            let schema = if call.name == "add" { &add } else { &weather };
            let arguments: Json = serde_json::from_str(&call.arguments).expect("JSON");
            assert!(jsonschema::is_valid(schema, &arguments), "{text}");
            named.insert(call.name);
        }
    }
    assert!(
        named.len() == 2 && ended > 12,
        "{named:?} in {ended} answers"
    );
    // With reasoning open, nothing is forced before it is closed.
    let mut walk = after.expect("a grammar").start();
    assert!(walk.accept(u32::from(b'x')).is_ok() && !walk.is_active());
    assert!(walk.accept(END - 1).is_ok() && walk.is_active());

    let plain = ChatTemplate::parse("{{ messages[0].content }}").expect("a template");
    let checkpoint = tiny.model.checkpoint();
    let refused = checkpoint.tool_grammar(&plain, &tools, ToolChoice::Auto, None);
    let text = refused.expect_err("no calls are shown").to_string();
    assert!(text.contains("no tool calls"), "{text}");
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let tiny = tiny();
    let refused = |source| {
        let grammar = tiny.model.checkpoint().grammar(source, Trigger::Now);
        grammar.expect_err("it is refused").to_string()
    };
    let schema = GrammarSource::JsonSchema(json!({"not": {"type": "null"}}));
    assert!(refused(schema).contains("`not`"));
    assert!(refused(GrammarSource::Gbnf("root ::= \"a".into())).contains("line 1"));
}
