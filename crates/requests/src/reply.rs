//! Requests that this process asks itself: JSON in, JSON out, on any thread and without an async runtime.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tokkata_requests::{reply::{Next, Reply}, served::Served, style::Style};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = tokkata::Model::open("model.gguf", &tokkata::OpenOptions::default())?.serve()?;
//! let model = Arc::new(Served::alone(service));
//! let body = serde_json::json!({"messages": [{"role": "user", "content": "Hello"}]});
//! let mut reply = Reply::ask(&model, &Style::default(), body).map_err(|e| e.message)?;
//! while let Next::Object(answer) = reply.next(None).map_err(|e| e.message)? {
//!     println!("{answer}");
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use serde_json::Value;
use web_time::Instant;

use crate::error::Result;
use crate::fields::Fields;
use crate::run::{Run, Stopper, Whole};
use crate::served::Served;
use crate::style::Style;
use crate::write::Write;
use crate::{chat, completions};

/// The answers to a request.
pub struct Reply {
    run: Run,
    writer: Box<dyn Write>,
    /// Objects that nobody has taken yet.
    ready: VecDeque<Value>,
    /// What has come of each answer, where they are given whole.
    all: Vec<Whole>,
    over: bool,
}

/// What comes next of a [`Reply`].
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// The answer, or a chunk of it.
    Object(Value),
    /// Nothing in the time that was given.
    Nothing,
    /// Nothing any more.
    Over,
}

impl Reply {
    /// Asks: for a chat completion if the body has `messages`, else for a completion of its `prompt`.
    ///
    /// # Errors
    /// What a server would answer with a status.
    pub fn ask(model: &Arc<Served>, style: &Style, body: Value) -> Result<Self> {
        let mut fields = Fields::body(body)?;
        // There is one model.
        fields.text("model")?;
        let (run, writer) = start(model, style, &mut fields)?;
        Ok(Reply {
            all: vec![Whole::default(); run.len()],
            run,
            writer,
            ready: VecDeque::new(),
            over: false,
        })
    }

    /// What ends it from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.run.stopper()
    }

    /// Waits for what comes next; without a patience, until it comes.
    ///
    /// # Errors
    /// The first answer that fails ends the reply.
    pub fn next(&mut self, patience: Option<Duration>) -> Result<Next> {
        match wait_for(patience, |cx| self.poll_next(cx)) {
            None => Ok(Next::Nothing),
            Some(None) => Ok(Next::Over),
            Some(Some(object)) => object.map(Next::Object),
        }
    }

    /// What comes next, or the promise to wake the task when it comes; `None` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Value>>> {
        loop {
            if let Some(object) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(object)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let Poll::Ready(step) = self.run.poll_next(cx) else {
                return Poll::Pending;
            };
            if let Err(error) = self.take(step) {
                self.over = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn take(&mut self, step: Option<Result<crate::run::Step>>) -> Result<()> {
        let mut out = Vec::new();
        match step {
            Some(step) if self.writer.streams() => {
                self.writer.step(&mut self.run, step?, &mut out);
            }
            Some(step) => {
                let step = step?;
                self.all[step.choice].take(step);
            }
            None => {
                self.over = true;
                match self.writer.streams() {
                    true => self.writer.last(&mut out),
                    false => out.push(self.writer.whole(&self.all)?),
                }
            }
        }
        self.ready.extend(out);
        Ok(())
    }
}

/// Reads a body, and asks for its answers.
fn start(model: &Arc<Served>, style: &Style, fields: &mut Fields) -> Result<(Run, Box<dyn Write>)> {
    if fields.has("messages") {
        let asked = chat::read(style, model, fields)?;
        let warnings = std::mem::take(&mut fields.warnings);
        let (run, writer) = chat::start(model, asked, warnings)?;
        return Ok((run, Box::new(writer)));
    }
    let asked = completions::read(style, model, fields)?;
    let warnings = std::mem::take(&mut fields.warnings);
    let ready = completions::prepare(model, asked, warnings)?;
    let (run, writer) = block_on(ready.start(model))?;
    Ok((run, Box::new(writer)))
}

/// Wakes a thread that waits.
struct Alarm(Thread);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread for what `poll` gives; `None` when the patience is at its end.
pub fn wait_for<T>(
    patience: Option<Duration>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let end = patience.and_then(|patience| Instant::now().checked_add(patience));
    let waker = Waker::from(Arc::new(Alarm(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut cx) {
            return Some(value);
        }
        let Some(end) = end else {
            std::thread::park();
            continue;
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

/// Waits on this thread for a future.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Some(value) = wait_for(None, |cx| future.as_mut().poll(cx)) {
            return value;
        }
    }
}
