//! A model file with its header read: what can be known without loading weights.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokkata_archs::beside::PREFIX;
use tokkata_archs::{HfView, Registry, ResolveOptions, View};
use tokkata_core::Metadata;
use tokkata_formats::{Directory, ModelFile};
use tokkata_ir::{Limits, ModelSpec, Program};
use tokkata_plan::BuildOptions;
use tokkata_text::template::ChatTemplate;
use tokkata_text::tokenizer::{HfFiles, Tokenizer};

use crate::error::{Error, Result};
use crate::recast::{Recast, Target};

/// An opened file and the descriptors to read it by.
pub struct Checkpoint {
    file: ModelFile,
    registry: Registry,
    tokenizer: OnceLock<Arc<Tokenizer>>,
    canonical: OnceLock<Metadata>,
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
        Ok(Checkpoint {
            file,
            registry,
            tokenizer: OnceLock::new(),
            canonical: OnceLock::new(),
        })
    }

    /// The model with a drafter beside it that reads its states.
    pub(crate) fn beside(self, drafter: ModelFile) -> Result<Self> {
        let file = self.file.beside(PREFIX, drafter)?;
        Ok(Checkpoint { file, ..self })
    }

    /// The model without that.
    pub(crate) fn alone(self) -> Result<Self> {
        let file = self.file.alone(PREFIX)?;
        Ok(Checkpoint { file, ..self })
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
        let metadata = self.metadata();
        let arch = metadata.str("general.architecture")?;
        let ctx = metadata.uint(&format!("{arch}.context_length"))?;
        u32::try_from(ctx).ok()
    }

    /// Elements of all tensors, of those of MLX and of quantisers of safetensors too.
    #[must_use]
    pub fn n_params(&self) -> u64 {
        let plain = self.file.tensors().iter().map(|t| t.elements() as u64);
        let packed = self.file.packed().iter();
        let packed = packed.map(|p| p.shape.iter().product::<usize>() as u64);
        plain.chain(packed).sum()
    }

    /// The token that a decoder begins with beside its encoder.
    pub(crate) fn decoder_start(&self) -> u32 {
        let metadata = self.metadata();
        let arch = metadata.str("general.architecture").unwrap_or_default();
        let own = metadata.uint(&format!("{arch}.decoder_start_token_id"));
        let usual = || metadata.uint("tokenizer.ggml.bos_token_id");
        own.or_else(usual).unwrap_or(0) as u32
    }

    /// The metadata under GGUF's keys. Of a directory that no descriptor reads it is what its files say.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        if self.file.directory().is_none() {
            return self.file.metadata();
        }
        self.canonical.get_or_init(|| {
            let view = HfView::new(&self.registry, &self.file);
            view.map_or_else(|_| self.file.metadata().clone(), |v| v.metadata().clone())
        })
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
        let (Ok(read), Some(arch)) = (read, self.metadata().str("general.architecture")) else {
            return Vec::new();
        };
        let keys = self.metadata().iter().map(|(key, _)| key);
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
        self.program_of(&self.spec(limits.ctx)?, limits, options)
    }

    /// Its tensors in other types.
    ///
    /// # Errors
    /// A directory that no descriptor reads.
    pub fn recast(&self, target: Target) -> Result<Recast<'_>> {
        Recast::new(&self.registry, &self.file, target).map_err(Error::arch(self.path()))
    }

    /// [`Checkpoint::spec`] over a view of its tensors.
    ///
    /// # Errors
    /// As [`Checkpoint::spec`].
    pub fn spec_of(&self, view: &dyn View, ctx: u32) -> Result<ModelSpec> {
        let spec = self.registry.resolve_view(view, &ResolveOptions { ctx });
        spec.map_err(Error::arch(self.path()))
    }

    /// The program of a specification.
    ///
    /// # Errors
    /// Limits that make no sense.
    pub fn program_of(
        &self,
        spec: &ModelSpec,
        limits: &Limits,
        options: &BuildOptions,
    ) -> Result<Program> {
        let program = tokkata_plan::build_with(spec, limits, options);
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
        let built = match self.file.directory() {
            Some(directory) => Tokenizer::from_hf(&hf_files(directory)?),
            None => Tokenizer::from_metadata(self.file.metadata()),
        };
        let built = Arc::new(built.map_err(Error::tokenizer(self.path()))?);
        // Two threads may both build it; one of the equal results stays.
        Ok(self.tokenizer.get_or_init(|| built))
    }

    /// The chat template of the file.
    ///
    /// # Errors
    /// No template, or one that does not parse.
    pub fn template(&self) -> Result<ChatTemplate> {
        let source = match self.file.directory() {
            Some(directory) => directory_template(directory)?,
            None => (self.file.metadata().str("tokenizer.chat_template")).map(str::to_owned),
        };
        let file = || self.path().display().to_string();
        let source = source.ok_or_else(|| Error::NoTemplate { file: file() })?;
        ChatTemplate::parse(&source).map_err(Error::template(self.path()))
    }
}

/// The tokenizer files of a directory.
fn hf_files(directory: &Directory) -> Result<HfFiles> {
    HfFiles::read(directory.path()).map_err(|source| Error::Side {
        file: directory.path().display().to_string(),
        source,
    })
}

/// The chat template of a directory: its own file, or what the tokenizer's configuration holds.
pub(crate) fn directory_template(directory: &Directory) -> Result<Option<String>> {
    if let Some(bytes) = directory.read("chat_template.jinja")? {
        return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let config = directory.read_json(name)?;
        let found = config.as_ref().and_then(|c| c.get("chat_template"));
        if let Some(found) = found.and_then(template_text) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// A text, or of several named ones the default.
fn template_text(value: &serde_json::Value) -> Option<String> {
    let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
    let named = |list: &Vec<serde_json::Value>| {
        let default = list
            .iter()
            .find(|t| t["name"] == "default")
            .or(list.first());
        default.and_then(|t| text(&t["template"]))
    };
    text(value).or_else(|| value.as_array().and_then(named))
}
