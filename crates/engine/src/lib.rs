//! Sequences, cache blocks, scheduling, sampling parameters and generation.
//!
//! An [`Engine`] owns a loaded program and serves many requests at once: it gives sequences cache blocks, reuses
//! those whose prefix is stored, mixes prompt chunks and answers in one step, and turns the tokens that the backend
//! picks into events. It knows no files, no HTTP and no command line, and no kernels: a device is
//! an [`Executor`](tokkata_ir::Executor).
//!
//! Invariants: the cache of a sequence holds exactly the tokens fed (the prompt, and the answer but its newest
//! token); a block is written only by a sequence that holds it alone, past every position that a stored prefix
//! needs; a draw depends on (seed, position, logits) and never on the neighbours in a step; running out of context
//! ends an answer by name or is an error, and nothing is cut in silence.
//!
//! Reading order: [`request`], [`input`], [`engine`], [`pool`], [`kind`], [`sequence`], [`prefix`], [`cache`], [`sampling`], [`watermark`], [`handle`].
//!
//! ```
//! use tokkata_engine::StopStrings;
//! let mut stop = StopStrings::new(vec![b"</s>".to_vec()]);
//! assert_eq!(stop.push(b"done</").text, b"done");
//! assert_eq!(stop.push(b"s>").stopped, Some(0));
//! ```

pub mod cache;
mod cost;
pub mod dry;
pub mod engine;
pub mod error;
mod flight;
pub mod handle;
pub mod input;
pub mod kind;
mod masks;
pub mod pool;
pub mod prefix;
mod report;
pub mod request;
pub mod sampling;
mod score;
pub mod sequence;
mod session;
pub mod speculate;
pub mod stop;
mod task;
mod turn;
pub mod watermark;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use cache::{Cache, CacheOptions};
pub use dry::Dry;
pub use engine::{
    AdapterId, Engine, EngineOptions, Fed, Feed, FeedLogits, KeptSession, RowKind, Through,
};
pub use error::EngineError;
pub use handle::{Answer, Canceller, Driver, EngineHandle, Turned};
pub use input::{EncoderInput, Media};
pub use kind::{CacheTraits, Truncate};
pub use request::{
    Constraint, Decoder, Event, EventKind, FinishReason, Logprob, Logprobs, ReadRequest, Request,
    RequestId, SessionId, Stats, StopRules, Urgency,
};
pub use sampling::{BadSampling, Sampling};
pub use score::ScorePlan;
pub use stop::StopStrings;
pub use watermark::{Detection, Repeats, Watermark};
