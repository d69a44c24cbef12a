//! Answers as Anthropic writes them.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::Stats;

use crate::app::{Dialect, Json};
use crate::calls::{Call, Stage};
use crate::error::{ApiError, Result};
use crate::run::{End, Finish, Part, Run, Step, collect};
use crate::served::Served;
use crate::sse::{Gone, Sender};

/// Writes one answer.
pub(super) struct Writer {
    pub(super) id: String,
    pub(super) model: Arc<Served>,
    pub(super) prompt_tokens: usize,
    pub(super) hides_thinking: bool,
    pub(super) warnings: Vec<String>,
}

/// The kind of a block that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// A call, and whether its arguments are an object, which is known from their first piece on.
    Tool {
        object: Option<bool>,
    },
}

/// How far a stream has come.
#[derive(Debug, Default)]
struct Blocks {
    open: Option<Kind>,
    count: usize,
}

fn stop_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Cancelled => "end_turn",
        Finish::StopString(_) => "stop_sequence",
        Finish::Length => "max_tokens",
        Finish::Calls => "tool_use",
    }
}

fn stop_sequence(finish: &Finish) -> Option<&str> {
    match finish {
        Finish::StopString(text) => Some(text),
        _ => None,
    }
}

/// Tokens read from the cache and others are counted apart.
fn usage(stats: &Stats, thinking: usize) -> Value {
    json!({
        "input_tokens": stats.prompt_tokens.saturating_sub(stats.reused_tokens),
        "cache_creation": null,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.generated_tokens,
        "output_tokens_details": {"thinking_tokens": thinking},
        "server_tool_use": null,
        "service_tier": "standard",
        "inference_geo": null,
    })
}

/// The input of a call, which must be an object.
fn input(arguments: &str) -> Value {
    let read: Option<Value> = serde_json::from_str(arguments).ok();
    read.filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// A call; what broke off has no input, and is shown as it was written.
fn block(call: &Call) -> Value {
    if let Stage::BreaksOff(raw) = &call.stage {
        return json!({"type": "text", "text": raw, "citations": null});
    }
    json!({
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": input(&call.arguments),
        "caller": {"type": "direct"},
    })
}

impl Writer {
    pub(super) async fn whole(self, mut run: Run) -> Result<Response> {
        let mut all = collect(&mut run).await?;
        let one = all.pop().unwrap_or_default();
        let end = one.end.as_ref();
        let end = end.ok_or_else(|| ApiError::internal("the answer has no end"))?;
        let mut content: Vec<Value> = Vec::new();
        for part in &one.parts {
            content.extend(match part {
                Part::Reasoning(_) if self.hides_thinking => {
                    Some(json!({"type": "thinking", "thinking": "", "signature": ""}))
                }
                Part::Reasoning(text) => {
                    Some(json!({"type": "thinking", "thinking": text, "signature": ""}))
                }
                Part::Content(text) if text.is_empty() => None,
                Part::Content(text) => {
                    Some(json!({"type": "text", "text": text, "citations": null}))
                }
                Part::Call(call) => Some(block(call)),
            });
        }
        let mut body = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.id,
            "content": content,
            "stop_reason": stop_reason(&end.finish),
            "stop_sequence": stop_sequence(&end.finish),
            "stop_details": null,
            "container": null,
            "usage": usage(&end.stats, end.reasoning_tokens),
        });
        if !self.warnings.is_empty() {
            body["warnings"] = self.warnings.into();
        }
        Ok(Json(body).into_response())
    }

    pub(super) async fn stream(
        self,
        (mut run, first): (Run, Option<Step>),
        sender: Sender,
    ) -> std::result::Result<(), Gone> {
        self.start(&sender).await?;
        let mut blocks = Blocks::default();
        let mut next = first.map(Ok);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => return Ok(()),
                Some(Ok(step)) => self.send(step, &mut blocks, &sender).await?,
                Some(Err(error)) => {
                    let body = Dialect::Anthropic.error_body(&error);
                    return sender.event("error", &body).await;
                }
            }
        }
    }

    async fn start(&self, sender: &Sender) -> std::result::Result<(), Gone> {
        let stats = Stats {
            prompt_tokens: self.prompt_tokens,
            ..Stats::default()
        };
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model.id,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "stop_details": null,
            "container": null,
            "usage": usage(&stats, 0),
        });
        if !self.warnings.is_empty() {
            message["warnings"] = self.warnings.clone().into();
        }
        let event = json!({"type": "message_start", "message": message});
        sender.event("message_start", &event).await?;
        sender.event("ping", &json!({"type": "ping"})).await
    }

    async fn send(
        &self,
        step: Step,
        blocks: &mut Blocks,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        for part in step.parts {
            match part {
                Part::Reasoning(text) => {
                    blocks.enter(Kind::Thinking, sender).await?;
                    if !self.hides_thinking {
                        let delta = json!({"type": "thinking_delta", "thinking": text});
                        blocks.delta(delta, sender).await?;
                    }
                }
                Part::Content(text) if text.is_empty() => {}
                Part::Content(text) => {
                    blocks.enter(Kind::Text, sender).await?;
                    let delta = json!({"type": "text_delta", "text": text});
                    blocks.delta(delta, sender).await?;
                }
                Part::Call(call) => blocks.call(&call, sender).await?,
            }
        }
        match step.end {
            Some(end) => self.end(end, blocks, sender).await,
            None => Ok(()),
        }
    }

    async fn end(
        &self,
        end: End,
        blocks: &mut Blocks,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        blocks.leave(sender).await?;
        let delta = json!({
            "stop_reason": stop_reason(&end.finish),
            "stop_sequence": stop_sequence(&end.finish),
        });
        let event = json!({"type": "message_delta", "delta": delta, "usage": usage(&end.stats, end.reasoning_tokens)});
        sender.event("message_delta", &event).await?;
        sender
            .event("message_stop", &json!({"type": "message_stop"}))
            .await
    }
}

