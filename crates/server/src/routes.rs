//! Which path does what.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, head, post};
use tokkata::Pooling;

use crate::anthropic;
use crate::app::{self, App, Dialect, Shared};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::native::{completion, status, tokens};
use crate::ollama::library;
use crate::openai::{audio, chat, completions, embeddings, models};
use crate::responses;
use crate::{cohere, ollama, openapi, page, ranking};

/// All paths, behind what every call goes through.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let routes = Router::new()
        .merge(state_of_things())
        .merge(openai())
        .merge(llama())
        .merge(claude())
        .merge(cohere_routes())
        .merge(ollama_routes())
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so);
    let routes = match behind(&app.options.prefix, &routes) {
        Some(behind) => behind.fallback(nowhere),
        None => routes,
    };
    let routes = match behind(&app.options.root, &routes) {
        Some(behind) => behind.merge(routes),
        None => routes,
    };
    let routes = routes.with_state(Arc::clone(app));
    routes.layer(middleware::from_fn_with_state(Arc::clone(app), app::guard))
}

type Routes = Router<Arc<App>>;

/// The same paths behind another one, if there is any.
fn behind(path: &str, routes: &Routes) -> Option<Routes> {
    let path = path.trim_end_matches('/');
    let folder = format!("{path}/");
    (!path.is_empty()).then(|| {
        Router::new()
            .route(&folder, get(page::index))
            .nest(path, routes.clone())
    })
}

fn state_of_things() -> Routes {
    Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::part))
        .route("/health", get(status::health))
        .route("/v1/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/live", get(status::live))
        .route("/ping", get(status::live).post(status::live))
        .route("/version", get(status::version))
        .route("/openapi.json", get(openapi::document))
        .route("/metrics", get(status::metrics))
        .route("/v1/metrics", get(status::metrics_object))
}

fn openai() -> Routes {
    let mut routes = Router::new();
    for prefix in ["", "/v1"] {
        let path = |rest: &str| format!("{prefix}{rest}");
        routes = routes
            .route(&path("/models"), get(models::list))
            .route(&path("/models/load"), post(models::load))
            .route(&path("/models/unload"), post(models::unload))
            .route(&path("/models/{*name}"), get(models::show))
            .route(&path("/chat/completions"), post(chat::complete))
            .route(
                &path("/chat/completions/input_tokens"),
                post(chat::input_tokens),
            )
            .route(
                &path("/chat/completions/render"),
                post(chat::apply_template),
            )
            .route(&path("/rerank"), post(ranking::rerank))
            .route(&path("/reranking"), post(ranking::rerank))
            .route(&path("/score"), post(ranking::score))
            .route(&path("/classify"), post(ranking::classify))
            .route(&path("/tokenize"), post(tokens::tokenize))
            .route(&path("/detokenize"), post(tokens::detokenize));
    }
    routes
        .route("/v1/completions", post(completions::complete))
        .route("/v1/responses", post(responses::create))
        .route("/responses", post(responses::create))
        .route("/v1/responses/compact", post(responses::compact))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route(
            "/v1/responses/{id}",
            get(responses::show).delete(responses::delete),
        )
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route(
            "/v1/responses/{id}/input_items",
            get(responses::input_items),
        )
        .route("/v1/audio/transcriptions", post(audio::transcriptions))
        .route("/v1/audio/translations", post(audio::translations))
        .route("/inference", post(audio::inference))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/generative_scoring", post(ranking::generative))
        .route("/v1/generative_scoring", post(ranking::generative))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/embeddings", post(embeddings::plain))
        .route("/embedding", post(embeddings::plain))
        .route("/pooling", post(embeddings::pooling))
        .route("/invocations", post(invoked))
}

/// The one path that SageMaker calls: what a body holds says what is asked.
async fn invoked(State(app): Shared, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let body = app::read_json(&app, &parts.headers, body).await?;
    let has = |name: &str| body.get(name).is_some();
    let ranks = has("input") && {
        let mut fields = Fields::body(body.clone())?;
        app.model(&mut fields).await?.service.pooling() == Some(Pooling::Rank)
    };
    let rest = Request::from_parts(parts, Body::from(body.to_string()));
    let app = State(app);
    if has("messages") {
        chat::complete(app, rest).await
    } else if has("prompt") {
        completions::complete(app, rest).await
    } else if ranks {
        ranking::classify(app, rest).await
    } else if has("input") {
        embeddings::create(app, rest).await
    } else if has("query") {
        ranking::rerank(app, rest).await
    } else {
        ranking::score(app, rest).await
    }
}

fn llama() -> Routes {
    Router::new()
        .route("/completion", post(completion::complete))
        .route("/completions", post(completion::complete))
        .route("/infill", post(completion::fill))
        .route("/apply-template", post(chat::apply_template))
        .route("/props", get(status::props).post(status::set_props))
        .route("/slots", get(status::slots))
}

fn claude() -> Routes {
    Router::new()
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
}

fn cohere_routes() -> Routes {
    let mut routes = Router::new();
    for prefix in ["", "/cohere"] {
        let path = |rest: &str| format!("{prefix}/v2/{rest}");
        routes = routes
            .route(&path("chat"), post(cohere::chat))
            .route(&path("chat/render"), post(cohere::render))
            .route(&path("embed"), post(cohere::embed))
            .route(&path("rerank"), post(ranking::rerank));
    }
    routes
}

fn ollama_routes() -> Routes {
    Router::new()
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed_new))
        .route("/api/embeddings", post(ollama::embed_old))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/api/delete", delete(library::remove))
        .route("/api/pull", post(library::pull))
        .route("/api/push", post(library::push))
        .route("/api/create", post(library::create))
        .route("/api/copy", post(library::copy))
        .route(
            "/api/blobs/{digest}",
            head(library::has_blob).post(library::put_blob),
        )
}

async fn nowhere(uri: Uri, request: Request) -> Response {
    app::swallow(request).await;
    let error = ApiError::not_found(format!("there is nothing at {}", uri.path()));
    match Dialect::of(uri.path()) {
        Dialect::OpenAi => error.into_response(),
        dialect => dialect.error(&error),
    }
}

async fn not_so(method: Method, uri: Uri, request: Request) -> Response {
    app::swallow(request).await;
    let text = format!("{} does not go with {}", uri.path(), method.as_str());
    let error = ApiError::invalid(text).with_status(axum::http::StatusCode::METHOD_NOT_ALLOWED);
    Dialect::of(uri.path()).error(&error)
}
