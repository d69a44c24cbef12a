//! llama.cpp's `/completion` and `/infill`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokkata::{EncodeOptions, Stats, Tokenizer};

use crate::app::{App, Call, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::logprobs::{Telling, chat_entry, likeliest};
use crate::names::{HINTS, LABELS, fingerprint};
use crate::openai::first;
use crate::params::Params;
use crate::prompts::infill;
use crate::prompts::mixed;
use crate::run::{End, Finish, Part, Run, Step, Token, Whole, collect, timings};
use crate::served::Served;
use crate::sse::{self, Gone, Sender};
use crate::talk::Prepared;

/// What the dialect alone asks for.
#[derive(Clone, Debug, Default)]
struct Wishes {
    stream: bool,
    n_probs: usize,
    tokens: bool,
    timings: bool,
    progress: bool,
    fields: Option<Vec<String>>,
}

/// Continues prompts.
pub(crate) async fn complete(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let value = call.fields.needed("prompt")?;
    let (params, wishes) = read(&app, &model, &mut call.fields)?;
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || prepare(&model, value, &params)).await?
    };
    answer(&app, model, prepared, call.fields.warnings, wishes).await
}

/// Fills in what stands between two texts.
pub(crate) async fn fill(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let needs = |name: &str| ApiError::field(name, "is missing");
    let prefix = fields
        .text("input_prefix")?
        .ok_or_else(|| needs("input_prefix"))?;
    let suffix = fields
        .text("input_suffix")?
        .ok_or_else(|| needs("input_suffix"))?;
    let begun = fields.text("prompt")?.unwrap_or_default();
    let files = extra(fields.list("input_extra")?.unwrap_or_default())?;
    let (params, wishes) = read(&app, &model, fields)?;
    let ids = infill(model.service.tokenizer()?, &files, &prefix, &suffix, &begun);
    let ids = ids.ok_or_else(|| {
        ApiError::unsupported("the model has no tokens for filling in the middle")
    })?;
    let prepared = vec![Prepared::plain(&model, ids, params)?];
    let warnings = std::mem::take(&mut call.fields.warnings);
    answer(&app, model, prepared, warnings, wishes).await
}

fn extra(list: Vec<Value>) -> Result<Vec<(String, String)>> {
    let one = |(i, file): (usize, Value)| {
        let text = |name: &str| {
            let text = file[name].as_str().map(str::to_owned);
            text.ok_or_else(|| ApiError::field(format!("input_extra[{i}].{name}"), "is missing"))
        };
        let name = match file["filename"] {
            Value::Null => "tmp".to_owned(),
            _ => text("filename")?,
        };
        Ok((name, text("text")?))
    };
    list.into_iter().enumerate().map(one).collect()
}

fn read(app: &App, model: &Served, fields: &mut Fields) -> Result<(Params, Wishes)> {
    let mut params = Params::take(fields, &model.defaults, model.service.tokenizer()?)?;
    let most = fields.integer(&["n_predict", "max_tokens"])?;
    params.max_tokens = most
        .and_then(|n| usize::try_from(n).ok())
        .or(model.defaults.max_tokens);
    let wishes = Wishes {
        stream: fields.boolean("stream")?.unwrap_or(false),
        n_probs: match fields.integer(&["n_probs", "logprobs"])? {
            Some(n) => likeliest("n_probs", n, model)?,
            None => 0,
        },
        tokens: fields.boolean("return_tokens")?.unwrap_or(false),
        timings: fields.boolean("timings_per_token")?.unwrap_or(false),
        progress: fields.boolean("return_progress")?.unwrap_or(false),
        fields: fields.texts("response_fields")?.filter(|f| !f.is_empty()),
    };
    params.logprobs = (wishes.n_probs > 0).then_some(wishes.n_probs);
    fields.refuse(
        &["post_sampling_probs"],
        "probabilities are those before the samplers",
    )?;
    fields.labels(&LABELS);
    fields.labels(&["cache_prompt", "image_data"]);
    fields.hints(&HINTS);
    fields.finish(app.options.strict_fields)?;
    Ok((params, wishes))
}

/// One prompt, or several: a list of texts and tokens is one unless it holds lists or only texts.
fn prepare(model: &Served, value: Value, params: &Params) -> Result<Vec<Prepared>> {
    let several = |items: &Vec<Value>| {
        let whole = |v: &Value| v.is_string() || v.is_array() || v.is_object();
        items.iter().all(whole) && !items.is_empty()
    };
    let values = match value {
        Value::Array(items) if several(&items) => items,
        other => vec![other],
    };
    let tokenizer = model.service.tokenizer()?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let one = |value: Value| {
        let value = bare_prompt(value)?;
        let mut ids = mixed(tokenizer, "prompt", value, options)?;
        let special = tokenizer.special();
        if special.add_eos
            && special.eos.is_some()
            && ids.last() == special.eos.as_ref()
            && ids.len() > 1
        {
            ids.pop();
        }
        Prepared::plain(model, ids, params.clone())
    };
    values.into_iter().map(one).collect()
}

