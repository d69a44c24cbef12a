//! `completions` and `man`: what goes with the program where it is installed.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Flags of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where the pages go
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut command = crate::Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tokkata", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    std::fs::create_dir_all(&args.folder)?;
    clap_mangen::generate_to(crate::Cli::command(), &args.folder)
        .map_err(|e| anyhow!("{}: {e}", args.folder.display()))
}
