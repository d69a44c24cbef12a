//! A build without downloads.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::args::{HubArgs, Source};

fn refuse<T>() -> Result<T> {
    bail!("this build has no downloads; build it with the feature hub, or name a file")
}

pub(crate) fn pull(_: Source<'_>, _: &HubArgs) -> Result<PathBuf> {
    refuse()
}

#[cfg(feature = "server")]
pub(crate) fn fetch(
    _: Source<'_>,
    _: &HubArgs,
    _: &mut dyn FnMut(&str, u64, u64),
) -> Result<PathBuf> {
    refuse()
}

pub(crate) fn known(_: &str) -> Option<String> {
    None
}

pub(crate) fn list() -> Result<()> {
    refuse()
}

pub(crate) fn remove(_: &str) -> Result<()> {
    refuse()
}
