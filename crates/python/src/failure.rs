//! Errors as Python raises them.

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use tokkata_requests::error::ApiError;

pyo3::create_exception!(
    tokkata,
    TokkataError,
    PyException,
    "What went wrong, in one line that says what to do."
);

/// An error in words.
pub(crate) fn error(message: impl Into<String>) -> PyErr {
    TokkataError::new_err(message.into())
}

/// An error of the facade.
pub(crate) fn facade(error: tokkata::Error) -> PyErr {
    TokkataError::new_err(error.to_string())
}

/// An error of the engine.
pub(crate) fn engine(error: tokkata::EngineError) -> PyErr {
    facade(error.into())
}

/// An error of a request: a mistake of the caller's is a `ValueError`.
pub(crate) fn request(error: ApiError) -> PyErr {
    match error.kind {
        "invalid_request_error" | "exceed_context_size_error" => {
            PyValueError::new_err(error.message)
        }
        _ => TokkataError::new_err(error.message),
    }
}
