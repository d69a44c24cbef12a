//! What can go wrong when a template is read or rendered.

use thiserror::Error;

/// Why a template could not be read or a request could not be rendered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("the chat template does not parse: {0}")]
    Syntax(String),
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Raised(String),
    /// A name, filter, test or statement that chat templates do not have.
    #[error("the chat template uses {0}, which chat templates do not have")]
    Unknown(String),
    /// An operation on an undefined value.
    #[error("the chat template uses {0}, which is undefined")]
    Undefined(String),
    /// An operation on values of the wrong kind.
    #[error("the chat template fails: {0}")]
    Type(String),
    /// An operation the sandbox forbids, such as changing a list in place.
    #[error("the chat template may not {0}")]
    Forbidden(String),
    /// The template ran too long, recursed too deeply or produced too much.
    #[error("the chat template exceeds its limit of {0}")]
    Limit(&'static str),
    /// The final message cannot be continued.
    #[error("the final message cannot be continued: {0}")]
    Continue(&'static str),
    /// The request is not shaped like a conversation.
    #[error("the request is not a conversation: {0}")]
    Request(String),
}

pub(crate) type Result<T, E = TemplateError> = std::result::Result<T, E>;

pub(crate) fn type_error<T>(message: impl Into<String>) -> Result<T> {
    Err(TemplateError::Type(message.into()))
}
