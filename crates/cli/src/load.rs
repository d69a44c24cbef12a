//! Models opened and loaded, with progress shown.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use tokkata::{Checkpoint, DType, Model, OpenOptions};

use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::console::Wait;

/// Loads a model as the flags say. `adjust` has the last word on the options.
pub(crate) fn load(
    model: &ModelArgs,
    device: &DeviceArgs,
    sizes: &SizeArgs,
    adjust: impl FnOnce(&mut OpenOptions),
) -> Result<Model> {
    let (path, _) = model.split()?;
    let checkpoint = Checkpoint::open(path, &model.arch_files)?;
    let mut options = device.options(model, DType::F16)?;
    sizes.apply(&mut options, checkpoint.trained_ctx())?;
    adjust(&mut options);
    load_checkpoint(checkpoint, &options)
}

/// Loads the weights of an opened file.
pub(crate) fn load_checkpoint(checkpoint: Checkpoint, options: &OpenOptions) -> Result<Model> {
    let wait = Wait::new(format!("loading {}", name_of(checkpoint.path())));
    let progress = |done, total| wait.set(done, total);
    Ok(Model::load(checkpoint, options, Some(&progress))?)
}

/// The tokenizer of a loaded model.
pub(crate) fn tokenizer(model: &Model) -> Result<Arc<tokkata::Tokenizer>> {
    Ok(model.tokenizer()?.clone())
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .display()
        .to_string()
}
