//! Tells event loops that something came, from a thread of its own: the engine's never waits for the interpreter.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};

use pyo3::prelude::*;

/// Calls that wait for the interpreter.
static CALLS: OnceLock<Sender<Arc<Call>>> = OnceLock::new();

/// A Python function to be called once.
struct Call(Mutex<Option<Py<PyAny>>>);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        if let Some(calls) = CALLS.get() {
            // The thread lives as long as the process.
            let _ = calls.send(self);
        }
    }
}

fn start() -> Sender<Arc<Call>> {
    let (send, receive) = channel::<Arc<Call>>();
    let thread = std::thread::Builder::new().name("tokkata-notify".to_owned());
    let spawned = thread.spawn(move || {
        for call in receive {
            let function = call.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(function) = function {
                Python::attach(|py| {
                    // A loop that was closed hears nothing.
                    let _ = function.call0(py);
                });
            }
        }
    });
    // Without a thread nobody would be told: who waits sees that when it asks again.
    drop(spawned);
    send
}

/// What calls a Python function, once, from another thread than the one that wakes it.
pub(crate) fn waker(function: Py<PyAny>) -> Waker {
    CALLS.get_or_init(start);
    Waker::from(Arc::new(Call(Mutex::new(Some(function)))))
}
