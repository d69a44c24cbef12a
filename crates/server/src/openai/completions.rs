//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use tokkata_requests::completions::{prepare, read};

use crate::app::{Call, Shared, aside};
use crate::error::Result;
use crate::openai::answered;

/// Continues texts.
pub(crate) async fn complete(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read(&app.style, &model, &mut call.fields)?;
    let warnings = std::mem::take(&mut call.fields.warnings);
    let ready = {
        let model = Arc::clone(&model);
        aside(move || prepare(&model, asked, warnings)).await?
    };
    let (run, writer) = ready.start(&model).await?;
    answered(&app, run, writer).await
}
