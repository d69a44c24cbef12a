//! OpenAI's Responses: `/v1/responses`, what is stored of them, and their events.

mod build;
mod read;
mod store;

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{App, Call, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::openai::first;
use crate::run::{Run, Step};
use crate::sse::{self, Gone, Sender};
use build::Builder;
pub(crate) use store::Store;
use store::Stored;

/// Steps after which whoever asks sees more of a response in the background.
const STEPS: u32 = 16;

/// Answers a conversation.
pub(crate) async fn create(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let mut builder = Builder::new(&model, &asked, std::mem::take(&mut call.fields.warnings));
    let keeps = asked.store.then(|| {
        let first = usize::from(asked.instructed);
        asked.talk.messages[first..].to_vec()
    });
    let (stream, tells, background) = (asked.stream, asked.progress, asked.background);
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || asked.talk.prepare(&model, asked.params)).await?
    };
    let run = match Run::start(&model, vec![prepared]) {
        Ok(run) => run,
        // Clients that stream read from the event that the context is full.
        Err(error) if stream && error.kind == "exceed_context_size_error" => {
            return Ok(sse::respond(app.events(), |sender| async move {
                builder.begin(&sender).await?;
                builder.fail(&error, &sender).await
            }));
        }
        Err(error) => return Err(error),
    };
    let mut keeper = keeps.map(|messages| Keeper {
        app: Arc::clone(&app),
        messages,
    });
    if stream {
        let first = first(run).await?;
        return Ok(sse::respond(app.events(), |sender| {
            write(builder, first, (keeper, tells), sender)
        }));
    }
    if let Some(keeper) = keeper.take_if(|_| background) {
        return Ok(Json(keeper.detach(builder, run)).into_response());
    }
    let mut run = run;
    while let Some(step) = run.next().await {
        builder.take(step?);
    }
    let response = builder.response();
    if let Some(keeper) = keeper {
        keeper.keep(&builder, &response);
    }
    Ok(Json(response).into_response())
}

/// Where a response is kept when it is over, and what came before it.
struct Keeper {
    app: Arc<App>,
    messages: Vec<Value>,
}

impl Keeper {
    /// Goes on without anybody who waits; what is there so far is kept, and given.
    fn detach(self, mut builder: Builder, mut run: Run) -> Value {
        let (app, id) = (Arc::clone(&self.app), builder.id.clone());
        let begun = builder.object("in_progress");
        self.put(&builder, &begun);
        let (kept, name) = (Arc::clone(&app), id.clone());
        let work = tokio::spawn(async move {
            let mut steps = 0_u32;
            let response = loop {
                match run.next().await {
                    None => break builder.response(),
                    Some(Ok(step)) => builder.take(step),
                    Some(Err(error)) => break builder.failed(&error),
                }
                steps += 1;
                if steps.is_multiple_of(STEPS) {
                    let so_far = builder.object("in_progress");
                    self.put(&builder, &so_far);
                }
            };
            self.put(&builder, &response);
            kept.responses.let_go(&name);
        });
        app.responses.hold(&id, work.abort_handle());
        begun
    }

    fn keep(self, builder: &Builder, response: &Value) {
        self.put(builder, response);
    }

    fn put(&self, builder: &Builder, response: &Value) {
        let input = self.messages.clone();
        let mut messages = self.messages.clone();
        messages.extend(builder.message());
        let stored = Stored {
            response: response.clone(),
            input,
            messages,
        };
        self.app.responses.put(&builder.id, stored);
    }
}

async fn write(
    mut builder: Builder,
    (mut run, first): (Run, Option<Step>),
    (keeper, tells): (Option<Keeper>, bool),
    sender: Sender,
) -> std::result::Result<(), Gone> {
    builder.begin(&sender).await?;
    let mut next = first.map(Ok);
    loop {
        let step = match next.take() {
            Some(step) => Some(step),
            None => run.next().await,
        };
        match step {
            None => break,
            Some(Ok(step)) => {
                if let Some(progress) = run.news_of_prompt(&step).filter(|_| tells) {
                    builder.progress(progress, &sender).await?;
                }
                let so_far = run.so_far(step.choice);
                builder.send(step, &so_far, &sender).await?;
            }
            Some(Err(error)) => return builder.fail(&error, &sender).await,
        }
    }
    let response = builder.response();
    if let Some(keeper) = keeper {
        keeper.keep(&builder, &response);
    }
    builder.end(response, &sender).await
}

/// How many tokens a conversation has.
pub(crate) async fn input_tokens(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields)?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let rendered = aside(move || asked.talk.render(&model)).await?;
    let count = rendered.ids.len();
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count})).into_response())
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("Response with id '{id}' not found."))
}

/// A response that was kept.
pub(crate) async fn show(app: Shared, Path(id): Path<String>) -> Result<Response> {
    let State(app) = app;
    let stored = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(stored.response.clone()).into_response())
}

/// What a response was made from.
pub(crate) async fn input_items(app: Shared, Path(id): Path<String>) -> Result<Response> {
    let State(app) = app;
    let stored = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    let item = |(i, message): (usize, &Value)| {
        json!({
            "id": format!("{id}_{i}"),
            "type": "message",
            "role": message["role"],
            "status": "completed",
            "content": [{"type": "input_text", "text": message["content"]}],
        })
    };
    let items: Vec<Value> = stored.input.iter().enumerate().map(item).collect();
    let ends = (items.first(), items.last());
    Ok(Json(json!({
        "object": "list",
        "first_id": ends.0.map(|i| i["id"].clone()),
        "last_id": ends.1.map(|i| i["id"].clone()),
        "has_more": false,
        "data": items,
    }))
    .into_response())
}

/// Forgets a response.
pub(crate) async fn delete(app: Shared, Path(id): Path<String>) -> Result<Response> {
    let State(app) = app;
    match app.responses.remove(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true})).into_response()),
        false => Err(unknown(&id)),
    }
}

/// Conversations are not made shorter here.
pub(crate) async fn compact(request: Request) -> ApiError {
    crate::app::swallow(request).await;
    ApiError::not_found("conversations are not compacted here")
}

/// Ends what runs in the background; other answers end when whoever waits for them leaves.
pub(crate) async fn cancel(app: Shared, Path(id): Path<String>) -> Result<Response> {
    let State(app) = app;
    let stored = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    if stored.response["background"] != true {
        let text = "Only responses in the background can be cancelled.";
        return Err(ApiError::invalid(text));
    }
    app.responses.cancel(&id);
    let stored = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(stored.response.clone()).into_response())
}
