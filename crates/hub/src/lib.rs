//! Download, resume and cache of model files.
//!
//! Files of a model repository are kept where other programs of the Hugging Face hub look for them: `blobs` by their
//! hash, `snapshots` of a commit that link to them, `refs` from a branch to a commit. The crate reads no environment
//! and parses no model file; a caller says where the cache and the hub are.
//!
//! Invariants: a file appears in the cache only when its length and hash are right; what was downloaded of a file stays
//! for the next attempt; two processes never write one file; a token goes to the hub's own host only.
//!
//! Reading order: [`repo`] (what is asked for), [`Hub`], [`cache`], [`error`].
//!
//! ```
//! use tokkata_hub::Wanted;
//! let wanted: Wanted = "user/model:q4_k_m".parse()?;
//! assert_eq!((wanted.repo.as_str(), wanted.quant.as_deref()), ("user/model", Some("q4_k_m")));
//! # Ok::<(), tokkata_hub::HubError>(())
//! ```

pub mod cache;
mod client;
pub mod error;
mod fetch;
pub mod known;
mod pull;
pub mod repo;

use std::path::PathBuf;

pub use cache::{Cache, Cached};
pub use error::{HubError, Result};
pub use known::known;
pub use repo::Wanted;

/// The usual hub.
pub const ENDPOINT: &str = "https://huggingface.co";

/// A hub and the cache of its files.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Where the hub is, without a slash at the end.
    pub endpoint: String,
    /// Proves who asks, for files that not everybody may read.
    pub token: Option<String>,
    /// Where files are kept.
    pub cache: Cache,
    /// Ask nobody: files are in the cache or nowhere.
    pub offline: bool,
    /// Attempts after a failure that may pass.
    pub retries: u32,
}

impl Hub {
    /// The usual hub, with a cache at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Hub {
            endpoint: ENDPOINT.to_owned(),
            token: None,
            cache: Cache::new(path),
            offline: false,
            retries: 5,
        }
    }
}

/// What a download reports: the file's name, bytes done, bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);
