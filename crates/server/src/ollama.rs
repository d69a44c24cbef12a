//! Ollama's dialect: `/api/chat`, `/api/generate`, `/api/embed` and what its clients ask about models.

mod read;
mod write;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{App, Call, Dialect, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::openai::embeddings::{Shape, embed};
use crate::openai::first;
use crate::prompts::prompts;
use crate::run::Run;
use crate::served::{Served, now};
use crate::sse;
use crate::talk::Prepared;

fn told(answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| Dialect::Ollama.error(&error))
}

/// Answers a conversation.
pub(crate) async fn chat(app: Shared, request: Request) -> Response {
    told(talk(app, request).await)
}

/// Answers a prompt.
pub(crate) async fn generate(app: Shared, request: Request) -> Response {
    told(text(app, request).await)
}

/// Vectors of texts, in the newer form or the older one.
pub(crate) async fn embed_new(app: Shared, request: Request) -> Response {
    told(vectors(app, request, true).await)
}

/// The vector of one text.
pub(crate) async fn embed_old(app: Shared, request: Request) -> Response {
    told(vectors(app, request, false).await)
}

async fn talk(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let asked = read::chat(&app, &model, &mut call.fields)?;
    let Some(talk) = asked.talk else {
        return Ok(loaded(&model, true));
    };
    let params = asked.params;
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || talk.prepare(&model, params)).await?
    };
    let writer = write::Writer::new(&model, true, asked.wishes, call.fields.warnings);
    send(&app, &model, prepared, writer).await
}

async fn text(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let Some(asked) = read::generate(&app, &model, &mut call.fields)? else {
        return Ok(loaded(&model, false));
    };
    let wishes = asked.wishes.clone();
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || asked.prepare(&model)).await?
    };
    let mut writer = write::Writer::new(&model, false, wishes, call.fields.warnings);
    writer.prompt = prepared.ids.clone();
    send(&app, &model, prepared, writer).await
}

async fn send(
    app: &App,
    model: &Arc<Served>,
    prepared: Prepared,
    writer: write::Writer,
) -> Result<Response> {
    let run = Run::start(model, vec![prepared])?;
    if writer.wishes.stream {
        let first = first(run).await?;
        let manner = sse::Manner {
            lines: true,
            ping: None,
            ..app.events()
        };
        return Ok(sse::respond(manner, |sender| writer.stream(first, sender)));
    }
    writer.whole(run).await
}

/// A call without a prompt only wants the model to be there.
fn loaded(model: &Served, chat: bool) -> Response {
    let mut body = json!({
        "model": model.id,
        "created_at": write::time(now()),
        "done": true,
        "done_reason": "load",
    });
    match chat {
        true => body["message"] = json!({"role": "assistant", "content": ""}),
        false => body["response"] = "".into(),
    }
    Json(body).into_response()
}

async fn vectors(app: Shared, request: Request, new: bool) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields)?;
    let name = if new { "input" } else { "prompt" };
    let inputs = prompts(name, fields.needed(name)?)?;
    let mut shape = Shape::read(fields)?;
    shape.raw = !new;
    if fields.boolean("truncate")?.unwrap_or(true) {
        shape.truncate = Some(usize::MAX);
    }
    fields.labels(&["keep_alive", "options"]);
    fields.finish(app.options.strict_fields)?;
    let began = std::time::Instant::now();
    let (rows, tokens) = embed(&model, inputs, shape).await?;
    let row = |rows: Vec<Vec<f32>>| rows.into_iter().next().unwrap_or_default();
    let mut all: Vec<Value> = rows.into_iter().map(|r| json!(row(r))).collect();
    if !new {
        let embedding = all.pop().unwrap_or_default();
        return Ok(Json(json!({"embedding": embedding})).into_response());
    }
    let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Json(json!({
        "model": model.id,
        "embeddings": all,
        "total_duration": ns,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }))
    .into_response())
}

/// What Ollama's clients take for its version: one that knows all that is here.
pub(crate) async fn version() -> Response {
    Json(json!({"version": "0.12.0", "tokkata": env!("CARGO_PKG_VERSION")})).into_response()
}

fn details(model: &Served) -> Value {
    let meta = model.meta();
    let metadata = model.service.checkpoint().metadata();
    let family = metadata.str("general.architecture").unwrap_or_default();
    let params = meta["n_params"].as_u64().unwrap_or(0) as f64;
    let size = match params {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.2}M", n / 1e6),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": meta["ftype"],
    })
}

fn entry(model: &Served) -> Value {
    json!({
        "name": model.id,
        "model": model.id,
        "modified_at": write::time(model.created),
        "size": model.meta()["size"],
        "digest": format!("{:016x}{:048x}", crate::params::hash(&model.id), 0),
        "details": details(model),
    })
}

/// The models.
pub(crate) async fn tags(app: Shared) -> Response {
    let State(app) = app;
    let models: Vec<Value> = app.models.all().iter().map(|m| entry(m)).collect();
    Json(json!({"models": models})).into_response()
}

/// The models that are loaded.
pub(crate) async fn ps(app: Shared) -> Response {
    let State(app) = app;
    let one = |model: &Arc<Served>| {
        let mut entry = entry(model);
        entry["expires_at"] = "2318-01-01T00:00:00Z".into();
        entry["size_vram"] = 0.into();
        entry["context_length"] = model.service.limits().ctx.into();
        entry
    };
    let models: Vec<Value> = app.models.all().iter().map(one).collect();
    Json(json!({"models": models})).into_response()
}

/// What a model is.
pub(crate) async fn show(app: Shared, request: Request) -> Response {
    told(shown(app, request).await)
}

async fn shown(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let name = fields.take_any(&["model", "name"]);
    let name = name.and_then(|(_, v)| v.as_str().map(str::to_owned));
    let model = app.models.named(name.as_deref())?;
    let service = &model.service;
    let metadata = service.checkpoint().metadata();
    let arch = metadata.str("general.architecture").unwrap_or_default();
    let mut info = serde_json::Map::new();
    info.insert("general.architecture".to_owned(), arch.into());
    for key in ["context_length", "embedding_length", "block_count"] {
        let key = format!("{arch}.{key}");
        if let Some(value) = metadata.uint(&key) {
            info.insert(key, value.into());
        }
    }
    let mut able = vec![if service.writes() {
        "completion"
    } else {
        "embedding"
    }];
    if service.format().has_tool_calls() {
        able.push("tools");
    }
    if service.format().reasoning_markers().is_some() {
        able.push("thinking");
    }
    Ok(Json(json!({
        "license": metadata.str("general.license").unwrap_or_default(),
        "modelfile": format!("FROM {}\n", model.id),
        "parameters": "",
        "template": service.template().map_or("", |t| t.source()),
        "details": details(model),
        "model_info": info,
        "capabilities": able,
        "modified_at": write::time(model.created),
    }))
    .into_response())
}

/// Models are not changed over HTTP.
pub(crate) async fn refused() -> Response {
    let text = "models are not pulled, made or removed over HTTP; use the command line";
    Dialect::Ollama.error(&ApiError::unsupported(text))
}