impl Blocks {
    /// Begins a block of this kind, unless one is open.
    async fn enter(&mut self, kind: Kind, sender: &Sender) -> std::result::Result<(), Gone> {
        if self.open == Some(kind) {
            return Ok(());
        }
        self.leave(sender).await?;
        let block = match kind {
            Kind::Text => json!({"type": "text", "text": "", "citations": null}),
            _ => json!({"type": "thinking", "thinking": "", "signature": ""}),
        };
        self.open = Some(kind);
        self.start(block, sender).await
    }

    /// Tells what is new of a call.
    async fn call(&mut self, call: &Call, sender: &Sender) -> std::result::Result<(), Gone> {
        let object = match (&call.stage, self.open) {
            (Stage::Begins, _) => {
                self.leave(sender).await?;
                self.open = Some(Kind::Tool { object: None });
                let block = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}, "caller": {"type": "direct"}});
                return self.start(block, sender).await;
            }
            (Stage::GoesOn, Some(Kind::Tool { object })) => object,
            _ => return self.leave(sender).await,
        };
        let is_object = object.unwrap_or_else(|| call.arguments.starts_with('{'));
        self.open = Some(Kind::Tool {
            object: Some(is_object),
        });
        let piece = match (is_object, object) {
            (true, _) => call.arguments.as_str(),
            (false, None) => "{}",
            (false, Some(_)) => return Ok(()),
        };
        let delta = json!({"type": "input_json_delta", "partial_json": piece});
        self.delta(delta, sender).await
    }

    async fn leave(&mut self, sender: &Sender) -> std::result::Result<(), Gone> {
        match self.open.take() {
            Some(_) => self.stop(sender).await,
            None => Ok(()),
        }
    }

    async fn start(&mut self, block: Value, sender: &Sender) -> std::result::Result<(), Gone> {
        let event =
            json!({"type": "content_block_start", "index": self.count, "content_block": block});
        sender.event("content_block_start", &event).await
    }

    async fn delta(&self, delta: Value, sender: &Sender) -> std::result::Result<(), Gone> {
        let event = json!({"type": "content_block_delta", "index": self.count, "delta": delta});
        sender.event("content_block_delta", &event).await
    }

    async fn stop(&mut self, sender: &Sender) -> std::result::Result<(), Gone> {
        let event = json!({"type": "content_block_stop", "index": self.count});
        self.count += 1;
        sender.event("content_block_stop", &event).await
    }
}
