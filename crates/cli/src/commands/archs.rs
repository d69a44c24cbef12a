//! `archs`: the known architectures, and what is wrong with a descriptor.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use tokkata::archs::{Descriptor, Registry};

use crate::args::read_bytes;

include!(concat!(env!("OUT_DIR"), "/verified.rs"));

/// Flags of `archs`.
#[derive(Debug, Args)]
pub(crate) struct ArchsArgs {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Explain the mistakes of a descriptor
    Check {
        /// The descriptor
        #[arg(value_name = "TOML")]
        file: PathBuf,
    },
}

pub(crate) fn run(args: &ArchsArgs) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match &args.task {
        None => list(&mut out)?,
        Some(Task::Check { file }) => check(file, &mut out)?,
    }
    Ok(out.flush()?)
}

fn list(out: &mut impl Write) -> Result<()> {
    let registry = Registry::builtin();
    let (mut known, mut verified) = (0, 0);
    let head = ["name", "kind", "containers"];
    writeln!(
        out,
        "{:<20} {:<32} {:<18} verified against",
        head[0], head[1], head[2]
    )?;
    for name in registry.names() {
        let Some(descriptor) = registry.get(name) else {
            continue;
        };
        let against = oracles(name);
        known += 1;
        verified += usize::from(!against.is_empty());
        let against = match (&descriptor.unsupported, against.is_empty()) {
            (Some(why), _) => format!("cannot be run: {why}"),
            (None, true) => "-".to_owned(),
            (None, false) => against.join(", "),
        };
        let kind = kind(descriptor);
        let containers = descriptor.containers(name);
        writeln!(out, "{name:<20} {kind:<32} {containers:<18} {against}")?;
    }
    writeln!(out, "{known} architectures, {verified} with goldens")?;
    Ok(())
}

/// The programs whose output for this architecture, or a variant of it, is checked.
fn oracles(name: &str) -> Vec<&'static str> {
    let of = |golden: &str| golden.split('+').next() == Some(name);
    let found = VERIFIED.iter().filter(|(golden, _)| of(golden));
    found
        .map(|(_, oracle)| *oracle)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// The stack and the blocks of its layers.
fn kind(descriptor: &Descriptor) -> String {
    let stack = descriptor.stack.as_ref();
    let stack = stack.map_or("decoder", |word| word.0.source());
    let steps = descriptor.steps.iter().chain(&descriptor.encoder_steps);
    let mut kind = stack.trim_matches(['"', '\'']).to_owned();
    let mut seen = BTreeSet::new();
    for block in steps.flat_map(|step| &step.run) {
        if seen.insert(block) {
            kind.push(' ');
            kind.push_str(block);
        }
    }
    kind
}

fn check(path: &Path, out: &mut impl Write) -> Result<()> {
    let file = path.display();
    let text = String::from_utf8(read_bytes(path)?)
        .map_err(|_| anyhow!("{file}: found bytes that are not UTF-8"))?;
    let registry = Registry::builtin();
    let descriptor = registry.parse(&file.to_string(), &text)?;
    let names = descriptor.names.join(", ");
    writeln!(out, "{file}: no mistake found; it describes {names}")?;
    for name in descriptor
        .names
        .iter()
        .filter(|n| registry.get(n).is_some())
    {
        writeln!(out, "{file}: replaces the built-in descriptor of {name}")?;
    }
    Ok(())
}
