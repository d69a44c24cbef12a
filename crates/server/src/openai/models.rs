//! `/v1/models`.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::Shared;
use crate::error::Result;
use crate::served::Served;

/// All models, as OpenAI and llama.cpp list them.
pub(crate) async fn list(app: Shared) -> Response {
    let State(app) = app;
    let data: Vec<Value> = app.models.all().iter().map(|m| object(m)).collect();
    let models: Vec<Value> = app.models.all().iter().map(|m| entry(m)).collect();
    crate::app::Json(json!({"object": "list", "data": data, "models": models})).into_response()
}

/// One model.
pub(crate) async fn show(app: Shared, Path(name): Path<String>) -> Result<Response> {
    let State(app) = app;
    let known = app.models.all().iter();
    let mut known = known.filter(|m| m.id == name || m.aliases.contains(&name));
    match known.next() {
        Some(model) => Ok(crate::app::Json(object(model)).into_response()),
        None => Err(crate::error::ApiError::not_found(format!(
            "The model '{name}' does not exist"
        ))),
    }
}

fn object(model: &Served) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "tokkata",
        "root": model.id,
        "parent": null,
        "max_model_len": model.service.limits().ctx,
        "aliases": model.aliases,
        "tags": model.tags,
        "meta": model.meta(),
    })
}

/// What Ollama's clients read of a list of models.
fn entry(model: &Served) -> Value {
    let capability = if model.service.writes() {
        "completion"
    } else {
        "embedding"
    };
    json!({
        "name": model.id,
        "model": model.id,
        "type": "model",
        "capabilities": [capability],
        "details": {"format": "gguf"},
    })
}
