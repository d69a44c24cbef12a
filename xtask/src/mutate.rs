//! `cargo xtask conformance --mutate [--write] [NAME…]`: every field of every descriptor changed in turn.
//!
//! A change that no golden notices must stand in `survivors.txt` under a reason, and nothing else may stand there.
//! `--write` rewrites the list: it drops entries that no longer survive and puts new ones under a heading without
//! a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use tokkata_archs::Registry;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::golden::mutate::{NOTICED, Subject, Vocabulary, moved, mutants};

use crate::shell::root;

const FILE: &str = "survivors.txt";
const UNEXPLAINED: &str = "no reason is known yet";
/// The reason that the numbers themselves give.
const SMALL: &str =
    "moves a golden by less than 1e-3, yet by more than 1e-5, ten times what the tests allow";
const VISIBLE: f64 = 1e-5;

/// Changes that no golden notices, and how far they move the rows.
type Survivors = BTreeMap<String, f64>;

/// Runs the command on the descriptors that the goldens belong to.
///
/// # Errors
/// Survivors without a reason, reasons without a survivor, files that cannot be read.
pub(crate) fn run(goldens: &[Golden], all: bool, write: bool) -> Result<()> {
    let tables = descriptors()?;
    let vocabulary = Vocabulary::of(tables.values());
    let (mut total, mut survivors) = (0, Survivors::new());
    for (stem, table) in &tables {
        let own = family(table, goldens);
        if !own.is_empty() {
            total += survive(stem, table, &own, &vocabulary, &mut survivors)?;
        }
    }
    println!(
        "{} of {total} changes move no golden by 1e-3",
        survivors.len()
    );
    let known = Reasons::read(&Golden::folder().join(FILE))?;
    let (new, stale) = known.compare(&survivors);
    if write {
        ensure!(all, "--write needs every golden");
        known.write(&Golden::folder().join(FILE), &survivors, total)?;
    }
    for entry in &new {
        println!("without a reason: {entry}");
    }
    let stale = if all { stale } else { Vec::new() };
    for entry in &stale {
        println!("no longer survives: {entry}");
    }
    ensure!(
        write || new.len() + stale.len() == 0,
        "{} survivors without a reason, {} reasons without a survivor",
        new.len(),
        stale.len()
    );
    Ok(())
}

/// The goldens of a descriptor's names.
fn family<'a>(table: &toml::Table, goldens: &'a [Golden]) -> Vec<&'a Golden> {
    let names = table.get("names").and_then(toml::Value::as_array);
    let names = names.into_iter().flatten().filter_map(toml::Value::as_str);
    let names: Vec<&str> = names.collect();
    goldens
        .iter()
        .filter(|g| names.iter().any(|n| g.is_of(n)))
        .collect()
}

/// Adds the changes of one descriptor that survive; how many there are.
fn survive(
    stem: &str,
    table: &toml::Table,
    goldens: &[&Golden],
    vocabulary: &Vocabulary,
    survivors: &mut Survivors,
) -> Result<usize> {
    let registry = Registry::builtin();
    let subjects = goldens.iter().map(|g| Subject::new(g, &registry));
    let subjects: Result<Vec<Subject<'_>>, String> = subjects.collect();
    let subjects = subjects.map_err(|e| anyhow!(e))?;
    let all = mutants(table, vocabulary);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(survivors));
    let work = || {
        while let Some(mutant) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let far = moved(stem, mutant, &subjects, &registry);
            if far < NOTICED {
                let entry = format!("{stem} {} {}", mutant.field, mutant.change);
                found.lock().expect("no panic").insert(entry, far);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    Ok(all.len())
}

fn descriptors() -> Result<BTreeMap<String, toml::Table>> {
    let mut tables = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates/archs/archs"))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default();
        let stem = stem.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let table = text.parse().with_context(|| stem.clone())?;
        tables.insert(stem, table);
    }
    Ok(tables)
}

/// Entries of the list under their reasons, in the file's order.
#[derive(Default)]
struct Reasons(Vec<(String, BTreeSet<String>)>);

impl Reasons {
    fn read(path: &Path) -> Result<Self> {
        Reasons::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut reasons = Reasons::default();
        for line in text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with("# "))
        {
            if let Some(reason) = line.strip_prefix("## ") {
                reasons.0.push((reason.to_owned(), BTreeSet::new()));
            } else {
                let last = reasons.0.last_mut();
                let last = last.with_context(|| format!("{FILE}: no reason above {line}"))?;
                last.1.insert(line.to_owned());
            }
        }
        Ok(reasons)
    }

    /// Survivors without a reason, entries that do not survive.
    fn compare(&self, survivors: &Survivors) -> (Vec<String>, Vec<String>) {
        let fits = |reason: &str, entry: &String| match survivors.get(entry) {
            Some(far) if reason == SMALL => *far > VISIBLE,
            Some(_) => reason != UNEXPLAINED,
            None => false,
        };
        let listed = |(reason, entries): &(String, BTreeSet<String>)| {
            let (kept, stale): (Vec<_>, Vec<_>) =
                entries.iter().cloned().partition(|e| fits(reason, e));
            (kept, stale)
        };
        let (kept, stale): (Vec<_>, Vec<_>) = self.0.iter().map(listed).unzip();
        let explained: BTreeSet<String> = kept.concat().into_iter().collect();
        let new = survivors.keys().filter(|s| !explained.contains(*s));
        let gone = |entry: &String| !survivors.contains_key(entry);
        let stale = stale.concat().into_iter().filter(gone).collect();
        (new.cloned().collect(), stale)
    }

    fn write(&self, path: &Path, survivors: &Survivors, total: usize) -> Result<()> {
        let mut text = format!(
            "# {} of {total} changes of one field move no golden by 1e-3: a reason, then descriptor, field and change.\n",
            survivors.len()
        );
        let mut left: BTreeSet<String> = survivors.keys().cloned().collect();
        let small = |entry: &&String| survivors[*entry] > VISIBLE;
        let visible: Vec<String> = left.iter().filter(small).cloned().collect();
        visible.iter().for_each(|v| {
            left.remove(v);
        });
        section(&mut text, SMALL, visible.iter().collect())?;
        let own = |r: &&(String, BTreeSet<String>)| r.0 != UNEXPLAINED && r.0 != SMALL;
        for (reason, entries) in self.0.iter().filter(own) {
            let kept: Vec<&String> = entries.iter().filter(|e| left.remove(*e)).collect();
            section(&mut text, reason, kept)?;
        }
        section(&mut text, UNEXPLAINED, left.iter().collect())?;
        std::fs::write(path, text)?;
        Ok(())
    }
}

fn section(text: &mut String, reason: &str, entries: Vec<&String>) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## {reason}")?;
    for entry in entries {
        writeln!(text, "{entry}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_survivors_must_match() {
        let text = "# head\n\n## the default\na b dropped\nc d × 1.1\n";
        let reasons = Reasons::parse(text).unwrap();
        let survivors = ["a b dropped", "e f dropped"].map(|s| (s.to_owned(), 0.0));
        let (new, stale) = reasons.compare(&Survivors::from(survivors));
        assert_eq!(new, ["e f dropped"]);
        assert_eq!(stale, ["c d × 1.1"]);
        assert!(Reasons::parse("a b dropped\n").is_err());
    }
}
