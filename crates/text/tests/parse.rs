//! Answers as every shared template writes them, split back into what went in.

use std::path::PathBuf;

use serde_json::{Value as Json, json};
use tokkata_text::parse::{Answer, OutputFormat, OutputParser, Parsed, ToolCall};
use tokkata_text::template::{ChatRequest, ChatTemplate, Clock};

/// Templates whose format is not derived: calls in messages of their own with the recipient in the header, and
/// arguments as elements named after their keys.
const NOT_DERIVED: [&str; 3] = ["meetkai-functionary-medium-v3.2", "muse-glimmer", "MiniMax-M3"];

fn templates() -> Vec<(String, ChatTemplate)> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let Ok(folder) = std::fs::read_dir(root.join("templates")) else {
        assert!(std::env::var_os("CI").is_none(), "CI lacks the shared templates");
        println!("skipped: no templates in the test data");
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).expect("a template");
        (name, ChatTemplate::parse(&source).expect("a template"))
    };
    paths.into_iter().map(read).collect()
}

fn tools() -> Vec<Json> {
    let tool = |name: &str, properties: Json| {
        json!({"type": "function", "function": {"name": name, "description": "d",
            "parameters": {"type": "object", "properties": properties, "required": []}}})
    };
    vec![
        tool("get_weather", json!({
            "city": {"type": "string", "description": "d"},
            "days": {"type": "integer", "description": "d"},
            "code": {"type": "string", "description": "d"},
        })),
        tool("add", json!({"first": {"type": "number", "description": "d"}, "exact": {"type": "boolean", "description": "d"}})),
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
    let plain = ChatRequest { tools: None, ..request.clone() };
    let rendered = template.render(&request).or_else(|_| template.render(&plain));
    rendered.ok().map(|rendered| rendered.into_text())
}

/// What the model would have had to write for this turn, and the prompt.
fn answer(template: &ChatTemplate, turn: &Json, extra: &Json) -> Option<(String, String)> {
    let prompt = render(template, None, extra)?;
    let whole = render(template, Some(turn), extra)?;
    let common = whole.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
    let mut start = common;
    while !whole.is_char_boundary(start) {
        start -= 1;
    }
    // Not in the middle of a marker.
    for marks in [['<', '>'], ['[', ']']] {
        let at = marks.map(|mark| whole[..start].rfind(mark));
        if let [Some(open), close] = at {
            start = if close < Some(open) && start - open < 40 { open } else { start };
        }
    }
    let plain = render(template, Some(&json!({"role": "assistant", "content": "zqzq"})), extra)?;
    let end = plain.split_once("zqzq")?.1.trim();
    let last_marker = &end[end.rfind(['<', '[']).unwrap_or(0)..];
    let text = &whole[start..];
    let text = if last_marker.is_empty() { text } else { text.split(last_marker).next()? };
    Some((whole[..start].to_owned(), text.to_owned()))
}

/// Parses in one piece, and character by character, which must agree; the raws must be the input.
fn parse(format: &OutputFormat, prompt: &str, text: &str) -> Answer {
    let whole = events(format, prompt, &[text]);
    let pieces: Vec<String> = text.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let streamed = events(format, prompt, &pieces);
    let answer = Answer::from_events(whole);
    assert_eq!(Answer::from_events(streamed), answer, "streamed {text:?}");
    answer
}

fn events(format: &OutputFormat, prompt: &str, pieces: &[&str]) -> Vec<Parsed> {
    let mut parser = OutputParser::new(format, prompt, &tools());
    let mut events: Vec<Parsed> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let raw: String = events.iter().map(|parsed| parsed.raw.as_str()).collect();
    assert_eq!(raw, pieces.concat(), "every byte is accounted for");
    events
}

fn call(id: &str, name: &str, arguments: &Json, as_text: bool) -> Json {
    let arguments = if as_text { Json::String(arguments.to_string()) } else { arguments.clone() };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn expected_calls() -> Vec<(&'static str, Json)> {
    vec![
        ("get_weather", json!({"city": "Zürich, \"CH\"", "days": 3, "code": "007"})),
        ("add", json!({"first": -2.5, "exact": true})),
    ]
}

fn read_calls(calls: &[ToolCall]) -> Vec<(String, Json)> {
    let read = |call: &ToolCall| (call.name.clone(), serde_json::from_str(&call.arguments).expect("JSON arguments"));
    calls.iter().map(read).collect()
}

#[test]
fn calls_of_every_template_are_read_back() {
    let (mut read, mut wrong, mut unseen) = (0, Vec::new(), Vec::new());
    for (name, template) in templates() {
        let format = OutputFormat::derive(&template);
        let mut seen = false;
        if NOT_DERIVED.contains(&name.as_str()) {
            continue;
        }
        for count in [1, 2] {
            for (as_text, content) in [(false, json!("")), (false, Json::Null), (false, json!("I look.")), (true, json!("")), (true, Json::Null)] {
                // Arguments as text are for templates that cannot take them as an object.
                if as_text && seen {
                    continue;
                }
                let expected = &expected_calls()[..count];
                let calls: Vec<Json> = expected.iter().zip(["call0000a", "call0000b"]).map(|((n, a), id)| call(id, n, a, as_text)).collect();
                let turn = json!({"role": "assistant", "content": content, "tool_calls": calls});
                let Some((prompt, text)) = answer(&template, &turn, &json!({})) else { continue };
                if !expected.iter().all(|(name, _)| text.contains(name)) || text.contains("None") {
                    continue;
                }
                seen = true;
                let found = parse(&format, &prompt, &text);
                let expected: Vec<(String, Json)> = expected.iter().map(|(n, a)| ((*n).to_owned(), a.clone())).collect();
                let visible = if text.contains("I look.") { "I look." } else { "" };
                if read_calls(&found.tool_calls) == expected && [&found.content, &found.reasoning].iter().any(|text| text.trim() == visible) {
                    read += 1;
                } else {
                    wrong.push(format!("{name}: {text:?} gives {found:?}"));
                }
            }
        }
        if !seen {
            unseen.push(name);
        }
    }
    println!("{read} answers read back; no calls shown by {unseen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn reasoning_of_every_template_is_split_off() {
    let (mut split, mut wrong) = (0, Vec::new());
    for (name, template) in templates() {
        if name == "muse-glimmer" || name == "meetkai-functionary-medium-v3.2" {
            continue;
        }
        let format = OutputFormat::derive(&template);
        let turn = json!({"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two.\n\nFour.", "thinking": "Two and two.\n\nFour."});
        for extra in [json!({}), json!({"enable_thinking": true}), json!({"thinking": true}), json!({"enable_thinking": false})] {
            let Some((prompt, text)) = answer(&template, &turn, &extra) else { continue };
            let markers = format.reasoning_markers();
            if markers.is_some_and(|(open, close)| prompt.trim_end().ends_with(open) && !text.contains(close)) {
                // The history leaves out what the prompt opened: no model could have written this.
                continue;
            }
            let found = parse(&format, &prompt, &text);
            let reasoning = if text.contains("Two and two.") { "Two and two.\n\nFour." } else { "" };
            if found.content.trim() == "It is 4." && found.reasoning.trim() == reasoning && found.tool_calls.is_empty() {
                split += usize::from(!reasoning.is_empty());
            } else {
                wrong.push(format!("{name} {extra}: {text:?} after {:?} gives {found:?}", &prompt[prompt.len().saturating_sub(20)..]));
            }
        }
    }
    println!("{split} answers with reasoning split");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
