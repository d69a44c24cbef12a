//! Chat completions: what is asked, and how answers are written.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokkata::Tokenizer;

use crate::calls::{Call, InputText, Stage};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::logprobs::{Telling, at_most, chat_entry, likeliest, prompt_entries};
use crate::messages;
use crate::names::{HINTS, LABELS, fingerprint};
use crate::params::{Params, token_list};
use crate::reply::block_on;
use crate::run::{End, Finish, Part, Run, Step, Token, Usage, Whole, id, metrics, timings};
use crate::scores::prompt_logprobs;
use crate::served::{Served, now};
use crate::style::{ReasoningNames, Style};
use crate::talk::Talk;
use crate::write::Write;

/// What the dialect alone asks for.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    stream: bool,
    /// An answer that continues a message begins with that message.
    echo: bool,
    usage: bool,
    usage_always: bool,
    /// Each token's probability.
    logprobs: Option<Telling>,
    /// The prompt's own, and so many of the likeliest tokens in each place.
    prompt_logprobs: Option<usize>,
    timings: bool,
    /// How long the answer took is told at its end.
    metrics: bool,
    /// The prompt's tokens, where somebody else has made them of the conversation.
    forwarded: Option<Vec<u32>>,
    progress: bool,
    verbose: bool,
    /// What the reasoning is called; `None` where it is left out.
    names: Option<ReasoningNames>,
    /// `None` where it was not said.
    token_ids: Option<bool>,
    prompt_text: bool,
}

/// A conversation as it was asked for.
pub type Asked = (Talk, Params, Wishes);

/// Renders a conversation, and asks for its answers.
///
/// # Errors
/// A prompt that does not fit; what the template raises; a grammar that cannot be followed; a full queue.
pub fn start(
    model: &Arc<Served>,
    (talk, params, mut wishes): Asked,
    warnings: Vec<String>,
) -> Result<(Run, Writer)> {
    let customs = talk.customs.clone();
    let continued = talk
        .messages
        .last()
        .filter(|_| talk.continues && wishes.echo);
    let echo = continued.and_then(|m| m["content"].as_str());
    let echo = echo.unwrap_or_default().to_owned();
    let mut prepared = talk.prepare(model, params)?;
    if let Some(ids) = wishes.forwarded.take() {
        prepared.ids = ids;
    }
    let prompt = prepared.reading.as_ref().map(|r| r.prompt.clone());
    let ids = prepared.ids.clone();
    prepared.check(model)?;
    let known = match wishes.prompt_logprobs {
        Some(most) => {
            let scored = block_on(prompt_logprobs(model, &ids, (most, &[])))?;
            Some(prompt_entries(model.service.tokenizer()?, &scored))
        }
        None => None,
    };
    let run = Run::start(model, vec![prepared])?;
    let writer = Writer {
        id: id("chatcmpl-"),
        created: now(),
        model: Arc::clone(model),
        warnings,
        state: Stream::new(run.len(), ids.len()),
        prompt_ids: (wishes.token_ids == Some(true)).then_some(ids),
        prompt: prompt.unwrap_or_default(),
        echo,
        prompt_logprobs: known,
        customs,
        wishes,
    };
    Ok((run, writer))
}

