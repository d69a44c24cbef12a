//! Statuses, and what went wrong.

use std::cell::RefCell;

use tokkata::{BackendError, EngineError, Error as Facade};
use tokkata_requests::error::ApiError;

/// All is well.
pub const OK: i32 = 0;
/// Nothing came in the time that was given.
pub const TIMEOUT: i32 = 1;
/// Nothing will come any more.
pub const END: i32 = 2;
/// An argument that makes no sense.
pub const ARGUMENT: i32 = -1;
/// A handle that was freed, is of another kind, or never was.
pub const HANDLE: i32 = -2;
/// The buffer is too small.
pub const BUFFER: i32 = -3;
/// A file that cannot be read, is damaged, or is no model.
pub const FILE: i32 = -4;
/// The model, the device or this build cannot do it.
pub const UNSUPPORTED: i32 = -5;
/// The handle serves another caller.
pub const BUSY: i32 = -6;
/// It was cancelled, or its time was up.
pub const CANCELLED: i32 = -7;
/// The memory does not suffice.
pub const MEMORY: i32 = -8;
/// Too many requests wait, or the caches are full.
pub const OVERLOADED: i32 = -9;
/// The device failed.
pub const DEVICE: i32 = -10;
/// The prompt is longer than the context.
pub const CONTEXT: i32 = -11;
/// The model belongs to the parent process.
pub const FORKED: i32 = -12;
/// A bug of ours.
pub const INTERNAL: i32 = -13;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// One of the statuses below 0.
    pub code: i32,
    /// One line that says what to do.
    pub message: String,
    /// The field of a JSON request that is to blame; empty if none is.
    pub field: String,
}

/// What a function does: a status that is no error, or an error.
pub type Outcome = Result<i32, Error>;

impl Error {
    /// An error with a status.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
            field: String::new(),
        }
    }

    /// An argument that makes no sense.
    pub fn argument(message: impl Into<String>) -> Self {
        Error::new(ARGUMENT, message)
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        let code = match &error {
            EngineError::PromptTooLong { .. }
            | EngineError::TextTooLong { .. }
            | EngineError::StepTooLarge { .. } => CONTEXT,
            EngineError::CacheFull { .. } | EngineError::Overloaded { .. } => OVERLOADED,
            EngineError::SessionBusy(_) | EngineError::AdapterBusy(_) => BUSY,
            EngineError::MissingOutput(_)
            | EngineError::FixedContext(_)
            | EngineError::NoEncoder
            | EngineError::NoEmbeddings
            | EngineError::CannotTruncate { .. } => UNSUPPORTED,
            EngineError::Backend(BackendError::OutOfMemory { .. }) => MEMORY,
            EngineError::Backend(_) | EngineError::Gone(_) | EngineError::NotANumber => DEVICE,
            EngineError::DeadlinePassed => CANCELLED,
            _ => ARGUMENT,
        };
        Error::new(code, error.to_string())
    }
}

impl From<Facade> for Error {
    fn from(error: Facade) -> Self {
        let code = match error {
            Facade::Engine(error) => return error.into(),
            Facade::Format(_)
            | Facade::Arch { .. }
            | Facade::Descriptor(_)
            | Facade::Tokenizer { .. }
            | Facade::Side { .. }
            | Facade::Kept { .. }
            | Facade::Adapter { .. }
            | Facade::Audio(_) => FILE,
            Facade::Memory { .. } | Facade::Thread { .. } => MEMORY,
            Facade::Backend { ref source, .. } => match source {
                BackendError::OutOfMemory { .. } => MEMORY,
                BackendError::Lost(_) => DEVICE,
                BackendError::Unsupported { .. } => UNSUPPORTED,
                _ => FILE,
            },
            Facade::Grammar(_)
            | Facade::Template { .. }
            | Facade::Language { .. }
            | Facade::EnglishOnly { .. }
            | Facade::TooWide { .. }
            | Facade::NoDraft
            | Facade::DraftKind { .. } => ARGUMENT,
            _ => UNSUPPORTED,
        };
        Error::new(code, error.to_string())
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        let code = match error.kind {
            "exceed_context_size_error" => CONTEXT,
            "invalid_request_error" | "not_found_error" => ARGUMENT,
            "not_supported_error" => UNSUPPORTED,
            "overloaded_error" => OVERLOADED,
            "unavailable_error" => DEVICE,
            "timeout_error" => CANCELLED,
            _ => INTERNAL,
        };
        Error {
            code,
            message: error.message,
            field: error.param.unwrap_or_default(),
        }
    }
}

thread_local! {
    static NEWEST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Keeps an error for whoever asks on this thread.
pub(crate) fn keep(error: Error) {
    NEWEST.with(|newest| *newest.borrow_mut() = Some(error));
}

/// The newest error of this thread, once.
pub(crate) fn take() -> Option<Error> {
    NEWEST.with(|newest| newest.borrow_mut().take())
}
