//! The CPU backend: panels, kernels and a persistent thread pool.
