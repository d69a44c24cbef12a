//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokkata::{DecodeOptions, EncodeOptions, Logprobs, Tokenizer};

use crate::app::{App, Call, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::native::tokens::mixed;
use crate::openai::chat::{finish_word, first};
use crate::openai::logprobs::TextLogprobs;
use crate::openai::{HINTS, LABELS, fingerprint};
use crate::params::{MOST_LOGPROBS, Params, token_list};
use crate::run::{End, Part, Run, Step, Usage, Whole, collect, id, timings};
use crate::scores::prompt_logprobs;
use crate::served::{Served, now};
use crate::sse::{self, Gone, Sender};
use crate::talk::Prepared;

/// What the dialect alone asks for.
#[derive(Clone, Debug, Default)]
struct Wishes {
    stream: bool,
    usage: bool,
    usage_always: bool,
    logprobs: Option<usize>,
    echo: bool,
    best_of: usize,
    token_ids: bool,
    /// So many tokens of a prompt are kept: the last ones, or the first.
    truncate: Option<(usize, bool)>,
}

/// A prompt as it came.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    Text(String),
    Ids(Vec<u32>),
    /// Texts and token ids, one after another.
    Mixed(Vec<Value>),
}

/// Continues texts.
pub(crate) async fn complete(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let (prompts, suffix, params, wishes) = read(&app, &model, &mut call.fields)?;
    let warnings = std::mem::take(&mut call.fields.warnings);
    let asked = params.n;
    let prepared = {
        let model = Arc::clone(&model);
        let best_of = wishes.best_of.max(params.n);
        let truncate = wishes.truncate;
        aside(move || {
            let params = Params {
                n: best_of,
                ..params
            };
            let one = |prompt: Given| {
                let mut ids = encode(&model, &prompt, suffix.as_deref())?;
                match truncate.filter(|(most, _)| ids.len() > *most) {
                    Some((most, true)) => drop(ids.drain(..ids.len() - most)),
                    Some((most, false)) => ids.truncate(most),
                    None => {}
                }
                Prepared::plain(&model, ids, params.clone())
            };
            prompts
                .into_iter()
                .map(one)
                .collect::<Result<Vec<Prepared>>>()
        })
        .await?
    };
    let prompt_ids: Vec<Vec<u32>> = prepared.iter().map(|p| p.ids.clone()).collect();
    let echoes = echoes(&model, &prompt_ids, &wishes).await?;
    let run = Run::start(&model, prepared)?;
    let writer = Writer {
        id: id("cmpl-"),
        created: now(),
        model,
        warnings,
        per_prompt: asked,
        drawn: wishes.best_of.max(asked),
        echoes,
        prompt_ids,
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

type Asked = (Vec<Given>, Option<String>, Params, Wishes);

fn read(app: &App, model: &Served, fields: &mut Fields) -> Result<Asked> {
    let prompts = prompts("prompt", fields.needed("prompt")?)?;
    let suffix = fields.text("suffix")?.filter(|s| !s.is_empty());
    let mut params = Params::take(fields, &model.defaults, model.service.tokenizer()?)?;
    let most = fields.integer(&["max_tokens", "max_completion_tokens", "n_predict"])?;
    params.max_tokens = match most {
        None => Some(model.defaults.max_tokens.unwrap_or(16)),
        Some(n) => usize::try_from(n).ok(),
    };
    let mut wishes = Wishes {
        stream: fields.boolean("stream")?.unwrap_or(false),
        echo: fields.boolean("echo")?.unwrap_or(false),
        best_of: fields.count(&["best_of"])?.unwrap_or(1),
        token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
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
    wishes.logprobs = fields.count(&["logprobs"])?;
    if wishes.logprobs.is_some_and(|n| n > MOST_LOGPROBS) {
        let text = format!("expected at most {MOST_LOGPROBS}");
        return Err(ApiError::field("logprobs", text));
    }
    if wishes.best_of > 1 && wishes.stream {
        return Err(ApiError::field(
            "best_of",
            "the best answer is known only when all have ended; do not stream",
        ));
    }
    if wishes.best_of > 1 && wishes.best_of < params.n {
        return Err(ApiError::field("best_of", "is less than n"));
    }
    params.logprobs = wishes.logprobs.or((wishes.best_of > params.n).then_some(0));
    fields.labels(&LABELS);
    fields.labels(&["cache_prompt", "timings_per_token", "add_special_tokens"]);
    fields.hints(&HINTS);
    fields.refuse(
        &["prompt_logprobs", "prompt_embeds"],
        "use echo and logprobs, and prompts of texts or tokens",
    )?;
    wishes.truncate = truncation(model, fields)?;
    fields.finish(app.options.strict_fields)?;
    Ok((prompts, suffix, params, wishes))
}

/// How a prompt is cut to so many tokens: its last ones are kept, or with `truncation_side` right its first ones.
fn truncation(model: &Served, fields: &mut Fields) -> Result<Option<(usize, bool)>> {
    let left = match fields.text("truncation_side")?.as_deref() {
        None | Some("left") => true,
        Some("right") => false,
        Some(other) => {
            let text = format!("found '{other}', expected left or right");
            return Err(ApiError::field("truncation_side", text));
        }
    };
    let ctx = model.service.limits().ctx as usize;
    match fields.integer(&["truncate_prompt_tokens"])? {
        None => Ok(None),
        Some(-1) => Ok(Some((ctx.saturating_sub(1), left))),
        Some(n) => match usize::try_from(n).ok().filter(|n| (1..=ctx).contains(n)) {
            Some(n) => Ok(Some((n, left))),
            None => Err(ApiError::field(
                "truncate_prompt_tokens",
                format!("found {n}, expected 1 to {ctx}, or -1 for as many as fit"),
            )),
        },
    }
}

/// A prompt, or several: texts, token ids, lists of both, or objects that hold a text.
pub(crate) fn prompts(name: &str, value: Value) -> Result<Vec<Given>> {
    let items = match value {
        Value::String(text) => return Ok(vec![Given::Text(text)]),
        Value::Object(members) => return Ok(vec![held(name, members)?]),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field(
                name,
                "found an empty list, expected a prompt",
            ));
        }
        Value::Array(items) => items,
        other => return Err(wrong(name, &other, "a string or a list")),
    };
    if items.iter().any(Value::is_number) {
        return Ok(vec![listed(name, items)?]);
    }
    let one = |value: Value| match value {
        Value::String(text) => Ok(Given::Text(text)),
        Value::Array(items) => listed(name, items),
        Value::Object(members) => held(name, members),
        other => Err(wrong(name, &other, "a string or token ids")),
    };
    items.into_iter().map(one).collect()
}

/// A list of token ids, perhaps with texts between them.
fn listed(name: &str, items: Vec<Value>) -> Result<Given> {
    match items.iter().any(Value::is_string) {
        true => Ok(Given::Mixed(items)),
        false => Ok(Given::Ids(token_list(name, &items)?)),
    }
}

/// The text of an object: `prompt_string`, or the parts of `content` as they follow each other.
fn held(name: &str, mut members: Map<String, Value>) -> Result<Given> {
    if let Some(Value::String(text)) = members.shift_remove("prompt_string") {
        return Ok(Given::Text(text));
    }
    let Some(Value::Array(parts)) = members.shift_remove("content") else {
        let path = format!("{name}.content");
        return Err(ApiError::field(
            path,
            "is missing, expected a list of parts",
        ));
    };
    let text = |(i, part): (usize, &Value)| {
        let text = part["text"].as_str().filter(|_| part["type"] == "text");
        text.map(str::to_owned).ok_or_else(|| {
            let kind = part["type"].as_str().unwrap_or_default();
            let why = format!("found a part of type '{kind}', and the model reads text alone");
            ApiError::field(format!("{name}.content[{i}]"), why)
        })
    };
    let texts: Result<Vec<String>> = parts.iter().enumerate().map(text).collect();
    Ok(Given::Text(texts?.concat()))
}

/// The tokens of a prompt. A text gets what the file wants around a text; with a suffix, the model's marks for filling
/// in the middle.
pub(crate) fn encode(model: &Served, prompt: &Given, suffix: Option<&str>) -> Result<Vec<u32>> {
    let tokenizer = model.service.tokenizer()?;
    let whole = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let text = match (prompt, suffix) {
        (Given::Ids(ids), None) => return Ok(ids.clone()),
        (Given::Mixed(parts), None) => {
            return mixed(tokenizer, "prompt", parts.clone().into(), whole);
        }
        (Given::Ids(_) | Given::Mixed(_), Some(_)) => {
            return Err(ApiError::field("suffix", "needs a prompt that is a text"));
        }
        (Given::Text(text), _) => text,
    };
    let Some(suffix) = suffix else {
        let mut ids = tokenizer.encode(text, whole);
        // An end that the file puts after a whole text would end a prompt that is to go on.
        let special = tokenizer.special();
        if special.add_eos && special.eos.is_some() && ids.last() == special.eos.as_ref() {
            ids.pop();
        }
        return Ok(ids);
    };
    infill(tokenizer, &[], text, suffix, "").ok_or_else(|| {
        ApiError::field(
            "suffix",
            "the model has no tokens for filling in the middle",
        )
    })
}

/// A prompt for what stands between two texts, after files that belong to them; `None` if the model has no marks for it.
pub(crate) fn infill(
    tokenizer: &Tokenizer,
    files: &[(String, String)],
    prefix: &str,
    suffix: &str,
    begun: &str,
) -> Option<Vec<u32>> {
    let special = tokenizer.special();
    let (pre, suf) = (special.fim_prefix?, special.fim_suffix?);
    let middle = special.fim_middle?;
    let plain = |text: &str| tokenizer.encode(text, EncodeOptions::default());
    let mut ids: Vec<u32> = special
        .bos
        .filter(|_| special.add_bos)
        .into_iter()
        .collect();
    if let Some(repo) = special.fim_repo.filter(|_| !files.is_empty()) {
        ids.push(repo);
        ids.extend(plain("myproject\n"));
    }
    for (name, text) in files {
        match special.fim_separator {
            Some(separator) => {
                ids.push(separator);
                ids.extend(plain(&format!("{name}\n")));
            }
            None => ids.extend(plain(&format!("\n\n--- {name} ---\n\n"))),
        }
        ids.extend(plain(text));
    }
    if let Some(separator) = special.fim_separator.filter(|_| !files.is_empty()) {
        ids.push(separator);
        ids.extend(plain("filename\n"));
    }
    ids.push(pre);
    ids.extend(plain(prefix));
    ids.push(suf);
    ids.extend(plain(suffix));
    ids.push(middle);
    ids.extend(plain(begun));
    Some(ids)
}

/// What is repeated of a prompt.
#[derive(Clone, Debug, Default)]
struct Echo {
    text: String,
    logprobs: TextLogprobs,
}

/// The prompts that are to be repeated, with the probabilities of their tokens if they are wanted.
async fn echoes(model: &Arc<Served>, prompts: &[Vec<u32>], wishes: &Wishes) -> Result<Vec<Echo>> {
    if !wishes.echo {
        return Ok(vec![Echo::default(); prompts.len()]);
    }
    let tokenizer = Arc::clone(model.service.tokenizer()?);
    let mut echoes = Vec::with_capacity(prompts.len());
    for ids in prompts {
        let mut echo = Echo {
            text: plain_text(&tokenizer, ids),
            logprobs: TextLogprobs::default(),
        };
        if let Some(most) = wishes.logprobs {
            let known = prompt_logprobs(model, ids, most).await?;
            let mut offset = 0;
            for (&id, logprobs) in ids.iter().zip(&known) {
                let place = (most, offset);
                echo.logprobs.push(&tokenizer, id, logprobs.as_ref(), place);
                offset += plain_text(&tokenizer, &[id]).chars().count();
            }
        }
        echoes.push(echo);
    }
    Ok(echoes)
}

fn plain_text(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let bytes = tokenizer.decode(ids, DecodeOptions::default());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes texts as OpenAI does.
struct Writer {
    id: String,
    created: u64,
    model: Arc<Served>,
    warnings: Vec<String>,
    /// Answers to a prompt that are given, of those that are drawn.
    per_prompt: usize,
    drawn: usize,
    echoes: Vec<Echo>,
    prompt_ids: Vec<Vec<u32>>,
    wishes: Wishes,
}

impl Writer {
    fn head(&self) -> Map<String, Value> {
        let head = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": fingerprint(),
        });
        match head {
            Value::Object(head) => head,
            _ => Map::new(),
        }
    }

    async fn whole(self, mut run: Run) -> Result<Response> {
        let all = collect(&mut run).await?;
        let mut usage = Usage::default();
        for (i, one) in all.iter().enumerate() {
            if let Some(end) = &one.end {
                usage.add(end, i % self.drawn == 0);
            }
        }
        let mut choices = Vec::new();
        for (prompt, drawn) in all.chunks(self.drawn).enumerate() {
            for one in self.best(drawn) {
                choices.push(self.choice(choices.len(), prompt, one)?);
            }
        }
        let mut body = self.head();
        body.insert("choices".to_owned(), choices.into());
        body.insert("usage".to_owned(), usage.object());
        let stats = all.first().map(Whole::stats).unwrap_or_default();
        body.insert("timings".to_owned(), timings(&stats));
        if !self.warnings.is_empty() {
            body.insert("warnings".to_owned(), self.warnings.clone().into());
        }
        Ok(crate::app::Json(Value::Object(body)).into_response())
    }

    /// The likeliest per token of the answers that were drawn.
    fn best<'a>(&self, drawn: &'a [Whole]) -> Vec<&'a Whole> {
        let mean = |one: &&Whole| {
            let known = one.tokens.iter().filter_map(|t| t.logprobs.as_ref());
            let all: Vec<f64> = known.map(|l| f64::from(l.picked.logprob)).collect();
            match all.len() {
                0 => 0.0,
                n => all.iter().sum::<f64>() / n as f64,
            }
        };
        let mut order: Vec<&Whole> = drawn.iter().collect();
        if self.drawn > self.per_prompt {
            order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        }
        order.truncate(self.per_prompt);
        order
    }

    fn choice(&self, index: usize, prompt: usize, one: &Whole) -> Result<Value> {
        let tokenizer = self.model.service.tokenizer()?;
        let echo = &self.echoes[prompt];
        let logprobs = self.wishes.logprobs.map(|most| {
            let mut logprobs = echo.logprobs.clone();
            let mut offset = echo.text.chars().count();
            for token in &one.tokens {
                let certain = certain(token.id);
                let known = token.logprobs.as_ref().unwrap_or(&certain);
                logprobs.push(tokenizer, token.id, Some(known), (most, offset));
                offset += plain_text(tokenizer, &[token.id]).chars().count();
            }
            logprobs.object()
        });
        let mut choice = json!({
            "text": format!("{}{}", echo.text, one.content),
            "index": index,
            "logprobs": logprobs,
            "finish_reason": one.end.as_ref().map(|end| finish_word(&end.finish)),
        });
        if self.wishes.token_ids {
            let ids: Vec<u32> = one.tokens.iter().map(|t| t.id).collect();
            choice["token_ids"] = ids.into();
            choice["prompt_token_ids"] = self.prompt_ids[prompt].clone().into();
        }
        Ok(choice)
    }

    async fn stream(
        self,
        (mut run, first): (Run, Option<Step>),
        sender: Sender,
    ) -> std::result::Result<(), Gone> {
        let mut state = Stream {
            ends: vec![None; run.len()],
            logprobs: vec![TextLogprobs::default(); run.len()],
            token_ids: vec![Vec::new(); run.len()],
            offset: vec![0; run.len()],
            begun: vec![false; run.len()],
            tokens: 0,
        };
        let mut next = first.map(Ok);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => break,
                Some(Ok(step)) => self.send(step, &mut state, &sender).await?,
                Some(Err(error)) => {
                    sender.data(&json!({"error": error.object()})).await?;
                    return sender.done().await;
                }
            }
        }
        if self.wishes.usage {
            let mut chunk = self.head();
            chunk.insert("choices".to_owned(), json!([]));
            chunk.insert("usage".to_owned(), self.usage(&state).object());
            sender.data(&Value::Object(chunk)).await?;
        }
        sender.done().await
    }

    fn usage(&self, state: &Stream) -> Usage {
        let mut usage = Usage::default();
        for (i, end) in state.ends.iter().enumerate() {
            if let Some(end) = end {
                usage.add(end, i % self.drawn == 0);
            }
        }
        usage.completion = usage.completion.max(state.tokens);
        usage
    }

    async fn send(
        &self,
        step: Step,
        state: &mut Stream,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        if step.progress.is_some() {
            return Ok(());
        }
        let index = step.choice;
        let echo = &self.echoes[index / self.drawn];
        let mut text = String::new();
        if !std::mem::replace(&mut state.begun[index], true) {
            text.push_str(&echo.text);
            state.logprobs[index] = echo.logprobs.clone();
            state.offset[index] = echo.text.chars().count();
        }
        if let (Some(token), Ok(tokenizer)) = (&step.token, self.model.service.tokenizer()) {
            state.tokens += 1;
            state.token_ids[index].push(token.id);
            if let Some(most) = self.wishes.logprobs {
                let certain = certain(token.id);
                let known = token.logprobs.as_ref().unwrap_or(&certain);
                let place = (most, state.offset[index]);
                state.logprobs[index].push(tokenizer, token.id, Some(known), place);
                state.offset[index] += plain_text(tokenizer, &[token.id]).chars().count();
            }
        }
        for part in step.parts {
            if let Part::Content(more) = part {
                text.push_str(&more);
            }
        }
        if text.is_empty() && step.end.is_none() {
            return Ok(());
        }
        self.chunk(index, &text, step.end, state, sender).await
    }

    async fn chunk(
        &self,
        index: usize,
        text: &str,
        end: Option<End>,
        state: &mut Stream,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let logprobs = std::mem::take(&mut state.logprobs[index]);
        let logprobs =
            (self.wishes.logprobs.is_some() && !logprobs.is_empty()).then(|| logprobs.object());
        let mut choice = json!({
            "text": text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": end.as_ref().map(|end| finish_word(&end.finish)),
        });
        let ids = std::mem::take(&mut state.token_ids[index]);
        if self.wishes.token_ids {
            choice["token_ids"] = ids.into();
        }
        let mut chunk = self.head();
        chunk.insert("choices".to_owned(), json!([choice]));
        if let Some(end) = &end {
            chunk.insert("timings".to_owned(), timings(&end.stats));
            if !self.warnings.is_empty() {
                chunk.insert("warnings".to_owned(), self.warnings.clone().into());
            }
        }
        state.ends[index] = end.or(state.ends[index].take());
        if self.wishes.usage_always {
            chunk.insert("usage".to_owned(), self.usage(state).object());
        } else if self.wishes.usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        sender.data(&Value::Object(chunk)).await
    }
}

/// How far a stream of several answers has come.
struct Stream {
    ends: Vec<Option<End>>,
    logprobs: Vec<TextLogprobs>,
    token_ids: Vec<Vec<u32>>,
    offset: Vec<usize>,
    begun: Vec<bool>,
    tokens: usize,
}

/// A token that was not drawn but forced.
fn certain(token: u32) -> Logprobs {
    Logprobs {
        picked: tokkata::Logprob {
            token,
            logprob: 0.0,
        },
        top: Vec::new(),
    }
}
