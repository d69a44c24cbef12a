//! WGSL as SPIR-V, where that is not left to wgpu.

#[cfg(any(target_os = "linux", target_os = "windows"))]
mod made;
#[cfg(any(target_os = "linux", target_os = "windows"))]
pub(crate) use made::{cooperative, translated};

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
mod none;
#[cfg(not(any(target_os = "linux", target_os = "windows")))]
pub(crate) use none::cooperative;
