//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokkata_requests::chat::{Asked, read, start};

use crate::app::{Call, Shared, aside};
use crate::error::Result;
use crate::openai::answered;
use crate::served::Served;
use crate::talk::Rendered;

/// Answers a conversation.
pub(crate) async fn complete(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read(&app.style, &model, &mut call.fields)?;
    let warnings = std::mem::take(&mut call.fields.warnings);
    let (run, writer) = aside(move || start(&model, asked, warnings)).await?;
    answered(&app, run, writer).await
}

/// The prompt of what a call asks.
async fn rendered(app: Shared, request: Request) -> Result<Rendered> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read(&app.style, &model, &mut call.fields)?;
    render(&model, asked).await
}

/// The prompt of a conversation.
pub(crate) async fn render(model: &Arc<Served>, (talk, ..): Asked) -> Result<Rendered> {
    let model = Arc::clone(model);
    aside(move || talk.render(&model)).await
}

/// How many tokens a conversation has.
pub(crate) async fn input_tokens(app: Shared, request: Request) -> Result<Response> {
    let count = rendered(app, request).await?.ids.len();
    let body = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok(crate::app::Json(body).into_response())
}

/// The prompt of a conversation.
pub(crate) async fn apply_template(app: Shared, request: Request) -> Result<Response> {
    let rendered = rendered(app, request).await?;
    let count = rendered.ids.len();
    let body = json!({"prompt": rendered.text, "tokens": rendered.ids, "count": count});
    Ok(crate::app::Json(body).into_response())
}