/// The text of a prompt that may bring media along, which it must not.
fn bare_prompt(value: Value) -> Result<Value> {
    let Value::Object(mut members) = value else {
        return Ok(value);
    };
    if members
        .get("multimodal_data")
        .is_some_and(|data| !data.is_null())
    {
        let text = "the model reads text alone";
        return Err(ApiError::field("prompt.multimodal_data", text));
    }
    let text = members.shift_remove("prompt_string");
    text.ok_or_else(|| ApiError::field("prompt.prompt_string", "is missing"))
}

async fn answer(
    app: &App,
    model: Arc<Served>,
    prepared: Vec<Prepared>,
    warnings: Vec<String>,
    wishes: Wishes,
) -> Result<Response> {
    let several = prepared.len() > 1;
    let prompts = prepared.iter().map(|p| p.ids.clone()).collect();
    let mut run = Run::start(&model, prepared)?;
    let writer = Writer {
        model,
        warnings,
        prompts,
        wishes,
    };
    if writer.wishes.stream {
        let first = first(run).await?;
        return Ok(sse::respond(app.events(), |sender| {
            writer.stream(first, sender)
        }));
    }
    let all = collect(&mut run).await?;
    let mut objects = Vec::with_capacity(all.len());
    for (index, one) in all.iter().enumerate() {
        objects.push(writer.whole(&run, index, one)?);
    }
    Ok(match (several || run.len() > 1, objects.pop()) {
        (false, Some(object)) => crate::app::Json(object).into_response(),
        (_, last) => {
            objects.extend(last);
            crate::app::Json(Value::from(objects)).into_response()
        }
    })
}

/// Writes answers as llama.cpp does.
struct Writer {
    model: Arc<Served>,
    warnings: Vec<String>,
    prompts: Vec<Vec<u32>>,
    wishes: Wishes,
}

