//! What can go wrong while generating.

use tokkata_ir::BackendError;

use crate::sampling::BadSampling;

/// Why a request or a step failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error(
        "the prompt has {tokens} tokens but the context holds {ctx}; use a larger context (-c) or a shorter prompt"
    )]
    PromptTooLong { tokens: usize, ctx: usize },
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    #[error("token {token} is not in the vocabulary of {n_vocab} tokens")]
    UnknownToken { token: u32, n_vocab: u32 },
    #[error(
        "the cache is full: {needed} more blocks of group {group} are needed and {available} are free; use a larger context (-c), more memory for it (--kv-memory) or fewer sequences"
    )]
    CacheFull {
        group: usize,
        needed: usize,
        available: usize,
    },
    #[error("the model has no `{0}` output; it cannot be used this way")]
    MissingOutput(&'static str),
    #[error("no session {0}")]
    UnknownSession(u64),
    #[error("session {0} is still answering")]
    SessionBusy(u64),
    #[error("no adapter {0}")]
    UnknownAdapter(u64),
    #[error("adapter {0} is in use by a request")]
    AdapterBusy(u64),
    #[error("a cache that cannot go back holds {held} tokens; it cannot be cut to {wanted}")]
    CannotTruncate { held: usize, wanted: usize },
    #[error("{0}")]
    Constraint(String),
    #[error("the logits are not numbers: the model or its file is broken")]
    NotANumber,
    #[error("no token may come next: the grammar, the biases and the filters leave none")]
    NoCandidate,
    #[error(transparent)]
    Sampling(#[from] BadSampling),
    #[error(
        "a text of {tokens} tokens must fit into one step of {rows}; use more rows (-b) or a shorter text"
    )]
    TextTooLong { tokens: usize, rows: usize },
    #[error(
        "media at place {at} has {floats} numbers: it must be whole rows of {width}, inside the prompt and after other media"
    )]
    BadMedia {
        at: usize,
        floats: usize,
        width: usize,
    },
    #[error("the model was not loaded to read embeddings")]
    NoEmbeddings,
    #[error("the model has an encoder and needs something for it to read")]
    NothingEncoded,
    #[error("the plan has no input `{0}`, or is not given it")]
    MissingInput(String),
    #[error("an input has {found} numbers; {tokens} rows of {width} are needed")]
    WrongInput {
        found: usize,
        tokens: usize,
        width: usize,
    },
    #[error("the context of this model cannot be shifted: {0}")]
    FixedContext(&'static str),
    #[error("the model has no encoder")]
    NoEncoder,
    #[error("{found} {what} do not fit into one step of {most}")]
    StepTooLarge {
        what: &'static str,
        found: usize,
        most: usize,
    },
    #[error("{waiting} requests are waiting; try again in {seconds} s")]
    Overloaded { waiting: usize, seconds: u64 },
    #[error("the deadline of the request has passed")]
    DeadlinePassed,
    #[error("the engine is gone: {0}")]
    Gone(String),
    #[error(transparent)]
    Backend(#[from] BackendError),
}
