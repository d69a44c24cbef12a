//! A response while it is made, and the events that tell of it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokkata::{DecodeOptions, Stats};

use super::read::{Asked, ToolKind};
use crate::calls::{Call, InputText, Stage};
use crate::error::ApiError;
use crate::logprobs::{Telling, chat_entry};
use crate::run::{End, Finish, Part, Step, Token, id, timings};
use crate::served::{Served, now};
use crate::talk::Prepared;

/// An event: its name and its object.
pub(super) type Event = (&'static str, Value);

/// The item that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Reasoning,
    Message,
    Call,
}

impl Open {
    /// An item of this kind and its part, before they have any text; calls have no parts.
    fn empty(self) -> Option<(Value, Value)> {
        match self {
            Open::Reasoning => Some((
                json!({"id": id("rs_"), "type": "reasoning", "summary": [], "content": [], "encrypted_content": null, "status": "in_progress"}),
                json!({"type": "reasoning_text", "text": ""}),
            )),
            Open::Message => Some((
                json!({"id": id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}),
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
            )),
            Open::Call => None,
        }
    }
}

/// What a call's item holds, and the events of it: more of it, and all of it.
fn call_names(item: &Value) -> (&'static str, &'static str, &'static str) {
    match item["type"] == "custom_tool_call" {
        true => (
            "input",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
        ),
        false => (
            "arguments",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ),
    }
}

/// Gathers an answer.
pub(super) struct Builder {
    pub(super) id: String,
    model: Arc<Served>,
    created: u64,
    echo: Map<String, Value>,
    kinds: HashMap<String, ToolKind>,
    warnings: Vec<String>,
    logprobs: Option<usize>,
    output: Vec<Value>,
    open: Option<Open>,
    /// The text of the call that is open, where its tool takes one.
    input: Option<InputText>,
    /// Tokens whose text has not been told.
    held: Vec<Token>,
    end: Option<End>,
    events: Vec<Event>,
    sequence: u64,
    /// Each piece of text tells what the answer has cost so far.
    timings: bool,
    background: bool,
    /// What the model reads and writes, where that is shown.
    raw: Option<Raw>,
}

