//! `archs`: the known architectures, and what is wrong with a descriptor.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use tokkata::archs::near::nearest;
use tokkata::archs::{Descriptor, Registry};

use super::examples;
use crate::args::read_bytes;

include!(concat!(env!("OUT_DIR"), "/verified.rs"));

/// Flags of `archs`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::ARCHS, args_conflicts_with_subcommands = true)]
pub(crate) struct ArchsArgs {
    /// Show this family alone
    #[arg(value_name = "NAME")]
    name: Option<String>,
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
    match (&args.task, &args.name) {
        (Some(Task::Check { file }), _) => check(file, &mut out)?,
        (None, Some(name)) => show(name, &mut out)?,
        (None, None) => list(&mut out)?,
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

/// What is known of one family.
fn show(name: &str, out: &mut impl Write) -> Result<()> {
    let registry = Registry::builtin();
    let Some(descriptor) = registry.get(name) else {
        let near = nearest(name, registry.names());
        let near = near.map_or(String::new(), |n| format!(", did you mean '{n}'?"));
        return Err(anyhow!(
            "found the architecture '{name}', which is not known{near}; `tokkata archs` lists the known ones"
        ));
    };
    let others = descriptor.names.iter().filter(|n| *n != name);
    let others: Vec<&str> = others.map(String::as_str).collect();
    let classes = match descriptor.containers(name).contains("Hugging Face") {
        true => descriptor.hf.classes.join(", "),
        false => String::new(),
    };
    let runs = match &descriptor.unsupported {
        Some(why) => format!("no: {why}"),
        None => "yes".to_owned(),
    };
    let rows = [
        ("name", name.to_owned()),
        ("about", descriptor.about.clone()),
        ("runs", runs),
        ("same as", others.join(", ")),
        ("kind", kind(descriptor)),
        ("containers", descriptor.containers(name).to_owned()),
        ("classes", classes),
        ("verified", oracles(name).join(", ")),
    ];
    for (field, value) in rows.iter().filter(|r| !r.1.is_empty()) {
        writeln!(out, "{field:<12} {value}")?;
    }
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
    let descriptor = registry.check(&file.to_string(), &text)?;
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
