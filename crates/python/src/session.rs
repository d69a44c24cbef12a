//! Sequences whose cache stays.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokkata::{FeedLogits, Feeding, RowKind, Session as Inner};
use tokkata_requests::served::Served;

use crate::answer::check_process;
use crate::failure::facade;
use crate::floats::Floats;

/// A sequence whose cache stays from one request to the next.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Session {
    /// Always there, until it is dropped.
    inner: Option<Inner>,
    served: Arc<Served>,
    process: u32,
}

impl Session {
    pub(crate) fn new(inner: Inner, served: &Arc<Served>) -> Self {
        Session {
            inner: Some(inner),
            served: Arc::clone(served),
            process: std::process::id(),
        }
    }

    pub(crate) fn open(&self) -> PyResult<&Inner> {
        check_process(self.process)?;
        self.inner
            .as_ref()
            .ok_or_else(|| PyValueError::new_err("the session is closed"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        if check_process(self.process).is_err() {
            // The thread that it would ask is the parent's.
            std::mem::forget(inner);
            return;
        }
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

#[pymethods]
impl Session {
    /// The tokens whose cache it holds.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let inner = self.open()?;
        py.detach(|| inner.tokens()).map_err(facade)
    }

    /// How many they are.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<usize> {
        let inner = self.open()?;
        py.detach(|| inner.position()).map_err(facade)
    }

    /// Computes the cache of further tokens, beside whatever else the model does.
    fn append(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<()> {
        let inner = self.open()?;
        py.detach(|| inner.append(&ids)).map_err(facade)
    }

    /// Forgets its tokens from `position` on.
    fn rollback(&self, py: Python<'_>, position: usize) -> PyResult<()> {
        let inner = self.open()?;
        py.detach(|| inner.rollback(position)).map_err(facade)
    }

    /// A session that goes on from where this one is.
    fn fork(&self, py: Python<'_>) -> PyResult<Session> {
        let inner = self.open()?;
        let copy = py.detach(|| inner.fork()).map_err(facade)?;
        Ok(Session::new(copy, &self.served))
    }

    /// Writes its tokens and their cache to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let inner = self.open()?;
        py.detach(|| inner.save(&path)).map_err(facade)
    }

    /// Feeds tokens by hand, and gives the logits of the last one: shape [1, n_vocab].
    fn prefill(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<Floats> {
        let inner = self.open()?;
        let logits = py.detach(|| inner.prefill(&ids)).map_err(facade)?;
        Ok(Floats::new(logits, self.served.service.n_vocab() as usize))
    }
}

/// One step of many sessions: tokens of each, and the logits of the last token of each, [sessions, n_vocab].
pub(crate) fn step(
    py: Python<'_>,
    served: &Arc<Served>,
    feeds: &[(PyRef<'_, Session>, Vec<u32>)],
    answers: bool,
) -> PyResult<Floats> {
    let mut parts = Vec::with_capacity(feeds.len());
    for (session, tokens) in feeds {
        if !Arc::ptr_eq(&session.served, served) {
            return Err(PyValueError::new_err("a session is of another model"));
        }
        parts.push(Feeding {
            session: session.open()?,
            tokens,
            rows: match answers {
                true => RowKind::Answer,
                false => RowKind::Prompt,
            },
            logits: FeedLogits::Last,
        });
    }
    let service = &served.service;
    let logits = py.detach(|| service.step(&parts)).map_err(facade)?;
    Ok(Floats::new(logits, service.n_vocab() as usize))
}
