//! `pull`, `ls` and `rm`: models of repositories in the cache.

use std::io::Write;

use anyhow::Result;
use clap::Args;

use super::examples;
use crate::args::{HubArgs, Source};
use crate::hub;

/// Flags of `pull`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::PULL)]
pub(crate) struct PullArgs {
    /// What to download, such as user/name, user/name:q4_k_m, user/name@revision or llama3.2:1b
    #[arg(value_name = "USER/NAME[:QUANT]")]
    repo: String,
    /// The file of that repository; a star stands for anything (also -hff)
    #[arg(long, value_name = "FILE")]
    hf_file: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
}

/// Flags of `rm`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::RM)]
pub(crate) struct RemoveArgs {
    /// What to delete
    #[arg(value_name = "USER/NAME", required = true)]
    repos: Vec<String>,
}

pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let source = Source::Repo(&args.repo, args.hf_file.as_deref());
    let path = hub::pull(source, &args.hub)?;
    Ok(writeln!(std::io::stdout(), "{}", path.display())?)
}

pub(crate) fn list() -> Result<()> {
    hub::list()
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    args.repos.iter().try_for_each(|repo| hub::remove(repo))
}
