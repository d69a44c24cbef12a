//! What a caller is told when a call cannot be answered.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokkata::{EngineError, Error};

/// Why a call failed, before a dialect gives it its shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// The word that OpenAI's clients read, such as `invalid_request_error`.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// The field that is to blame.
    pub(crate) param: Option<String>,
    /// Seconds after which it may be tried again.
    pub(crate) retry_after: Option<u64>,
    /// Further members of the error object.
    pub(crate) extra: Box<Map<String, Value>>,
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
            retry_after: None,
            extra: Box::default(),
        }
    }

    /// The caller's mistake.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The caller's mistake in one field.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        ApiError {
            param: Some(param),
            ..Self::invalid(message)
        }
    }

    /// No such thing.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A call without the key.
    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "Invalid API Key",
        )
    }

    /// A call that is not allowed.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// Something that this server, as it was started, does not do.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// Too many calls.
    pub(crate) fn overloaded(message: impl Into<String>, seconds: u64) -> Self {
        ApiError {
            retry_after: Some(seconds.max(1)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", message)
        }
    }

    /// Too many calls of one caller.
    pub(crate) fn rate_limited(message: impl Into<String>, seconds: u64) -> Self {
        ApiError {
            retry_after: Some(seconds.max(1)),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// Not now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable_error",
            message,
        )
    }

    /// Another status for the same mistake.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        ApiError { status, ..self }
    }

    /// Our own fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A prompt that does not fit.
    pub(crate) fn too_long(tokens: usize, ctx: usize) -> Self {
        let message = format!(
            "the request exceeds the available context size: the prompt has {tokens} tokens and the context holds {ctx}; shorten it or start the server with a larger context (-c)"
        );
        let mut error = Self::new(
            StatusCode::BAD_REQUEST,
            "exceed_context_size_error",
            message,
        );
        error.extra.insert("n_prompt_tokens".into(), tokens.into());
        error.extra.insert("n_ctx".into(), ctx.into());
        error
    }

    /// The error object as OpenAI and llama.cpp shape it.
    pub(crate) fn object(&self) -> Value {
        let mut object = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        });
        if let Some(members) = object.as_object_mut() {
            members.extend((*self.extra).clone());
        }
        object
    }

    /// A response with this body and the error's status.
    pub(crate) fn respond(&self, body: &Value) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, kind, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let value = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(&json!({"error": self.object()}))
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let text = error.to_string();
        match error {
            EngineError::PromptTooLong { tokens, ctx } => ApiError::too_long(tokens, ctx),
            EngineError::TextTooLong { .. }
            | EngineError::EmptyPrompt
            | EngineError::UnknownToken { .. }
            | EngineError::Sampling(_)
            | EngineError::Constraint(_)
            | EngineError::NoCandidate
            | EngineError::MissingOutput(_) => ApiError::invalid(text),
            EngineError::Overloaded { seconds, .. } => ApiError::overloaded(text, seconds),
            EngineError::CacheFull { .. } => ApiError::overloaded(text, 1),
            EngineError::DeadlinePassed => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", text)
            }
            EngineError::Gone(_) | EngineError::Backend(_) => ApiError::unavailable(text),
            _ => ApiError::internal(text),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(error) => error.into(),
            Error::Template { source, .. } => ApiError::invalid(source.to_string()),
            Error::Grammar(error) => ApiError::invalid(error.to_string()),
            Error::NoTemplate { .. } => ApiError::invalid(
                "the model has no chat template, so it cannot chat; use /v1/completions, or start the server with --chat-template",
            ),
            Error::NoText { .. } => {
                ApiError::unsupported("the model gives vectors, not text; use /v1/embeddings")
            }
            Error::NoVectors { .. } => ApiError::unsupported(
                "the server was started for text; start it with --embeddings for vectors",
            ),
            other => ApiError::internal(other.to_string()),
        }
    }
}
