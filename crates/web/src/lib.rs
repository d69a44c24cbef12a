//! Language models in a page, on the browser's GPU.
//!
//! Everything here runs on one thread, a worker's: `Engine::turn` never waits, and between two turns the worker gives
//! the browser time to say what the GPU has done. Requests are those of the server's chat completions, and answers its
//! chunks. The model is read in ranges by a function of the page's, straight into the GPU's memory.

#![cfg(target_arch = "wasm32")]

pub mod engine;
mod file;
