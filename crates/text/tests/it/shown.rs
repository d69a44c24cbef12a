//! The shared templates, and answers as they write them.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::path::PathBuf;

use serde_json::{Value as Json, json};
use tokkata_text::parse::OutputFormat;
use tokkata_text::template::{ChatRequest, ChatTemplate, Clock};

/// What templates write after an answer that is not the model's.
const AFTER: [&str; 3] = [
    "<|tool_response>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
];

pub fn templates() -> Vec<(String, ChatTemplate)> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let Ok(folder) = std::fs::read_dir(root.join("templates")) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI lacks the shared templates"
        );
        println!("skipped: no templates in the test data");
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = folder
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let source = std::fs::read_to_string(&path).expect("a template");
        (name, ChatTemplate::parse(&source).expect("a template"))
    };
    paths.into_iter().map(read).collect()
}

pub fn tools() -> Vec<Json> {
    let tool = |name: &str, properties: Json| {
        json!({"type": "function", "function": {"name": name, "description": "d",
            "parameters": {"type": "object", "properties": properties, "required": []}}})
    };
    vec![
        tool(
            "get_weather",
            json!({
                "city": {"type": "string", "description": "d"},
                "days": {"type": "integer", "description": "d"},
                "code": {"type": "string", "description": "d"},
            }),
        ),
        tool(
            "add",
            json!({"first": {"type": "number", "description": "d"}, "exact": {"type": "boolean", "description": "d"}}),
        ),
    ]
}

fn render(template: &ChatTemplate, turn: Option<&Json>, extra: &Json) -> Option<String> {
    let mut messages = vec![json!({"role": "user", "content": "What is it?"})];
    messages.extend(turn.cloned());
    let request = ChatRequest {
        messages,
        tools: Some(tools()),
        add_generation_prompt: turn.is_none(),
        bos_token: Some(String::new()),
        eos_token: Some(String::new()),
        extra: extra.as_object().cloned().unwrap_or_default(),
        now: Some(Clock::from_unix(0)),
        ..ChatRequest::default()
    };
    let plain = ChatRequest {
        tools: None,
        ..request.clone()
    };
    let rendered = template
        .render(&request)
        .or_else(|_| template.render(&plain));
    rendered
        .ok()
        .map(tokkata_text::template::Rendered::into_text)
}

/// What the model would have had to write for this turn, and the prompt.
pub fn answer(template: &ChatTemplate, turn: &Json, extra: &Json) -> Option<(String, String)> {
    let prompt = render(template, None, extra)?;
    let whole = render(template, Some(turn), extra)?;
    let common = whole
        .bytes()
        .zip(prompt.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let mut start = common;
    while !whole.is_char_boundary(start) {
        start -= 1;
    }
    // Not in the middle of a marker.
    for marks in [['<', '>'], ['[', ']']] {
        let at = marks.map(|mark| whole[..start].rfind(mark));
        if let [Some(open), close] = at {
            start = if close < Some(open) && start - open < 40 {
                open
            } else {
                start
            };
        }
    }
    let plain = render(
        template,
        Some(&json!({"role": "assistant", "content": "zqzq"})),
        extra,
    )?;
    let end = plain.split_once("zqzq")?.1.trim();
    let inner = end.trim_end_matches(['<', '[']);
    let last_marker = &end[inner.rfind(['<', '[']).unwrap_or(0)..];
    let text = &whole[start..];
    let text = if last_marker.is_empty() {
        text
    } else {
        text.split(last_marker).next()?
    };
    let text = AFTER.iter().fold(text, |text, marker| {
        text.split(marker).next().unwrap_or(text)
    });
    Some((whole[..start].to_owned(), text.to_owned()))
}

pub fn call(id: &str, name: &str, arguments: &Json, as_text: bool) -> Json {
    let arguments = if as_text {
        Json::String(arguments.to_string())
    } else {
        arguments.clone()
    };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

pub fn expected_calls() -> Vec<(&'static str, Json)> {
    vec![
        (
            "get_weather",
            json!({"city": "Zürich, \"CH\"", "days": 3, "code": "007"}),
        ),
        ("add", json!({"first": -2.5, "exact": true})),
    ]
}

/// A template in the manner of Hermes and Qwen.
pub fn tagged() -> OutputFormat {
    let source = concat!(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n",
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
        "{% for c in m.tool_calls or [] %}\n<tool_call>\n",
        "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>",
        "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    );
    OutputFormat::derive(&ChatTemplate::parse(source).expect("a template"))
}
