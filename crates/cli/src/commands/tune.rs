//! `tune`: measures which kernels are fastest on this machine, and keeps the answer for later runs of this build.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use tokkata::options::default_threads;
use tokkata::tuning;

use super::examples;
use crate::args::ThreadArgs;
use crate::console::{Wait, say};
use crate::tuned;

/// Flags of `tune`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::TUNE)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    threads: ThreadArgs,
    /// Measure, and keep nothing
    #[arg(long)]
    dry_run: bool,
    /// Forget what was measured before
    #[arg(long, conflicts_with = "dry_run")]
    forget: bool,
}

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    if args.forget {
        return tuned::forget();
    }
    let threads = args.threads.count().unwrap_or_else(default_threads);
    let mut lines = Vec::new();
    let found = {
        let _wait = Wait::new("measuring this machine");
        tuning::measure(threads, &mut |choice, rate| {
            lines.push(format!("{choice:<44} {:>9.1} GMAC/s", rate / 1e9));
        })?
    };
    let mut out = std::io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "{found}")?;
    if !args.dry_run {
        let path = tuned::keep(&found.to_string())?;
        say(&format!("kept in {}", path.display()));
    }
    Ok(())
}
