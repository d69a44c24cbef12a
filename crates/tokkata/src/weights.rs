//! A model file as a backend reads it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::{BackendError, Mapped, WeightSource};

/// Hears how much of a load is done: bytes read, bytes in all. A break ends the load.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

/// The tensors of a file, read with `pread` and never through the map.
pub struct FileWeights<'a> {
    inner: tokkata_archs::FileWeights<'a>,
    progress: Option<Progress<'a>>,
    read: AtomicU64,
    total: u64,
}

impl<'a> FileWeights<'a> {
    /// The tensors of `file`; `progress` hears of every read.
    #[must_use]
    pub fn new(file: &'a ModelFile, progress: Option<Progress<'a>>) -> Self {
        let plain = file.tensors().iter().map(|t| t.bytes);
        // Packed weights are read in the type that holds them.
        let kept = |p: &tokkata_formats::PackedWeight| p.rows() as u64 * p.row_bytes() as u64;
        let packed = file.packed().iter().map(kept);
        let total = plain.chain(packed).sum();
        FileWeights {
            inner: tokkata_archs::FileWeights(file),
            progress,
            read: AtomicU64::new(0),
            total,
        }
    }
}

impl WeightSource for FileWeights<'_> {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        self.inner.tensor(name)
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read(name, offset, out)?;
        if let Some(progress) = self.progress {
            let done = self.read.fetch_add(out.len() as u64, Ordering::Relaxed) + out.len() as u64;
            if progress(done.min(self.total), self.total).is_break() {
                return Err(BackendError::Weight("the load was cancelled".to_owned()));
            }
        }
        Ok(())
    }

    fn mapped(&self, name: &str) -> Option<Mapped> {
        self.inner.mapped(name)
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        self.inner.decode(dtype, raw, out)
    }
}
