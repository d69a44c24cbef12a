//! Descriptors with one field changed: a golden that does not notice leaves the field unproven.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_archs::Registry;
use tokkata_backend_ref::RefBackend;
use tokkata_formats::ModelFile;
use toml::{Table, Value};

use super::absent::Questions;
use super::check::guarded;
use super::{Golden, ways};
use crate::models::Failure;

/// Smallest error that counts as noticed.
pub const NOTICED: f64 = 1e-3;

/// Tables that do not change what a file computes.
const IGNORED: &[&str] = &[
    "names",
    "about",
    "extends",
    "hf",
    "unused",
    "unsupported",
    "require",
];

/// Keys whose rules are facts rather than numbers: they are negated, not scaled.
const FACTS: &[&str] = &[
    "when",
    "pattern",
    "renormalise",
    "shared",
    "scaled",
    "factors",
    "moe_layer",
    "softmax_chosen",
    "draft",
    "swin",
    "chooses",
    "own",
    "overlap",
    "by_token",
    "tail",
];

/// A descriptor with one change.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The changed field, dotted.
    pub field: String,
    /// What was done to it.
    pub change: String,
    /// The descriptor.
    pub text: String,
}

/// Values that each key has in any descriptor, by the key's last part.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary(BTreeMap<String, BTreeSet<String>>);

impl Vocabulary {
    /// Collects the words of descriptors.
    #[must_use]
    pub fn of<'a>(descriptors: impl IntoIterator<Item = &'a Table>) -> Self {
        let mut words = BTreeMap::new();
        for table in descriptors {
            let fields = table.iter().filter(|f| !IGNORED.contains(&f.0.as_str()));
            fields.for_each(|(key, value)| collect(value, key, &mut words));
        }
        Vocabulary(words)
    }

    fn others(&self, key: &str, word: &str) -> Vec<String> {
        let words = self.0.get(key).into_iter().flatten();
        let words = words.filter(|w| !is_rule(w) && !w.starts_with('='));
        words.filter(|w| *w != word).take(4).cloned().collect()
    }
}

fn collect(value: &Value, key: &str, words: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::String(text) => {
            words
                .entry(key.to_owned())
                .or_default()
                .insert(text.clone());
        }
        Value::Table(table) => table.iter().for_each(|(k, v)| collect(v, k, words)),
        Value::Array(items) => items.iter().for_each(|v| collect(v, key, words)),
        _ => {}
    }
}

/// Every descriptor that differs from `table` in one field.
#[must_use]
pub fn mutants(table: &Table, vocabulary: &Vocabulary) -> Vec<Mutant> {
    let mut all = Vec::new();
    // Names in another container are no part of what goldens can notice.
    let table = &without(table, "hf");
    for path in paths(table) {
        let key = path.last().map_or("", String::as_str);
        let Some(value) = at(table, &path) else {
            continue;
        };
        for (change, replacement) in changes(key, value, vocabulary) {
            let mut copy = table.clone();
            replace(&mut copy, &path, replacement);
            all.push(Mutant {
                field: path.join("."),
                change,
                text: copy.to_string(),
            });
        }
    }
    all
}

fn without(table: &Table, key: &str) -> Table {
    let kept = table.iter().filter(|field| field.0 != key);
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Drops, other words, other numbers.
fn changes(key: &str, value: &Value, vocabulary: &Vocabulary) -> Vec<(String, Option<Value>)> {
    let mut all = vec![("dropped".to_owned(), None)];
    let scaled = |text: &str| Value::String(format!("({text}) * 1.1"));
    match value {
        Value::Boolean(b) => all.push((format!("= {}", !b), Some(Value::Boolean(!b)))),
        Value::Integer(i) => all.push(("× 1.1".to_owned(), Some(Value::Float(*i as f64 * 1.1)))),
        Value::Float(f) => all.push(("× 1.1".to_owned(), Some(Value::Float(f * 1.1)))),
        Value::String(text) if FACTS.contains(&key) => {
            let negated = Value::String(format!("!({text})"));
            all.push(("negated".to_owned(), Some(negated)));
        }
        Value::String(text) if is_rule(text) => all.push(("× 1.1".to_owned(), Some(scaled(text)))),
        Value::String(text) => {
            for word in vocabulary.others(key, text) {
                all.push((format!("= {word}"), Some(Value::String(word))));
            }
        }
        _ => {}
    }
    all
}

/// Expressions have operators, calls or dots; words and names of tensors have not.
fn is_rule(text: &str) -> bool {
    !text.starts_with('=') && text.contains(['.', ' ', '(', '*', '/'])
}

/// Paths of all leaves; a number selects an array's entry.
fn paths(table: &Table) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for (key, value) in table {
        if !IGNORED.contains(&key.as_str()) {
            walk(value, vec![key.clone()], &mut all);
        }
    }
    all
}

