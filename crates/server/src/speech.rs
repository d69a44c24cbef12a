//! A model that hears, on a thread of its own: recordings of all callers share its steps.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokkata::audio::Recording;
use tokkata::speech::{self, Abilities, Heard, Listener};
use tokkata::transcript::Options;

use crate::error::{ApiError, Result};

/// A model that hears, shared.
pub(crate) struct Hearing {
    pub(crate) id: String,
    listener: Listener,
    busy: Arc<AtomicUsize>,
    most: usize,
}

/// What is heard of a recording, piece by piece. Whoever drops it has left.
pub(crate) struct Listening {
    heard: speech::Hearing,
    _counted: Counted,
}

/// One of those that a model is busy with, until it is dropped.
struct Counted {
    busy: Arc<AtomicUsize>,
    /// How many there were before.
    before: usize,
}

impl Counted {
    fn new(busy: &Arc<AtomicUsize>) -> Self {
        let before = busy.fetch_add(1, Ordering::AcqRel);
        let busy = Arc::clone(busy);
        Counted { busy, before }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Listening {
    /// What is heard next.
    ///
    /// # Errors
    /// A model that ended before the recording did.
    pub(crate) async fn next(&mut self) -> Result<Heard> {
        let heard = poll_fn(|cx| self.heard.poll_next(cx)).await;
        heard.ok_or_else(|| ApiError::unavailable("the model of speech has ended; try again"))
    }
}

impl Hearing {
    /// A model that hears, with so many recordings that may wait.
    pub(crate) fn new(id: String, listener: Listener, queue: usize) -> Self {
        Hearing {
            id,
            busy: Arc::default(),
            most: queue.saturating_add(listener.widest()),
            listener,
        }
    }

    /// What prepares recordings for it.
    pub(crate) fn abilities(&self) -> &Abilities {
        self.listener.abilities()
    }

    /// Hypotheses of one recording at most.
    pub(crate) fn widest(&self) -> usize {
        self.listener.widest().clamp(1, Options::default().best_of)
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.listener.memory_bytes()
    }

    /// Ends it, and returns when its memory is free.
    pub(crate) fn close(self) {
        drop(self.listener);
    }

    /// Asks for a transcript. Without a language it is found.
    ///
    /// # Errors
    /// Too many wait; what the model cannot do.
    pub(crate) fn listen(
        &self,
        recording: Recording,
        options: Options,
        detect: bool,
    ) -> Result<Listening> {
        let counted = Counted::new(&self.busy);
        if counted.before >= self.most {
            let text = format!("{} recordings are waiting; try again later", counted.before);
            return Err(ApiError::overloaded(text, 5));
        }
        let heard = self.listener.listen(recording, options, detect)?;
        Ok(Listening {
            heard,
            _counted: counted,
        })
    }
}