/// A prompt and its answer as a model has them.
struct Raw {
    text: String,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Builder {
    pub(super) fn new(model: &Arc<Served>, asked: &Asked, warnings: Vec<String>) -> Self {
        Builder {
            id: id("resp_"),
            model: Arc::clone(model),
            created: now(),
            echo: asked.echo.clone(),
            kinds: asked.kinds.clone(),
            warnings,
            logprobs: asked.logprobs,
            output: Vec::new(),
            open: None,
            input: None,
            held: Vec::new(),
            end: None,
            events: Vec::new(),
            sequence: 0,
            timings: asked.timings,
            background: asked.background,
            raw: None,
        }
    }

    /// Shows the prompt, and what the model writes, beside the response.
    pub(super) fn show(&mut self, prompt: &Prepared) {
        let text = prompt.reading.as_ref().map(|r| r.prompt.clone());
        self.raw = Some(Raw {
            text: text.unwrap_or_default(),
            prompt: prompt.ids.clone(),
            answer: Vec::new(),
        });
    }

    /// The response with this status.
    pub(super) fn object(&self, status: &str) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "completed_at": null,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": null,
            "max_tool_calls": null,
            "model": self.model.id,
            "output": self.output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "prompt_cache_key": null,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "reasoning": {"effort": null, "summary": null},
            "safety_identifier": null,
            "service_tier": "default",
            "store": true,
            "temperature": self.model.defaults.sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": self.model.defaults.sampling.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": null,
            "metadata": {},
        });
        for (name, value) in &self.echo {
            object[name.as_str()] = value.clone();
        }
        if !self.warnings.is_empty() {
            object["warnings"] = self.warnings.clone().into();
        }
        object
    }

    /// The response when it is over.
    pub(super) fn response(&self) -> Value {
        let length = self
            .end
            .as_ref()
            .is_some_and(|e| e.finish == Finish::Length);
        let status = if length { "incomplete" } else { "completed" };
        let mut object = self.object(status);
        if length {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            object["completed_at"] = now().into();
        }
        if let Some(end) = &self.end {
            object["usage"] = usage(&end.stats, end.reasoning_tokens);
        }
        if let (Some(raw), Ok(tokenizer)) = (&self.raw, self.model.service.tokenizer()) {
            let ended = self.end.as_ref().and_then(|end| end.stats.end_token);
            let answer: Vec<u32> = raw.answer.iter().copied().chain(ended).collect();
            let options = DecodeOptions {
                special: true,
                continues: true,
            };
            let text = tokenizer.decode(&answer, options);
            let shown = |text: &str, tokens: &[u32]| json!([{"type": "raw_message_tokens", "message": text, "tokens": tokens}]);
            object["input_messages"] = shown(&raw.text, &raw.prompt);
            object["output_messages"] = shown(&String::from_utf8_lossy(&text), &answer);
        }
        object
    }

    /// The answer as a message of the conversation.
    pub(super) fn message(&self) -> Option<Value> {
        let mut message = json!({"role": "assistant", "content": ""});
        for item in &self.output {
            let text = |name: &str| {
                item[name][0]["text"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            match item["type"].as_str()? {
                "message" => message["content"] = text("content").into(),
                "reasoning" => message["reasoning_content"] = text("content").into(),
                kind => {
                    let arguments = match kind {
                        "custom_tool_call" => json!({"input": item["input"]}),
                        // One that broke off stays as it is.
                        _ => serde_json::from_str(item["arguments"].as_str()?)
                            .unwrap_or_else(|_| item["arguments"].clone()),
                    };
                    let name = match item["namespace"].as_str() {
                        Some(namespace) => format!("{namespace}__{}", item["name"].as_str()?),
                        None => item["name"].as_str()?.to_owned(),
                    };
                    let function = json!({"name": name, "arguments": arguments});
                    let call =
                        json!({"id": item["call_id"], "type": "function", "function": function});
                    match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                        Some(calls) => calls.push(call),
                        None => message["tool_calls"] = json!([call]),
                    }
                }
            }
        }
        (!self.output.is_empty()).then_some(message)
    }

    /// Takes a step, and notes the events that tell of it.
    fn take(&mut self, step: Step) {
        if let (Some(raw), Some(token)) = (&mut self.raw, &step.token) {
            raw.answer.push(token.id);
        }
        self.held.extend(step.token);
        for part in step.parts {
            match part {
                Part::Reasoning(text) => {
                    self.enter(Open::Reasoning);
                    self.grow(&text);
                }
                Part::Content(text) if text.is_empty() => {}
                Part::Content(text) => {
                    self.enter(Open::Message);
                    self.grow(&text);
                }
                Part::Call(call) => match call.stage {
                    Stage::Begins => self.enter_call(&call),
                    Stage::GoesOn => self.grow_call(&call.arguments),
                    Stage::Ends => self.leave(),
                    Stage::BreaksOff(_) => self.leave_as("incomplete"),
                },
            }
        }
        if let Some(end) = step.end {
            let status = match end.finish {
                Finish::Length => "incomplete",
                _ => "completed",
            };
            self.leave_as(status);
            self.end = Some(end);
        }
    }

    /// Begins an item of this kind, unless one is open.
    fn enter(&mut self, kind: Open) {
        if self.open == Some(kind) {
            return;
        }
        let Some((item, part)) = kind.empty() else {
            return;
        };
        self.leave();
        self.open = Some(kind);
        let place = self.output.len();
        self.tell(
            "response.output_item.added",
            json!({"output_index": place, "item": item}),
        );
        self.output.push(item);
        let event = self.within(json!({"part": part}));
        self.tell("response.content_part.added", event);
        self.output[place]["content"] = json!([part]);
    }

    /// An event's object with the place of what is open.
    fn within(&self, mut members: Value) -> Value {
        let place = self.output.len() - 1;
        members["item_id"] = self.output[place]["id"].clone();
        members["output_index"] = place.into();
        members["content_index"] = 0.into();
        members
    }

    fn grow(&mut self, text: &str) {
        let place = self.output.len() - 1;
        let held = std::mem::take(&mut self.held);
        let whole = self.output[place]["content"][0]["text"].as_str();
        let whole = format!("{}{text}", whole.unwrap_or_default());
        self.output[place]["content"][0]["text"] = whole.into();
        if self.open == Some(Open::Reasoning) {
            let event = self.within(json!({"delta": text}));
            self.tell("response.reasoning_text.delta", event);
            return;
        }
        let logprobs = self.entries(&held);
        let list = self.output[place]["content"][0]["logprobs"].as_array_mut();
        if let Some(list) = list {
            list.extend(logprobs.clone());
        }
        let event = self.within(json!({"delta": text, "logprobs": logprobs}));
        self.tell("response.output_text.delta", event);
    }

    fn entries(&self, tokens: &[Token]) -> Vec<Value> {
        match (self.logprobs, self.model.service.tokenizer()) {
            (Some(most), Ok(tokenizer)) => tokens
                .iter()
                .map(|t| chat_entry(tokenizer, t, &Telling::likeliest(most)))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn leave(&mut self) {
        self.leave_as("completed");
    }

    /// Ends the item that is open.
    fn leave_as(&mut self, status: &str) {
        let Some(kind) = self.open.take() else {
            return;
        };
        let place = self.output.len() - 1;
        self.output[place]["status"] = status.into();
        if kind == Open::Call {
            return self.leave_call(place);
        }
        let item = self.output[place].clone();
        let part = item["content"][0].clone();
        let text = &part["text"];
        let (name, event) = match kind {
            Open::Reasoning => ("response.reasoning_text.done", json!({"text": text})),
            _ => (
                "response.output_text.done",
                json!({"text": text, "logprobs": part["logprobs"]}),
            ),
        };
        let event = self.within(event);
        self.tell(name, event);
        let event = self.within(json!({"part": part}));
        self.tell("response.content_part.done", event);
        self.tell(
            "response.output_item.done",
            json!({"output_index": place, "item": item}),
        );
    }

    /// Begins the item of a call.
    fn enter_call(&mut self, call: &Call) {
        self.leave();
        let plain = ToolKind::Function {
            namespace: None,
            name: call.name.clone(),
        };
        let kind = self.kinds.get(&call.name).unwrap_or(&plain).clone();
        let item = match kind {
            ToolKind::Function { namespace, name } => {
                let mut item = json!({"id": id("fc_"), "type": "function_call", "status": "in_progress", "call_id": call.id, "name": name, "arguments": ""});
                if let Some(namespace) = namespace {
                    item["namespace"] = namespace.into();
                }
                item
            }
            ToolKind::Custom { name } => {
                self.input = Some(InputText::default());
                json!({"id": id("ctc_"), "type": "custom_tool_call", "status": "in_progress", "call_id": call.id, "name": name, "input": ""})
            }
        };
        let place = self.output.len();
        self.tell(
            "response.output_item.added",
            json!({"output_index": place, "item": item}),
        );
        self.output.push(item);
        self.open = Some(Open::Call);
    }

    /// More of the open call's arguments.
    fn grow_call(&mut self, arguments: &str) {
        let text = match &mut self.input {
            Some(input) => input.push(arguments),
            None => arguments.to_owned(),
        };
        self.grow_call_text(&text);
    }

    fn grow_call_text(&mut self, text: &str) {
        let place = self.output.len() - 1;
        let item = &mut self.output[place];
        let (field, delta, _) = call_names(item);
        if !text.is_empty() {
            let whole = item[field].as_str().unwrap_or_default();
            item[field] = format!("{whole}{text}").into();
            let event = json!({"item_id": item["id"], "output_index": place, "delta": text});
            self.tell(delta, event);
        }
    }

    /// Ends the item of the open call.
    fn leave_call(&mut self, place: usize) {
        if let Some(input) = self.input.take() {
            self.grow_call_text(&input.end());
        }
        let item = self.output[place].clone();
        let (field, _, done) = call_names(&item);
        let mut event = json!({"item_id": item["id"], "output_index": place, "name": item["name"]});
        event[field] = item[field].clone();
        self.tell(done, event);
        self.tell(
            "response.output_item.done",
            json!({"output_index": place, "item": item}),
        );
    }

    fn tell(&mut self, name: &'static str, mut event: Value) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        self.events.push((name, event));
    }

    /// The events since this was last asked.
    pub(super) fn drain(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Notes that it begins.
    pub(super) fn begin(&mut self) {
        let response = self.object("in_progress");
        self.tell("response.created", json!({"response": response}));
        self.tell("response.in_progress", json!({"response": response}));
    }

    /// Takes a step; `so_far` is what the answer has cost.
    pub(super) fn step(&mut self, step: Step, so_far: &Stats) {
        self.take(step);
        for (name, event) in &mut self.events {
            if self.timings && *name == "response.output_text.delta" {
                event["timings"] = timings(so_far);
            }
        }
    }

    /// Notes how far the prompt has come.
    pub(super) fn progress(&mut self, progress: &Value) {
        let response = self.object("in_progress");
        let event = json!({"response": response, "prompt_progress": progress});
        self.tell("response.in_progress", event);
    }

    /// Notes that it is over.
    pub(super) fn end(&mut self, response: &Value) {
        let name = match response["status"] == "incomplete" {
            true => "response.incomplete",
            false => "response.completed",
        };
        let mut event = json!({"response": response});
        if let Some(end) = &self.end {
            event["timings"] = timings(&end.stats);
        }
        self.tell(name, event);
    }

    /// The response that failed.
    fn failed(&mut self, error: &ApiError) -> Value {
        let code = match error.kind {
            "exceed_context_size_error" => "context_length_exceeded",
            "rate_limit_error" | "overloaded_error" => "rate_limit_exceeded",
            "invalid_request_error" => "invalid_prompt",
            _ => "server_error",
        };
        self.leave_as("incomplete");
        let mut response = self.object("failed");
        response["error"] = json!({"code": code, "message": error.message});
        response
    }

    /// Notes that it failed, and gives the response that did.
    pub(super) fn fail(&mut self, error: &ApiError) -> Value {
        let response = self.failed(error);
        self.tell("response.failed", json!({"response": response}));
        response
    }
}

fn usage(stats: &Stats, reasoning: usize) -> Value {
    let (input, output) = (stats.prompt_tokens, stats.generated_tokens);
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input + output,
    })
}
