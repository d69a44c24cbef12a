//! `cargo xtask conformance [--docs|--mutate] [NAME…]`: which architectures load and agree, counted.
//!
//! `--docs` writes the table of supported models from the goldens present; `--bisect` says
//! where a run goes wrong, as every disagreement does; for `--mutate` see [`crate::mutate`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use tokkata_archs::Registry;
use tokkata_conformance::devices;
use tokkata_conformance::golden::absent::Questions;
use tokkata_conformance::golden::bisect;
use tokkata_conformance::golden::{Expectations, Golden, Outcome, Rows, outcomes};
use tokkata_conformance::hf::HfGolden;
use tokkata_ir::Device;

use crate::mutate;
use crate::oracle::Oracle;

const STRINGS: &str = include_str!("../../crates/conformance/data/architectures.txt");

/// Runs the command.
///
/// # Errors
/// Goldens that cannot be read, and disagreement that is not listed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (flags, names): (Vec<_>, Vec<_>) = args.iter().cloned().partition(|a| a.starts_with("--"));
    let goldens = goldens(&names)?;
    match flags.first().map(String::as_str) {
        None => agreement(&goldens),
        Some("--bisect") => goldens.iter().try_for_each(bisect),
        Some("--docs") => docs(&goldens),
        Some("--mutate") => {
            let write = flags.iter().any(|f| f == "--write");
            mutate::run(&goldens, names.is_empty(), write)
        }
        Some(other) => Err(anyhow!("{other} is no option of conformance")),
    }
}

fn goldens(names: &[String]) -> Result<Vec<Golden>> {
    let folder = Golden::folder();
    let mut goldens = Vec::new();
    for name in Golden::list(&folder).map_err(|e| anyhow!(e))? {
        let golden = Golden::read(&folder, &name).map_err(|e| anyhow!(e))?;
        if names.is_empty() || names.contains(&name) || names.iter().any(|n| golden.is_of(n)) {
            goldens.push(golden);
        }
    }
    Ok(goldens)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn strings() -> Vec<&'static str> {
    STRINGS
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect()
}

/// Prints every golden on every backend and the count of strings that agree on all.
fn agreement(goldens: &[Golden]) -> Result<()> {
    let registry = Registry::builtin();
    let expected = Expectations::read(&Golden::folder()).map_err(|e| anyhow!(e))?;
    let devices = devices();
    let (mut agree, mut disagree) = (BTreeSet::new(), BTreeSet::new());
    let mut surprises = 0;
    for golden in goldens {
        for device in &devices {
            let found = outcomes(golden, &registry, device.as_ref(), usize::MAX);
            let known = expected.failing(&golden.name, device.name()).is_some();
            let surprise = expected
                .judge(&golden.name, device.name(), &found)
                .is_some();
            surprises += usize::from(surprise);
            let good = known == surprise;
            let arch = golden.guest().unwrap_or(golden.arch()).to_owned();
            if good { &mut agree } else { &mut disagree }.insert(arch);
            println!("{:<20} {:<4} {}", golden.name, device.name(), line(&found));
            if surprise {
                bisect(golden)?;
            }
        }
    }
    let absences = absences(goldens, &registry)?;
    agree.retain(|a| !disagree.contains(a) && strings().contains(&a.as_str()));
    println!(
        "\n{} of {} strings load and agree on every backend",
        agree.len(),
        strings().len()
    );
    let missing: Vec<&str> = strings()
        .into_iter()
        .filter(|s| !agree.contains(*s))
        .collect();
    println!("not among them: {}", missing.join(" "));
    let second: BTreeSet<&str> = goldens
        .iter()
        .filter(|g| g.second.is_some() && agree.contains(g.arch()))
        .map(Golden::arch)
        .collect();
    println!("{} of them agree with a second program too", second.len());
    println!("{absences}");
    ensure!(
        surprises == 0,
        "{surprises} outcomes are not what the lists say"
    );
    Ok(())
}

/// Which tensors we can do without and the oracle cannot, or the other way round.
fn absences(goldens: &[Golden], registry: &Registry) -> Result<String> {
    let mut text = String::new();
    for golden in goldens {
        let Some(theirs) = &golden.optional else {
            continue;
        };
        let questions = Questions::new(golden).map_err(|e| anyhow!(e))?;
        let ours = questions.optional(registry);
        for class in questions.all() {
            let (we, they) = (ours.contains(&class), theirs.contains(&class));
            if we != they {
                let who = if we { "we" } else { "the oracle" };
                writeln!(text, "{}: {who} alone takes it {class}", golden.name)?;
            }
        }
    }
    Ok(text)
}

/// Says where the backends part and, where there is an oracle, where the reference leaves it.
fn bisect(golden: &Golden) -> Result<()> {
    let registry = Registry::builtin();
    let values = |device: &dyn Device| bisect::values(golden, &registry, device);
    let devices = devices();
    let mut found = devices.iter().map(|d| (d.name(), values(d.as_ref())));
    let Some((first, Ok(ours))) = found.next() else {
        println!("  {}: the reference does not run", golden.name);
        return Ok(());
    };
    for (name, theirs) in found {
        let parted = match theirs {
            Err(error) => error,
            Ok(theirs) => bisect::first_difference(&ours, &theirs)
                .unwrap_or(format!("all {} values agree", ours.len())),
        };
        println!("  {}: {name} beside {first}: {parted}", golden.name);
    }
    match Oracle::open(golden.oracle.contains("GELU")) {
        Ok(oracle) => {
            let nodes = oracle.nodes(golden)?;
            let text = bisect::beside_oracle(&ours, &nodes);
            println!("  {}: {first} beside the oracle: {text}", golden.name);
        }
        Err(e) => println!("  {}: {e:#}", golden.name),
    }
    Ok(())
}