/// Reads a chat request.
///
/// # Errors
/// A field that cannot be honoured, by its name.
pub fn read(style: &Style, model: &Served, fields: &mut Fields) -> Result<Asked> {
    let mut talk = messages::talk(fields, model, style.prefill)?;
    let tokenizer = model.service.tokenizer()?;
    let mut params = Params::take(fields, &model.defaults, tokenizer)?;
    let most = fields.integer(&["max_completion_tokens", "max_tokens", "n_predict"])?;
    params.max_tokens = most
        .and_then(|n| usize::try_from(n).ok())
        .or(model.defaults.max_tokens);
    let (usage, usage_always) = style.usage(fields)?;
    let mut wishes = Wishes {
        stream: fields.boolean("stream")?.unwrap_or(false),
        echo: fields.boolean("echo")?.unwrap_or(false),
        usage,
        usage_always,
        metrics: style.metrics,
        forwarded: forwarded(fields, style)?,
        ..Wishes::default()
    };
    let most = logprobs(fields, model)?;
    wishes.logprobs = Telling::take(fields, most, (model, style))?;
    params.logprobs = most;
    params.told = wishes
        .logprobs
        .iter()
        .flat_map(|l| l.told.clone())
        .collect();
    wishes.prompt_logprobs = at_most(fields, "prompt_logprobs", model)?;
    if wishes.prompt_logprobs.is_some() && wishes.stream {
        return Err(ApiError::field("prompt_logprobs", "cannot be streamed"));
    }
    wishes.timings = fields.boolean("timings_per_token")?.unwrap_or(false);
    wishes.progress = fields.boolean("return_progress")?.unwrap_or(false);
    wishes.verbose = fields.boolean("verbose")?.unwrap_or(style.verbose);
    wishes.token_ids = fields.boolean("return_token_ids")?;
    wishes.prompt_text = fields.boolean("return_prompt_text")?.unwrap_or(false);
    // Stored prefixes are shared by all who may ask; the key only says who asks again.
    fields.text("prompt_cache_key")?;
    fields.labels(&LABELS);
    fields.labels(&["cache_prompt"]);
    wishes.names = names(fields, style.reasoning)?;
    talk.raw_reasoning = wishes.names == Some(ReasoningNames::None);
    if fields.boolean("parse_tool_calls")? == Some(false) {
        let text = "calls are always told apart from text here; leave tools out for text alone";
        return Err(ApiError::field("parse_tool_calls", text));
    }
    fields.hints(&HINTS);
    fields.finish(style.strict_fields)?;
    Ok((talk, params, wishes))
}

