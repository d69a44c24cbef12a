//! Responses that are kept, for the next turn and for whoever asks again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

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
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response.
    pub(crate) fn put(&self, id: &str, stored: Stored) {
        let messages = stored.messages.iter().map(|m| m.to_string().len());
        let bytes = 2 * messages.sum::<usize>() + stored.response.to_string().len();
        let mut kept = self.kept();
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

    /// A response.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.kept()
            .by_id
            .get(id)
            .map(|(stored, _)| Arc::clone(stored))
    }

    /// Forgets a response; says whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
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
