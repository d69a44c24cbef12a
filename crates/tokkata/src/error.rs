//! What can go wrong between a path and an answer. Every text is one line.

use std::path::Path;

use tokkata_archs::{AdapterError, ArchError};
use tokkata_engine::EngineError;
use tokkata_formats::FormatError;
use tokkata_ir::BackendError;
use tokkata_plan::PlanError;
use tokkata_text::grammar::GrammarError;
use tokkata_text::template::TemplateError;
use tokkata_text::tokenizer::TokenizerError;

/// Result of the facade.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model could not be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("{file}: {source}")]
    Arch { file: String, source: ArchError },
    #[error("{0}")]
    Descriptor(ArchError),
    #[error("{file}: {source}")]
    Plan { file: String, source: PlanError },
    #[error("{file}: {source}")]
    Tokenizer {
        file: String,
        source: TokenizerError,
    },
    #[error(
        "{file}: its tokenizer cuts text in a way that no name of GGUF stands for, expected a known one; use the directory itself"
    )]
    Unnamed { file: String },
    #[error("{file}: a tokenizer file cannot be read: {source}")]
    Side {
        file: String,
        source: std::io::Error,
    },
    #[error("{file}: the chat template: {source}")]
    Template { file: String, source: TemplateError },
    #[error(
        "{file}: found no chat template, expected tokenizer.chat_template; give one with --chat-template-file, or use `complete`"
    )]
    NoTemplate { file: String },
    #[error("found no file of a draft model, expected one with --model-draft")]
    NoDraft,
    #[error(
        "speculation: found '{found}', expected auto, none, ngram, mtp, draft, eagle3 or dflash"
    )]
    DraftKind { found: String },
    #[error(
        "{file}: found {found} beams or draws at once, expected at most {most}; open the model for more recordings at once"
    )]
    TooWide {
        file: String,
        found: usize,
        most: usize,
    },
    #[error("{file}: {why}")]
    Draft { file: String, why: &'static str },
    #[error("{file}: {source}")]
    Adapter {
        file: String,
        source: Box<AdapterError>,
    },
    #[error("{file}: {source}")]
    Backend { file: String, source: BackendError },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    #[error(transparent)]
    Importance(#[from] crate::importance::ImportanceError),
    #[error("what was chosen for a GPU cannot be kept: {source}")]
    Choices { source: std::io::Error },
    #[error("found device '{found}', expected one of {known}")]
    Device { found: String, known: String },
    #[error("found tensors '{found}', expected a regular expression: {why}")]
    Tensors { found: String, why: String },
    #[error("device {device} cannot be used: {why}")]
    NoDevice { device: String, why: String },
    #[error(
        "{file}: a context of {ctx} tokens needs {needed} of memory and {available} are available; use a smaller context (-c), a smaller cache type (-ctk) or a smaller model"
    )]
    Memory {
        file: String,
        ctx: u32,
        needed: Bytes,
        available: Bytes,
    },
    #[error("{file}: found {found}, expected one of {known}: {why}")]
    Pooling {
        file: String,
        found: String,
        known: String,
        why: &'static str,
    },
    #[error("{file}: it gives no vectors: {why}")]
    NoVectors { file: String, why: &'static str },
    #[error(
        "{file}: text {text} has {tokens} tokens and at most {limit} fit; shorten it, cut it into several or use a larger context (-c)"
    )]
    TextTooLong {
        file: String,
        text: usize,
        tokens: usize,
        limit: usize,
    },
    #[error("{file}: text {text} has no tokens; give at least one")]
    EmptyText { file: String, text: usize },
    #[error(
        "{file}: the vector of text {text} is not made of numbers: the model or its file is broken"
    )]
    NotANumber { file: String, text: usize },
    #[error(
        "{file}: found no mask token, expected tokenizer.ggml.mask_token_id, without which a diffusion model cannot write"
    )]
    NoMask { file: String },
    #[error("{file}: the model hears speech and does not write by itself; use `transcribe`")]
    Speech { file: String },
    #[error(
        "{file}: the model does not hear speech, expected one that does; use `run` or `complete`"
    )]
    NoSpeech { file: String },
    #[error("{file}: found a vocabulary of {found} tokens, expected 51864, 51865 or 51866")]
    SpeechVocabulary { file: String, found: u32 },
    #[error("found the language '{found}', expected one that {file} knows: {known}")]
    Language {
        file: String,
        found: String,
        known: String,
    },
    #[error("{file}: the model knows English alone and cannot translate; leave the language out")]
    EnglishOnly { file: String },
    #[error(transparent)]
    Audio(#[from] tokkata_audio::AudioError),
    #[error(
        "{file}: its architecture gives vectors, not text; use `embed`, `rerank` or `classify`"
    )]
    NoText { file: String },
    #[error(
        "{file}: a diffusion model answers one caller at a time and cannot be served; use `run` or `complete`"
    )]
    NotServed { file: String },
    #[error(
        "{file}: found no session of this model and kind of cache, expected what was saved with it"
    )]
    Kept { file: String },
    #[error("the engine's thread cannot be started: {source}")]
    Thread { source: std::io::Error },
    #[error("{file}: the logits that were asked for do not exist: {why}")]
    Probe { file: String, why: &'static str },
    #[error("found '{found}', expected {expected}")]
    Synthetic { found: String, expected: String },
}

impl Error {
    pub(crate) fn arch(path: &Path) -> impl FnOnce(ArchError) -> Error {
        let file = path.display().to_string();
        move |source| Error::Arch { file, source }
    }

    pub(crate) fn plan(path: &Path) -> impl FnOnce(PlanError) -> Error {
        let file = path.display().to_string();
        move |source| Error::Plan { file, source }
    }

    pub(crate) fn tokenizer(path: &Path) -> impl FnOnce(TokenizerError) -> Error {
        let file = path.display().to_string();
        move |source| Error::Tokenizer { file, source }
    }

    pub(crate) fn template(path: &Path) -> impl FnOnce(TemplateError) -> Error {
        let file = path.display().to_string();
        move |source| Error::Template { file, source }
    }

    pub(crate) fn backend(path: &Path) -> impl FnOnce(BackendError) -> Error {
        let file = path.display().to_string();
        move |source| Error::Backend { file, source }
    }
}

/// A number of bytes, written with a fitting unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let (mut size, mut unit) = (self.0 as f64 / 1024.0, 0);
        while size >= 1024.0 && unit + 1 < units.len() {
            size /= 1024.0;
            unit += 1;
        }
        write!(f, "{size:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_fitting_units() {
        let shown = |n| Bytes(n).to_string();
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1536), "1.5 KiB");
        assert_eq!(shown(5 << 30), "5.0 GiB");
        assert_eq!(shown(u64::MAX), "16777216.0 TiB");
    }
}
