//! Running commands in the workspace's root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}

/// A cargo command in the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// Lets Cargo build the standard library from a toolchain's sources, where they are named.
pub(crate) fn build_std(command: &mut Command, sources: Option<&impl AsRef<OsStr>>) {
    if let Some(sources) = sources {
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
            .args(["-Z", "build-std=std,panic_abort"]);
    }
}

/// Runs a command, printing it first; fails as it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = command
        .get_args()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    eprintln!(
        "$ {} {}",
        command.get_program().to_string_lossy(),
        words.join(" ")
    );
    let status = command.status().context("the command cannot be started")?;
    if !status.success() {
        bail!("`{}` failed", words.join(" "));
    }
    Ok(())
}

/// What a command prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().context("the command cannot be started")?;
    if !out.status.success() {
        bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8(out.stdout)?)
}
