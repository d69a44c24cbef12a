//! What the server is and how it fares: `/health`, `/ready`, `/props`, `/slots`, `/metrics`, `/version`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::Figures;

use crate::app::{App, Shared};
use crate::error::{ApiError, Result};
use crate::metrics::Sums;
use crate::served::Served;

/// Whether engines that have work finish steps of it.
pub(crate) async fn health(app: Shared) -> Response {
    let State(app) = app;
    let silence = app.pulse.silence();
    if silence > app.options.silence {
        let seconds = silence.as_secs();
        let error = ApiError::unavailable(format!(
            "an engine with work has done no step of it for {seconds} s"
        ));
        return error.into_response();
    }
    crate::app::Json(json!({"status": "ok"})).into_response()
}

/// Whether it takes new calls.
pub(crate) async fn ready(app: Shared) -> Response {
    let State(inner) = &app;
    if inner.draining.load(Ordering::Relaxed) {
        return ApiError::unavailable("the server is shutting down").into_response();
    }
    health(app).await
}

/// That the process lives.
pub(crate) async fn live() -> Response {
    crate::app::Json(json!({"status": "ok"})).into_response()
}

/// What the build is.
pub(crate) async fn version() -> Response {
    crate::app::Json(json!({"version": env!("CARGO_PKG_VERSION"), "name": "tokkata"}))
        .into_response()
}

/// What the engine is doing, asked beside the threads that serve.
async fn figures(model: &Arc<Served>) -> Result<Figures> {
    let model = Arc::clone(model);
    let asked = tokio::task::spawn_blocking(move || model.service.figures()).await;
    Ok(asked.map_err(|_| ApiError::internal("the figures could not be had"))??)
}

/// The same of a model that may have left memory, and does nothing then.
async fn now(model: Option<Arc<Served>>) -> Result<Figures> {
    match model {
        Some(model) => figures(&model).await,
        None => Ok(Figures::default()),
    }
}

/// Everything that is counted, as Prometheus reads it.
pub(crate) async fn metrics(app: Shared) -> Result<Response> {
    let State(app) = app;
    if !app.options.metrics {
        return Err(ApiError::unsupported(
            "This server does not support metrics endpoint. Start it without --no-metrics",
        ));
    }
    let mut out = String::new();
    let mut all = Sums::default();
    for (id, metrics, model) in app.fleet.counted() {
        let now = now(model).await?;
        metrics.write(&mut out, &id, now);
        all.add(&metrics, now);
    }
    all.write(&mut out);
    let started = crate::served::now().saturating_sub(app.started.elapsed().as_secs());
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    let mut response = (StatusCode::OK, kind, out).into_response();
    response
        .headers_mut()
        .insert("process-start-time-unix", started.into());
    Ok(response)
}

/// The same as an object.
pub(crate) async fn metrics_object(app: Shared) -> Result<Response> {
    let State(app) = app;
    let mut models = Vec::new();
    for (id, metrics, model) in app.fleet.counted() {
        models.push(metrics.object(&id, now(model).await?));
    }
    let up = app.started.elapsed().as_secs_f64();
    Ok(crate::app::Json(json!({"uptime_seconds": up, "models": models})).into_response())
}

/// What the first model is and how it answers.
pub(crate) async fn props(app: Shared) -> Result<Response> {
    let State(app) = app;
    let Some(model) = app.fleet.here_all().into_iter().next() else {
        return Ok(crate::app::Json(json!({
            "default_generation_settings": {},
            "total_slots": 0,
            "build_info": crate::names::fingerprint(),
            "is_sleeping": true,
        }))
        .into_response());
    };
    let service = &model.service;
    let template = service.template().map_or("", |t| t.source());
    let special = service.tokenizer().ok().map(|t| {
        let (bos, eos) = tokkata::chat::ends(t);
        (bos.unwrap_or_default(), eos.unwrap_or_default())
    });
    let (bos, eos) = special.unwrap_or_default();
    Ok(crate::app::Json(json!({
        "default_generation_settings": settings(&app, &model),
        "total_slots": service.limits().seqs,
        "model_alias": model.id,
        "model_path": model.path,
        "modalities": {"vision": false, "audio": false},
        "chat_template": template,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": crate::names::fingerprint(),
        "is_sleeping": false,
    }))
    .into_response())
}

/// How a request that says nothing is answered.
fn settings(app: &App, model: &Served) -> Value {
    let s = &model.defaults.sampling;
    let params = json!({
        "seed": model.defaults.seed.map_or(-1, |s| s as i64),
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "typical_p": s.typical_p,
        "top_n_sigma": s.top_n_sigma,
        "xtc_probability": s.xtc_probability,
        "xtc_threshold": s.xtc_threshold,
        "repeat_penalty": s.repeat_penalty,
        "repeat_last_n": s.repeat_last_n,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "n_predict": model.defaults.max_tokens.map_or(-1, |n| n as i64),
        "max_tokens": model.defaults.max_tokens.map_or(-1, |n| n as i64),
        "stream": false,
        "queue": app.options.queue,
    });
    json!({
        "id": 0,
        "n_ctx": model.service.limits().ctx,
        "is_processing": false,
        "params": params,
    })
}

/// `POST /props` changes nothing.
pub(crate) async fn set_props(app: Shared) -> Result<Response> {
    let State(app) = app;
    match app.options.props {
        true => Ok(crate::app::Json(json!({"success": true})).into_response()),
        false => Err(ApiError::unsupported(
            "This server does not support changing global properties. Start it with `--props`",
        )),
    }
}

/// The places for answers, and how many are taken.
pub(crate) async fn slots(app: Shared) -> Result<Response> {
    let State(app) = app;
    if !app.options.slots {
        return Err(ApiError::unsupported(
            "This server does not support slots endpoint. Start it with `--slots`",
        ));
    }
    let models = app.fleet.here_all();
    let Some(model) = models.first() else {
        return Ok(crate::app::Json(json!([])).into_response());
    };
    let now = figures(model).await?;
    let slot = |id: u32| {
        json!({
            "id": id,
            "n_ctx": model.service.limits().ctx,
            "speculative": false,
            "is_processing": (id as usize) < now.running,
        })
    };
    let slots: Vec<Value> = (0..model.service.limits().seqs).map(slot).collect();
    Ok(crate::app::Json(Value::from(slots)).into_response())
}
