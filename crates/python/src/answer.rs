//! Answers on their way.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokkata::{Canceller, EventKind, Logprobs};
use tokkata_requests::reply::{Next, Reply as Inner, wait_for};
use tokkata_requests::run::Stopper;

use crate::failure::{engine, error, request};
use crate::notify::waker;

/// How long a thread waits before it looks for signals.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Refuses a second caller of what serves one.
macro_rules! alone {
    ($mutex:expr) => {
        match $mutex.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err($crate::failure::error(
                    "another thread waits for this answer",
                ));
            }
        }
    };
}

pub(crate) use alone;

/// The tokens of one answer. Each item is (token id, text bytes, log-probability, alternatives); when it has ended,
/// `finish` and `stats` are set.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Answer {
    answer: Mutex<tokkata::Answer>,
    canceller: Canceller,
    end: Mutex<Option<End>>,
    process: u32,
}

/// How an answer ended.
#[derive(Clone)]
struct End {
    finish: &'static str,
    rest: Vec<u8>,
    stats: Stats,
}

/// Prompt tokens, of them reused, generated tokens, seconds to the first token, seconds after it, tokens guessed, of them
/// right.
type Stats = (usize, usize, usize, f64, f64, usize, usize);

type Item<'py> = (u32, Bound<'py, PyBytes>, Option<f32>, Vec<(u32, f32)>);

impl Answer {
    pub(crate) fn new(answer: tokkata::Answer) -> Self {
        Answer {
            canceller: answer.canceller(),
            answer: Mutex::new(answer),
            end: Mutex::new(None),
            process: std::process::id(),
        }
    }

    fn took<'py>(&self, py: Python<'py>, event: EventKind) -> PyResult<Option<Item<'py>>> {
        match event {
            EventKind::Token { id, text, logprobs } => {
                let known = logprobs.as_ref().map(|l| l.picked.logprob);
                let pairs = |l: Logprobs| l.top.iter().map(|l| (l.token, l.logprob)).collect();
                let top = logprobs.map(pairs).unwrap_or_default();
                Ok(Some((id, PyBytes::new(py, &text), known, top)))
            }
            EventKind::Finished {
                text,
                reason,
                stats,
            } => {
                let end = End {
                    finish: match reason {
                        tokkata::FinishReason::ContextFull => "context",
                        reason => reason.as_str(),
                    },
                    rest: text,
                    stats: (
                        stats.prompt_tokens,
                        stats.reused_tokens,
                        stats.generated_tokens,
                        stats.prompt_ns as f64 / 1e9,
                        stats.generate_ns as f64 / 1e9,
                        stats.drafted_tokens,
                        stats.accepted_tokens,
                    ),
                };
                *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                Ok(None)
            }
            EventKind::Failed(failure) => Err(engine(failure)),
            EventKind::Prompt { .. } | EventKind::Values { .. } => Ok(None),
        }
    }

    fn ended(&self) -> Option<End> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.clone()
    }
}

/// Refuses a process that was forked off: the engine's threads are the parent's.
pub(crate) fn check_process(process: u32) -> PyResult<()> {
    match process == std::process::id() {
        true => Ok(()),
        false => Err(error(
            "the model was loaded before a fork, and its threads are the parent's; load it in this process",
        )),
    }
}

