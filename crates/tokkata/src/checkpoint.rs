//! A model file with its header read: what can be known without loading weights.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokkata_archs::{Registry, ResolveOptions};
use tokkata_formats::ModelFile;
use tokkata_ir::{Limits, ModelSpec, Program};
use tokkata_plan::BuildOptions;
use tokkata_text::template::ChatTemplate;
use tokkata_text::tokenizer::Tokenizer;

use crate::error::{Error, Result};

/// An opened file and the descriptors to read it by.
pub struct Checkpoint {
    file: ModelFile,
    registry: Registry,
    tokenizer: OnceLock<Arc<Tokenizer>>,
}

impl Checkpoint {
    /// Opens the file at `path`; `arch_files` are descriptors to know beside the built-in ones.
    ///
    /// # Errors
    /// A file that is no model or damaged, or a descriptor with a mistake.
    pub fn open(path: &Path, arch_files: &[PathBuf]) -> Result<Self> {
        Self::new(ModelFile::open(path)?, arch_files)
    }

    /// A checkpoint over an opened file.
    ///
    /// # Errors
    /// A descriptor with a mistake.
    pub fn new(file: ModelFile, arch_files: &[PathBuf]) -> Result<Self> {
        let mut registry = Registry::builtin();
        for path in arch_files {
            registry.add_file(path).map_err(Error::Descriptor)?;
        }
        let tokenizer = OnceLock::new();
        Ok(Checkpoint {
            file,
            registry,
            tokenizer,
        })
    }

    /// The file: metadata and tensors.
    #[must_use]
    pub fn file(&self) -> &ModelFile {
        &self.file
    }

    /// The path it was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The known descriptors.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The positions the model was trained for, without looking at tensors.
    #[must_use]
    pub fn trained_ctx(&self) -> Option<u32> {
        let arch = self.file.metadata().str("general.architecture")?;
        let ctx = self
            .file
            .metadata()
            .uint(&format!("{arch}.context_length"))?;
        u32::try_from(ctx).ok()
    }

    /// The model as one typed row per layer, for a context of `ctx` positions.
    ///
    /// # Errors
    /// An unknown architecture; tensors that are missing, misshapen or left over.
    pub fn spec(&self, ctx: u32) -> Result<ModelSpec> {
        let spec = self.registry.resolve(&self.file, &ResolveOptions { ctx });
        spec.map_err(Error::arch(self.path()))
    }

    /// Metadata keys below the architecture's prefix that nothing reads; none if the model cannot be run.
    #[must_use]
    pub fn unread_keys(&self) -> Vec<&str> {
        let ctx = self.trained_ctx().unwrap_or(1);
        let read = self.registry.keys_read(&self.file, &ResolveOptions { ctx });
        let (Ok(read), Some(arch)) = (read, self.file.architecture()) else {
            return Vec::new();
        };
        let keys = self.file.metadata().iter().map(|(key, _)| key);
        let below = |key: &&str| key.strip_prefix(arch).is_some_and(|k| k.starts_with('.'));
        keys.filter(below)
            .filter(|key| !read.contains(*key))
            .collect()
    }

    /// The program for these limits.
    ///
    /// # Errors
    /// As [`Checkpoint::spec`]; limits that make no sense.
    pub fn program(&self, limits: &Limits, options: &BuildOptions) -> Result<Program> {
        let spec = self.spec(limits.ctx)?;
        let program = tokkata_plan::build_with(&spec, limits, options);
        program.map_err(Error::plan(self.path()))
    }

    /// The tokenizer, built when it is first asked for.
    ///
    /// # Errors
    /// A file without a tokenizer, or with one that is not known.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let built = Tokenizer::from_metadata(self.file.metadata());
        let built = Arc::new(built.map_err(Error::tokenizer(self.path()))?);
        // Two threads may both build it; one of the equal results stays.
        Ok(self.tokenizer.get_or_init(|| built))
    }

    /// The chat template of the file.
    ///
    /// # Errors
    /// No template, or one that does not parse.
    pub fn template(&self) -> Result<ChatTemplate> {
        let source = self.file.metadata().str("tokenizer.chat_template");
        let file = || self.path().display().to_string();
        let source = source.ok_or_else(|| Error::NoTemplate { file: file() })?;
        ChatTemplate::parse(source).map_err(Error::template(self.path()))
    }
}
