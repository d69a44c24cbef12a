//! Ollama's dialect: `/api/chat`, `/api/generate`, `/api/embed` and what its clients ask about models.

pub(crate) mod library;
mod read;
mod write;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{App, Call, Dialect, Json, Shared, aside};
use crate::error::Result;
use crate::fleet::{About, Keep, Kind, Loaded};
use crate::openai::embeddings::{Shape, embed};
use crate::openai::first;
use crate::openai::models::capability;
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
    let ends = Keep::ends(&call.fields);
    let model = app.model(&mut call.fields).await?;
    let asked = read::chat(&app, &model, &mut call.fields)?;
    let Some(talk) = asked.talk else {
        return loaded(&app, model, ends, "message").await;
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
    let ends = Keep::ends(&call.fields);
    let model = app.model(&mut call.fields).await?;
    let Some(asked) = read::generate(&app, &model, &mut call.fields)? else {
        return loaded(&app, model, ends, "response").await;
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

/// A call without a prompt only wants the model to be there, or to be gone. `member` is where an answer would stand.
async fn loaded(app: &App, model: Arc<Served>, ends: bool, member: &str) -> Result<Response> {
    let leaves = ends && app.fleet.swaps();
    let mut body = json!({
        "model": model.id,
        "created_at": write::time(now()),
        "done": true,
        "done_reason": if leaves { "unload" } else { "load" },
    });
    body[member] = match member {
        "message" => json!({"role": "assistant", "content": ""}),
        _ => "".into(),
    };
    if leaves {
        let id = model.id.clone();
        drop(model);
        app.fleet.unload(Some(&id)).await?;
    }
    Ok(Json(body).into_response())
}

async fn vectors(app: Shared, request: Request, new: bool) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
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

fn details(about: &About) -> Value {
    let Some(Loaded::Text(model)) = &about.loaded else {
        return json!({"parent_model": "", "format": "gguf", "family": "", "families": [],
            "parameter_size": "", "quantization_level": ""});
    };
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

fn entry(about: &About) -> Value {
    let of = &about.of;
    json!({
        "name": of.id,
        "model": of.id,
        "modified_at": write::time(of.created),
        "size": of.bytes,
        "digest": format!("{:016x}{:048x}", crate::params::hash(&of.id), 0),
        "details": details(about),
    })
}

/// The models.
pub(crate) async fn tags(app: Shared) -> Response {
    let State(app) = app;
    let models: Vec<Value> = app.fleet.list().iter().map(entry).collect();
    Json(json!({"models": models})).into_response()
}

/// The models that are loaded.
pub(crate) async fn ps(app: Shared) -> Response {
    let State(app) = app;
    let one = |about: &About| {
        let loaded = about.loaded.as_ref()?;
        let mut entry = entry(about);
        entry["expires_at"] = match about.leaves_in {
            Some(time) => write::time(now() + time.as_secs()).into(),
            None => "2318-01-01T00:00:00Z".into(),
        };
        entry["size_vram"] = 0.into();
        if let Loaded::Text(model) = loaded {
            entry["size"] = model.service.memory_bytes().into();
            entry["context_length"] = model.service.limits().ctx.into();
        }
        Some(entry)
    };
    let models: Vec<Value> = app.fleet.list().iter().filter_map(one).collect();
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
    let about = app.fleet.about(name.as_deref())?;
    if about.of.kind == Kind::Speech {
        return Ok(Json(json!({"details": details(&about), "model_info": {},
            "capabilities": [capability(&about)], "modified_at": write::time(about.of.created)}))
        .into_response());
    }
    // What a file says of itself is known when it is loaded.
    let model = app.fleet.text(name.as_deref()).await?;
    let about = app.fleet.about(Some(&model.id))?;
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
    let mut able = vec![capability(&about)];
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
        "details": details(&about),
        "model_info": info,
        "capabilities": able,
        "modified_at": write::time(about.of.created),
    }))
    .into_response())
}
