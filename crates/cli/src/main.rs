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
mod load;
mod mistake;
mod peers;
mod progress;
mod sampling;
mod signals;
mod texts;
mod tuned;

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

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
    // A server ends its answers itself.
    if !std::env::args_os()
        .nth(1)
        .is_some_and(|verb| verb == "serve" || verb == "server")
    {
        signals::clean_up();
    }
    let mut commands = Cli::command();
    commands.build();
    let args = match peers::translate(std::env::args_os(), std::env::vars_os(), &commands) {
        Ok(translated) => translated,
        Err(mistake) => {
            console::say(&format!("tokkata: {mistake}"));
            return ExitCode::from(2);
        }
    };
    args.notes.iter().for_each(|note| console::say(note));
    if args.args.iter().any(|arg| arg == "--list-devices") {
        return list_devices();
    }
    let cli = match Cli::try_parse_from(&args.args) {
        Ok(cli) => cli,
        Err(error) => return mistake::tell(error, &commands, &args.args),
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

fn list_devices() -> ExitCode {
    let mut out = std::io::stdout().lock();
    for (name, what) in tokkata::devices() {
        // A reader that left has seen enough.
        let _ = writeln!(out, "{name:<8} {what}");
    }
    ExitCode::SUCCESS
}
