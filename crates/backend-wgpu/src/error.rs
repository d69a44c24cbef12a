//! What went wrong, in the contract's words.

use tokkata_ir::BackendError;

/// The device does not answer as it should.
pub(crate) fn lost(why: impl Into<String>) -> BackendError {
    BackendError::Lost(why.into())
}

/// An op that no kernel does.
pub(crate) fn unsupported(op: impl Into<String>) -> BackendError {
    BackendError::Unsupported {
        backend: "wgpu",
        op: op.into(),
    }
}
