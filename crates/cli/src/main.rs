//! The `tokkata` command.
//!
//! Each command is a module of `commands`; they share flags (`args`), the console (`console`) and the way models are
//! loaded (`load`). Everything that computes lies in the `tokkata` crate.

mod args;
mod commands;
mod console;
mod constrain;
#[cfg_attr(not(feature = "demo"), path = "no_demo.rs")]
mod demo;
mod diffusion;
mod hub;
mod interrupt;
mod legacy;
mod load;
mod progress;
mod sampling;
mod texts;
mod tuned;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::commands::Command;

/// Run language models from a file.
#[derive(Debug, Parser)]
#[command(name = "tokkata", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    console::install_panic_message();
    let cli = match Cli::try_parse_from(legacy::normalise(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // A bug of ours has told itself in one line already.
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| cli.command.run()));
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if console::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            console::report(&error);
            ExitCode::from(if error.is::<args::Usage>() { 2 } else { 1 })
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints help as it is, and a mistake as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Help goes to a stream that may be closed; there is nobody to tell.
        let _ = error.print();
    } else {
        let text = error.to_string();
        let lines = text
            .lines()
            .map(str::trim)
            .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"));
        let line: Vec<&str> = lines.filter(|l| !l.is_empty()).collect();
        let line = line.join(" ");
        let line = line.strip_prefix("error: ").unwrap_or(&line);
        console::say(&format!("tokkata: {line}; see --help"));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
