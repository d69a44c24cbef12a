//! What the tests of the command share.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command under test.
pub fn tokkata() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokkata"));
    command.env_remove("NO_COLOR").env("TERM", "xterm");
    command
}

/// Runs the command with these arguments.
pub fn run(args: &[&str]) -> Output {
    tokkata().args(args).output().expect("the command starts")
}

/// Standard output of a run that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Standard error as text, without the progress that a stalled machine makes the command show.
pub fn stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter(|line| !line.contains(" …"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A file of the shared test data. Without the data the test is skipped by name, and fails under `CI=true`.
pub fn testdata(test: &str, path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = root
        .unwrap_or_else(|| workspace.join("../shared"))
        .join(path);
    if found.exists() {
        return Some(found);
    }
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "{test} needs {path} of the shared test data");
    eprintln!("skipped {test}: {path} of the shared test data is absent");
    None
}

/// A made-up model in a directory of its own.
pub fn made_up(mix: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tiny.gguf");
    let name = format!("tiny:{mix}");
    let args = ["bench", "--synthetic", &name, "--save"];
    let output = tokkata()
        .args(args)
        .arg(&path)
        .args(["-p", "0", "-n", "0"])
        .output();
    let output = output.expect("the command starts");
    assert!(output.status.success(), "{}", stderr(&output));
    (dir, path)
}
