//! The server as its handlers see it, and what every call goes through.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::fleet::{Fleet, Keep};
use crate::options::{ServerOptions, Style};
use crate::pulse::Pulse;
use crate::responses::{Logs, Store};
use crate::served::Served;
use crate::sse::Manner;

/// Everything that handlers share.
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    /// How requests are read.
    pub(crate) style: Style,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) started: Instant,
    /// Responses that are kept.
    pub(crate) responses: Store,
    /// Events of those that are made in the background.
    pub(crate) logs: Logs,
    /// No new answers are begun.
    pub(crate) draining: AtomicBool,
    /// Whether engines with work finish some of it.
    pub(crate) pulse: Pulse,
    clients: Mutex<HashMap<IpAddr, usize>>,
}

pub(crate) type Shared = State<Arc<App>>;

impl App {
    pub(crate) fn new(options: ServerOptions, fleet: Fleet) -> Self {
        App {
            style: options.style(),
            options,
            fleet: Arc::new(fleet),
            started: Instant::now(),
            responses: Store::default(),
            logs: Logs::default(),
            draining: AtomicBool::new(false),
            pulse: Pulse::default(),
            clients: Mutex::default(),
        }
    }

    /// The model that a body names, loaded if need be, and told how long to stay.
    pub(crate) async fn model(&self, fields: &mut Fields) -> Result<Arc<Served>> {
        let name = fields.text("model")?;
        let keep = match self.fleet.swaps() {
            true => Keep::take(fields)?,
            false => None,
        };
        let model = self.fleet.text(name.as_deref()).await?;
        if let Some(keep) = keep {
            self.fleet.keep(&model.id, keep);
        }
        Ok(model)
    }

    /// How streams of events are written.
    pub(crate) fn events(&self) -> Manner {
        Manner {
            lines: false,
            ping: self.options.ping.map(|every| (every, ": ping\n\n")),
            stall: self.options.stall,
        }
    }

    fn enter(self: &Arc<Self>, client: IpAddr) -> Result<Visit> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let count = clients.entry(client).or_insert(0);
        if self.options.per_client.is_some_and(|most| *count >= most) {
            let message = format!("{count} calls of this client are under way, which is the limit");
            return Err(ApiError::rate_limited(message, 1));
        }
        *count += 1;
        Ok(Visit {
            app: Arc::clone(self),
            client,
        })
    }
}

/// A call of a client, counted until its answer is over.
struct Visit {
    app: Arc<App>,
    client: IpAddr,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let clients = &self.app.clients;
        let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

/// A response of JSON.
pub(crate) struct Json(pub(crate) Value);

impl axum::response::IntoResponse for Json {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, self.0.to_string()).into_response()
    }
}

/// A call's body as JSON.
pub(crate) struct Call {
    pub(crate) fields: Fields,
}

impl Call {
    /// Reads the body, which must be JSON of a bearable size.
    pub(crate) async fn read(app: &App, request: Request) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let value = read_json(app, &parts.headers, body).await?;
        Ok(Call {
            fields: Fields::body(value)?,
        })
    }
}

/// The JSON of a body.
pub(crate) async fn read_json(app: &App, headers: &HeaderMap, body: Body) -> Result<Value> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json = kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json");
    if !is_json && !app.options.any_content_type {
        let message = format!("the content type is '{kind}', expected application/json");
        return Err(ApiError::invalid(message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let most = app.options.body_bytes;
    let bytes = tokio::time::timeout(app.options.stall, to_bytes(body, most)).await;
    let late = |_| {
        ApiError::invalid("the body did not come in time").with_status(StatusCode::REQUEST_TIMEOUT)
    };
    let bytes = bytes.map_err(late)?.map_err(|_| {
        let message = format!("the body could not be read, or has more than {most} bytes");
        ApiError::invalid(message).with_status(StatusCode::PAYLOAD_TOO_LARGE)
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|e| ApiError::invalid(format!("the body is no JSON: {e}")))
}

/// Reads a body that nobody wants, as far as it is bearable: a client that is still writing hears no answer.
pub(crate) async fn swallow(request: Request) {
    const MOST: usize = 1 << 20;
    let body = to_bytes(request.into_body(), MOST);
    // Whatever is wrong with it, the answer is the same.
    let _ = tokio::time::timeout(Duration::from_secs(1), body).await;
}

/// Runs what takes a while, such as rendering a long conversation, beside the threads that serve.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(ApiError::internal(
            "the request could not be prepared: an internal error",
        )),
    }
}

