//! Serves models over HTTP, in the dialects of OpenAI, Anthropic, Ollama and llama.cpp.
//!
//! This crate is HTTP on top of [`tokkata::Service`] and nothing else: every dialect reads its request into the same
//! conversation and parameters, and writes what comes of the same stream of steps.
//!
//! Invariants: a field of a request is honoured, refused with a status, or told in `warnings`; an answer that nobody
//! reads any more is cancelled; nothing in a request names a file, a template or an address to fetch; who has no key
//! learns nothing but that the server is alive.
//!
//! Reading order: [`options`], `app` (what every call goes through), `served` (models), `fields` and `params` (what a
//! request says), `talk` (conversations on their way to tokens), `run` (answers on their way back), `sse`, then a
//! dialect: `openai`, `responses`, `anthropic`, `ollama`, `native`.

mod anthropic;
mod app;
mod door;
mod error;
mod fields;
mod metrics;
mod native;
mod ollama;
mod openai;
mod openapi;
pub mod options;
mod page;
mod params;
mod ranking;
mod responses;
mod routes;
mod run;
mod scores;
mod serve;
mod served;
mod sse;
mod talk;
mod tls;
mod word_tools;

pub use options::{Cross, Hosts, ReasoningNames, ServerOptions, Thinking};
pub use serve::{ServeError, Server};
pub use served::Named;
