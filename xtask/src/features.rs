//! Whether this command and the tests share what they build: packages with other features are other packages to Cargo.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::shell::{cargo, output};

/// Every package that this command needs has the features that it has among all packages of the workspace.
pub(crate) fn check() -> Result<()> {
    let own = packages(&["--package", "xtask", "--edges", "normal,build"])?;
    let all = packages(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut others = String::new();
    for package in own.difference(&all) {
        let wanted = all.iter().filter(|w| name(w).eq(name(package)));
        others += &format!("\n{package}\n  in the workspace:");
        others.extend(wanted.map(|w| format!(" {w}")));
    }
    if !others.is_empty() {
        bail!(
            "these are built once more for xtask; its Cargo.toml asks for other features:{others}"
        );
    }
    Ok(())
}

/// Name and version.
fn name(package: &str) -> impl Iterator<Item = &str> {
    package.split(' ').take(2)
}

/// Packages with their versions and features.
fn packages(args: &[&str]) -> Result<BTreeSet<String>> {
    let mut tree = cargo(&[
        "tree", "--locked", "--prefix", "none", "--format", "{p} {f}",
    ]);
    let text = output(tree.args(args))?;
    let lines = text.lines().map(|line| line.trim_end_matches(" (*)"));
    Ok(lines.map(str::to_owned).collect())
}
