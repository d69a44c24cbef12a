//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokkata::{Stats, Tokenizer};

use crate::app::{App, Call, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::openai::logprobs::chat_entry;
use crate::openai::{HINTS, LABELS, fingerprint, messages};
use crate::options::ReasoningNames;
use crate::params::{MOST_LOGPROBS, Params};
use crate::run::{End, Finish, Part, Run, Step, Token, Usage, Whole, collect, id, timings};
use crate::served::{Served, now};
use crate::sse::{self, Gone, Sender};
use crate::talk::Talk;

/// What the dialect alone asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    stream: bool,
    usage: bool,
    usage_always: bool,
    /// Each token's probability, and so many likeliest ones.
    logprobs: Option<usize>,
    timings: bool,
    progress: bool,
    verbose: bool,
    /// What the reasoning is called; `None` where it is left out.
    names: Option<ReasoningNames>,
    token_ids: bool,
    prompt_text: bool,
}

/// Answers a conversation.
pub(crate) async fn complete(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let (talk, params, wishes) = read(&app, &model, &mut call.fields)?;
    let warnings = std::mem::take(&mut call.fields.warnings);
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || talk.prepare(&model, params)).await?
    };
    let prompt = prepared.reading.as_ref().map(|r| r.prompt.clone());
    let ids = prepared.ids.clone();
    let run = Run::start(&model, vec![prepared])?;
    let prompt = prompt.unwrap_or_default();
    let writer = Writer {
        id: id("chatcmpl-"),
        created: now(),
        model,
        warnings,
        prompt_tokens: ids.len(),
        prompt_ids: wishes.token_ids.then_some(ids),
        prompt,
        wishes,
    };
    if writer.wishes.stream {
        let first = first(run).await?;
        return Ok(sse::respond(app.events(), |sender| {
            writer.stream(first, sender)
        }));
    }
    writer.whole(run).await
}

/// How many tokens a conversation has.
pub(crate) async fn input_tokens(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let (talk, ..) = read(&app, &model, &mut call.fields)?;
    let rendered = aside(move || talk.render(&model)).await?;
    let count = rendered.ids.len();
    let body = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok(crate::app::Json(body).into_response())
}

/// The prompt of a conversation.
pub(crate) async fn apply_template(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let (talk, ..) = read(&app, &model, &mut call.fields)?;
    let rendered = aside(move || talk.render(&model)).await?;
    let count = rendered.ids.len();
    let body = json!({"prompt": rendered.text, "tokens": rendered.ids, "count": count});
    Ok(crate::app::Json(body).into_response())
}

/// Reads a chat request.
pub(crate) fn read(
    app: &App,
    model: &Served,
    fields: &mut Fields,
) -> Result<(Talk, Params, Wishes)> {
    let mut talk = messages::talk(fields, model, app.options.prefill)?;
    let tokenizer = model.service.tokenizer()?;
    let mut params = Params::take(fields, &model.defaults, tokenizer)?;
    let most = fields.integer(&["max_completion_tokens", "max_tokens", "n_predict"])?;
    params.max_tokens = most
        .and_then(|n| usize::try_from(n).ok())
        .or(model.defaults.max_tokens);
    let mut wishes = Wishes {
        stream: fields.boolean("stream")?.unwrap_or(false),
        ..Wishes::default()
    };
    wishes.usage = app.options.usage_always;
    wishes.usage_always = wishes.usage;
    if let Some(mut options) = fields.nested("stream_options")? {
        let asked = options.boolean("include_usage")?;
        wishes.usage |= asked.unwrap_or(false);
        wishes.usage_always |= options.boolean("continuous_usage_stats")?.unwrap_or(false);
        options.labels(&["include_obfuscation"]);
        options.close(app.options.strict_fields, fields)?;
    }
    wishes.logprobs = logprobs(fields)?;
    params.logprobs = wishes.logprobs;
    wishes.timings = fields.boolean("timings_per_token")?.unwrap_or(false);
    wishes.progress = fields.boolean("return_progress")?.unwrap_or(false);
    wishes.verbose = fields.boolean("verbose")?.unwrap_or(app.options.verbose);
    wishes.token_ids = fields.boolean("return_token_ids")?.unwrap_or(false);
    wishes.prompt_text = fields.boolean("return_prompt_text")?.unwrap_or(false);
    if let Some(key) = fields.text("prompt_cache_key")? {
        // Stored prefixes are shared by all who may ask; the key only says who asks again.
        tracing::debug!(target: "tokkata::http", key);
    }
    fields.labels(&LABELS);
    fields.labels(&["cache_prompt"]);
    wishes.names = names(fields, app.options.reasoning)?;
    talk.raw_reasoning = wishes.names == Some(ReasoningNames::None);
    if fields.boolean("parse_tool_calls")? == Some(false) {
        let text = "calls are always told apart from text here; leave tools out for text alone";
        return Err(ApiError::field("parse_tool_calls", text));
    }
    fields.hints(&HINTS);
    fields.refuse(
        &["prompt_logprobs"],
        "use /v1/completions with echo and logprobs",
    )?;
    fields.finish(app.options.strict_fields)?;
    Ok((talk, params, wishes))
}

