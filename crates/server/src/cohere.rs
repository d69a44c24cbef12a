//! Cohere's dialect: `/v2/chat` and `/v2/embed`, also behind `/cohere`, and the prompt of a chat as vLLM shows it.

mod embed;
mod read;
mod write;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

pub(crate) use embed::embed;

use crate::app::{Dialect, Json, Shared, aside, read_json};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::openai::first;
use crate::run::{Run, id};
use crate::sse;

fn told(answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| Dialect::Cohere.error(&error))
}

/// Answers a conversation.
pub(crate) async fn chat(app: Shared, request: Request) -> Response {
    told(answer(app, request).await)
}

/// The tokens of a conversation, and how its answer would be drawn.
pub(crate) async fn render(app: Shared, request: Request) -> Response {
    told(rendered(app, request).await)
}

/// The fields of a chat, under the names that they have elsewhere. A model must be named.
async fn fields(app: &Shared, request: Request) -> Result<Fields> {
    let (parts, body) = request.into_parts();
    let value = read_json(app, &parts.headers, body).await?;
    let fields = Fields::body(read::translated(value)?)?;
    match fields.has("model") {
        true => Ok(fields),
        false => Err(ApiError::field("model", "is missing")),
    }
}

async fn answer(app: Shared, request: Request) -> Result<Response> {
    let mut fields = fields(&app, request).await?;
    let State(app) = app;
    let streams = fields.peek("stream").is_some_and(|s| s == true);
    let logprobs = fields.peek("logprobs").is_some_and(|l| l == true);
    let model = app.model(&mut fields).await?;
    let (talk, params, _) = tokkata_requests::chat::read(&app.style, &model, &mut fields)?;
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || talk.prepare(&model, params)).await?
    };
    let writer = write::Writer {
        id: id("c"),
        model: Arc::clone(&model),
        logprobs,
        warnings: fields.warnings,
    };
    let run = Run::start(&model, vec![prepared])?;
    if streams {
        let first = first(run).await?;
        return Ok(sse::respond(app.events(), |sender| {
            writer.stream(first, sender)
        }));
    }
    writer.whole(run).await
}

async fn rendered(app: Shared, request: Request) -> Result<Response> {
    let mut fields = fields(&app, request).await?;
    let State(app) = app;
    let model = app.model(&mut fields).await?;
    let asked = tokkata_requests::chat::read(&app.style, &model, &mut fields)?;
    let params = asked.1.clone();
    let rendered = crate::openai::chat::render(&model, asked).await?;
    let sampling = &params.sampling;
    Ok(Json(json!({
        "request_id": id("c"),
        "token_ids": rendered.ids,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "seed": sampling.seed,
            "stop": params.stop,
            "max_tokens": params.max_tokens,
        },
    }))
    .into_response())
}
