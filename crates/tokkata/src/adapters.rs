//! Adapters beside a loaded model.

use std::path::PathBuf;
use std::sync::Arc;

use tokkata_archs::{AdapterError, AdapterFile};
use tokkata_engine::AdapterId;
use tokkata_ir::{Adapter, Program, WeightSource};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::OpenOptions;
use crate::weights::FileWeights;

/// A LoRA adapter's file, GGUF or PEFT's, and how strongly it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// The file, or PEFT's directory.
    pub path: PathBuf,
    /// Times what the file says.
    pub scale: f32,
}

impl AdapterSource {
    /// A file at its own strength.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        AdapterSource {
            path: path.into(),
            scale: 1.0,
        }
    }
}

impl OpenOptions {
    /// Adapters that there may be at once.
    pub(crate) fn places(&self) -> u32 {
        self.adapter_places + u32::from(!self.adapters.is_empty())
    }
}

/// What the adapters of some files add together to a program.
pub(crate) fn merged(
    checkpoint: &Checkpoint,
    sources: &[AdapterSource],
    (program, weights): (&Program, &dyn WeightSource),
) -> Result<Option<Adapter>> {
    let Some(last) = sources.last() else {
        return Ok(None);
    };
    let wrong = |source: &AdapterSource| {
        let file = source.path.display().to_string();
        move |error: AdapterError| match error {
            // It names the file itself.
            AdapterError::Format(error) => Error::Format(error),
            error => Error::Adapter {
                file,
                source: Box::new(error),
            },
        }
    };
    let arch = checkpoint.metadata().str("general.architecture");
    let mut files = Vec::new();
    for source in sources {
        let file = AdapterFile::open(&source.path, arch.unwrap_or("")).map_err(wrong(source))?;
        // Alone first, so that what does not fit is told of its own file.
        let file = [(file, source.scale)];
        AdapterFile::merge(&file, program, weights).map_err(wrong(source))?;
        files.extend(file);
    }
    let all = AdapterFile::merge(&files, program, weights);
    all.map(Some).map_err(wrong(last))
}

impl Model {
    /// Attaches what some adapters add together, for requests that name it. The model must have been opened with
    /// [`OpenOptions::adapter_places`].
    ///
    /// # Errors
    /// A file that is no adapter of this model, by the setting or tensor; no place left.
    pub fn attach(&mut self, sources: &[AdapterSource]) -> Result<AdapterId> {
        let weights = FileWeights::new(self.checkpoint.file(), None);
        let program = Arc::clone(self.engine.program());
        let adapter = merged(&self.checkpoint, sources, (&*program, &weights))?;
        Ok(self.engine.attach(&Arc::new(adapter.unwrap_or_default()))?)
    }

    /// Lets an adapter go.
    ///
    /// # Errors
    /// One that is not there, or that a request goes through.
    pub fn detach(&mut self, adapter: AdapterId) -> Result<()> {
        Ok(self.engine.detach(adapter)?)
    }
}
