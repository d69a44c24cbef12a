//! `cargo xtask test`: every test of the workspace and one line of totals.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::shell::cargo;

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Totals {
    /// Adds a `test result:` line of the test harness.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        let count = |word: &str| {
            let before = counts
                .split(';')
                .find_map(|part| part.trim().strip_suffix(word))?;
            before.split_whitespace().last()?.parse::<u64>().ok()
        };
        self.passed += count("passed").unwrap_or(0);
        self.failed += count("failed").unwrap_or(0);
        self.skipped += count("ignored").unwrap_or(0);
    }
}

/// Runs `cargo test --workspace` with further arguments and prints the totals of all its parts.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut command = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    let mut child = command
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let mut totals = Totals::default();
    for line in BufReader::new(child.stdout.take().expect("stdout is piped")).lines() {
        let line = line?;
        totals.add(&line);
        println!("{line}");
    }
    let status = child.wait()?;
    println!(
        "{} passed, {} failed, {} skipped",
        totals.passed, totals.failed, totals.skipped
    );
    if !status.success() {
        bail!("tests failed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn totals_add_up() {
        let mut totals = Totals::default();
        totals.add("test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s");
        totals.add("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s");
        totals.add("running 3 tests");
        assert_eq!((totals.passed, totals.failed, totals.skipped), (15, 1, 2));
    }
}
