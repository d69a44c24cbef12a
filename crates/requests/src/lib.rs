//! Requests in JSON, from their fields to their answers, whoever asks: a server, or a program that has the model inside.
//!
//! Everything that OpenAI's dialect says lies here, with the parts that other dialects share: conversations on their way
//! to tokens, parameters under all their names, answers split into reasoning, content and calls. There is no HTTP in it,
//! but for the status of an error; with the feature `http` errors are responses too.
//!
//! Invariants: a field of a request is honoured, refused with a status, or told in `warnings`; an answer that nobody
//! reads any more is cancelled; nothing in a request names a file, a template or an address to fetch.
//!
//! Reading order: [`style`], [`served`] (models), [`fields`] and [`params`] (what a request says), [`messages`] and
//! [`talk`] (conversations on their way to tokens), [`run`] and [`calls`] (answers on their way back), [`chat`] and [`completions`]
//! (what OpenAI's dialect asks and how it is written), [`reply`] (all of it for a caller in this process).

mod beams;
pub mod calls;
pub mod chat;
pub mod completions;
pub mod error;
pub mod fields;
pub mod logprobs;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod params;
pub mod prompts;
mod reader;
pub mod reply;
#[cfg(feature = "http")]
mod respond;
pub mod run;
pub mod scores;
pub mod served;
pub mod style;
pub mod talk;
pub mod word_tools;
pub mod write;
