//! Answers as Ollama writes them.

use std::sync::Arc;
use std::time::Instant;

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::read::Wishes;
use crate::app::Json;
use crate::calls::{Call, Stage};
use crate::error::{ApiError, Result};
use crate::logprobs::{Telling, chat_entry};
use crate::run::{End, Finish, Part, Run, Step, Token, collect};
use crate::served::{Served, now};
use crate::sse::{Gone, Sender};

/// Writes one answer.
pub(super) struct Writer {
    model: Arc<Served>,
    /// Messages rather than texts.
    chat: bool,
    pub(super) wishes: Wishes,
    /// Tokens of the prompt of a text, which its answer gives back as its context.
    pub(super) prompt: Vec<u32>,
    warnings: Vec<String>,
    began: Instant,
}

/// A piece of an answer.
#[derive(Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Call>,
}

impl Piece {
    /// What parts say; `open` is the call that has not come to its end.
    fn of(parts: Vec<Part>, open: &mut Option<Call>) -> Self {
        let mut piece = Piece::default();
        for part in parts {
            match part {
                Part::Content(text) => piece.content.push_str(&text),
                Part::Reasoning(text) => piece.thinking.push_str(&text),
                Part::Call(new) => match open {
                    Some(call) if new.stage != Stage::Begins => call.take(new),
                    _ => *open = Some(new),
                },
            }
            piece.take(open);
        }
        piece
    }

    /// Takes the call that has come to its end.
    fn take(&mut self, open: &mut Option<Call>) {
        match open.as_ref().map(|call| &call.stage) {
            Some(Stage::Ends) => self.calls.extend(open.take()),
            Some(Stage::BreaksOff(raw)) => {
                self.content.push_str(raw);
                *open = None;
            }
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

impl Writer {
    pub(super) fn new(
        model: &Arc<Served>,
        chat: bool,
        wishes: Wishes,
        warnings: Vec<String>,
    ) -> Self {
        Writer {
            model: Arc::clone(model),
            chat,
            wishes,
            prompt: Vec::new(),
            warnings,
            began: Instant::now(),
        }
    }

    fn object(&self, piece: &Piece, tokens: &[Token]) -> Value {
        let mut object = json!({"model": self.model.id, "created_at": time(now())});
        if self.chat {
            let mut message = json!({"role": "assistant", "content": piece.content});
            if !piece.thinking.is_empty() {
                message["thinking"] = piece.thinking.as_str().into();
            }
            if !piece.calls.is_empty() {
                let call = |c: &Call| {
                    let arguments: Value =
                        serde_json::from_str(&c.arguments).unwrap_or_else(|_| json!({}));
                    json!({"id": c.id, "function": {"index": c.index, "name": c.name, "arguments": arguments}})
                };
                message["tool_calls"] = piece.calls.iter().map(call).collect();
            }
            object["message"] = message;
        } else {
            object["response"] = piece.content.as_str().into();
            if !piece.thinking.is_empty() {
                object["thinking"] = piece.thinking.as_str().into();
            }
        }
        if let (Some(most), Ok(tokenizer)) = (self.wishes.logprobs, self.model.service.tokenizer())
        {
            let entry = |t: &Token| chat_entry(tokenizer, t, &Telling::likeliest(most));
            object["logprobs"] = tokens.iter().map(entry).collect();
        }
        object["done"] = false.into();
        object
    }

    fn last(&self, object: &mut Value, end: &End, answer: &[u32]) {
        let stats = &end.stats;
        object["done"] = true.into();
        object["done_reason"] = match end.finish {
            Finish::Length => "length",
            _ => "stop",
        }
        .into();
        let ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        object["total_duration"] = ns.into();
        object["load_duration"] = 0.into();
        object["prompt_eval_count"] = stats.prompt_tokens.into();
        object["prompt_eval_duration"] = stats.prompt_ns.into();
        object["eval_count"] = stats.generated_tokens.into();
        object["eval_duration"] = stats.generate_ns.into();
        if !self.chat {
            object["context"] = [&self.prompt, answer].concat().into();
        }
        if !self.warnings.is_empty() {
            object["warnings"] = self.warnings.clone().into();
        }
    }

    pub(super) async fn whole(self, mut run: Run) -> Result<Response> {
        let mut all = collect(&mut run).await?;
        let one = all.pop().unwrap_or_default();
        let end = one.end.as_ref();
        let end = end.ok_or_else(|| ApiError::internal("the answer has no end"))?;
        let mut object = self.object(&Piece::of(one.parts.clone(), &mut None), &one.tokens);
        let ids: Vec<u32> = one.tokens.iter().map(|t| t.id).collect();
        self.last(&mut object, end, &ids);
        Ok(Json(object).into_response())
    }

    pub(super) async fn stream(
        self,
        (mut run, first): (Run, Option<Step>),
        sender: Sender,
    ) -> std::result::Result<(), Gone> {
        let (mut answer, mut held) = (Vec::new(), Vec::new());
        let (mut next, mut open) = (first.map(Ok), None);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            let step = match step {
                None => return Ok(()),
                Some(Ok(step)) => step,
                Some(Err(error)) => return sender.data(&json!({"error": error.message})).await,
            };
            answer.extend(step.token.as_ref().map(|t| t.id));
            held.extend(step.token);
            let piece = Piece::of(step.parts, &mut open);
            if !piece.is_empty() {
                let object = self.object(&piece, &std::mem::take(&mut held));
                sender.data(&object).await?;
            }
            if let Some(end) = step.end {
                let mut object = self.object(&Piece::default(), &std::mem::take(&mut held));
                self.last(&mut object, &end, &answer);
                sender.data(&object).await?;
            }
        }
    }
}

/// Seconds since 1970 as a date and a time (RFC 3339); days by Howard Hinnant's `civil_from_days`.
pub(super) fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day = z % 146_097;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let m = (5 * in_year + 2) / 153;
    let d = in_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (h, min, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{d:02}T{h:02}:{min:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_whole_or_text() {
        let part = |arguments: &str, stage| {
            Part::Call(Call {
                index: 0,
                id: "call".to_owned(),
                name: "f".to_owned(),
                arguments: arguments.to_owned(),
                stage,
            })
        };
        let mut open = None;
        let begun = Piece::of(vec![part("", Stage::Begins)], &mut open);
        let more = Piece::of(vec![part("{\"a\":", Stage::GoesOn)], &mut open);
        assert!(begun.is_empty() && more.is_empty());
        let rest = vec![part("1}", Stage::GoesOn), part("", Stage::Ends)];
        let whole = Piece::of(rest, &mut open);
        assert_eq!(whole.calls[0].arguments, "{\"a\":1}");
        assert_eq!((whole.content.as_str(), &open), ("", &None));
        Piece::of(vec![part("", Stage::Begins)], &mut open);
        let raw = "<call>{\"name\"".to_owned();
        let broken = Piece::of(vec![part("", Stage::BreaksOff(raw.clone()))], &mut open);
        assert_eq!((broken.content, broken.calls, open), (raw, vec![], None));
    }

    #[test]
    fn times_are_written_as_people_do() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(time(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
