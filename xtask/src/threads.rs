//! What ordinary tests of threads cannot see: `cargo xtask sanitize` and `cargo xtask loom`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::shell;

/// The target of the sanitized build, whose standard library is built anew.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests that let workers touch everything that workers share.
const RACES: &[&[&str]] = &[
    &["-p", "tokkata-backend-cpu", "--lib", "pool"],
    &["-p", "tokkata-backend-cpu", "--test", "conformance"],
    &["-p", "tokkata-backend-cpu", "--test", "replay"],
    &["-p", "tokkata-conformance", "--test", "it", "jitter"],
];

/// Crates with tests in a model of threads, and those tests.
const MODELS: &[(&str, &str)] = &[("tokkata-backend-cpu", "pool::model")];

/// Where the sources of the standard library may be: what was asked for, or the toolchain's own place.
pub(crate) fn sources(given: Option<&Path>) -> Result<PathBuf> {
    let own = || -> Result<PathBuf> {
        let root = shell::output(std::process::Command::new("rustc").args(["--print", "sysroot"]))?;
        Ok(Path::new(root.trim()).join("lib/rustlib/src/rust/library"))
    };
    let folder = given.map(Path::to_owned).map_or_else(own, Ok)?;
    if !folder.join("std/Cargo.toml").exists() {
        bail!(
            "{} does not hold the standard library: install the toolchain's `rust-src`, or name the folder `library` of \
             its sources with --rust-src",
            folder.display()
        );
    }
    Ok(folder)
}

/// The op suite, the replays and the workers that sleep, under the thread sanitizer.
pub(crate) fn sanitize(args: &[String]) -> Result<()> {
    let given = match args {
        [] => None,
        [flag, folder] if flag == "--rust-src" => Some(Path::new(folder)),
        _ => bail!("usage: cargo xtask sanitize [--rust-src DIRECTORY]"),
    };
    let sources = sources(given)?;
    for tests in RACES {
        let build = ["test", "--locked", "-Zbuild-std", "--target", TARGET];
        let mut command = shell::cargo(&[&build[..], tests].concat());
        // The sanitizer and a standard library of one's own are not stable.
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", &sources)
            .env("RUSTFLAGS", "-Zsanitizer=thread")
            .env("CARGO_TARGET_DIR", shell::root().join("target/sanitize"))
            .env("TSAN_OPTIONS", "halt_on_error=1");
        shell::run(&mut command)?;
    }
    Ok(())
}

/// The tests that try every order of events.
pub(crate) fn loom() -> Result<()> {
    for (package, tests) in MODELS {
        let mut command = shell::cargo(&[
            "test",
            "--release",
            "--locked",
            "-p",
            package,
            "--lib",
            tests,
        ]);
        command
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", shell::root().join("target/loom"));
        shell::run(&mut command)?;
    }
    Ok(())
}
