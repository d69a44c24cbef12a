//! Tests of models through the library.

mod asked;
mod batch;
mod chat;
mod common;
mod constrained;
mod diffusion;
mod drafters;
mod feeds;
mod fuzzed;
mod grammar;
mod inputs;
mod json_prefix;
mod no_calls;
mod placement;
mod probe;
mod rollback;
#[path = "../../../audio/tests/signals/mod.rs"]
mod signals;
mod speculation;
mod speech;
mod tiny;
mod vectors;
