//! Models opened and loaded, with progress shown.

use std::path::Path;

use anyhow::Result;
use tokkata::{Checkpoint, DType, Model, OpenOptions};

use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::console::Wait;

/// Opens the file that the flags name, and the options to load it with.
pub(crate) fn open(
    model: &ModelArgs,
    device: &DeviceArgs,
    sizes: &SizeArgs,
) -> Result<(Checkpoint, OpenOptions)> {
    let (path, _) = model.split()?;
    let checkpoint = Checkpoint::open(path, &model.arch_files)?;
    // A model that cannot be run is told before anything that only some commands need, such as a tokenizer.
    checkpoint.generation()?;
    let mut options = device.options(model, DType::F16)?;
    sizes.apply(&mut options, checkpoint.trained_ctx())?;
    Ok((checkpoint, options))
}

/// Loads the weights of an opened file.
pub(crate) fn load(checkpoint: Checkpoint, options: &OpenOptions) -> Result<Model> {
    let wait = Wait::new(format!("loading {}", name_of(checkpoint.path())));
    let progress = |done, total| wait.set(done, total);
    Ok(Model::load(checkpoint, options, Some(&progress))?)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .display()
        .to_string()
}
