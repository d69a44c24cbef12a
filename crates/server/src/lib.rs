//! Serves models over HTTP, in the dialects of OpenAI, Anthropic, Cohere, Ollama and llama.cpp.
//!
//! This crate is HTTP on top of [`tokkata_requests`] and nothing else: every dialect reads its request into the same
//! conversation and parameters, and writes what comes of the same stream of steps.
//!
//! Invariants: a field of a request is honoured, refused with a status, or told in `warnings`; an answer that nobody
//! reads any more is cancelled; nothing in a request names a file, a template or an address to fetch; who has no key
//! learns nothing but that the server is alive.
//!
//! Reading order: [`tokkata_requests`], [`options`], `fleet` (which models there are), `app` (what every call goes through),
//! `sse`, then a dialect: `openai`, `responses`, `anthropic`, `cohere`, `ollama`,
//! `native`.

mod anthropic;
mod app;
mod cohere;
mod door;
mod fleet;
mod multipart;
mod native;
mod ollama;
mod openai;
mod openapi;
pub mod options;
mod page;
mod pulse;
mod ranking;
mod responses;
mod routes;
mod serve;
mod speech;
mod sse;
mod tls;

use tokkata_requests::{
    calls, error, fields, logprobs, messages, metrics, names, params, prompts, run, served, talk,
};

pub use fleet::{Kind, Library, Offer, Open, Opened, Stock};
pub use options::{Cross, Hosts, ModelLimits, ReasoningNames, ServerOptions, Thinking};
pub use serve::{Place, ServeError, Server};
pub use tokkata_requests::served::Named;
