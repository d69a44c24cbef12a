//! A conversation to render, and its form inside a template.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::clock::Clock;
use super::error::{Result, TemplateError};
use super::scope::Scope;
use super::text::Text;
use super::value::{Dict, Value};

/// What a chat template renders. It deserialises from the JSON object that `template` and the server take.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ChatRequest {
    /// The conversation: objects with `role`, `content` and whatever else the template knows.
    pub messages: Vec<Json>,
    /// Tool definitions, usually `{"type": "function", "function": {…}}`.
    #[serde(default)]
    pub tools: Option<Vec<Json>>,
    /// Documents to ground the answer on.
    #[serde(default)]
    pub documents: Option<Vec<Json>>,
    /// Whether the text should end where the assistant begins to speak.
    #[serde(default)]
    pub add_generation_prompt: bool,
    /// Whether the text should end inside the last message, so that the model goes on with it.
    #[serde(default)]
    pub continue_final_message: bool,
    /// The text of the beginning-of-sequence token, undefined in the template if absent.
    #[serde(default)]
    pub bos_token: Option<String>,
    /// The text of the end-of-sequence token, undefined in the template if absent.
    #[serde(default)]
    pub eos_token: Option<String>,
    /// Further names for the template, such as `enable_thinking`.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
    /// The local time for `strftime_now`; the system's UTC time if absent.
    #[serde(skip)]
    pub now: Option<Clock>,
}

/// Names a message's reasoning goes by, in Transformers' order.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl ChatRequest {
    /// Gives each message's reasoning every name that templates read, as recent Transformers does:
    /// `reasoning_content`, `thinking` or `reasoning` fills `reasoning_content`, and `thinking` if absent.
    pub fn alias_reasoning(&mut self) {
        for message in self.messages.iter_mut().filter_map(Json::as_object_mut) {
            let found = REASONING
                .iter()
                .find_map(|name| message.get(*name).filter(|v| !v.is_null()));
            if let Some(reasoning) = found.cloned() {
                message
                    .entry("thinking")
                    .or_insert_with(|| reasoning.clone());
                message.insert("reasoning_content".into(), reasoning);
            }
        }
    }

    /// About how many bytes it has.
    pub(crate) fn size(&self) -> usize {
        fn of(value: &Json) -> usize {
            match value {
                Json::String(text) => text.len() + 8,
                Json::Array(items) => items.iter().map(of).sum::<usize>() + 8,
                Json::Object(fields) => {
                    fields.iter().map(|(k, v)| k.len() + of(v)).sum::<usize>() + 8
                }
                _ => 8,
            }
        }
        let lists = [&self.tools, &self.documents]
            .into_iter()
            .flatten()
            .flatten();
        let all = self.messages.iter().chain(lists).chain(self.extra.values());
        all.map(of).sum()
    }

    pub(crate) fn scope(&self, messages: &[Json]) -> Result<Rc<Scope>> {
        let scope = Scope::root();
        for (name, value) in &self.extra {
            scope.set(name, from_json(value));
        }
        let messages = messages.iter().map(message).collect::<Result<_>>()?;
        scope.set("messages", Value::list(messages));
        scope.set("tools", optional_list(self.tools.as_deref()));
        scope.set("documents", optional_list(self.documents.as_deref()));
        scope.set(
            "add_generation_prompt",
            Value::Bool(self.add_generation_prompt),
        );
        for (name, token) in [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
        ] {
            if let Some(token) = token {
                scope.set(name, Value::str(token.as_str()));
            }
        }
        Ok(scope)
    }
}

fn optional_list(items: Option<&[Json]>) -> Value {
    items.map_or(Value::None, |items| {
        Value::list(items.iter().map(from_json).collect())
    })
}

fn message(message: &Json) -> Result<Value> {
    let Json::Object(fields) = message else {
        return Err(TemplateError::Request(format!(
            "a message must be an object, not {message}"
        )));
    };
    let fields = fields.iter().map(|(name, value)| {
        let value = match value {
            Json::String(role) if name == "role" && is_plain_name(role) => {
                Value::str(role.as_str())
            }
            _ => from_json(value),
        };
        (Value::text(Text::untrusted(name.as_str())), value)
    });
    Ok(Value::Dict(Rc::new(Dict::from_unique(fields.collect()))))
}

/// Templates build markers such as `<|user|>` around the role, so a plain word counts as the template's own.
fn is_plain_name(role: &str) -> bool {
    role.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn from_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number
            .as_i64()
            .map(i128::from)
            .or(number.as_u64().map(i128::from))
        {
            Some(int) => Value::Int(int),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(Text::untrusted(text.as_str())),
        Json::Array(items) => Value::list(items.iter().map(from_json).collect()),
        Json::Object(fields) => {
            let key = |name: &String| Value::text(Text::untrusted(name.as_str()));
            let fields = fields
                .iter()
                .map(|(name, value)| (key(name), from_json(value)));
            Value::Dict(Rc::new(Dict::from_unique(fields.collect())))
        }
    }
}