/// The tokens that a vLLM router hands on from whoever computed the prompt first. Caches are not handed on.
fn forwarded(fields: &mut Fields, style: &Style) -> Result<Option<Vec<u32>>> {
    let Some(mut params) = fields.nested("kv_transfer_params")? else {
        return Ok(None);
    };
    let ids = match params.list("prompt_token_ids")? {
        Some(ids) if !ids.is_empty() => Some(token_list("prompt_token_ids", &ids)?),
        _ => None,
    };
    params.hints(&["do_remote_prefill", "do_remote_decode"]);
    params.close(style.strict_fields, fields)?;
    Ok(ids)
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
fn logprobs(fields: &mut Fields, model: &Served) -> Result<Option<usize>> {
    let top = at_most(fields, "top_logprobs", model)?;
    let on = match fields.take("logprobs") {
        None => None,
        Some(Value::Bool(on)) => Some(on),
        Some(Value::Number(n)) => {
            let n = n.as_i64().map(|n| likeliest("top_logprobs", n, model));
            return Ok(n.transpose()?.or(top));
        }
        Some(other) => return Err(crate::fields::wrong("logprobs", &other, "true or false")),
    };
    match (on, top) {
        (Some(true), top) => Ok(top.or(Some(0))),
        (Some(false) | None, None | Some(0)) => Ok(None),
        _ => Err(ApiError::field("top_logprobs", "needs logprobs to be true")),
    }
}

/// Writes answers as OpenAI does.
pub struct Writer {
    id: String,
    created: u64,
    model: Arc<Served>,
    warnings: Vec<String>,
    prompt_ids: Option<Vec<u32>>,
    prompt: String,
    /// What stands before each answer.
    echo: String,
    prompt_logprobs: Option<Value>,
    /// Tools that take a text.
    customs: Vec<String>,
    wishes: Wishes,
    state: Stream,
}

/// What an answer's end is called.
pub fn finish_word(finish: &Finish) -> &'static str {
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

    /// What only some ask for.
    fn extras(&self, body: &mut Map<String, Value>) {
        if !self.warnings.is_empty() {
            body.insert("warnings".to_owned(), self.warnings.clone().into());
        }
        if self.wishes.token_ids.is_some() {
            body.insert(
                "prompt_token_ids".to_owned(),
                self.prompt_ids.clone().into(),
            );
        }
        if let Some(known) = &self.prompt_logprobs {
            body.insert("prompt_logprobs".to_owned(), known.clone());
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
            _ => format!("{}{}", self.echo, one.content).into(),
        };
        message.insert("content".to_owned(), content);
        message.insert("refusal".to_owned(), Value::Null);
        message.insert("annotations".to_owned(), json!([]));
        if !one.reasoning.is_empty() {
            self.reason(&mut message, &one.reasoning);
        }
        if !one.calls.is_empty() {
            let calls: Vec<Value> = one.calls.iter().map(|c| self.call(c)).collect();
            message.insert("tool_calls".to_owned(), calls.into());
        }
        let logprobs = self.wishes.logprobs.as_ref().map(|telling| {
            let entry = |t: &Token| chat_entry(tokenizer, t, telling);
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
        if let Some(told) = self.wishes.token_ids {
            choice["token_ids"] = told.then(|| one.ids()).into();
        }
        choice
    }

    /// A call of a function, or of a tool that takes a text.
    fn call(&self, call: &Call) -> Value {
        if self.customs.contains(&call.name) {
            let custom = json!({"name": call.name, "input": call.text()});
            return json!({"id": call.id, "type": "custom", "custom": custom});
        }
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": call.id, "type": "function", "function": function})
    }

    /// Tells how far a prompt has come.
    fn progress(&self, index: usize, progress: Value) -> Value {
        let mut chunk = self.head("chat.completion.chunk");
        let choice = json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": null});
        chunk.insert("choices".to_owned(), json!([choice]));
        chunk.insert("prompt_progress".to_owned(), progress);
        chunk.into()
    }

    /// What a part adds to a message, if anything.
    fn delta(&mut self, choice: usize, part: Part) -> Option<Value> {
        Some(match part {
            Part::Content(text) => json!({"content": text}),
            Part::Reasoning(text) => {
                let mut delta = Map::new();
                self.reason(&mut delta, &text);
                delta.into()
            }
            Part::Call(call) => {
                let mut object = match (&call.stage, self.customs.contains(&call.name)) {
                    (Stage::Begins, true) => {
                        self.state.inputs[choice] = InputText::default();
                        json!({"id": call.id, "type": "custom", "custom": {"name": call.name, "input": ""}})
                    }
                    (Stage::Begins, false) => self.call(&call),
                    (stage, true) => {
                        let input = &mut self.state.inputs[choice];
                        let text = match stage {
                            Stage::GoesOn => input.push(&call.arguments),
                            _ => input.end(),
                        };
                        (!text.is_empty()).then(|| json!({"custom": {"input": text}}))?
                    }
                    (Stage::GoesOn, false) => json!({"function": {"arguments": call.arguments}}),
                    (Stage::Ends | Stage::BreaksOff(_), false) => return None,
                };
                object["index"] = call.index.into();
                json!({"tool_calls": [object]})
            }
        })
    }

    fn chunk(&mut self, index: usize, delta: &Value, end: Option<&End>) -> Value {
        let says = end.is_some() || delta.get("role").is_none();
        let held = if says {
            std::mem::take(&mut self.state.held[index])
        } else {
            Vec::new()
        };
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": null,
            "finish_reason": end.map(|end| finish_word(&end.finish)),
        });
        if let Some(Finish::StopString(stop)) = end.map(|end| &end.finish) {
            choice["stop_reason"] = stop.as_str().into();
        }
        let telling = self.wishes.logprobs.as_ref().filter(|_| !held.is_empty());
        if let (Some(telling), Ok(tokenizer)) = (telling, self.tokenizer()) {
            let entry = |t: &Token| chat_entry(tokenizer, t, telling);
            let content: Vec<Value> = held.iter().map(entry).collect();
            choice["logprobs"] = json!({"content": content, "refusal": null});
        }
        if self.wishes.token_ids == Some(true) {
            let ended = end.and_then(|end| end.stats.end_token);
            let ids: Vec<u32> = held.iter().map(|t| t.id).chain(ended).collect();
            choice["token_ids"] = ids.into();
        }
        let mut chunk = self.head("chat.completion.chunk");
        chunk.insert("choices".to_owned(), json!([choice]));
        if self.wishes.usage_always {
            chunk.insert("usage".to_owned(), self.state.usage.object());
        } else if self.wishes.usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        if let Some(end) = end.filter(|_| !self.wishes.usage || self.wishes.timings) {
            chunk.insert("timings".to_owned(), timings(&end.stats));
        } else if let Some(timings) = self.state.timings.as_ref().filter(|_| says) {
            chunk.insert("timings".to_owned(), timings.clone());
        }
        if std::mem::take(&mut self.state.first) {
            self.extras(&mut chunk);
        }
        chunk.into()
    }
}

