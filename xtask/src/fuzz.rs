//! `fuzz`: builds the fuzz targets as cargo-fuzz does, with the toolchain at hand, and runs each for a while.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [TARGET…]

  --seconds  how long each target runs (default 120)
  TARGET     those of fuzz/Cargo.toml; all of them without a name";

/// What libFuzzer must be told of: where branches go, what is compared, and every bad access.
const FLAGS: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Zsanitizer=address -Cpasses=sancov-module \
                     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Memory of a target, and of one allocation. The sanitizer's own comes on top.
const LIMITS: [&str; 3] = ["-rss_limit_mb=2048", "-malloc_limit_mb=256", "-timeout=10"];
const MAX_LEN: &str = "-max_len=16384";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    targets: Vec<String>,
}

/// The targets of the manifest, in its order.
fn targets() -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(shell::root().join("fuzz/Cargo.toml"))?;
    let bins = manifest.split("[[bin]]").skip(1);
    let name = |bin: &str| {
        let line = bin.lines().find_map(|l| l.strip_prefix("name = "));
        line.map(|name| name.trim_matches('"').to_owned())
    };
    Ok(bins.filter_map(name).collect())
}

fn parse(args: &[String], known: &[String]) -> Result<Options> {
    let mut options = Options {
        seconds: 120,
        targets: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let value = args.next().and_then(|n| n.parse().ok());
                options.seconds = value.filter(|n| *n > 0).context(USAGE)?;
            }
            name if known.iter().any(|k| k == name) => options.targets.push(name.to_owned()),
            other => bail!(
                "found {other}, expected some of {}; {USAGE}",
                known.join(" ")
            ),
        }
    }
    if options.targets.is_empty() {
        options.targets = known.to_vec();
    }
    Ok(options)
}

fn folder() -> PathBuf {
    shell::root().join("target/fuzz")
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args, &targets()?)?;
    let mut build = shell::cargo(&["build", "--release", "--locked", "--target", TRIPLE]);
    build.args(["--manifest-path", "fuzz/Cargo.toml"]);
    build.args(options.targets.iter().flat_map(|t| ["--bin", t]));
    // Sanitizers and the passes of coverage are not stable.
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
    shell::run(build.env("CARGO_TARGET_DIR", folder()))?;
    let mut found = Vec::new();
    for target in &options.targets {
        if shell::run(&mut fuzz(target, options.seconds)?).is_err() {
            found.push(target.as_str());
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let place = folder().join("findings");
    bail!("{} found something: {}", found.join(", "), place.display())
}

/// One target over its seeds, with a corpus and findings of its own below `target/fuzz`.
fn fuzz(target: &str, seconds: u32) -> Result<Command> {
    let own = |kind: &str| folder().join(kind).join(target);
    let (corpus, findings) = (own("corpus"), own("findings"));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&findings)?;
    let mut command = Command::new(folder().join(TRIPLE).join("release").join(target));
    command.current_dir(shell::root());
    command.arg(corpus).arg(format!("fuzz/seeds/{target}"));
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", findings.display()));
    command
        .arg("-dict=fuzz/json.dict")
        .arg(MAX_LEN)
        .args(LIMITS);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_file_and_its_seeds() {
        let all = targets().unwrap();
        assert!(all.len() >= 11, "{all:?}");
        for target in &all {
            let fuzz = shell::root().join("fuzz");
            let file = fuzz.join(format!("fuzz_targets/{target}.rs"));
            assert!(file.exists(), "{}", file.display());
            let seeds = std::fs::read_dir(fuzz.join("seeds").join(target));
            assert!(seeds.unwrap().count() > 0, "{target}");
        }
        let files = std::fs::read_dir(shell::root().join("fuzz/fuzz_targets")).unwrap();
        assert_eq!(files.count(), all.len());
    }

    #[test]
    fn options_are_read() {
        let known = ["a".to_owned(), "b".to_owned()];
        let read = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
            parse(&args, &known)
        };
        let all = read(&[]).unwrap();
        assert_eq!((all.seconds, all.targets), (120, known.to_vec()));
        let one = read(&["--seconds", "5", "b"]).unwrap();
        assert_eq!((one.seconds, one.targets), (5, vec!["b".to_owned()]));
        for wrong in [&["c"][..], &["--seconds"], &["--seconds", "0"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
