//! Run language models from a file.
//!
//! This crate is the Rust API of Tokkata, and all that its command line uses: a
//! [`Checkpoint`] is an opened file, a [`Model`] a loaded one, a [`Generation`] the events of an answer. It holds no
//! kernels and no parsers of its own.
//!
//! Invariants: opening reads the header only; weights are read once, straight into the device's memory, and only
//! after it is certain that they fit; the tokenizer is built only when text is needed; every error is one line that
//! names the file, what was found, what was expected and what to do.
//!
//! Reading order: [`checkpoint`], [`options`], [`model`], [`chat`], [`service`], [`rules`], [`vectors`], [`rank`],
//! [`diffusion`], [`cost`].
//!
//! ```no_run
//! use tokkata::{EventKind, Model, OpenOptions, Sampling};
//! # fn main() -> tokkata::Result<()> {
//! let mut model = Model::open("model.gguf", &OpenOptions::default())?;
//! let ids = model.tokenize("Once upon a time", tokkata::EncodeOptions { add_special: true, parse_special: false })?;
//! let mut request = model.request(ids)?;
//! request.sampling = Sampling::greedy();
//! request.stop.max_tokens = Some(40);
//! for event in model.generate(request, None)? {
//!     if let EventKind::Token { text, .. } = event? {
//!         print!("{}", String::from_utf8_lossy(&text));
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod adapters;
pub mod chat;
pub mod checkpoint;
pub mod convert;
#[cfg(not(target_arch = "wasm32"))]
pub mod cost;
pub mod decode;
pub mod device;
pub mod diffusion;
pub mod drafts;
pub mod error;
pub mod grammar;
pub mod importance;
pub mod memory;
pub mod model;
pub mod options;
pub mod perplexity;
pub mod placement;
pub mod probe;
pub mod quantize;
pub mod rank;
pub mod recast;
pub mod rules;
pub mod service;
pub mod session;
pub mod speech;
pub mod synthetic;
pub mod vectors;
mod vocabulary;
pub mod weights;

pub use adapters::AdapterSource;
pub use chat::Message;
pub use checkpoint::Checkpoint;
pub use decode::{ByteDecoder, TextDecoder};
#[cfg(not(target_arch = "wasm32"))]
pub use device::Tuner;
pub use device::{TIMED, Tried, device, devices, keep_checks, present};
pub use drafts::{DraftKind, Drafts};
pub use error::{Bytes, Error, Result};
pub use model::{Generation, Model};
pub use options::{OpenOptions, Purpose};
pub use placement::{GpuLayers, Placement};
pub use rank::{Labels, pair};
pub use service::{Figures, Prompt, Service};
pub use session::{Feeding, Session, Tapped};
pub use tokkata_archs as archs;
pub use tokkata_audio as audio;
#[cfg(not(target_arch = "wasm32"))]
pub use tokkata_backend_cpu::{rates as measure, tuning};
pub use tokkata_core::{Array, DType, Metadata, Value};
pub use tokkata_engine::{
    Answer, Canceller, Constraint, Detection, Driver, Dry, EncoderInput, Engine, EngineError,
    EngineHandle, Event, EventKind, Feed, FeedLogits, FinishReason, Logprob, Logprobs, Media,
    ReadRequest, Repeats, Request, RequestId, RowKind, Sampling, ScorePlan, SessionId, Stats,
    StopRules, Turned, Urgency, Watermark,
};
pub use tokkata_formats::{
    Container, ModelFile, PackedWeight, ReadRanges, SafetensorsOutput, SafetensorsWriter,
    ShardLimit, TensorInfo, copy_gguf, remove_unfinished,
};
pub use tokkata_ir::sample;
pub use tokkata_ir::{BackendError, ConstData, Limits, ModelSpec, Program, StepTime, WeightSource};
pub use tokkata_plan::{BuildOptions, dump};
pub use tokkata_quant::mix::{MixOptions, PRESETS, Preset};
pub use tokkata_speech as transcript;
pub use tokkata_text::parse as answer;
pub use tokkata_text::template::{ChatRequest, ChatTemplate, Clock, Rendered};
pub use tokkata_text::tokenizer::{DecodeOptions, EncodeOptions, TokenKind, Tokenizer};
pub use vectors::{Pooling, normalize};

/// The name of a GGUF file's `general.file_type`, such as `Q4_K_M`.
#[must_use]
pub fn file_type_name(file_type: u32) -> Option<&'static str> {
    Preset::from_file_type(file_type).map(|preset| preset.name)
}