impl Write for Writer {
    fn streams(&self) -> bool {
        self.wishes.stream
    }

    fn whole(&mut self, all: &[Whole]) -> Result<Value> {
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
        let end = all.first().and_then(|one| one.end.as_ref());
        if let Some(end) = end.filter(|_| self.wishes.metrics) {
            body.insert("metrics".to_owned(), metrics(end));
        }
        self.extras(&mut body);
        Ok(body.into())
    }

    fn step(&mut self, run: &mut Run, mut step: Step, out: &mut Vec<Value>) {
        // Where each piece tells what the answer has cost, the last one tells the end as well, so that none costs nothing.
        let joins = self.wishes.usage_always && step.token.is_some();
        if joins && let Some(last) = run.end_at_hand(step.choice) {
            step.parts.extend(last.parts);
            step.end = last.end;
        }
        let progress = run.news_of_prompt(&step).filter(|_| self.wishes.progress);
        let index = step.choice;
        if step.progress.is_some() && !self.wishes.progress {
            return;
        }
        if !std::mem::replace(&mut self.state.begun[index], true) {
            let delta = json!({"role": "assistant", "content": null});
            out.push(self.chunk(index, &delta, None));
            if !self.echo.is_empty() {
                let delta = json!({"content": self.echo});
                out.push(self.chunk(index, &delta, None));
            }
        }
        out.extend(progress.map(|progress| self.progress(index, progress)));
        self.state.timings = self.wishes.timings.then(|| timings(&run.so_far(index)));
        self.state.usage.completion += usize::from(step.token.is_some());
        self.state.held[index].extend(step.token);
        let mut deltas = Vec::new();
        for part in step.parts {
            let is_reasoning = matches!(part, Part::Reasoning(_));
            if is_reasoning && self.wishes.names.is_none() {
                continue;
            }
            deltas.extend(self.delta(index, part));
        }
        let joined = match &step.end {
            Some(_) if joins => deltas.pop(),
            _ => None,
        };
        for delta in deltas {
            out.push(self.chunk(index, &delta, None));
        }
        if let Some(end) = step.end {
            self.state.settle(index, end.clone());
            let delta = joined.unwrap_or_else(|| json!({}));
            out.push(self.chunk(index, &delta, Some(&end)));
        }
    }

    fn last(&mut self, out: &mut Vec<Value>) {
        if self.wishes.usage {
            let mut chunk = self.head("chat.completion.chunk");
            chunk.insert("choices".to_owned(), json!([]));
            chunk.insert("usage".to_owned(), self.state.usage.object());
            if let Some(end) = self.state.ends.iter().flatten().next() {
                chunk.insert("timings".to_owned(), timings(&end.stats));
                if self.wishes.metrics {
                    chunk.insert("metrics".to_owned(), metrics(end));
                }
            }
            out.push(chunk.into());
        }
    }
}

/// How far a stream of several answers has come.
struct Stream {
    begun: Vec<bool>,
    /// Tokens whose text has not been sent.
    held: Vec<Vec<Token>>,
    /// The text of the call that is being told, where its tool takes one.
    inputs: Vec<InputText>,
    ends: Vec<Option<End>>,
    usage: Usage,
    /// What the answer has cost so far, if that is wanted.
    timings: Option<Value>,
    first: bool,
}

impl Stream {
    fn new(choices: usize, prompt_tokens: usize) -> Self {
        Stream {
            begun: vec![false; choices],
            held: vec![Vec::new(); choices],
            inputs: vec![InputText::default(); choices],
            ends: vec![None; choices],
            usage: Usage {
                prompt: prompt_tokens,
                ..Usage::default()
            },
            timings: None,
            first: true,
        }
    }

    fn settle(&mut self, index: usize, end: End) {
        self.ends[index] = Some(end);
        let all = self.ends.iter().flatten();
        let mut usage = Usage::default();
        all.enumerate().for_each(|(i, end)| usage.add(end, i == 0));
        self.usage = usage;
    }
}
