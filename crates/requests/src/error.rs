//! What a caller is told when a call cannot be answered.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tokkata::{EngineError, Error};

/// Why a call failed, before a dialect gives it its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The status it is answered with.
    pub status: StatusCode,
    /// The word that OpenAI's clients read, such as `invalid_request_error`.
    pub kind: &'static str,
    /// One line that says what to do.
    pub message: String,
    /// The field that is to blame.
    pub param: Option<String>,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
    /// Further members of the error object.
    pub extra: Box<Map<String, Value>>,
}

/// What can fail so.
pub type Result<T> = std::result::Result<T, ApiError>;

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
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The caller's mistake in one field.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        ApiError {
            param: Some(param),
            ..Self::invalid(message)
        }
    }

    /// No such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A call without the key.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "Invalid API Key",
        )
    }

    /// A call that is not allowed.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// Something that this server, as it was started, does not do.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// Too many calls.
    pub fn overloaded(message: impl Into<String>, seconds: u64) -> Self {
        ApiError {
            retry_after: Some(seconds.max(1)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", message)
        }
    }

    /// Too many calls of one caller.
    pub fn rate_limited(message: impl Into<String>, seconds: u64) -> Self {
        ApiError {
            retry_after: Some(seconds.max(1)),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// Not now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable_error",
            message,
        )
    }

    /// Another status for the same mistake.
    pub fn with_status(self, status: StatusCode) -> Self {
        ApiError { status, ..self }
    }

    /// Our own fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A prompt that does not fit.
    pub fn too_long(tokens: usize, ctx: usize) -> Self {
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
    pub fn object(&self) -> Value {
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