/// What the reasoning is called in the answer; `None` where it is left out.
fn names(fields: &mut Fields, usual: ReasoningNames) -> Result<Option<ReasoningNames>> {
    let shows = fields.boolean("include_reasoning")?.unwrap_or(true);
    let names = match fields.text("reasoning_format")?.as_deref() {
        None => usual,
        Some("auto") => ReasoningNames::Both,
        Some("deepseek" | "deepseek-legacy") => ReasoningNames::ReasoningContent,
        Some("none") => ReasoningNames::None,
        Some(other) => {
            let text = format!("found '{other}', expected auto, deepseek or none");
            return Err(ApiError::field("reasoning_format", text));
        }
    };
    Ok(shows.then_some(names))
}

/// `logprobs` is a switch or a number of alternatives.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let top = fields.count(&["top_logprobs"])?;
    let on = match fields.take("logprobs") {
        None => None,
        Some(Value::Bool(on)) => Some(on),
        Some(Value::Number(n)) => return most(n.as_u64().map(|n| n as usize).or(top)),
        Some(other) => return Err(crate::fields::wrong("logprobs", &other, "true or false")),
    };
    match (on, top) {
        (Some(true), top) => most(top.or(Some(0))),
        (Some(false) | None, None | Some(0)) => Ok(None),
        _ => Err(ApiError::field("top_logprobs", "needs logprobs to be true")),
    }
}

fn most(n: Option<usize>) -> Result<Option<usize>> {
    match n {
        Some(n) if n > MOST_LOGPROBS => {
            let text = format!("found {n}, expected at most {MOST_LOGPROBS}");
            Err(ApiError::field("top_logprobs", text))
        }
        n => Ok(n),
    }
}

/// Waits for the first sign of life, so that what fails at once fails with a status.
pub(crate) async fn first(mut run: Run) -> Result<(Run, Option<Step>)> {
    let patience = std::time::Duration::from_millis(500);
    match tokio::time::timeout(patience, run.next()).await {
        Ok(Some(step)) => Ok((run, Some(step?))),
        Ok(None) | Err(_) => Ok((run, None)),
    }
}

/// Writes answers as OpenAI does.
struct Writer {
    id: String,
    created: u64,
    model: Arc<Served>,
    warnings: Vec<String>,
    prompt_ids: Option<Vec<u32>>,
    prompt_tokens: usize,
    prompt: String,
    wishes: Wishes,
}

/// What an answer's end is called.
pub(crate) fn finish_word(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
        Finish::Cancelled => "cancelled",
    }
}