/// A call's id: 32 hexadecimal digits.
fn random_id() -> String {
    let half = || format!("{:016x}", tokkata_requests::params::random());
    half() + &half()
}

/// What every call goes through: where it came from, who asks, whether there is room.
pub(crate) async fn guard(app: Shared, request: Request, next: Next) -> Response {
    let State(app) = app;
    let given = request.headers().get("x-request-id").cloned();
    let request_id = given.unwrap_or_else(|| {
        HeaderValue::from_str(&random_id()).unwrap_or(HeaderValue::from_static("req"))
    });
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let own = app.options.own_path(&path);
    let dialect = Dialect::of(own);
    let open = is_open(own);
    let began = Instant::now();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let load = request
        .headers()
        .get("endpoint-load-metrics-format")
        .cloned();
    let mut response = match check(&app, &request, open) {
        Ok(Some(answer)) => answer,
        Ok(None) if open => next.run(request).await,
        Ok(None) => enter(&app, request, next, dialect).await,
        Err(error) => {
            swallow(request).await;
            dialect.error(&error)
        }
    };
    tracing::info!(
        target: "tokkata::http",
        id = request_id.to_str().unwrap_or_default(),
        method = method.as_str(),
        path,
        status = response.status().as_u16(),
        ms = began.elapsed().as_secs_f64() * 1e3,
    );
    if let Some(value) = load.and_then(|form| load_metrics(&app, &form)) {
        response
            .headers_mut()
            .insert("endpoint-load-metrics", value);
    }
    let headers = response.headers_mut();
    headers.insert("x-request-id", request_id);
    app.options.cross.apply(origin.as_ref(), headers);
    response
}

/// How busy the server is, in the form of ORCA that a balancer of loads asked for: text or JSON.
fn load_metrics(app: &App, form: &HeaderValue) -> Option<HeaderValue> {
    let busy: Vec<(usize, usize)> = app.fleet.here_all().iter().map(|m| m.load()).collect();
    let waiting: usize = busy.iter().map(|b| b.0.saturating_sub(b.1)).sum();
    let usage = busy.iter().map(|b| b.0.min(b.1) as f64 / b.1.max(1) as f64);
    let usage = usage.fold(0.0, f64::max);
    let names = [
        ("kv_cache_usage_perc", usage),
        ("num_requests_waiting", waiting as f64),
    ];
    let text = match form.to_str().ok()?.to_ascii_lowercase().as_str() {
        "text" => {
            let each = names.map(|(name, x)| format!("named_metrics.{name}={x}"));
            format!("TEXT {}", each.join(", "))
        }
        "json" => {
            let members: serde_json::Map<String, Value> = names
                .iter()
                .map(|(n, x)| ((*n).to_owned(), (*x).into()))
                .collect();
            format!("JSON {}", serde_json::json!({"named_metrics": members}))
        }
        _ => return None,
    };
    HeaderValue::from_str(&text).ok()
}

async fn enter(app: &Arc<App>, request: Request, next: Next, dialect: Dialect) -> Response {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    if app.draining.load(Ordering::Relaxed) {
        return dialect.error(&ApiError::unavailable("the server is shutting down"));
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map_or(IpAddr::from([0, 0, 0, 0]), |info| info.0.ip());
    match app.enter(client) {
        // The visit lasts as long as the body.
        Ok(visit) => next.run(request).await.map(|body| hold(body, visit)),
        Err(error) => dialect.error(&error),
    }
}

/// A body that keeps something until it is over.
fn hold<T: Send + 'static>(body: Body, kept: T) -> Body {
    use futures_util::StreamExt;
    let stream = body.into_data_stream();
    Body::from_stream(stream.map(move |piece| {
        let _ = &kept;
        piece
    }))
}

/// Paths that need no key.
fn is_open(path: &str) -> bool {
    const OPEN: [&str; 9] = [
        "/",
        "/health",
        "/v1/health",
        "/ready",
        "/live",
        "/ping",
        "/favicon.ico",
        "/index.html",
        "/v1/ping",
    ];
    OPEN.contains(&path) || path.starts_with("/page/")
}

