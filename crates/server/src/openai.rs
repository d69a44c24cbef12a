//! OpenAI's dialect, with the fields that llama.cpp, vLLM and others add to it.

pub(crate) mod audio;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata_requests::write::Write;

use crate::app::{App, Json};
use crate::error::Result;
use crate::run::{Run, Step, collect};
use crate::sse::{self, Gone, Sender};

/// The response of what was asked: a stream of events, or one object.
async fn answered(app: &App, mut run: Run, mut writer: impl Write + 'static) -> Result<Response> {
    if writer.streams() {
        let first = first(run).await?;
        return Ok(sse::respond(app.events(), |sender| {
            stream(first, writer, sender)
        }));
    }
    let all = collect(&mut run).await?;
    Ok(Json(writer.whole(&all)?).into_response())
}

/// Waits for the first sign of life, so that what fails at once fails with a status.
pub(crate) async fn first(mut run: Run) -> Result<(Run, Option<Step>)> {
    let patience = std::time::Duration::from_millis(500);
    match tokio::time::timeout(patience, run.next()).await {
        Ok(Some(step)) => Ok((run, Some(step?))),
        Ok(None) | Err(_) => Ok((run, None)),
    }
}

async fn stream(
    (mut run, first): (Run, Option<Step>),
    mut writer: impl Write,
    sender: Sender,
) -> std::result::Result<(), Gone> {
    let mut objects: Vec<Value> = Vec::new();
    let mut next = first.map(Ok);
    loop {
        let step = match next.take() {
            Some(step) => Some(step),
            None => run.next().await,
        };
        match step {
            None => break,
            Some(Ok(step)) => writer.step(&mut run, step, &mut objects),
            Some(Err(error)) => {
                sender.data(&json!({"error": error.object()})).await?;
                return sender.done().await;
            }
        }
        for object in objects.drain(..) {
            sender.data(&object).await?;
        }
    }
    writer.last(&mut objects);
    for object in objects {
        sender.data(&object).await?;
    }
    sender.done().await
}
