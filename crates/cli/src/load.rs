//! Models opened and loaded, with progress shown.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tokkata::{Checkpoint, DType, Model, ModelFile, OpenOptions};

use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::console::{Wait, say};
use crate::demo;

/// Opens the model file at a path, or the built-in model by its name.
pub(crate) fn file(path: &Path) -> Result<ModelFile> {
    match demo::BYTES {
        Some(bytes) if path == Path::new(demo::NAME) => {
            Ok(ModelFile::from_named_bytes(demo::NAME, bytes)?)
        }
        _ => Ok(ModelFile::open(path)?),
    }
}

/// The same, with the descriptors to read it by.
pub(crate) fn checkpoint(path: &Path, arch_files: &[PathBuf]) -> Result<Checkpoint> {
    Ok(Checkpoint::new(file(path)?, arch_files)?)
}

/// Opens the model that the flags name, and the options to load it with.
pub(crate) fn open(
    model: &ModelArgs,
    device: &DeviceArgs,
    sizes: &SizeArgs,
) -> Result<(Checkpoint, OpenOptions)> {
    let (path, _) = model.split()?;
    open_at(path, model, device, sizes)
}

/// The same, with the model at a path.
pub(crate) fn open_at(
    path: &Path,
    model: &ModelArgs,
    device: &DeviceArgs,
    sizes: &SizeArgs,
) -> Result<(Checkpoint, OpenOptions)> {
    let checkpoint = checkpoint(path, &model.arch_files)?;
    // A model that cannot be run is told before anything that only some commands need, such as a tokenizer.
    checkpoint.generation()?;
    let mut options = device.options(model, DType::F16)?;
    sizes.apply(&mut options, checkpoint.trained_ctx())?;
    Ok((checkpoint, options))
}

/// Loads the weights of an opened file.
pub(crate) fn load(checkpoint: Checkpoint, options: &OpenOptions) -> Result<Model> {
    let wait = Wait::new(format!("loading {}", name_of(checkpoint.path())));
    let progress = |done, total| {
        wait.set(done, total);
        std::ops::ControlFlow::Continue(())
    };
    let model = Model::load(checkpoint, options, Some(&progress))?;
    drop(wait);
    model.notes().iter().for_each(|note| say(note));
    Ok(model)
}

/// What to call a model in a message: its file name.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .display()
        .to_string()
}
