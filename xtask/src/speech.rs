//! `cargo xtask speech`: how exactly speech is computed, as a table.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::shell::cargo;

/// Tests that compare with others, by crate.
const TESTS: [&[&str]; 3] = [
    &[
        "-p",
        "tokkata-audio",
        "--test",
        "mel",
        "--test",
        "resample",
        "--test",
        "silero",
    ],
    &[
        "-p",
        "tokkata-speech",
        "--test",
        "rules",
        "--test",
        "lengths",
    ],
    &["-p", "tokkata", "--test", "it", "speech::"],
];

/// Runs the tests that compare with others, and prints the lines of their table.
pub(crate) fn run() -> Result<()> {
    println!("| what | found | bound |\n|---|---|---|");
    for tests in TESTS {
        table(tests)?;
    }
    Ok(())
}

/// Prints what these tests say in lines of a table.
fn table(tests: &[&str]) -> Result<()> {
    let mut command = cargo(&["test", "--locked", "--no-fail-fast"]);
    command.args(tests);
    command.args(["--", "--nocapture", "--include-ignored", "--test-threads=1"]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let out = child.stdout.take().expect("stdout is piped");
    for line in BufReader::new(out).lines() {
        let line = line?;
        if let Some(at) = line.find("| ") {
            println!("{}", &line[at..]);
        }
    }
    if !child.wait()?.success() {
        bail!("something differs; `cargo test` with the same test says what");
    }
    Ok(())
}
