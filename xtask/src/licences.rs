//! Licences and duplicates of the packages that ship: `cargo deny` where it is installed, otherwise the same two
//! rules of `deny.toml` over `cargo metadata`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell::{cargo, output, root, run};

#[derive(Deserialize)]
struct Config {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<String>,
}

pub(crate) fn check() -> Result<()> {
    let installed = cargo(&["deny", "--version"])
        .output()
        .is_ok_and(|o| o.status.success());
    if installed {
        return run(&mut cargo(&["deny", "check", "licenses", "bans"]));
    }
    let config: Config = toml::from_str(&std::fs::read_to_string(root().join("deny.toml"))?)?;
    let text = output(&mut cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
    ]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("cargo metadata")?;
    duplicates(&metadata);
    let bad: Vec<String> = metadata
        .packages
        .iter()
        .filter(|p| {
            !p.license
                .as_ref()
                .is_some_and(|l| allowed(l, &config.licenses.allow))
        })
        .map(|p| {
            format!(
                "{} {}: {:?} {:?}",
                p.name, p.version, p.license, p.license_file
            )
        })
        .collect();
    if !bad.is_empty() {
        bail!(
            "licences that deny.toml does not allow:\n{}",
            bad.join("\n")
        );
    }
    Ok(())
}

fn duplicates(metadata: &Metadata) {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &metadata.packages {
        versions
            .entry(&package.name)
            .or_default()
            .push(&package.version);
    }
    for (name, versions) in versions.iter().filter(|(_, v)| v.len() > 1) {
        eprintln!("duplicate: {name} {}", versions.join(", "));
    }
}

/// Whether an expression can be met: any side of OR, all sides of AND.
fn allowed(expression: &str, allow: &[String]) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    expression.split(" OR ").any(|side| {
        side.split(" AND ")
            .all(|one| allow.iter().any(|a| a == one.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions_are_met_by_any_side() {
        let allow = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
        assert!(allowed("GPL-3.0 OR MIT", &allow));
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0", &allow));
        assert!(allowed("MIT/Apache-2.0", &allow));
        assert!(!allowed("GPL-3.0", &allow));
        assert!(!allowed("MIT AND GPL-3.0", &allow));
    }
}
