//! Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`.

mod read;
mod write;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::{Call, Dialect, Json, Shared, aside};
use crate::error::Result;
use crate::openai::first;
use crate::run::{Run, id};
use crate::sse;

/// Answers a conversation.
pub(crate) async fn messages(app: Shared, request: Request) -> Response {
    answer(app, request)
        .await
        .unwrap_or_else(|error| Dialect::Anthropic.error(&error))
}

/// How many tokens a conversation has.
pub(crate) async fn count_tokens(app: Shared, request: Request) -> Response {
    count(app, request)
        .await
        .unwrap_or_else(|error| Dialect::Anthropic.error(&error))
}

async fn count(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let rendered = aside(move || asked.talk.render(&model)).await?;
    Ok(Json(json!({"input_tokens": rendered.ids.len()})).into_response())
}

async fn answer(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let warnings = std::mem::take(&mut call.fields.warnings);
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || asked.talk.prepare(&model, asked.params)).await?
    };
    let writer = write::Writer {
        id: id("msg_"),
        model: Arc::clone(&model),
        prompt_tokens: prepared.ids.len(),
        hides_thinking: asked.hides_thinking,
        warnings,
    };
    let run = Run::start(&model, vec![prepared])?;
    if asked.stream {
        let first = first(run).await?;
        let mut manner = app.events();
        let ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
        manner.ping = manner.ping.map(|(every, _)| (every, ping));
        return Ok(sse::respond(manner, |sender| writer.stream(first, sender)));
    }
    writer.whole(run).await
}
