//! What went wrong, in the contract's words.

use tokkata_ir::BackendError;

use crate::driver::{Context, Fault};

/// The device does not answer as it should.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn lost(fault: Fault) -> BackendError {
    BackendError::Lost(fault.to_string())
}

/// Memory that was not given; another fault is a lost device.
pub(crate) fn out_of_memory(
    context: &Context,
    what: &str,
    needed: u64,
    fault: &Fault,
) -> BackendError {
    if !fault.is_out_of_memory() {
        return BackendError::Lost(fault.to_string());
    }
    BackendError::OutOfMemory {
        what: format!("{what} on the GPU"),
        needed,
        available: context.memory().map_or(0, |m| m.0),
    }
}

/// An op that no kernel does.
pub(crate) fn unsupported(op: impl Into<String>) -> BackendError {
    BackendError::Unsupported {
        backend: "cuda",
        op: op.into(),
    }
}
