//! Answers as Cohere writes them.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::Stats;
use tokkata_requests::logprobs::text_of;

use crate::app::Json;
use crate::calls::{Call, Stage};
use crate::error::{ApiError, Result};
use crate::run::{End, Finish, Part, Run, Step, Token, collect};
use crate::served::Served;
use crate::sse::{Gone, Sender};

/// Writes one answer.
pub(super) struct Writer {
    pub(super) id: String,
    pub(super) model: Arc<Served>,
    /// Whether the probability of each token is told.
    pub(super) logprobs: bool,
    pub(super) warnings: Vec<String>,
}

/// What is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

/// How far a stream has come.
#[derive(Debug, Default)]
struct Blocks {
    open: Option<Kind>,
    count: usize,
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Cancelled => "COMPLETE",
        Finish::StopString(_) => "STOP_SEQUENCE",
        Finish::Length => "MAX_TOKENS",
        Finish::Calls => "TOOL_CALL",
    }
}

fn usage(stats: &Stats) -> Value {
    let tokens = json!({
        "input_tokens": stats.prompt_tokens,
        "output_tokens": stats.generated_tokens,
    });
    json!({"billed_units": tokens, "tokens": tokens, "cached_tokens": stats.reused_tokens})
}

fn call(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

impl Writer {
    /// The probability of a token.
    fn entry(&self, token: &Token) -> Option<Value> {
        let logprob = token.logprobs.as_ref().map_or(0.0, |l| l.picked.logprob);
        let text = text_of(self.model.service.tokenizer().ok()?, token.id);
        let told = json!({"token_ids": [token.id], "text": text, "logprobs": [logprob]});
        self.logprobs.then_some(told)
    }

    pub(super) async fn whole(self, mut run: Run) -> Result<Response> {
        let one = collect(&mut run).await?.pop().unwrap_or_default();
        let end = one.end.as_ref();
        let end = end.ok_or_else(|| ApiError::internal("the answer has no end"))?;
        let mut content: Vec<Value> = Vec::new();
        if !one.reasoning.is_empty() {
            content.push(json!({"type": "thinking", "thinking": one.reasoning}));
        }
        let mut message = json!({"role": "assistant"});
        if one.calls.is_empty() {
            content.push(json!({"type": "text", "text": one.content}));
        } else {
            message["tool_plan"] = one.content.as_str().into();
            message["tool_calls"] = one.calls.iter().map(call).collect();
        }
        message["content"] = content.into();
        let mut body = json!({
            "id": self.id,
            "finish_reason": finish_reason(&end.finish),
            "message": message,
            "usage": usage(&end.stats),
        });
        if self.logprobs {
            body["logprobs"] = one.tokens.iter().filter_map(|t| self.entry(t)).collect();
        }
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
        let message = json!({"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []});
        let mut start = json!({"id": self.id, "delta": {"message": message}});
        if !self.warnings.is_empty() {
            start["warnings"] = self.warnings.clone().into();
        }
        send(&sender, "message-start", start).await?;
        let mut blocks = Blocks::default();
        let mut next = first.map(Ok);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => return sender.done().await,
                Some(Ok(step)) => self.send(step, &mut blocks, &sender).await?,
                Some(Err(error)) => {
                    let delta = json!({"finish_reason": "ERROR", "error": error.message});
                    let end = json!({"id": self.id, "delta": delta});
                    send(&sender, "message-end", end).await?;
                    return sender.done().await;
                }
            }
        }
    }

    async fn send(
        &self,
        step: Step,
        blocks: &mut Blocks,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let mut logprobs = step.token.as_ref().and_then(|t| self.entry(t));
        for part in step.parts {
            match part {
                Part::Reasoning(text) => {
                    blocks.enter(Kind::Thinking, sender).await?;
                    let delta = json!({"thinking": text});
                    blocks.delta(delta, logprobs.take(), sender).await?;
                }
                Part::Content(text) if text.is_empty() => {}
                Part::Content(text) => {
                    blocks.enter(Kind::Text, sender).await?;
                    let delta = json!({"text": text});
                    blocks.delta(delta, logprobs.take(), sender).await?;
                }
                Part::Call(call) => blocks.call(&call, sender).await?,
            }
        }
        match step.end {
            Some(end) => self.end(&end, blocks, sender).await,
            None => Ok(()),
        }
    }

    async fn end(
        &self,
        end: &End,
        blocks: &mut Blocks,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        blocks.leave(sender).await?;
        let delta =
            json!({"finish_reason": finish_reason(&end.finish), "usage": usage(&end.stats)});
        send(
            sender,
            "message-end",
            json!({"id": self.id, "delta": delta}),
        )
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
        self.open = Some(kind);
        let content = match kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": ""}),
            _ => json!({"type": "text", "text": ""}),
        };
        self.send("content-start", json!({"content": content}), sender)
            .await
    }

    /// More of a block's text, with the probability of a token where it is told.
    async fn delta(
        &self,
        content: Value,
        logprobs: Option<Value>,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let delta = json!({"message": {"content": content}});
        let mut event = json!({"index": self.count, "delta": delta});
        if let Some(logprobs) = logprobs {
            event["logprobs"] = logprobs;
        }
        send(sender, "content-delta", event).await
    }

    /// Tells what is new of a call.
    async fn call(&mut self, new: &Call, sender: &Sender) -> std::result::Result<(), Gone> {
        match (&new.stage, self.open) {
            (Stage::Begins, _) => {
                self.leave(sender).await?;
                self.open = Some(Kind::Call);
                let message = json!({"tool_calls": call(new)});
                self.send("tool-call-start", message, sender).await
            }
            (Stage::GoesOn, Some(Kind::Call)) => {
                let function = json!({"arguments": new.arguments});
                let message = json!({"tool_calls": {"function": function}});
                self.send("tool-call-delta", message, sender).await
            }
            _ => self.leave(sender).await,
        }
    }

    async fn leave(&mut self, sender: &Sender) -> std::result::Result<(), Gone> {
        let name = match self.open.take() {
            None => return Ok(()),
            Some(Kind::Call) => "tool-call-end",
            Some(_) => "content-end",
        };
        let index = self.count;
        self.count += 1;
        send(sender, name, json!({"index": index})).await
    }

    async fn send(
        &self,
        name: &str,
        message: Value,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let event = json!({"index": self.count, "delta": {"message": message}});
        send(sender, name, event).await
    }
}

/// Sends an event, which says its name itself too.
async fn send(sender: &Sender, name: &str, mut event: Value) -> std::result::Result<(), Gone> {
    event["type"] = name.into();
    sender.event(name, &event).await
}
