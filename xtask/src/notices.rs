//! `notices`: the licences of every package that the command is made of, in one file that goes with the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::shell::{cargo, output, root};

/// Where they are written.
pub(crate) const FILE: &str = "crates/cli/THIRD-PARTY-NOTICES";

/// Beginnings of the names of files that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

pub(crate) fn write() -> Result<()> {
    let text = text()?;
    std::fs::write(root().join(FILE), &text)?;
    println!("{FILE}: {} bytes", text.len());
    Ok(())
}

/// Fails where a package is missing from the file, or one is in it that is no longer used.
pub(crate) fn check() -> Result<()> {
    let kept = std::fs::read_to_string(root().join(FILE)).context(FILE)?;
    let (kept, now) = (listed(&kept), listed(&text()?));
    ensure!(
        kept == now,
        "{FILE} is not of these packages; run `cargo xtask notices`"
    );
    Ok(())
}

/// The packages of a file.
fn listed(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|l| l.strip_prefix("- "));
    lines.map(str::to_owned).collect()
}

fn text() -> Result<String> {
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--all-features",
    ];
    let metadata: Value = serde_json::from_str(&output(&mut cargo(&args))?)?;
    let used = used(&metadata)?;
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = BTreeSet::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let id = package["id"].as_str().unwrap_or_default();
        if !used.contains(id) || package["source"].is_null() {
            continue;
        }
        let of = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let title = format!("{} {} ({})", of("name"), of("version"), of("license"));
        let folder = PathBuf::from(of("manifest_path"));
        let texts = texts(folder.parent().unwrap_or(Path::new(".")))?;
        if texts.is_empty() {
            without.insert(title.clone());
        }
        for text in texts {
            by_text.entry(text).or_default().insert(title.clone());
        }
    }
    let mut out = String::from(
        "Tokkata is made of the packages below, besides its own. Each stands before the texts that came with it.\n",
    );
    for (text, titles) in &by_text {
        let _ = writeln!(out, "\n{}", "=".repeat(80));
        for title in titles {
            let _ = writeln!(out, "- {title}");
        }
        let _ = writeln!(out, "\n{text}");
    }
    if !without.is_empty() {
        let _ = writeln!(
            out,
            "\n{}\nThese came without a text of their own:",
            "=".repeat(80)
        );
        for title in &without {
            let _ = writeln!(out, "- {title}");
        }
    }
    Ok(out)
}

/// The packages that the command is built from, by id.
fn used(metadata: &Value) -> Result<BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .context("no graph")?;
    let by_id: BTreeMap<&str, &Value> = nodes
        .iter()
        .filter_map(|n| Some((n["id"].as_str()?, n)))
        .collect();
    let is_command = |id: &&&str| id.contains("/crates/cli#");
    let first = by_id.keys().find(is_command).context("no command")?;
    let (mut used, mut next) = (BTreeSet::new(), vec![*first]);
    while let Some(id) = next.pop() {
        if !used.insert(id.to_owned()) {
            continue;
        }
        let deps = by_id.get(id).and_then(|n| n["deps"].as_array());
        for dep in deps.into_iter().flatten() {
            let kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            if kinds.into_iter().any(|k| k["kind"].is_null()) {
                next.extend(dep["pkg"].as_str());
            }
        }
    }
    Ok(used)
}

/// The texts of a package's licences.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().to_uppercase());
        let fits = |n: &String| NAMES.iter().any(|known| n.starts_with(known));
        if !path.is_file() || !name.as_ref().is_some_and(fits) {
            continue;
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        out.push(lines.join("\n").trim().to_owned());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn packages_are_listed_before_their_texts() {
        let text = "words\n====\n- a 1 (MIT)\n- b 2 (MIT)\n\nText - of it\n";
        let all: Vec<String> = listed(text).into_iter().collect();
        assert_eq!(all, ["a 1 (MIT)", "b 2 (MIT)"]);
    }
}
