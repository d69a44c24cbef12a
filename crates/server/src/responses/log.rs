//! Events of responses that are made in the background: whoever lost a stream takes it up again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::build::Event;

/// Bytes of all logs at most; the oldest go first.
const MOST_BYTES: usize = 64 << 20;

/// The events of one response. An event's place is its sequence number.
#[derive(Debug, Default)]
pub(crate) struct Log {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// As they are sent.
    events: Vec<Arc<str>>,
    bytes: usize,
    over: bool,
    readers: usize,
    /// When the last reader left.
    left: Instant,
}

impl Default for State {
    fn default() -> Self {
        State {
            events: Vec::new(),
            bytes: 0,
            over: false,
            readers: 0,
            left: Instant::now(),
        }
    }
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what has happened.
    pub(super) fn add(&self, events: Vec<Event>) {
        let mut state = self.state();
        for (name, event) in events {
            let text: Arc<str> = format!("event: {name}\ndata: {event}\n\n").into();
            state.bytes += text.len();
            state.events.push(text);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// No more will come.
    pub(super) fn close(&self) {
        self.state().over = true;
        self.changed.notify_waiters();
    }

    /// The events from one on, and whether they are all there will be.
    pub(super) fn from(&self, at: usize) -> (Vec<Arc<str>>, bool) {
        let state = self.state();
        let events = state.events.get(at..).unwrap_or_default();
        (events.to_vec(), state.over)
    }

    /// Waits until there is an event at a place, or no more will come.
    pub(super) async fn more(&self, at: usize) {
        let changed = self.changed.notified();
        let mut changed = std::pin::pin!(changed);
        // What happens from here on is heard, whether it comes before the wait or after.
        changed.as_mut().enable();
        let is_there = {
            let state = self.state();
            state.events.len() > at || state.over
        };
        if !is_there {
            changed.await;
        }
    }

    /// Counts a reader until the value is dropped.
    pub(super) fn read(self: &Arc<Self>) -> Reader {
        self.state().readers += 1;
        Reader(Arc::clone(self))
    }

    /// Comes when nobody has read for this long.
    pub(super) async fn abandoned(&self, grace: Duration) {
        loop {
            let wait = {
                let state = self.state();
                match state.readers {
                    0 => grace.saturating_sub(state.left.elapsed()),
                    _ => grace,
                }
            };
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// Somebody who reads a log.
pub(super) struct Reader(Arc<Log>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.readers -= 1;
        state.left = Instant::now();
    }
}

/// Logs by the names of their responses.
#[derive(Debug, Default)]
pub(crate) struct Logs(Mutex<VecDeque<(String, Arc<Log>)>>);

impl Logs {
    fn kept(&self) -> MutexGuard<'_, VecDeque<(String, Arc<Log>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new log. Logs that are over make room for it, the oldest first.
    pub(super) fn open(&self, id: &str) -> Arc<Log> {
        let log = Arc::<Log>::default();
        let mut kept = self.kept();
        let mut bytes: usize = kept.iter().map(|(_, log)| log.state().bytes).sum();
        kept.retain(|(_, log)| {
            let state = log.state();
            let goes = bytes > MOST_BYTES && state.over;
            bytes -= if goes { state.bytes } else { 0 };
            !goes
        });
        kept.push_back((id.to_owned(), Arc::clone(&log)));
        log
    }

    /// The log of a response.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Log>> {
        let kept = self.kept();
        let found = kept.iter().find(|(name, _)| name == id);
        found.map(|(_, log)| Arc::clone(log))
    }

    /// No more will come of a response.
    pub(super) fn close(&self, id: &str) {
        if let Some(log) = self.get(id) {
            log.close();
        }
    }
}
