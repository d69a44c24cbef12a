//! The `tokkata` command, for its own program and for whatever else has it as an entry point.
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
mod watermark;

use std::ffi::OsString;
use std::io::Write;
use std::panic::AssertUnwindSafe;

use clap::{CommandFactory, Parser};

use crate::commands::Command;

/// What `--version` tells.
const FACTS: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit    ",
    env!("BUILT_FROM"),
    "\ntarget    ",
    env!("BUILT_FOR"),
    "\ncompiler  ",
    env!("BUILT_BY"),
    "\nfeatures  ",
    env!("BUILT_WITH")
);

/// Run language models from a file.
#[derive(Debug, Parser)]
// As with programs of others, the last of a flag counts: what a script gives may be followed by what its user adds.
#[command(
    name = "tokkata",
    version,
    long_version = FACTS,
    max_term_width = 100,
    args_override_self = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Runs the command line with these arguments, the program's name first, and gives the exit status.
#[must_use]
pub fn run(args: Vec<OsString>) -> u8 {
    console::install_panic_message();
    // A server ends its answers itself.
    if !args
        .get(1)
        .is_some_and(|verb| verb == "serve" || verb == "server")
    {
        signals::clean_up();
    }
    let mut commands = Cli::command();
    commands.build();
    let args = match peers::translate(args, std::env::vars_os(), &commands) {
        Ok(translated) => translated,
        Err(mistake) => {
            console::say(&format!("tokkata: {mistake}"));
            return 2;
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
    if let Some(prefix) = tuned::checks() {
        tokkata::keep_checks(prefix);
    }
    // A bug of ours has told itself in one line already.
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| cli.command.run()));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(error)) if console::is_closed_pipe(&error) => 0,
        Ok(Err(error)) => {
            console::report(&error);
            if error.is::<args::Usage>() { 2 } else { 1 }
        }
        Err(_) => 1,
    }
}

/// Reads a command line as [`run`] does, and runs nothing.
///
/// # Errors
/// What [`run`] would tell about it; help and the version are told so, too.
pub fn read(args: Vec<OsString>) -> Result<(), String> {
    let mut commands = Cli::command();
    commands.build();
    let none = std::iter::empty();
    let translated = peers::translate(args, none, &commands)?;
    let read = Cli::try_parse_from(&translated.args);
    read.map(drop).map_err(|error| error.to_string())
}

fn list_devices() -> u8 {
    let mut out = std::io::stdout().lock();
    for (name, what) in tokkata::devices() {
        // A reader that left has seen enough.
        let _ = writeln!(out, "{name:<8} {what}");
    }
    0
}
