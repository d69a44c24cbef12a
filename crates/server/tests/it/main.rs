//! Tests of the server.

mod agent;
mod around;
mod audio;
mod beams;
mod calls;
mod cohere;
mod common;
mod models;
mod openai;
mod serving;
#[path = "../../../audio/tests/signals/mod.rs"]
mod signals;
mod tools;
mod watermark;
