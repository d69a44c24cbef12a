//! The CPU backend: panels, kernels and a persistent thread pool.

pub mod caps;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod pool;
