//! `/v1/models`: which there are, and what is in memory.

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{Call, Json, Shared};
use crate::error::{ApiError, Result};
use crate::fleet::{About, Kind, Loaded};

/// All models, as OpenAI and llama.cpp list them.
pub(crate) async fn list(app: Shared) -> Response {
    let State(app) = app;
    let all = app.fleet.list();
    let data: Vec<Value> = all.iter().map(object).collect();
    let models: Vec<Value> = all.iter().map(entry).collect();
    Json(json!({"object": "list", "data": data, "models": models})).into_response()
}

/// One model.
pub(crate) async fn show(app: Shared, Path(name): Path<String>) -> Result<Response> {
    let State(app) = app;
    let all = app.fleet.list();
    match all.iter().find(|about| about.of.is_called(&name)) {
        Some(about) => Ok(Json(object(about)).into_response()),
        None => Err(ApiError::not_found(format!(
            "The model '{name}' does not exist"
        ))),
    }
}

/// Brings a model into memory, and answers when it is there.
pub(crate) async fn load(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let name = named(Call::read(&app, request).await?)?;
    let about = app.fleet.about(Some(&name))?;
    app.fleet.load(about.of.id).await?;
    Ok(Json(json!({"success": true})).into_response())
}

/// Takes a model out of memory, and answers when its memory is free.
pub(crate) async fn unload(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let name = named(Call::read(&app, request).await?)?;
    app.fleet.unload(Some(&name)).await?;
    Ok(Json(json!({"success": true})).into_response())
}

fn named(mut call: Call) -> Result<String> {
    let given = call.fields.take_any(&["model", "id", "name"]);
    let name = given.and_then(|(_, value)| value.as_str().map(str::to_owned));
    name.ok_or_else(|| ApiError::field("model", "is missing"))
}

fn object(about: &About) -> Value {
    let of = &about.of;
    let mut object = json!({
        "id": of.id,
        "object": "model",
        "created": of.created,
        "owned_by": "tokkata",
        "root": of.id,
        "parent": null,
        "aliases": of.aliases,
        "tags": of.tags,
        "status": {"value": about.status},
    });
    if let Some(why) = &about.failure {
        object["status"]["failed"] = true.into();
        object["status"]["error"] = why.as_str().into();
    }
    match &about.loaded {
        Some(Loaded::Text(model)) => {
            object["max_model_len"] = model.service.limits().ctx.into();
            object["meta"] = model.meta();
        }
        _ => object["meta"] = json!({"size": of.bytes}),
    }
    object
}

/// What the model can do, as far as that is known before it is loaded.
pub(crate) fn capability(about: &About) -> &'static str {
    match (&about.loaded, about.of.kind) {
        (_, Kind::Speech) => "transcription",
        (Some(Loaded::Text(model)), _) if !model.service.writes() => "embedding",
        _ => "completion",
    }
}

/// What Ollama's clients read of a list of models.
fn entry(about: &About) -> Value {
    json!({
        "name": about.of.id,
        "model": about.of.id,
        "type": "model",
        "capabilities": [capability(about)],
        "details": {"format": "gguf"},
    })
}