/// Refuses what must not come in; some calls are answered at once.
fn check(app: &App, request: &Request, open: bool) -> Result<Option<Response>> {
    let headers = request.headers();
    let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    if let Some(host) = text(header::HOST)
        && !app.options.hosts.allows(host)
    {
        let message =
            format!("the host '{host}' is not one of this server's; allow it with --allowed-host");
        return Err(ApiError::forbidden(message));
    }
    if request.method() == Method::OPTIONS {
        // Whether the page may ask is told by what the answer allows.
        return Ok(Some(preflight()));
    }
    if let Some(origin) = text(header::ORIGIN)
        && !app.options.cross.allows(origin)
        && !same_origin(origin, text(header::HOST))
    {
        let message =
            format!("pages of {origin} may not ask this server; allow them with --cors-origins");
        return Err(ApiError::forbidden(message));
    }
    if !open && !has_key(&app.options.keys, headers) {
        return Err(ApiError::unauthorized());
    }
    Ok(None)
}

fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::OK;
    response
}

/// Whether a page of this server asks.
fn same_origin(origin: &str, host: Option<&str>) -> bool {
    let bare = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    bare.is_some() && bare == host
}

/// Whether a key came along, under any of the names that clients use. Every key is compared in full.
fn has_key(keys: &[String], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = text("authorization").and_then(|v| {
        let (scheme, key) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let given = [bearer, text("x-api-key"), text("api-key")];
    let fits = |given: &str| {
        let each = keys.iter().map(|k| k.as_bytes().ct_eq(given.as_bytes()));
        each.fold(0, |any, is| any | is.unwrap_u8()) == 1
    };
    given.into_iter().flatten().any(fits)
}

/// Whose error shape a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
    Cohere,
}

impl Dialect {
    /// The dialect of a path.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Dialect::Anthropic
        } else if path.starts_with("/api/") {
            Dialect::Ollama
        } else if path.ends_with("/v2/chat") || path.starts_with("/cohere/") {
            Dialect::Cohere
        } else {
            Dialect::OpenAi
        }
    }

    /// An error in its shape.
    pub(crate) fn error(self, error: &ApiError) -> Response {
        let body = self.error_body(error);
        let overloaded = error.kind == "overloaded_error" && self == Dialect::Anthropic;
        match StatusCode::from_u16(529) {
            Ok(status) if overloaded => error.clone().with_status(status).respond(&body),
            _ => error.respond(&body),
        }
    }

    /// The body of an error.
    pub(crate) fn error_body(self, error: &ApiError) -> Value {
        use serde_json::json;
        match self {
            Dialect::OpenAi => json!({"error": error.object()}),
            Dialect::Ollama => json!({"error": error.message}),
            Dialect::Cohere => json!({"message": error.message}),
            Dialect::Anthropic => {
                let kind = match error.kind {
                    "server_error" | "unavailable_error" | "not_supported_error" => "api_error",
                    "exceed_context_size_error" => "invalid_request_error",
                    other => other,
                };
                let counts = (error.extra.get("n_prompt_tokens"), error.extra.get("n_ctx"));
                // Clients read both numbers out of this sentence.
                let message = match counts {
                    (Some(tokens), Some(ctx)) => {
                        format!("prompt is too long: {tokens} tokens > {ctx} maximum")
                    }
                    _ => error.message.clone(),
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_under_every_name() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        let with = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            has_key(&keys, &headers)
        };
        assert!(with("authorization", "Bearer secret") && with("authorization", "bearer other"));
        assert!(with("x-api-key", "secret") && with("api-key", "other"));
        assert!(!with("authorization", "Bearer secre") && !with("authorization", "secret"));
        assert!(!with("x-api-key", "secret2") && !has_key(&keys, &HeaderMap::new()));
        assert!(has_key(&[], &HeaderMap::new()));
    }

    #[test]
    fn pages_of_this_server_may_ask() {
        assert!(same_origin("http://127.0.0.1:8080", Some("127.0.0.1:8080")));
        assert!(!same_origin("http://evil.example", Some("127.0.0.1:8080")));
        assert!(!same_origin("null", None));
    }
}
