//! Answers that think, speak and call in one turn, of the families whose templates write all three.

use crate::shown::{answer, call, expected_calls, templates, tools};
use serde_json::{Value as Json, json};
use tokkata_text::parse::{Answer, OutputFormat, OutputParser};
use tokkata_text::template::ChatTemplate;

/// Templates, and the switch that makes each of them think.
const FAMILIES: [(&str, &str); 8] = [
    ("deepseek-ai-DeepSeek-V3.2", "thinking"),
    ("deepseek-ai-DeepSeek-V4", "thinking"),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "thinking"),
    ("GLM-4.6", "enable_thinking"),
    ("GLM-4.7-Flash", "enable_thinking"),
    ("MiniMax-M3", "enable_thinking"),
    ("Kimi-K3", "thinking"),
    ("tencent-Hy3", "enable_thinking"),
];

const THOUGHT: &str = "Two and two.\n\nFour <b>.";

fn turn(content: &str, calls: usize) -> Json {
    let calls: Vec<Json> = expected_calls()[..calls]
        .iter()
        .zip(["call0000a", "call0000b"])
        .map(|((name, arguments), id)| call(id, name, arguments, false))
        .collect();
    let mut turn = json!({"role": "assistant", "content": content, "reasoning_content": THOUGHT});
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    turn
}

fn read(format: &OutputFormat, prompt: &str, pieces: &[&str]) -> Answer {
    let mut parser = OutputParser::new(format, prompt, &tools());
    let mut events: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    Answer::from_events(events)
}

/// What is wrong with how a turn of a family is read.
fn fault(template: &ChatTemplate, switch: &str, content: &str, calls: usize) -> Option<String> {
    let format = OutputFormat::derive(template);
    let written = answer(template, &turn(content, calls), &json!({ switch: true }));
    let Some((prompt, text)) = written else {
        return Some("writes no answer".to_owned());
    };
    if !text.contains("Two and two.") {
        return Some(format!("writes no thought: {text:?}"));
    }
    let found = read(&format, &prompt, &[&text]);
    let halves = text.split_at(text.ceil_char_boundary(text.len() / 2));
    let halved = read(&format, &prompt, &[halves.0, halves.1]);
    let same = found.tool_calls.iter().zip(expected_calls());
    let same = same.filter(|(call, (name, arguments))| {
        let read: Option<Json> = serde_json::from_str(&call.arguments).ok();
        call.name == *name && read.as_ref() == Some(arguments)
    });
    let right = found.reasoning.trim() == THOUGHT
        && found.content.trim() == content
        && found.tool_calls.len() == calls
        && same.count() == calls
        && halved == found;
    (!right).then(|| format!("{text:?} after {prompt:?} gives {found:?}, in halves {halved:?}"))
}

#[test]
fn thoughts_words_and_calls_of_one_turn_are_told_apart() {
    let all = templates();
    if all.is_empty() {
        return;
    }
    let mut faults = Vec::new();
    for (name, switch) in FAMILIES {
        let template = all.iter().find(|t| t.0 == name);
        let (_, template) = template.unwrap_or_else(|| panic!("no template {name}"));
        for (content, calls) in [("I look.", 0), ("I look.", 1), ("I look.", 2), ("", 2)] {
            let fault = fault(template, switch, content, calls);
            faults.extend(fault.map(|f| format!("{name}, {calls} calls: {f}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
