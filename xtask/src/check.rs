//! `cargo xtask check`: what must be green before a commit.

use anyhow::Result;

use crate::{bindings, features, licences, notices, rules, shell};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 11] = [
    ("format", format),
    ("size and name rules", rules::check),
    ("features of xtask", features::check),
    ("the header of the C library", bindings::header),
    ("licences", licences::check),
    ("notices", notices::check),
    ("lints", lints),
    ("the command without its model", without_demo),
    ("a release without features", release),
    ("documentation", documentation),
    ("fast tests", tests),
];

pub(crate) fn run() -> Result<()> {
    for (name, step) in STEPS {
        eprintln!("== {name}");
        step()?;
    }
    eprintln!("== all checks passed");
    Ok(())
}

fn format() -> Result<()> {
    shell::run(&mut shell::cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    shell::run(&mut shell::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

fn without_demo() -> Result<()> {
    let package = ["clippy", "-p", "tokkata-cli", "--no-default-features"];
    let strict = ["--all-targets", "--locked", "--", "-D", "warnings"];
    shell::run(&mut shell::cargo(&[&package[..], &strict].concat()))
}

/// What only releases compile: tests are built for developers.
fn release() -> Result<()> {
    let package = ["--package", "tokkata-cli", "--no-default-features"];
    shell::run(&mut shell::cargo(
        &[&["check", "--locked", "--release"], &package[..]].concat(),
    ))
}

fn documentation() -> Result<()> {
    let mut doc = shell::cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
    shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn tests() -> Result<()> {
    shell::run(&mut shell::cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--lib",
        "--quiet",
    ]))
}
