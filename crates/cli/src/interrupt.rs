//! Ctrl-C as a question that long work asks now and then.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C was pressed since it was made.
#[derive(Clone)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches Ctrl-C from now on.
    pub(crate) fn catch() -> Self {
        let pressed = Arc::new(AtomicBool::new(false));
        let inner = pressed.clone();
        // Without a handler Ctrl-C ends the process, which is no worse than before.
        let _ = ctrlc::set_handler(move || inner.store(true, Ordering::Relaxed));
        Interrupt { pressed }
    }

    /// Whether to stop.
    pub(crate) fn check(&self) -> ControlFlow<()> {
        if self.pressed.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
