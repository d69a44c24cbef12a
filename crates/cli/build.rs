//! Lists which architectures have a golden, and of which oracles, so that `archs` can say so; and what the program is
//! built of and with, for `--version`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    facts();
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let others = root.join("../conformance/data/other_oracles.txt");
    println!("cargo:rerun-if-changed={}", others.display());
    let others = fs::read_to_string(others).unwrap_or_default();
    let lines = others.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, oracle) = line.split_once(' ')?;
        Some((name.to_owned(), oracle.to_owned()))
    };
    let mut found: Vec<(String, String)> = lines.filter_map(pair).collect();
    for dir in ["goldens", "goldens-hf"] {
        let dir = root.join("../conformance").join(dir);
        println!("cargo:rerun-if-changed={}", dir.display());
        found.extend(goldens(&dir));
    }
    found.sort();
    found.dedup();
    let mut code = String::from("const VERIFIED: &[(&str, &str)] = &[\n");
    for (name, oracle) in found {
        writeln!(code, "    ({name:?}, {oracle:?}),").expect("text grows");
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("verified.rs"), code).expect("the build folder is writable");
}

/// The target, the compiler, the features and, of a release from a repository, the commit.
fn facts() {
    let set = |name: &str| env::var(name).unwrap_or_default();
    let compiler = said(&set("RUSTC"), &["--version"]).unwrap_or_default();
    println!("cargo:rustc-env=BUILT_FOR={}", set("TARGET"));
    println!("cargo:rustc-env=BUILT_BY={compiler}");
    let feature = |(name, _): (String, _)| {
        let name = name.strip_prefix("CARGO_FEATURE_")?.to_lowercase();
        (name != "default").then_some(name)
    };
    let mut features: Vec<String> = env::vars().filter_map(feature).collect();
    features.sort();
    println!("cargo:rustc-env=BUILT_WITH={}", features.join(", "));
    // Elsewhere every commit would have the command compiled anew.
    let commit = (set("PROFILE") == "release").then(commit).flatten();
    let commit = commit.unwrap_or_else(|| "not told".to_owned());
    println!("cargo:rustc-env=BUILT_FROM={commit}");
}

/// The commit that is checked out, and whether files differ from it.
fn commit() -> Option<String> {
    let log = said("git", &["rev-parse", "--git-path", "logs/HEAD"])?;
    // Without its log nothing would tell of another commit.
    let log = fs::canonicalize(log).ok()?;
    println!("cargo:rerun-if-changed={}", log.display());
    said(
        "git",
        &["describe", "--always", "--dirty", "--exclude", "*"],
    )
}

/// The first line that a program prints, where it succeeds.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let line = text.lines().next().map(str::to_owned);
    line.filter(|_| out.status.success())
}

/// Names and oracles; without the folder there are none.
fn goldens(dir: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let jsons = files.map(|file| file.path());
    let jsons = jsons.filter(|path| path.extension().is_some_and(|e| e == "json"));
    jsons
        .flat_map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).unwrap_or_default();
            let found = ["oracle", "second"].map(|key| program(&text, key));
            let named = found.into_iter().flatten().map(|p| (name.to_string(), p));
            named.collect::<Vec<_>>()
        })
        .collect()
}

/// What the line `"oracle": "…",` of a golden names, without how it was set up.
fn program(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{key}\": \""))?;
    let title = rest.split_once('"')?.0;
    let end = [", ", " in "]
        .iter()
        .filter_map(|end| title.find(end))
        .min();
    Some(title[..end.unwrap_or(title.len())].to_owned())
}