fn walk(value: &Value, path: Vec<String>, all: &mut Vec<Vec<String>>) {
    let below = |key: String| path.iter().cloned().chain([key]).collect();
    match value {
        Value::Table(table) => table
            .iter()
            .for_each(|(k, v)| walk(v, below(k.clone()), all)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, v)| walk(v, below(i.to_string()), all));
        }
        _ => all.push(path),
    }
}

fn at<'a>(table: &'a Table, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(table.get(first)?, |value, key| match value {
            Value::Table(t) => t.get(key),
            Value::Array(a) => a.get(key.parse::<usize>().ok()?),
            _ => None,
        })
}

fn replace(table: &mut Table, path: &[String], new: Option<Value>) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        match new {
            Some(value) => table.insert(first.clone(), value),
            None => table.remove(first),
        };
    } else if let Some(value) = table.get_mut(first) {
        replace_in(value, rest, new);
    }
}

fn replace_in(value: &mut Value, path: &[String], new: Option<Value>) {
    match value {
        Value::Table(table) => replace(table, path, new),
        Value::Array(items) => {
            let index = path[0].parse::<usize>().ok().filter(|i| *i < items.len());
            match (index, &path[1..], new) {
                (Some(i), [], Some(value)) => items[i] = value,
                (Some(i), [], None) => drop(items.remove(i)),
                (Some(i), rest, new) => replace_in(&mut items[i], rest, new),
                (None, ..) => {}
            }
        }
        _ => {}
    }
}

/// A golden with its file, and what the untouched descriptor can do without.
pub struct Subject<'a> {
    golden: &'a Golden,
    file: ModelFile,
    questions: Option<(Questions<'a>, Vec<String>)>,
}

impl<'a> Subject<'a> {
    /// Prepares a golden.
    ///
    /// # Errors
    /// A golden that cannot be made into a file.
    pub fn new(golden: &'a Golden, registry: &Registry) -> Result<Self, Failure> {
        let asked = golden.optional.as_ref().map(|_| Questions::new(golden));
        let asked = asked.transpose()?;
        Ok(Subject {
            golden,
            file: crate::generate::model(golden)?,
            questions: asked.map(|q| {
                let answers = q.optional(registry);
                (q, answers)
            }),
        })
    }

    /// How far the rows move; infinitely where the file does not load.
    fn moves(&self, registry: &Registry) -> f64 {
        let device = RefBackend::default();
        let outcome = guarded(self.golden, &self.file, registry, &device, ways()[0]);
        outcome.ok().flatten().unwrap_or(f64::INFINITY)
    }

    /// Whether the loader answers differently what it can do without.
    fn answers(&self, registry: &Registry) -> bool {
        let differs = |(q, known): &(Questions<'_>, Vec<String>)| q.optional(registry) != *known;
        self.questions.as_ref().is_some_and(differs)
    }
}

/// How far a mutant moves the goldens of its family at most: up to [`NOTICED`], beyond which nothing more is tried.
#[must_use]
pub fn moved(stem: &str, mutant: &Mutant, subjects: &[Subject<'_>], registry: &Registry) -> f64 {
    let mut registry = registry.clone();
    if registry
        .add_text(&format!("{stem}.toml"), &mutant.text)
        .is_err()
    {
        return f64::INFINITY;
    }
    let mut most = 0.0_f64;
    for subject in subjects {
        most = most.max(subject.moves(&registry));
        if most >= NOTICED {
            return most;
        }
    }
    if subjects.iter().any(|s| s.answers(&registry)) {
        return f64::INFINITY;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_is_dropped_and_changed() {
        let table: Table =
            "names = ['x']\n[rope]\ntheta = 2.0\npairing = 'halves'\n[[steps]]\nrun = ['ffn']\n"
                .parse()
                .unwrap();
        let other: Table = "[rope]\npairing = 'adjacent'\n".parse().unwrap();
        let all = mutants(&table, &Vocabulary::of([&table, &other]));
        let named = |field: &str| all.iter().filter(|m| m.field == field).count();
        assert_eq!(named("rope.theta"), 2);
        assert_eq!(named("rope.pairing"), 2);
        assert_eq!(named("steps.0.run.0"), 1);
        assert_eq!(named("names.0"), 0);
        assert!(
            all.iter()
                .any(|m| m.text.contains("pairing = \"adjacent\""))
        );
    }
}
