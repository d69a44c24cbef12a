//! A build without downloads.

use std::path::PathBuf;

use anyhow::{Result, bail};

fn refuse<T>() -> Result<T> {
    bail!("this build has no downloads; build it with the feature hub, or name a file")
}

pub(crate) fn pull(_: &str) -> Result<PathBuf> {
    refuse()
}

pub(crate) fn list() -> Result<()> {
    refuse()
}

pub(crate) fn remove(_: &str) -> Result<()> {
    refuse()
}
