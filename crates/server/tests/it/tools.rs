//! Tools that take a text, which a grammar rules.

use crate::common::{ask, demo, options, post, post_with, start, stream};
use serde_json::{Value, json};
use tokkata::ChatTemplate;

/// Texts with all that JSON has to escape.
const LARK: &str = "start: \"say \\\"\" word \"\\\"\" LF (\"\\\\\" word LF){0,3} \"end\"\nword: /[a-z]{1,8}/\n%import common.LF";

fn follows(text: &str) -> bool {
    let mut lines = text.split('\n');
    let word = |w: &str| (1..=8).contains(&w.len()) && w.bytes().all(|b| b.is_ascii_lowercase());
    let first = lines
        .next()
        .and_then(|l| l.strip_prefix("say \""))
        .and_then(|l| l.strip_suffix('"'));
    let mut rest: Vec<&str> = lines.collect();
    let ends = rest.pop() == Some("end");
    ends && first.is_some_and(word) && rest.iter().all(|l| l.strip_prefix('\\').is_some_and(word))
}

fn responses(syntax: &str, definition: &str) -> Value {
    json!({
        "input": "Say something.",
        "tools": [{"type": "custom", "name": "say", "description": "Says it.",
            "format": {"type": "grammar", "syntax": syntax, "definition": definition}}],
        "tool_choice": "required", "max_output_tokens": 200, "temperature": 1.0, "seed": 7,
    })
}

#[test]
fn the_text_of_a_custom_tool_follows_its_grammar() {
    for seed in 0..6 {
        let mut body = responses("lark", LARK);
        body["seed"] = seed.into();
        let response = ask("/v1/responses", &body);
        let call = &response["output"][0];
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("custom_tool_call"), &json!("say")),
            "{response}"
        );
        let input = call["input"].as_str().expect("a text");
        assert!(follows(input), "{input}");
        assert!(
            !response["warnings"].to_string().contains("not enforced"),
            "{response}"
        );
    }
    let response = ask("/v1/responses", &responses("regex", "[0-9]{3}/\"[0-9]"));
    let input = response["output"][0]["input"].as_str().expect("a text");
    assert!(input.len() == 6 && &input[3..5] == "/\"", "{input}");
}

#[test]
fn its_events_have_the_same_text() {
    let events = stream("/v1/responses", &responses("lark", LARK));
    let done = events
        .iter()
        .find(|e| e["type"] == "response.custom_tool_call_input.done")
        .expect("an end");
    let deltas = events.iter().filter(|e| {
        e["type"] == "response.custom_tool_call_input.delta" && e["item_id"] == done["item_id"]
    });
    let text: String = deltas
        .map(|e| e["delta"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(done["input"], text);
    assert!(follows(&text), "{text}");
    let last = &events.last().expect("events")["response"];
    assert_eq!(last["output"][0]["input"], text);
}

#[test]
fn chats_have_such_tools_too() {
    let body = json!({
        "messages": [{"role": "user", "content": "Say something."}],
        "tools": [{"type": "custom", "custom": {"name": "say",
            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}}}],
        "tool_choice": "required", "max_tokens": 200, "parallel_tool_calls": false,
    });
    let reply = ask("/v1/chat/completions", &body);
    let call = &reply["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["type"], "custom", "{reply}");
    assert!(
        call["custom"]["input"].as_str().is_some_and(follows),
        "{reply}"
    );
    let chunks = stream("/v1/chat/completions", &body);
    let calls: Vec<&Value> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    let announced = json!({"name": "say", "input": ""});
    assert_eq!(calls[0]["custom"], announced);
    let inputs = calls.iter().map(|c| c["custom"]["input"].as_str());
    let input: String = inputs.map(|text| text.expect("a text")).collect();
    assert!(calls.len() > 2 && follows(&input), "{calls:?}");
    assert_eq!(call["custom"]["input"], input.as_str());
    let shown = ask("/apply-template", &body);
    assert!(
        !shown["prompt"]
            .as_str()
            .expect("a prompt")
            .contains("x-lark")
    );
}

#[test]
fn grammars_hold_where_tools_are_told_in_words() {
    let mut named = demo();
    let text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    named
        .service
        .set_template(Some(ChatTemplate::parse(text).expect("a template")));
    let server = start(options(), vec![named]);
    let response = post_with(&server, "/v1/responses", &responses("lark", LARK), &[]).json();
    let input = response["output"][0]["input"].as_str();
    assert!(input.is_some_and(follows), "{response}");
}

#[test]
fn a_grammar_that_cannot_be_followed_is_refused() {
    for (syntax, definition) in [
        ("lark", "start: nothing"),
        ("lark", "start: %json {\"type\": \"string\"}"),
        ("lark", "start: \"a"),
        ("regex", "(?=a)b"),
        ("ebnf", "start: \"a\""),
    ] {
        let mut body = responses(syntax, definition);
        for choice in ["auto", "required"] {
            body["tool_choice"] = choice.into();
            let refused = post("/v1/responses", &body);
            assert_eq!(refused.status, 400, "{definition}: {}", refused.text);
        }
    }
}

/// A model that wants nothing but the letters of a marker that is no token of its own.
#[test]
fn no_call_is_spelled_out_where_no_tools_are() {
    let mut named = demo();
    let text = concat!(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<c>",
        "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</c>{% endfor %}",
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    );
    let tokenizer = named.service.tokenizer().expect("a tokenizer").clone();
    let id = |letter: &str| tokenizer.find_token(letter.as_bytes()).expect("a token");
    let bias: serde_json::Map<String, Value> = ["<", "c", ">"]
        .iter()
        .map(|letter| (id(letter).to_string(), json!(100)))
        .collect();
    named
        .service
        .set_template(Some(ChatTemplate::parse(text).expect("a template")));
    let server = start(options(), vec![named]);
    let said = |path: &str, more: Value| {
        let mut body = json!({
            "max_tokens": 100, "temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1,
            "frequency_penalty": 2.0, "repeat_last_n": -1, "logit_bias": bias,
        });
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        post_with(&server, path, &body, &[]).json()
    };
    let talk = json!({"messages": [{"role": "user", "content": "Hello!"}]});
    let reply = said("/v1/chat/completions", talk);
    let content = reply["choices"][0]["message"]["content"].as_str();
    let kept = content.is_some_and(|text| text.contains("<c") && !text.contains("<c>"));
    assert!(kept, "{reply}");
    let prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n";
    let free = said("/v1/completions", json!({"prompt": prompt}));
    let text = free["choices"][0]["text"].as_str();
    assert!(text.is_some_and(|text| text.contains("<c>")), "{free}");
}