impl Writer {
    fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        Ok(self.model.service.tokenizer()?)
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        let head = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": fingerprint(),
        });
        match head {
            Value::Object(head) => head,
            _ => Map::new(),
        }
    }

    fn reason(&self, to: &mut Map<String, Value>, text: &str) {
        let names = self.wishes.names;
        if matches!(
            names,
            Some(ReasoningNames::Both | ReasoningNames::ReasoningContent)
        ) {
            to.insert("reasoning_content".to_owned(), text.into());
        }
        if matches!(
            names,
            Some(ReasoningNames::Both | ReasoningNames::Reasoning)
        ) {
            to.insert("reasoning".to_owned(), text.into());
        }
    }

    async fn whole(self, mut run: Run) -> Result<Response> {
        let all = collect(&mut run).await?;
        let tokenizer = self.tokenizer()?;
        let mut usage = Usage::default();
        let mut choices = Vec::with_capacity(all.len());
        for (index, one) in all.iter().enumerate() {
            if let Some(end) = &one.end {
                usage.add(end, index == 0);
            }
            choices.push(self.choice(index, one, tokenizer));
        }
        let mut body = self.head("chat.completion");
        body.insert("choices".to_owned(), choices.into());
        body.insert("usage".to_owned(), usage.object());
        let stats = all.first().map(Whole::stats).unwrap_or_default();
        body.insert("timings".to_owned(), timings(&stats));
        self.extras(&mut body);
        Ok(crate::app::Json(Value::Object(body)).into_response())
    }

    /// What only some ask for.
    fn extras(&self, body: &mut Map<String, Value>) {
        if !self.warnings.is_empty() {
            body.insert("warnings".to_owned(), self.warnings.clone().into());
        }
        if let Some(ids) = &self.prompt_ids {
            body.insert("prompt_token_ids".to_owned(), ids.clone().into());
        }
        if self.wishes.prompt_text {
            body.insert("prompt_text".to_owned(), self.prompt.clone().into());
        }
        if self.wishes.verbose {
            body.insert("__verbose".to_owned(), json!({"prompt": self.prompt}));
        }
    }

    fn choice(&self, index: usize, one: &Whole, tokenizer: &Tokenizer) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        let content = match (one.content.is_empty(), one.calls.is_empty()) {
            (true, false) => Value::Null,
            _ => one.content.clone().into(),
        };
        message.insert("content".to_owned(), content);
        message.insert("refusal".to_owned(), Value::Null);
        message.insert("annotations".to_owned(), json!([]));
        if !one.reasoning.is_empty() {
            self.reason(&mut message, &one.reasoning);
        }
        if !one.calls.is_empty() {
            let call = |c: &crate::run::Call| {
                let function = json!({"name": c.name, "arguments": c.arguments});
                json!({"id": c.id, "type": "function", "function": function})
            };
            let calls: Vec<Value> = one.calls.iter().map(call).collect();
            message.insert("tool_calls".to_owned(), calls.into());
        }
        let logprobs = self.wishes.logprobs.map(|most| {
            let entry = |t: &Token| chat_entry(tokenizer, t, most);
            let content: Vec<Value> = one.tokens.iter().map(entry).collect();
            json!({"content": content, "refusal": null})
        });
        let finish = one.end.as_ref().map(|end| &end.finish);
        let mut choice = json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish.map(finish_word),
        });
        if let Some(Finish::StopString(stop)) = finish {
            choice["stop_reason"] = stop.as_str().into();
        }
        if self.wishes.token_ids {
            let ids: Vec<u32> = one.tokens.iter().map(|t| t.id).collect();
            choice["token_ids"] = ids.into();
        }
        choice
    }

    async fn stream(
        self,
        (mut run, first): (Run, Option<Step>),
        sender: Sender,
    ) -> std::result::Result<(), Gone> {
        let mut state = Stream {
            begun: vec![false; run.len()],
            held: vec![Vec::new(); run.len()],
            ends: vec![None; run.len()],
            usage: Usage {
                prompt: self.prompt_tokens,
                ..Usage::default()
            },
            timings: None,
            progress: None,
            first: true,
        };
        let mut next = first.map(Ok);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => break,
                Some(Ok(step)) => {
                    state.progress = run.news_of_prompt(&step).filter(|_| self.wishes.progress);
                    let so_far = run.so_far(step.choice);
                    self.send(step, &so_far, &mut state, &sender).await?;
                }
                Some(Err(error)) => {
                    sender.data(&json!({"error": error.object()})).await?;
                    return sender.done().await;
                }
            }
        }
        if self.wishes.usage {
            let mut chunk = self.head("chat.completion.chunk");
            chunk.insert("choices".to_owned(), json!([]));
            chunk.insert("usage".to_owned(), state.usage.object());
            if let Some(end) = state.ends.iter().flatten().next() {
                chunk.insert("timings".to_owned(), timings(&end.stats));
            }
            sender.data(&Value::Object(chunk)).await?;
        }
        sender.done().await
    }

    async fn send(
        &self,
        step: Step,
        so_far: &Stats,
        state: &mut Stream,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let index = step.choice;
        if step.progress.is_some() && !self.wishes.progress {
            return Ok(());
        }
        if !state.begun[index] {
            state.begun[index] = true;
            let delta = json!({"role": "assistant", "content": null});
            self.chunk(index, delta, None, state, sender).await?;
        }
        if let Some(progress) = state.progress.take() {
            self.progress(index, progress, sender).await?;
        }
        state.timings = self.wishes.timings.then(|| timings(so_far));
        state.usage.completion += usize::from(step.token.is_some());
        state.held[index].extend(step.token);
        for part in step.parts {
            let is_reasoning = matches!(part, Part::Reasoning(_));
            if is_reasoning && self.wishes.names.is_none() {
                continue;
            }
            let delta = self.delta(part);
            self.chunk(index, delta, None, state, sender).await?;
        }
        if let Some(end) = step.end {
            state.settle(index, end);
            let end = state.ends[index].clone();
            self.chunk(index, json!({}), end, state, sender).await?;
        }
        Ok(())
    }

    /// Tells how far a prompt has come.
    async fn progress(
        &self,
        index: usize,
        progress: Value,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let mut chunk = self.head("chat.completion.chunk");
        let choice = json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": null});
        chunk.insert("choices".to_owned(), json!([choice]));
        chunk.insert("prompt_progress".to_owned(), progress);
        sender.data(&Value::Object(chunk)).await
    }

    fn delta(&self, part: Part) -> Value {
        match part {
            Part::Content(text) => json!({"content": text}),
            Part::Reasoning(text) => {
                let mut delta = Map::new();
                self.reason(&mut delta, &text);
                delta.into()
            }
            Part::Call(call) => {
                let function = json!({"name": call.name, "arguments": call.arguments});
                let call = json!({
                    "index": call.index,
                    "id": call.id,
                    "type": "function",
                    "function": function,
                });
                json!({"tool_calls": [call]})
            }
        }
    }

    async fn chunk(
        &self,
        index: usize,
        delta: Value,
        end: Option<End>,
        state: &mut Stream,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let says = end.is_some() || delta.get("role").is_none();
        let held = if says {
            std::mem::take(&mut state.held[index])
        } else {
            Vec::new()
        };
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": null,
            "finish_reason": end.as_ref().map(|end| finish_word(&end.finish)),
        });
        if let Some(Finish::StopString(stop)) = end.as_ref().map(|end| &end.finish) {
            choice["stop_reason"] = stop.as_str().into();
        }
        if let (Some(most), Ok(tokenizer), false) =
            (self.wishes.logprobs, self.tokenizer(), held.is_empty())
        {
            let entry = |t: &Token| chat_entry(tokenizer, t, most);
            let content: Vec<Value> = held.iter().map(entry).collect();
            choice["logprobs"] = json!({"content": content, "refusal": null});
        }
        if self.wishes.token_ids {
            let ids: Vec<u32> = held.iter().map(|t| t.id).collect();
            choice["token_ids"] = ids.into();
        }
        let mut chunk = self.head("chat.completion.chunk");
        chunk.insert("choices".to_owned(), json!([choice]));
        if self.wishes.usage_always {
            chunk.insert("usage".to_owned(), state.usage.object());
        } else if self.wishes.usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        let end = end.as_ref();
        if let Some(end) = end.filter(|_| !self.wishes.usage || self.wishes.timings) {
            chunk.insert("timings".to_owned(), timings(&end.stats));
        } else if let Some(timings) = state.timings.as_ref().filter(|_| says) {
            chunk.insert("timings".to_owned(), timings.clone());
        }
        if std::mem::take(&mut state.first) {
            self.extras(&mut chunk);
        }
        sender.data(&Value::Object(chunk)).await
    }
}

/// How far a stream of several answers has come.
struct Stream {
    begun: Vec<bool>,
    /// Tokens whose text has not been sent.
    held: Vec<Vec<Token>>,
    ends: Vec<Option<End>>,
    usage: Usage,
    /// What the answer has cost so far, if that is wanted.
    timings: Option<Value>,
    /// How far the prompt has come, if that is to be told.
    progress: Option<Value>,
    first: bool,
}

impl Stream {
    fn settle(&mut self, index: usize, end: End) {
        self.ends[index] = Some(end);
        let all = self.ends.iter().flatten();
        let mut usage = Usage::default();
        all.enumerate().for_each(|(i, end)| usage.add(end, i == 0));
        self.usage = usage;
    }
}
