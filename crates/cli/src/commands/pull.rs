//! `pull`, `ls` and `rm`: models of repositories in the cache.

use std::io::Write;

use anyhow::Result;
use clap::Args;

use crate::hub;

/// Flags of `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// What to download, such as user/name, user/name:q4_k_m or user/name@revision
    #[arg(value_name = "USER/NAME[:QUANT]")]
    repo: String,
}

/// Flags of `rm`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// What to delete
    #[arg(value_name = "USER/NAME", required = true)]
    repos: Vec<String>,
}

pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let path = hub::pull(&args.repo)?;
    Ok(writeln!(std::io::stdout(), "{}", path.display())?)
}

pub(crate) fn list() -> Result<()> {
    hub::list()
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    args.repos.iter().try_for_each(|repo| hub::remove(repo))
}
