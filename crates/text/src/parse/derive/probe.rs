//! The conversations that are rendered, and the part of them that the model would have written.

use std::cell::Cell;

use serde_json::{Map, Value as Json, json};

use crate::template::{ChatRequest, ChatTemplate, Clock, TemplateError};

pub(super) const REASON: &str = "zqreasonzq";
pub(super) const CONTENT: &str = "zqcontentzq";
pub(super) const NAMES: [&str; 2] = ["zqfunca", "zqfuncb"];
pub(super) const IDS: [&str; 2] = ["zqcall00x", "zqcall00y"];
pub(super) const TEXT_KEY: &str = "zqkeyt";
pub(super) const TEXT: &str = "zqvalue";
pub(super) const NUMBER_KEY: &str = "zqkeyn";
pub(super) const NUMBER: &str = "7353157";

/// What the assistant's turn holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Plain,
    Reasoned,
    /// So many calls, after content or not.
    Calls {
        count: usize,
        content: bool,
    },
}

/// Renders probes of one template.
pub(super) struct Probe<'t> {
    template: &'t ChatTemplate,
    prompt: Option<String>,
    /// A rendering has reached a limit: the others would take as long to.
    spent: Cell<bool>,
}

impl<'t> Probe<'t> {
    pub(super) fn new(template: &'t ChatTemplate) -> Self {
        let mut probe = Probe {
            template,
            prompt: None,
            spent: Cell::new(false),
        };
        probe.prompt = probe.render(&[], true, &Map::new());
        probe
    }

    /// What a generation prompt adds to the text that a finished turn shows in its place.
    pub(super) fn prompt_beyond(&self, text: &str) -> Option<&str> {
        let prompt = self.prompt.as_deref()?;
        let common = text
            .bytes()
            .zip(prompt.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let beyond = prompt.get(common..)?.trim();
        (!beyond.is_empty()).then_some(beyond)
    }

    /// What the model goes on from.
    pub(super) fn prompt(&self) -> &str {
        self.prompt.as_deref().unwrap_or_default()
    }

    pub(super) fn source(&self) -> &str {
        self.template.source()
    }

    /// The assistant's turn as the model would write it, after the generation prompt; ends of turns included.
    pub(super) fn answer(&self, shape: Shape) -> Option<String> {
        let whole = self.whole(shape)?;
        let prompt = self.prompt.as_deref().unwrap_or_default();
        let common = whole
            .bytes()
            .zip(prompt.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let start = marker_start(&whole, common);
        Some(whole[start..].to_owned())
    }

    /// The whole conversation with such a turn.
    pub(super) fn whole(&self, shape: Shape) -> Option<String> {
        let turns = turns(shape);
        let mut switches = vec![Map::new()];
        if shape == Shape::Reasoned {
            for name in ["enable_thinking", "thinking"] {
                switches.push(Map::from_iter([(name.to_owned(), json!(true))]));
            }
        }
        let wanted = if shape == Shape::Reasoned { REASON } else { "" };
        let renderings = switches
            .iter()
            .flat_map(|switch| turns.iter().map(move |turn| (switch, turn)));
        renderings
            .filter_map(|(switch, turn)| self.render(std::slice::from_ref(turn), false, switch))
            .find(|text| text.contains(wanted) && self.has_calls(shape, text))
    }

    fn has_calls(&self, shape: Shape, text: &str) -> bool {
        let Shape::Calls { count, content } = shape else {
            return true;
        };
        let prompt = self.prompt.as_deref().unwrap_or_default();
        let shown = |name: &&str| text.matches(*name).count() > prompt.matches(*name).count();
        NAMES[..count].iter().all(shown)
            && text.contains(TEXT)
            && (!content || text.contains(CONTENT))
    }

    fn render(&self, turns: &[Json], prompt: bool, switches: &Map<String, Json>) -> Option<String> {
        let mut messages = vec![json!({"role": "user", "content": "zquserzq"})];
        messages.extend(turns.iter().cloned());
        let request = ChatRequest {
            messages,
            tools: Some(tools()),
            add_generation_prompt: prompt,
            bos_token: Some(String::new()),
            eos_token: Some(String::new()),
            extra: switches.clone(),
            now: Some(Clock::from_unix(0)),
            ..ChatRequest::default()
        };
        let plain = ChatRequest {
            tools: None,
            ..request.clone()
        };
        let render = |request: &ChatRequest| {
            if self.spent.get() {
                return None;
            }
            let rendered = self.template.render(request);
            let limit = matches!(rendered, Err(TemplateError::Limit(_)));
            self.spent.set(limit);
            rendered.ok().map(crate::template::Rendered::into_text)
        };
        render(&request).or_else(|| render(&plain))
    }
}

/// Steps back from the middle of a marker to its beginning.
fn marker_start(text: &str, at: usize) -> usize {
    let mut at = at;
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    for (open, close) in [('<', '>'), ('[', ']')] {
        let before = &text[..at];
        match (before.rfind(open), before.rfind(close)) {
            (Some(opened), closed)
                if closed.is_none_or(|closed| closed < opened) && at - opened < 40 =>
            {
                at = opened;
            }
            _ => {}
        }
    }
    at
}

/// The turns to try: templates differ in how they want reasoning and arguments.
fn turns(shape: Shape) -> Vec<Json> {
    match shape {
        Shape::Plain => vec![json!({"role": "assistant", "content": CONTENT})],
        Shape::Reasoned => vec![
            json!({"role": "assistant", "content": CONTENT, "reasoning_content": REASON, "thinking": REASON, "reasoning": REASON}),
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": REASON}, {"type": "text", "text": CONTENT}]}),
        ],
        Shape::Calls { count, content } => {
            let contents = if content {
                vec![json!(CONTENT)]
            } else {
                vec![json!(""), Json::Null]
            };
            let each = contents.into_iter().flat_map(|content| {
                [false, true].map(|text| {
                    let calls: Vec<Json> = (0..count).map(|i| call(i, text)).collect();
                    json!({"role": "assistant", "content": content, "tool_calls": calls})
                })
            });
            each.collect()
        }
    }
}

fn call(index: usize, as_text: bool) -> Json {
    let arguments = json!({TEXT_KEY: TEXT, NUMBER_KEY: 7_353_157});
    let arguments = if as_text {
        Json::String(arguments.to_string())
    } else {
        arguments
    };
    json!({"id": IDS[index], "type": "function", "function": {"name": NAMES[index], "arguments": arguments}})
}

fn tools() -> Vec<Json> {
    let tool = |name: &&str| {
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": {
            "type": "object",
            "properties": {
                TEXT_KEY: {"type": "string", "description": "d"},
                NUMBER_KEY: {"type": "integer", "description": "d"},
            },
            "required": [TEXT_KEY],
        }}})
    };
    NAMES.iter().map(tool).collect()
}
