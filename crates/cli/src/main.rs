//! The `tokkata` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tokkata_cli::run(std::env::args_os().collect()))
}
