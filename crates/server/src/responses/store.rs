//! Responses that are kept, for the next turn and for whoever asks again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::task::AbortHandle;

/// Responses that are kept at most.
const MOST: usize = 1000;
/// Bytes of them at most.
const MOST_BYTES: usize = 256 << 20;

/// A response that is kept.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As it was sent.
    pub(crate) response: Value,
    /// The messages it answers.
    pub(crate) input: Vec<Value>,
    /// These, and the answer.
    pub(crate) messages: Vec<Value>,
}

/// Responses by name; the oldest go first.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: Mutex<Kept>,
    /// Those that are made in the background.
    working: Mutex<HashMap<String, AbortHandle>>,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<String, (Arc<Stored>, usize)>,
    order: VecDeque<String>,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, id: &str) -> bool {
        let Some((_, bytes)) = self.by_id.remove(id) else {
            return false;
        };
        self.bytes -= bytes;
        self.order.retain(|kept| kept != id);
        true
    }
}

impl Store {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response.
    pub(crate) fn put(&self, id: &str, stored: Stored) {
        let messages = stored.messages.iter().map(|m| m.to_string().len());
        let bytes = 2 * messages.sum::<usize>() + stored.response.to_string().len();
        let mut kept = self.kept();
        kept.remove(id);
        kept.bytes += bytes;
        kept.by_id.insert(id.to_owned(), (Arc::new(stored), bytes));
        kept.order.push_back(id.to_owned());
        while kept.order.len() > MOST || kept.bytes > MOST_BYTES {
            let Some(oldest) = kept.order.front().cloned() else {
                return;
            };
            kept.remove(&oldest);
        }
    }

    fn working(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how to end what is made in the background.
    pub(crate) fn hold(&self, id: &str, work: AbortHandle) {
        if !work.is_finished() {
            self.working().insert(id.to_owned(), work);
        }
    }

    /// What was made in the background is over.
    pub(crate) fn let_go(&self, id: &str) {
        self.working().remove(id);
    }

    /// Ends what is made in the background; what there is of it stays.
    pub(crate) fn cancel(&self, id: &str) {
        let Some(work) = self.working().remove(id) else {
            return;
        };
        work.abort();
        let Some(stored) = self.get(id) else { return };
        let mut response = stored.response.clone();
        response["status"] = "cancelled".into();
        let stored = Stored {
            response,
            input: stored.input.clone(),
            messages: stored.messages.clone(),
        };
        self.put(id, stored);
    }

    /// A response.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.kept()
            .by_id
            .get(id)
            .map(|(stored, _)| Arc::clone(stored))
    }

    /// Forgets a response; says whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.cancel(id);
        self.kept().remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        Stored {
            response: Value::Null,
            input: Vec::new(),
            messages: vec!["x".into()],
        }
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let store = Store::default();
        for i in 0..MOST + 2 {
            store.put(&i.to_string(), stored());
        }
        assert!(store.get("1").is_none() && store.get("2").is_some());
        assert!(store.remove("2") && !store.remove("2"));
        let bytes = store.kept().bytes;
        assert_eq!(bytes, (MOST - 1) * (2 * 3 + 4));
    }
}
