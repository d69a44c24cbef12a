//! `cargo xtask check`: what must be green before a commit.

use anyhow::Result;

use crate::{licences, rules, shell};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 6] = [
    ("format", format),
    ("size and name rules", rules::check),
    ("licences", licences::check),
    ("lints", lints),
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
