//! A build that asks no servers.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

const WHY: &str = "this build asks no servers; build it with the feature server";

/// Flags of what asks a server.
#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// Whatever was asked for
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<std::ffi::OsString>,
}

pub(crate) use LaunchArgs as BenchServeArgs;

/// What a server is asked.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) server: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) body: Value,
}

pub(crate) fn launch(_: &LaunchArgs) -> Result<()> {
    bail!(WHY)
}

pub(crate) fn bench(_: &BenchServeArgs) -> Result<()> {
    bail!(WHY)
}

pub(crate) fn continued(asked: &Asked<'_>, _: &[String]) -> Result<()> {
    refused(asked)
}

pub(crate) fn conversed(asked: &Asked<'_>, _: Option<String>, _: &[String]) -> Result<()> {
    refused(asked)
}

fn refused(asked: &Asked<'_>) -> Result<()> {
    // What would have been asked is read by nothing else.
    let _ = (&asked.body, asked.key);
    bail!("{}: {WHY}", asked.server)
}
