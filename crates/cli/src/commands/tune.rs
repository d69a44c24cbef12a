//! `tune`: measures which kernels are fastest on this machine or one of its GPUs, and keeps the answer for later runs of this build.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::options::default_threads;
use tokkata::synthetic::Synthetic;
use tokkata::{TIMED, Tried, Tuner, tuning};

use super::{bench, examples};
use crate::args::ThreadArgs;
use crate::console::{Wait, say};
use crate::{load, tuned};

/// The model that GPUs are measured with unless another one is named.
const MADE_UP: &str = "qwen3-0.6b:q4_k_m";

/// Flags of `tune`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::TUNE)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    threads: ThreadArgs,
    /// A GPU, such as wgpu:0, instead of the processor; what is chosen may change the last bits of what it computes
    #[arg(long, value_name = "NAME", conflicts_with = "threads")]
    device: Option<String>,
    /// The model file that a GPU is measured with [default: one of 0.6 billion weights in 4 bits, made up]
    #[arg(short, long, value_name = "FILE", requires = "device")]
    model: Option<PathBuf>,
    /// Measure, and keep nothing
    #[arg(long)]
    dry_run: bool,
    /// Forget what was measured before, of the GPU if one is named
    #[arg(long, conflicts_with = "dry_run")]
    forget: bool,
}

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    if let Some(device) = &args.device {
        return gpu(args, device);
    }
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

/// Measures a GPU, or forgets what was measured of it.
fn gpu(args: &TuneArgs, device: &str) -> Result<()> {
    let tuner = Tuner::open(device)?;
    let keeps = args.forget || !args.dry_run;
    if keeps && tuned::checks().is_none() {
        return Err(anyhow!(tuned::NO_FOLDER));
    }
    if args.forget {
        let path = tuner.keep(&[])?;
        let at = path.iter().map(|p| format!("{}: ", p.display()));
        say(&(at.collect::<String>() + "nothing is chosen any more"));
        return Ok(());
    }
    let chosen = match &args.model {
        Some(model) => measure(&tuner, model)?,
        None => {
            let dir = tempfile::tempdir()?;
            let path = dir.path().join("made-up.gguf");
            bench::write(Synthetic::parse(MADE_UP)?, &path)?;
            measure(&tuner, &path)?
        }
    };
    if let Some(path) = keeps.then(|| tuner.keep(&chosen)).transpose()?.flatten() {
        say(&format!("kept in {}", path.display()));
    }
    Ok(())
}

fn measure(tuner: &Tuner, model: &Path) -> Result<Vec<String>> {
    let checkpoint = load::checkpoint(model, &[])?;
    let mut out = std::io::stdout().lock();
    let title = "times as fast as what was best before:";
    let names = TIMED.map(|name| format!("{name:>9}")).join("");
    writeln!(out, "{title:<40}{names}")?;
    let mut told = Ok(());
    let chosen = tuner.measure(&checkpoint, &mut |tried| {
        told = writeln!(out, "{}", line(tried));
        match told.is_ok() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    told?;
    let chosen = chosen.unwrap_or_default();
    match chosen.is_empty() {
        true => writeln!(out, "nothing is faster than what is usual")?,
        false => writeln!(out, "{}", chosen.join("\n"))?,
    }
    Ok(chosen)
}

fn line(tried: &Tried) -> String {
    let rates = tried
        .faster
        .map(|f| f.map(|x| format!("{x:>9.2}")).join(""));
    let rates = rates.unwrap_or_else(|| "  cannot be used".to_owned());
    let taken = if tried.taken { "  taken" } else { "" };
    format!("{:<40}{rates}{taken}", tried.choice)
}
