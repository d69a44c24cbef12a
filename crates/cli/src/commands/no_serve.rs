//! A build without a server.

use anyhow::{Result, bail};
use clap::Args;

/// Flags of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Whatever was asked for
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<std::ffi::OsString>,
}

pub(crate) fn run(_: ServeArgs) -> Result<()> {
    bail!("this build has no server; build it with the feature server")
}
