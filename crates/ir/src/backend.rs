//! What devices and their callers share: where weights come from, what can go wrong, choices of a load.

use std::ops::Range;
use std::sync::Arc;

use tokkata_core::DType;

use crate::ids::{Site, ValueId};

/// Where weights come from. Implementations may be called from several threads at once.
pub trait WeightSource: Sync {
    /// Format and shape (slowest first) of a tensor.
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)>;

    /// Reads `out.len()` bytes of the tensor's data from byte `offset`.
    ///
    /// # Errors
    /// [`BackendError::Weight`] when the tensor is absent or cannot be read.
    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError>;

    /// A tensor's data where it lies, in the byte order of the machine; `None` when it has to be read.
    fn mapped(&self, name: &str) -> Option<Mapped> {
        let _ = name;
        None
    }

    /// Decodes raw blocks into floats.
    ///
    /// # Errors
    /// [`BackendError::Weight`] for a format that cannot be decoded.
    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError>;
}

/// Bytes that stay where they are for as long as anyone holds this.
#[derive(Clone)]
pub struct Mapped {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Mapped {
    /// `range` of the owner's bytes; `None` when it leaves them.
    #[must_use]
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Mapped { owner, range })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }

    /// Some of the bytes; `None` when there are fewer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (start, end) = (self.range.start + range.start, self.range.start + range.end);
        let inside = range.start <= range.end && end <= self.range.end;
        inside.then(|| Mapped {
            owner: Arc::clone(&self.owner),
            range: start..end,
        })
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({} bytes)", self.range.len())
    }
}

/// What can go wrong on a device. Our own bugs are panics, not variants.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A weight is absent or unreadable.
    #[error("weights: {0}")]
    Weight(String),
    /// Not enough memory.
    #[error(
        "{what} needs {needed} bytes but {available} are available; use a smaller context (-c) or model"
    )]
    OutOfMemory {
        /// What was to be placed.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// An op that this backend cannot run.
    #[error("{backend} cannot run {op}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// The op and what about it.
        op: String,
    },
    /// A value that no work keeps, or not yet.
    #[error("{value} was not kept")]
    NotKept {
        /// The value.
        value: ValueId,
    },
    /// An adapter that does not fit, or that is not there.
    #[error("adapters: {0}")]
    Adapter(String),
    /// The device was lost or a worker panicked.
    #[error("device lost: {0}")]
    Lost(String),
}

impl BackendError {
    /// A step asks for a row that a table does not have: a token or a position that the model does not know.
    #[must_use]
    pub fn no_row(backend: &'static str, entry: u32, rows: usize) -> Self {
        let op = format!("row {entry} of a table of {rows}");
        BackendError::Unsupported { backend, op }
    }
}

/// Choices of a load that are not the model's.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Worker threads of a CPU backend.
    pub threads: usize,
    /// Keep each worker thread on a core of its own.
    pub pin_threads: bool,
    /// Run ops one by one, without fusing groups.
    pub no_fuse: bool,
    /// Run from the mapped file rather than from repacked panels, where the backend can.
    pub no_repack: bool,
    /// Forces a lower instruction set, by name.
    pub cpu_features: Option<String>,
    /// What measurements of this machine chose, in the backend's own words.
    pub tuning: Option<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            threads: 1,
            pin_threads: false,
            no_fuse: false,
            no_repack: false,
            cpu_features: None,
            tuning: None,
        }
    }
}

/// Time that the first worker spent in a step of the last replay, or that a device took for it.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// The plan.
    pub plan: usize,
    /// The node that it does, or that it prepares or ends.
    pub node: usize,
    /// The kernel: an op's name, or `prepare` for activations on their way into products.
    pub kernel: &'static str,
    /// Where the op belongs.
    pub site: Site,
    /// Waiting for the other workers before the step.
    pub wait_ns: u64,
    /// The step itself.
    pub run_ns: u64,
}
