//! OpenAI's Responses: `/v1/responses`, what is stored of them, and their events.

mod build;
mod log;
mod read;
mod store;

use std::sync::Arc;

use axum::extract::{Path, RawQuery, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::Stats;

use crate::app::{App, Call, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::openai::first;
use crate::run::{Run, Step};
use crate::sse::{self, Gone, Sender};
use build::Builder;
use log::Log;
pub(crate) use log::Logs;
pub(crate) use store::Store;
use store::Stored;

/// Steps after which whoever asks sees more of a response in the background.
const STEPS: u32 = 16;

/// Answers a conversation.
pub(crate) async fn create(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let mut builder = Builder::new(&model, &asked, std::mem::take(&mut call.fields.warnings));
    let keeps = asked.store.then(|| {
        let first = usize::from(asked.instructed);
        asked.talk.messages[first..].to_vec()
    });
    let (stream, tells, background) = (asked.stream, asked.progress, asked.background);
    let raw = asked.raw;
    let prepared = {
        let model = Arc::clone(&model);
        aside(move || asked.talk.prepare(&model, asked.params)).await?
    };
    if raw {
        builder.show(&prepared);
    }
    let run = match Run::start(&model, vec![prepared]) {
        Ok(run) => run,
        // Clients that stream read from the event that the context is full.
        Err(error) if stream && error.kind == "exceed_context_size_error" => {
            builder.begin();
            builder.fail(&error);
            return Ok(sse::respond(app.events(), |sender| async move {
                Listener::Caller(sender).tell(builder.drain()).await
            }));
        }
        Err(error) => return Err(error),
    };
    let keeper = keeps.map(|messages| Keeper {
        app: Arc::clone(&app),
        messages,
    });
    let mut making = Making {
        builder,
        keeper,
        tells,
    };
    match (stream, background) {
        (true, false) => {
            let first = first(run).await?;
            Ok(sse::respond(app.events(), |sender| async move {
                making.drive(first, &mut Listener::Caller(sender)).await
            }))
        }
        (true, true) => {
            let first = first(run).await?;
            let log = app.logs.open(&making.builder.id);
            making.detach(&app, first, Listener::Log(Arc::clone(&log)));
            Ok(replay(&app, log, 0))
        }
        (false, true) => {
            let begun = making.builder.object("queued");
            making.detach(&app, (run, None), Listener::Nobody);
            Ok(Json(begun).into_response())
        }
        (false, false) => {
            let mut run = run;
            while let Some(step) = run.next().await {
                making.builder.step(step?, &Stats::default());
            }
            let response = making.builder.response();
            making.keep(&response);
            Ok(Json(response).into_response())
        }
    }
}

/// Where a response is kept, and what came before it.
struct Keeper {
    app: Arc<App>,
    messages: Vec<Value>,
}

/// A response while it is made.
struct Making {
    builder: Builder,
    keeper: Option<Keeper>,
    /// The prompt's progress is told.
    tells: bool,
}

/// Who hears of it.
enum Listener {
    Caller(Sender),
    Log(Arc<Log>),
    Nobody,
}

impl Listener {
    async fn tell(&mut self, events: Vec<build::Event>) -> std::result::Result<(), Gone> {
        match self {
            Listener::Caller(sender) => {
                for (name, event) in events {
                    sender.event(name, &event).await?;
                }
            }
            Listener::Log(log) => log.add(events),
            Listener::Nobody => {}
        }
        Ok(())
    }
}

impl Making {
    /// Makes the response to its end. Whoever waits for it hears of every step; what is there so far is kept now and then
    /// where nobody does.
    async fn drive(
        &mut self,
        (mut run, first): (Run, Option<Step>),
        listener: &mut Listener,
    ) -> std::result::Result<(), Gone> {
        let (mut next, mut steps) = (first.map(Ok), 0_u32);
        self.builder.begin();
        let response = loop {
            listener.tell(self.builder.drain()).await?;
            let step = match next.take() {
                Some(step) => Some(step),
                None => run.next().await,
            };
            match step {
                None => {
                    let response = self.builder.response();
                    self.builder.end(&response);
                    break response;
                }
                Some(Ok(step)) => {
                    if let Some(progress) = run.news_of_prompt(&step).filter(|_| self.tells) {
                        self.builder.progress(&progress);
                    }
                    let so_far = run.so_far(step.choice);
                    self.builder.step(step, &so_far);
                }
                Some(Err(error)) => break self.builder.fail(&error),
            }
            steps += 1;
            if !matches!(listener, Listener::Caller(_)) && steps.is_multiple_of(STEPS) {
                self.keep(&self.builder.object("in_progress"));
            }
        };
        self.keep(&response);
        listener.tell(self.builder.drain()).await
    }

    /// Goes on without whoever asked. A response whose events are logged ends when nobody has read them for a while.
    fn detach(mut self, app: &Arc<App>, begun: (Run, Option<Step>), mut listener: Listener) {
        self.keep(&self.builder.object("in_progress"));
        let (kept, id) = (Arc::clone(app), self.builder.id.clone());
        let name = id.clone();
        let log = match &listener {
            Listener::Log(log) => Some(Arc::clone(log)),
            _ => None,
        };
        let work = tokio::spawn(async move {
            let left = async {
                match &log {
                    Some(log) => log.abandoned(kept.options.grace).await,
                    None => std::future::pending().await,
                }
            };
            let was_left = tokio::select! {
                // Nobody is gone who does not listen.
                _ = self.drive(begun, &mut listener) => false,
                () = left => true,
            };
            if was_left {
                let mut response = self.builder.object("cancelled");
                response["completed_at"] = Value::Null;
                self.keep(&response);
            }
            if let Some(log) = log {
                log.close();
            }
            kept.responses.let_go(&name);
        });
        app.responses.hold(&id, work.abort_handle());
    }

    fn keep(&self, response: &Value) {
        let Some(keeper) = &self.keeper else { return };
        let mut messages = keeper.messages.clone();
        messages.extend(self.builder.message());
        let stored = Stored {
            response: response.clone(),
            input: keeper.messages.clone(),
            messages,
        };
        keeper.app.responses.put(&self.builder.id, stored);
    }
}

/// The events of a response from one on, and those that come.
fn replay(app: &App, log: Arc<Log>, from: usize) -> Response {
    sse::respond(app.events(), move |sender| async move {
        let _reader = log.read();
        let mut at = from;
        loop {
            let (events, over) = log.from(at);
            at += events.len();
            for event in events {
                sender.raw(event.to_string()).await?;
            }
            if over {
                return Ok(());
            }
            log.more(at).await;
        }
    })
}

/// How many tokens a conversation has.
pub(crate) async fn input_tokens(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let model = app.model(&mut call.fields).await?;
    let asked = read::request(&app, &model, &mut call.fields)?;
    let rendered = aside(move || asked.talk.render(&model)).await?;
    let count = rendered.ids.len();
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count})).into_response())
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("Response with id '{id}' not found."))
}

