//! What can go wrong between a name and a file. Every text is one line.

use std::io;

/// Result of the hub.
pub type Result<T> = std::result::Result<T, HubError>;

/// Why a file could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HubError {
    #[error("found '{found}', expected a repository as user/name or user/name:quant")]
    Name { found: String },
    #[error(
        "{url}: found no access ({status}); set HF_TOKEN to a token that may read the repository, and accept its terms on its page"
    )]
    Access { url: String, status: u16 },
    #[error("{url}: found nothing there (404); check the name of the repository and of the file")]
    NotFound { url: String },
    #[error(
        "{url}: too many requests (429), the hub asks to wait {seconds} s; try later, or set HF_TOKEN"
    )]
    TooMany { url: String, seconds: u64 },
    #[error("{url}: found status {status}, expected an answer; try later")]
    Status { url: String, status: u16 },
    #[error("{url}: {what}; check the network, or work from the cache with HF_HUB_OFFLINE=1")]
    Network { url: String, what: String },
    #[error("{url}: found {found} bytes, expected {expected}; try again")]
    Length {
        url: String,
        found: u64,
        expected: u64,
    },
    #[error(
        "{url}: found bytes with the SHA-256 {found}, expected {expected}; they were deleted, try again"
    )]
    Hash {
        url: String,
        found: String,
        expected: String,
    },
    #[error("{url}: found {found} in the answer, expected {expected}; check HF_ENDPOINT")]
    Answer {
        url: String,
        found: String,
        expected: &'static str,
    },
    #[error(
        "{repo} is not in the cache at {cache}, and no hub is to be asked (--offline or HF_HUB_OFFLINE); download it first with `tokkata pull {repo}`"
    )]
    Offline { repo: String, cache: String },
    #[error("{repo}: found no GGUF file of type {quant}, expected one of {known}")]
    NoQuant {
        repo: String,
        quant: String,
        known: String,
    },
    #[error("{repo}: found no one model as {file}, expected one of {known}")]
    NoFile {
        repo: String,
        file: String,
        known: String,
    },
    #[error(
        "found the address '{found}', expected {endpoint}/USER/NAME/resolve/main/FILE; download other files and give -m FILE"
    )]
    Url { found: String, endpoint: String },
    #[error("{repo}: found neither a GGUF file nor config.json with safetensors, expected a model")]
    NoModel { repo: String },
    #[error("{path}: cannot {action}: {source}")]
    Io {
        path: String,
        action: &'static str,
        source: io::Error,
    },
    #[error("{path}: another process is downloading this file; wait for it")]
    Locked { path: String },
    #[error("{repo} is not in the cache; `tokkata ls` lists what is")]
    NotCached { repo: String },
}

impl HubError {
    pub(crate) fn io(
        path: &std::path::Path,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> HubError {
        let path = path.display().to_string();
        move |source| HubError::Io {
            path,
            action,
            source,
        }
    }

    /// Whether another attempt may go better.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            HubError::Network { .. } | HubError::Length { .. } | HubError::TooMany { .. } => true,
            HubError::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