#[pymethods]
impl Answer {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next token; waits for it without the interpreter lock.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Item<'py>>> {
        check_process(self.process)?;
        loop {
            let event = {
                let mut answer = alone!(self.answer);
                let answer = &mut *answer;
                py.detach(|| match answer.next_within(PATIENCE) {
                    Some(event) => Some(event),
                    None if answer.is_over() => None,
                    None => Some(EventKind::Prompt {
                        cached: 0,
                        reused: 0,
                        total: 0,
                    }),
                })
            };
            let Some(event) = event else { return Ok(None) };
            let waited = matches!(event, EventKind::Prompt { .. });
            if let Some(item) = self.took(py, event)? {
                return Ok(Some(item));
            }
            if waited && let Err(signal) = py.check_signals() {
                self.canceller.cancel();
                return Err(signal);
            }
        }
    }

    /// The next token if there is one; otherwise `call` is called, from another thread, when it is worth asking again.
    /// Gives (True, token or None at the end), or (False, None).
    fn poll<'py>(&self, py: Python<'py>, call: Py<PyAny>) -> PyResult<(bool, Option<Item<'py>>)> {
        check_process(self.process)?;
        let waker = waker(call);
        let mut cx = Context::from_waker(&waker);
        loop {
            let event = alone!(self.answer).poll_next(&mut cx);
            match event {
                Poll::Pending => return Ok((false, None)),
                Poll::Ready(None) => return Ok((true, None)),
                Poll::Ready(Some(event)) => {
                    if let Some(item) = self.took(py, event)? {
                        return Ok((true, Some(item)));
                    }
                }
            }
        }
    }

    /// Ends the answer, from any thread; its last tokens still come.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Why it ended: "stop", "length", "context" or "cancelled"; None before.
    #[getter]
    fn finish(&self) -> Option<&'static str> {
        self.ended().map(|end| end.finish)
    }

    /// Bytes that were held back until the end.
    #[getter]
    fn rest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let rest = self.ended().map_or_else(Vec::new, |end| end.rest);
        PyBytes::new(py, &rest)
    }

    /// (prompt tokens, of them reused, generated tokens, seconds to the first token, seconds after it, tokens guessed, of
    /// them right); None before the end.
    #[getter]
    fn stats(&self) -> Option<Stats> {
        self.ended().map(|end| end.stats)
    }
}

/// The answers to a request in JSON: chunks, or the whole, each as JSON text.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Reply {
    reply: Mutex<Inner>,
    stopper: Stopper,
    process: u32,
}

impl Reply {
    pub(crate) fn new(reply: Inner) -> Self {
        Reply {
            stopper: reply.stopper(),
            reply: Mutex::new(reply),
            process: std::process::id(),
        }
    }
}

#[pymethods]
impl Reply {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next object; waits for it without the interpreter lock.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        check_process(self.process)?;
        loop {
            let next = {
                let mut reply = alone!(self.reply);
                let reply = &mut *reply;
                py.detach(|| reply.next(Some(PATIENCE)))
            };
            match next.map_err(request)? {
                Next::Object(object) => return Ok(Some(object.to_string())),
                Next::Over => return Ok(None),
                Next::Nothing => {}
            }
            if let Err(signal) = py.check_signals() {
                self.stopper.stop();
                return Err(signal);
            }
        }
    }

    /// The next object if there is one, as `Answer.poll`.
    fn poll(&self, call: Py<PyAny>) -> PyResult<(bool, Option<String>)> {
        check_process(self.process)?;
        let waker = waker(call);
        let mut cx = Context::from_waker(&waker);
        let next = alone!(self.reply).poll_next(&mut cx);
        match next {
            Poll::Pending => Ok((false, None)),
            Poll::Ready(None) => Ok((true, None)),
            Poll::Ready(Some(object)) => Ok((true, Some(object.map_err(request)?.to_string()))),
        }
    }

    /// Ends the answers, from any thread.
    fn cancel(&self) {
        self.stopper.stop();
    }
}

/// All values of a read, waited for without the interpreter lock.
pub(crate) fn values(py: Python<'_>, mut answer: tokkata::Answer) -> PyResult<Vec<f32>> {
    let mut all = Vec::new();
    loop {
        let event = py.detach(|| wait_for(Some(PATIENCE), |cx| answer.poll_next(cx)));
        match event {
            None => py.check_signals()?,
            Some(None) => return Ok(all),
            Some(Some(EventKind::Values { values, .. })) if all.is_empty() => all = values,
            Some(Some(EventKind::Values { values, .. })) => all.extend(values),
            Some(Some(EventKind::Failed(failure))) => return Err(engine(failure)),
            Some(Some(_)) => {}
        }
    }
}