/// How a response that was kept is asked for.
#[derive(Debug, Default)]
struct Wanted {
    stream: bool,
    /// The number of the last event that the caller has.
    after: Option<usize>,
}

impl Wanted {
    fn read(query: Option<&str>) -> Result<Self> {
        let mut wanted = Wanted::default();
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("stream", value)) => wanted.stream = value == "true",
                Some(("starting_after", number)) => {
                    let read = number.parse().ok();
                    let wrong =
                        || ApiError::field("starting_after", "expected the number of an event");
                    wanted.after = Some(read.ok_or_else(wrong)?);
                }
                _ => {}
            }
        }
        Ok(wanted)
    }
}

/// A response that was kept, or its events from one on.
pub(crate) async fn show(
    app: Shared,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let State(app) = app;
    let wanted = Wanted::read(query.as_deref())?;
    if wanted.stream {
        let log = app.logs.get(&id).ok_or_else(|| {
            ApiError::not_found(format!(
                "The events of response '{id}' are not kept: ask for it with background and stream"
            ))
        })?;
        return Ok(replay(&app, log, wanted.after.map_or(0, |n| n + 1)));
    }
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
    app.logs.close(&id);
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
        let text = "Cannot cancel a synchronous response.";
        return Err(ApiError::invalid(text));
    }
    app.responses.cancel(&id);
    app.logs.close(&id);
    let stored = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(stored.response.clone()).into_response())
}