impl Writer {
    fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        Ok(self.model.service.tokenizer()?)
    }

    fn probabilities(&self, tokens: &[Token]) -> Option<Value> {
        let tokenizer = self.tokenizer().ok().filter(|_| self.wishes.n_probs > 0)?;
        let entry = |t: &Token| chat_entry(tokenizer, t, &Telling::likeliest(self.wishes.n_probs));
        let all: Vec<Value> = tokens.iter().map(entry).collect();
        Some(all.into())
    }

    fn whole(&self, run: &Run, index: usize, one: &Whole) -> Result<Value> {
        let Some(end) = &one.end else {
            return Err(ApiError::internal("the answer has no end"));
        };
        let mut object = self.last(run, index, &one.content, end);
        if self.wishes.tokens {
            let ids: Vec<u32> = one.tokens.iter().map(|t| t.id).collect();
            object["tokens"] = ids.into();
        }
        if let Some(probabilities) = self.probabilities(&one.tokens) {
            object["completion_probabilities"] = probabilities;
        }
        Ok(match &self.wishes.fields {
            Some(names) => chosen(&object, names),
            None => object,
        })
    }

    /// The object at an answer's end.
    fn last(&self, run: &Run, index: usize, content: &str, end: &End) -> Value {
        let params = run.params(index);
        let s = &params.sampling;
        let (kind, word) = match &end.finish {
            Finish::Length => ("limit", ""),
            Finish::StopString(word) => ("word", word.as_str()),
            _ => ("eos", ""),
        };
        let prompt = &self.prompts[index / params.n.max(1)];
        let text = self.tokenizer().map_or_else(
            |_| String::new(),
            |tokenizer| {
                let options = tokkata::DecodeOptions {
                    special: true,
                    continues: false,
                };
                String::from_utf8_lossy(&tokenizer.decode(prompt, options)).into_owned()
            },
        );
        let stats = &end.stats;
        let settings = json!({
            "n_predict": params.max_tokens.map_or(-1, |n| n as i64),
            "max_tokens": params.max_tokens.map_or(-1, |n| n as i64),
            "seed": params.seed_of(index % params.n.max(1)),
            "temperature": s.temperature,
            "top_k": s.top_k,
            "top_p": s.top_p,
            "min_p": s.min_p,
            "typical_p": s.typical_p,
            "repeat_penalty": s.repeat_penalty,
            "repeat_last_n": s.repeat_last_n,
            "presence_penalty": s.presence_penalty,
            "frequency_penalty": s.frequency_penalty,
            "logit_bias": self.biases(params),
            "adaptive_target": -1.0,
            "adaptive_decay": 0.9,
            "stop": params.stop,
            "ignore_eos": params.ignore_eos,
            "stream": self.wishes.stream,
            "n_probs": self.wishes.n_probs,
            "timings_per_token": self.wishes.timings,
        });
        let mut object = json!({
            "index": index,
            "content": content,
            "tokens": [],
            "id_slot": index,
            "stop": true,
            "model": self.model.id,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.prompt_tokens + stats.generated_tokens.saturating_sub(1),
            "generation_settings": settings,
            "prompt": text,
            "has_new_line": content.contains('\n'),
            "truncated": end.full,
            "stop_type": kind,
            "stopping_word": word,
            "system_fingerprint": fingerprint(),
            "timings": timings(stats),
        });
        if !self.warnings.is_empty() {
            object["warnings"] = self.warnings.clone().into();
        }
        object
    }

    /// Biases by token; none at all keeps a token out.
    fn biases(&self, params: &Params) -> Value {
        let ends = self.tokenizer().map_or(&[] as &[u32], |t| t.eog());
        let ends = ends.iter().filter(|_| params.ignore_eos);
        let ends = ends.map(|&id| (id, f32::NEG_INFINITY));
        let all = ends.chain(params.sampling.bias.iter().copied());
        all.map(|(token, bias)| json!({"token": token, "bias": bias}))
            .collect()
    }

    async fn stream(
        self,
        (mut run, first): (Run, Option<Step>),
        sender: Sender,
    ) -> std::result::Result<(), Gone> {
        let mut counts = vec![0; run.len()];
        let mut next = first.map(Ok);
        loop {
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => return Ok(()),
                Some(Ok(step)) => {
                    if let Some(progress) =
                        run.news_of_prompt(&step).filter(|_| self.wishes.progress)
                    {
                        self.progress(&run, step.choice, progress, &sender).await?;
                    }
                    self.send(&run, step, &mut counts, &sender).await?;
                }
                Some(Err(error)) => return sender.data(&json!({"error": error.object()})).await,
            }
        }
    }

    /// Tells how far a prompt has come.
    async fn progress(
        &self,
        run: &Run,
        index: usize,
        progress: Value,
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let mut object = json!({"index": index, "content": "", "tokens": [], "stop": false, "prompt_progress": progress});
        if self.wishes.timings {
            // Nothing has been drawn yet as far as the prompt is concerned.
            let prompt = Stats {
                generated_tokens: 0,
                generate_ns: 0,
                ..run.so_far(index)
            };
            object["timings"] = timings(&prompt);
        }
        sender.data(&object).await
    }

    async fn send(
        &self,
        run: &Run,
        step: Step,
        counts: &mut [usize],
        sender: &Sender,
    ) -> std::result::Result<(), Gone> {
        let index = step.choice;
        let so_far = run.so_far(index);
        if step.progress.is_some() {
            return Ok(());
        }
        counts[index] += usize::from(step.token.is_some());
        let mut text = String::new();
        for part in step.parts {
            if let Part::Content(more) = part {
                text.push_str(&more);
            }
        }
        let token = step.token;
        if token.is_some() || !text.is_empty() {
            let ids: Vec<u32> = token.iter().map(|t| t.id).collect();
            let mut object = json!({
                "index": index,
                "content": text,
                "tokens": ids,
                "stop": false,
                "id_slot": index,
                "tokens_predicted": counts[index],
                "tokens_evaluated": self.prompts[index / run.params(index).n.max(1)].len(),
            });
            if self.wishes.timings {
                object["timings"] = timings(&so_far);
            }
            let tokens: Vec<Token> = token.into_iter().collect();
            if let Some(probabilities) = self.probabilities(&tokens) {
                object["completion_probabilities"] = probabilities;
            }
            sender.data(&object).await?;
        }
        if let Some(end) = step.end {
            let object = self.last(run, index, "", &end);
            let object = match &self.wishes.fields {
                Some(names) => chosen(&object, names),
                None => object,
            };
            sender.data(&object).await?;
        }
        Ok(())
    }
}

/// Only these members; `a/b` is the member `b` of `a`, and keeps that name.
fn chosen(object: &Value, names: &[String]) -> Value {
    let mut out = Map::new();
    for name in names {
        if let Some(value) = object.pointer(&format!("/{name}")) {
            out.insert(name.clone(), value.clone());
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_chosen_by_path() {
        let object = json!({"a": {"b": 1}, "c": 2});
        let names = ["a/b", "c", "d"].map(str::to_owned);
        assert_eq!(chosen(&object, &names), json!({"a/b": 1, "c": 2}));
    }
}