fn line(found: &Result<Vec<Outcome>, String>) -> String {
    let outcomes = match found {
        Ok(outcomes) => outcomes,
        Err(e) => return e.clone(),
    };
    let texts = outcomes.iter().map(|(way, outcome)| match outcome {
        Ok(Some(error)) => format!("{way} {error:.1e}"),
        Ok(None) => format!("{way} –"),
        Err(e) => format!("{way}: {e}"),
    });
    texts.collect::<Vec<_>>().join("  ")
}

/// What stands above the table of `docs/models.md`.
const MODELS_HEAD: &str = "\
# Models

Generated by `cargo xtask conformance --docs` from the goldens present. A family is verified when tiny
random models of it give the oracle's numbers on every backend, fed whole, token by token, in chunks of seven
beside another sequence, and after truncation where its cache allows it. Of a family that is verified from Hugging Face directories too, a tiny
checkpoint saved by Transformers gives Transformers' numbers, read from its `config.json` and safetensors.

| architecture | family | kind | from | verified against |
|---|---|---|---|---|
";

/// Writes `docs/models.md`.
fn docs(goldens: &[Golden]) -> Result<()> {
    let expected = Expectations::read(&Golden::folder()).map_err(|e| anyhow!(e))?;
    let registry = Registry::builtin();
    let checkpoints = checkpoints()?;
    let others = std::fs::read_to_string(root().join("crates/conformance/data/other_oracles.txt"))?;
    let mut text = String::from(MODELS_HEAD);
    let names: Vec<&str> = devices().iter().map(|d| d.name()).collect();
    let (mut verified, mut from_directories) = (0, 0);
    for name in registry.names() {
        let descriptor = registry.get(name).context("a listed name")?;
        let own: Vec<&Golden> = goldens.iter().filter(|g| g.is_of(name)).collect();
        let saved: Vec<&HfGolden> = checkpoints.iter().filter(|g| g.arch() == name).collect();
        let fails = |device: &str| {
            own.iter()
                .any(|g| expected.failing(&g.name, device).is_some())
        };
        let against = match (&descriptor.unsupported, own.first()) {
            (Some(why), _) => format!("not supported: {why}"),
            (None, Some(_)) if !fails(names[0]) => {
                verified += 1;
                let kinds = descriptor.containers(name);
                from_directories += usize::from(kinds.contains("Hugging Face"));
                let where_it_runs = match names[1..].iter().any(|d| fails(d)) {
                    true => ", on the reference backend only",
                    false => "",
                };
                programs(&own, &saved) + where_it_runs
            }
            _ => {
                let found = others
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                found.unwrap_or("not verified").to_owned()
            }
        };
        writeln!(
            text,
            "| `{name}` | {} | {} | {} | {against} |",
            descriptor.about,
            kind(&own),
            descriptor.containers(name)
        )?;
    }
    writeln!(
        text,
        "\n{verified} architectures are verified, {from_directories} of them from Hugging Face directories too."
    )?;
    let of_heads = goldens
        .iter()
        .filter(|g| g.rows == Rows::Heads && g.guest().is_none());
    let with_heads: BTreeSet<String> = of_heads.map(|g| format!("`{}`", g.arch())).collect();
    writeln!(
        text,
        "\nMulti-token-prediction heads give the oracle's logits too: {}.",
        Vec::from_iter(with_heads).join(", ")
    )?;
    std::fs::write(root().join("docs/models.md"), text)?;
    println!("docs/models.md: {verified} verified");
    Ok(())
}

/// Every golden of a Hugging Face checkpoint.
fn checkpoints() -> Result<Vec<HfGolden>> {
    let folder = HfGolden::folder();
    let names = Golden::list(&folder).map_err(|e| anyhow!(e))?;
    let read = |name: &String| HfGolden::read(&folder, name).map_err(|e| anyhow!(e));
    names.iter().map(read).collect()
}

/// The programs that a family's goldens were made with, without how these were set up.
fn programs(goldens: &[&Golden], checkpoints: &[&HfGolden]) -> String {
    let titles = goldens
        .iter()
        .flat_map(|g| [Some(&g.oracle), g.second.as_ref()]);
    let titles = titles.chain(checkpoints.iter().map(|g| Some(&g.oracle)));
    let short = |title: &String| {
        let end = [", ", " in "]
            .iter()
            .filter_map(|end| title.find(end))
            .min();
        title[..end.unwrap_or(title.len())].to_owned()
    };
    let names: BTreeSet<String> = titles.flatten().map(short).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn kind(goldens: &[&Golden]) -> &'static str {
    match goldens.first().map(|g| g.rows) {
        None => "–",
        Some(Rows::Logits | Rows::Steps | Rows::Flash | Rows::Heads) => "text",
        Some(Rows::Vectors) => "vectors",
        Some(Rows::Decoder) => "text to text",
    }
}
