//! Dispatches that are recorded once and submitted again and again, which wgpu itself does not know: through Vulkan, where that is
//! what drives the adapter. Elsewhere nothing is replayed, and steps are recorded anew.

#[cfg(any(target_os = "linux", target_os = "windows"))]
mod vulkan;
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub(crate) use vulkan::{Prepared, Recorded, Replay, Set};

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
mod none;
#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub(crate) use none::{Prepared, Recorded, Replay, Set};

use std::sync::Arc;

/// Buffers as kernels see them, by their bindings.
pub(crate) type Buffers = [wgpu::Buffer; 9];

/// A kernel that was made ready, what it sees, its grid, and the byte at which its parameters begin.
pub(crate) struct Call {
    pub(crate) kernel: Prepared,
    pub(crate) set: Arc<Set>,
    pub(crate) grid: [u32; 3],
    pub(crate) params: u32,
    /// It reads nothing that the one before it writes.
    pub(crate) beside: bool,
}

/// What is replayed, in order.
pub(crate) enum Piece {
    Call(Call),
    Recorded(Arc<Recorded>),
}
