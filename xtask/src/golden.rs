//! `cargo xtask golden [OPTIONS] [NAME…]`: writes goldens with llama.cpp as the oracle.
//!
//! Metadata and shapes come from the goldens that exist, or with `--import FOLDER` from GGUF files; weights are always
//! those of the conformance suite's generator. `--as NEW --set 'u32 key=8' --unset key` makes a variant of one golden,
//! `--rows KIND` says what is asked of the oracle, `--drop PATTERN` leaves tensors out, `--add 'blk.0-3.x.weight=[8,8]'`
//! adds some, `--heads N` puts N multi-token-prediction heads behind the last layer, `--exact` asks an oracle that computes GELU instead of reading it from a table of halves, and
//! `--variants` makes everything that `data/variants.toml` lists. `--absent` asks the oracle which tensors a golden can
//! do without and changes nothing else; `--adapter` keeps its rows through an adapter. The oracle lives outside the repository, in
//! `$ORACLE` or `~/.cache/tokkata-oracle`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use tokkata_archs::Registry;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::adapters;
use tokkata_conformance::golden::{
    AGREES, Golden, Rows, Selected, absent, entry, sample, selection, tensors,
};
use tokkata_conformance::models::nmse;
use tokkata_core::{Array, Metadata, Value};
use tokkata_formats::ModelFile;

use crate::oracle::{ORACLE, Oracle};

const VARIANTS: &str = include_str!("../../crates/conformance/data/variants.toml");
const POSITIONS: usize = 32;
/// Lists that heads do not lengthen.
const OF_THE_TRUNK: [&str; 2] = ["rope.dimension_sections", "attention.indexer.types"];
/// Most values that a golden keeps.
const MOST: usize = 10_000;

/// What the command line asks for.
#[derive(Default)]
struct Options {
    import: Option<PathBuf>,
    rename: Option<String>,
    rows: Option<Rows>,
    heads: Option<u32>,
    set: Vec<String>,
    unset: Vec<String>,
    drop: Vec<String>,
    add: Vec<String>,
    exact: bool,
    variants: bool,
    absent: bool,
    adapter: bool,
    names: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .cloned()
                    .with_context(|| format!("{arg} needs a value"))
            };
            match arg.as_str() {
                "--import" => options.import = Some(PathBuf::from(value()?)),
                "--as" => options.rename = Some(value()?),
                "--rows" => options.rows = Some(rows(&value()?)?),
                "--heads" => options.heads = Some(value()?.parse().context("--heads")?),
                "--set" => options.set.push(value()?),
                "--unset" => options.unset.push(value()?),
                "--drop" => options.drop.push(value()?),
                "--add" => options.add.push(value()?),
                "--exact" => options.exact = true,
                "--absent" => options.absent = true,
                "--adapter" => options.adapter = true,
                "--variants" => options.variants = true,
                name => options.names.push(name.to_owned()),
            }
        }
        ensure!(
            options.rename.is_none() || options.names.len() == 1,
            "--as takes one golden"
        );
        Ok(options)
    }

    /// One per variant with `--variants`, of which names select some.
    fn spread(self) -> Result<Vec<Self>> {
        if !self.variants {
            return Ok(vec![self]);
        }
        let table: toml::Table = VARIANTS.parse()?;
        let mut all = Vec::new();
        for (name, line) in &table {
            let line = line
                .as_str()
                .with_context(|| format!("{name} is no text"))?;
            let wanted = |o: &Options| {
                self.names.is_empty() || o.rename.iter().any(|n| self.names.contains(n))
            };
            all.extend(Options::variants(name, line)?.into_iter().filter(wanted));
        }
        Ok(all)
    }

    fn wants(&self, golden: &Golden) -> bool {
        self.names.is_empty() || self.names.contains(&golden.name)
    }

    /// The golden as it is asked for.
    fn apply(&self, mut golden: Golden) -> Result<Golden> {
        golden.name = self.rename.clone().unwrap_or(golden.name);
        golden.rows = self.rows.unwrap_or(golden.rows);
        if let Some(count) = self.heads {
            add_heads(&mut golden, count)?;
        }
        golden
            .tensors
            .retain(|t| !self.drop.iter().any(|d| fits(d, &t.0)));
        for key in &self.unset {
            golden.unset(key);
        }
        for set in &self.set {
            let (key, value) = assignment(set)?;
            let (key, value) = entry(key, value).map_err(|e| anyhow!(e))?;
            golden.metadata.insert(key, value);
        }
        for add in &self.add {
            let (name, shape) = assignment(add)?;
            let added = tensors(name, shape).map_err(|e| anyhow!(e))?;
            golden.tensors.retain(|t| added.iter().all(|a| a.0 != t.0));
            golden.tensors.extend(added);
        }
        Ok(golden)
    }

    /// What a line of the list of variants asks for: its bases, divided by commas, and options as on the command line.
    /// `~` stands for a space and `@` for the base's architecture; a name `*+x` stands for one of each base.
    fn variants(name: &str, line: &str) -> Result<Vec<Self>> {
        let (bases, rest) = line.split_once(' ').unwrap_or((line, ""));
        let one = |base: &str| {
            let arch = base.split('+').next().unwrap_or(base);
            let words = rest.replace('@', arch);
            let words = words.split_whitespace().map(|w| w.replace('~', " "));
            let mut options = Options::parse(&words.collect::<Vec<_>>())?;
            options.rename = Some(name.replace('*', base));
            options.names = vec![base.to_owned()];
            Ok(options)
        };
        bases.split(',').map(one).collect()
    }
}

/// Puts so many multi-token-prediction heads behind the trunk, each with tensors as the last layer has them, and asks for
/// their rows.
fn add_heads(golden: &mut Golden, count: u32) -> Result<()> {
    let arch = golden.arch().to_owned();
    let number = |key: &str| {
        let value = golden.metadata.uint(&format!("{arch}.{key}"));
        value.with_context(|| format!("{} has no {key}", golden.name))
    };
    let layers = number("block_count")? as u32;
    let d = number("embedding_length")? as usize;
    let last = format!("blk.{}.", layers - 1);
    let copied: Vec<_> = (golden.tensors.iter())
        .filter_map(|(name, shape)| Some((name.strip_prefix(&last)?.to_owned(), shape.clone())))
        .collect();
    for layer in layers..layers + count {
        let own = |part: &str| format!("blk.{layer}.{part}");
        let copies = copied
            .iter()
            .map(|(part, shape)| (own(part), shape.clone()));
        golden.tensors.extend(copies);
        golden
            .tensors
            .push((own("nextn.eh_proj.weight"), vec![d, 2 * d]));
        for norm in ["enorm", "hnorm", "shared_head_norm"] {
            golden
                .tensors
                .push((own(&format!("nextn.{norm}.weight")), vec![d]));
        }
    }
    let longer = |(key, value): (&str, &Value)| {
        let Value::Array(array) = value else {
            return None;
        };
        if OF_THE_TRUNK.iter().any(|list| key.ends_with(list)) {
            return None;
        }
        let longer = lengthened(array, layers as usize, count as usize)?;
        Some((key.to_owned(), Value::Array(longer)))
    };
    let longer: Vec<_> = golden.metadata.iter().filter_map(longer).collect();
    for (key, value) in longer {
        golden.metadata.insert(key, value);
    }
    golden
        .metadata
        .insert(format!("{arch}.block_count"), Value::U32(layers + count));
    golden
        .metadata
        .insert(format!("{arch}.nextn_predict_layers"), Value::U32(count));
    golden.rows = Rows::Heads;
    Ok(())
}

/// A list of one element for each layer with those of more layers, which are as the last one.
fn lengthened(array: &Array, layers: usize, more: usize) -> Option<Array> {
    fn with<T: Clone>(list: &[T], more: usize) -> Vec<T> {
        let last = list.last().cloned();
        let more = last.into_iter().cycle().take(more);
        list.iter().cloned().chain(more).collect()
    }
    let per_layer = array.len() == layers;
    per_layer.then(|| match array {
        Array::U32(list) => Some(Array::U32(with(list, more))),
        Array::I32(list) => Some(Array::I32(with(list, more))),
        Array::F32(list) => Some(Array::F32(with(list, more))),
        Array::Bool(list) => Some(Array::Bool(with(list, more))),
        _ => None,
    })?
}

/// The two sides of `key=value`.
fn assignment(text: &str) -> Result<(&str, &str)> {
    text.split_once('=')
        .with_context(|| format!("no = in {text}"))
}

/// Whether a name fits a pattern in which `*` stands for any run of characters.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or("")) else {
        return false;
    };
    for part in parts {
        match rest.find(part) {
            Some(at) if !part.is_empty() => rest = &rest[at + part.len()..],
            Some(_) => rest = "",
            None => return false,
        }
    }
    rest.is_empty()
}

fn rows(name: &str) -> Result<Rows> {
    let found = Rows::ALL.iter().find(|r| r.1 == name);
    Ok(found
        .with_context(|| format!("no rows are called {name}"))?
        .0)
}

/// Runs the command.
///
/// # Errors
/// An oracle that is absent or fails, folders that cannot be read or written.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let goldens = match &options.import {
        Some(folder) => import(folder)?,
        None => stored()?,
    };
    let mut failures = 0;
    for options in options.spread()? {
        let oracle = Oracle::open(options.exact)?;
        for golden in goldens.iter().filter(|g| options.wants(g)) {
            let golden = options.apply(golden.clone())?;
            let name = golden.name.clone();
            let done = match (options.absent, options.adapter) {
                (true, _) => ask_absent(&oracle, golden),
                (_, true) => ask_adapted(&oracle, golden),
                _ => refresh(&oracle, golden),
            };
            match done {
                Ok(text) => println!("{name:<24} {text}"),
                Err(e) => {
                    failures += 1;
                    println!("{name:<24} failed: {e:#}");
                }
            }
        }
    }
    ensure!(failures == 0, "{failures} failed");
    Ok(())
}

fn stored() -> Result<Vec<Golden>> {
    let folder = Golden::folder();
    let names = Golden::list(&folder).map_err(|e| anyhow!(e))?;
    let read = |name: &String| Golden::read(&folder, name).map_err(|e| anyhow!(e));
    names.iter().map(read).collect()
}

/// Asks the oracle and writes the golden; unset keys are dropped where the oracle does not notice.
fn refresh(oracle: &Oracle, mut golden: Golden) -> Result<String> {
    golden.stride = 1;
    let full = oracle.rows(&golden)?;
    let pruned = Golden {
        metadata: without_unset(&golden.metadata),
        ..golden.clone()
    };
    if oracle.rows(&pruned).is_ok_and(|rows| rows == full) {
        golden = pruned;
    }
    ensure!(!full.iter().any(|v| v.is_nan()), "the oracle gives NaN");
    let rows = match golden.rows {
        Rows::Decoder => golden.decoder_ids().len(),
        _ => golden.positions,
    };
    let width = full.len() / rows;
    golden.stride = full.len().div_ceil(MOST);
    golden.want = sample(&full, width, golden.stride);
    golden.selections = selections(oracle, &golden)?;
    keep_answers(&mut golden);
    golden.oracle = oracle.title();
    golden.write(&Golden::folder()).map_err(|e| anyhow!(e))?;
    let rms = (full
        .iter()
        .filter(|v| v.is_finite())
        .map(|v| v * v)
        .sum::<f32>()
        / full.len() as f32)
        .sqrt();
    Ok(format!(
        "{rows} × {width}, every {}th, rms {rms:.2}",
        golden.stride
    ))
}

/// What indexers choose by the oracle's scores, where a descriptor knows the model.
fn selections(oracle: &Oracle, golden: &Golden) -> Result<Vec<Selected>> {
    let registry = Registry::builtin();
    let known = selection::found(golden, &registry, &RefBackend::default());
    match known {
        Ok(chosen) if !chosen.is_empty() => {
            let nodes = oracle.nodes(golden)?;
            selection::recorded(golden, &registry, &nodes).map_err(|e| anyhow!(e))
        }
        _ => Ok(Vec::new()),
    }
}

/// Takes over what others said about the golden of this name, if its rows are the same as before.
fn keep_answers(golden: &mut Golden) {
    let old = Golden::read(&Golden::folder(), &golden.name).ok();
    let old = old.filter(|old| nmse(&old.want, &golden.want) <= AGREES);
    golden.second = old.as_ref().and_then(|old| old.second.clone());
    golden.optional = old.as_ref().and_then(|old| old.optional.clone());
    golden.adapted = old
        .as_ref()
        .map(|old| old.adapted.clone())
        .unwrap_or_default();
    golden.also = old.map(|old| old.also).unwrap_or_default();
}

/// Finds out which tensors the oracle can do without.
fn ask_absent(oracle: &Oracle, mut golden: Golden) -> Result<String> {
    let mut optional = absent::classes(&golden);
    optional.retain(|class| oracle.rows(&absent::without(&golden, class)).is_ok());
    for (title, form) in absent::forms(&golden) {
        if oracle.rows(&form).is_ok() {
            optional.push(title);
        }
    }
    let text = optional.join(" ");
    golden.optional = Some(optional);
    golden.write(&Golden::folder()).map_err(|e| anyhow!(e))?;
    Ok(text)
}

/// Keeps what the oracle's rows are through the golden's adapter.
fn ask_adapted(oracle: &Oracle, mut golden: Golden) -> Result<String> {
    let adapter = adapters::first(&golden, &Registry::builtin(), &RefBackend::default());
    let adapter = adapter.map_err(|e| anyhow!(e))?;
    let bytes = adapter.gguf().map_err(|e| anyhow!(e))?;
    let (count, full) = (adapter.tensors.len(), oracle.adapted(&golden, &bytes)?);
    golden.adapted = sample(&full, full.len() / golden.positions, golden.stride);
    let moved = nmse(&golden.adapted, &golden.want);
    golden.write(&Golden::folder()).map_err(|e| anyhow!(e))?;
    Ok(format!("{count} tensors, moved {moved:.1e}"))
}

/// Metadata and shapes of every GGUF file of a folder.
fn import(folder: &Path) -> Result<Vec<Golden>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "gguf") {
            paths.push(path);
        }
    }
    paths.sort();
    let stems: Vec<String> = paths.iter().map(|p| stem(p)).collect();
    let named = paths
        .iter()
        .map(|path| describe(path, &name(&stem(path), &stems)));
    named.collect()
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// `llama` of `llama-dense`, `llama+moe` of `llama-moe`, `mixtral` of a `mixtral-moe` that has no dense sibling.
fn name(stem: &str, all: &[String]) -> String {
    if let Some(arch) = stem.strip_suffix("-dense") {
        return arch.to_owned();
    }
    match stem.strip_suffix("-moe") {
        Some(arch) if all.contains(&format!("{arch}-dense")) => format!("{arch}+moe"),
        Some(arch) => arch.to_owned(),
        None => stem.to_owned(),
    }
}

fn describe(path: &Path, name: &str) -> Result<Golden> {
    let file = ModelFile::open(path)?;
    let mut metadata = Metadata::default();
    let layers = file
        .architecture()
        .and_then(|a| file.metadata().uint(&format!("{a}.block_count")));
    for (key, value) in file.metadata().iter() {
        if described(key) {
            metadata.insert(key, shortened(value, layers.unwrap_or(0) as usize));
        }
    }
    let tensors = file
        .tensors()
        .iter()
        .map(|t| (t.name.clone(), t.shape.clone()));
    Ok(Golden {
        name: name.to_owned(),
        oracle: ORACLE.to_owned(),
        rows: Rows::Logits,
        positions: POSITIONS,
        seed: 7,
        metadata,
        tensors: tensors.collect(),
        stride: 1,
        want: Vec::new(),
        second: None,
        adapted: Vec::new(),
        optional: None,
        selections: Vec::new(),
        also: Vec::new(),
    })
}

/// Whether a key says something about the model rather than about its text.
fn described(key: &str) -> bool {
    let text = key.starts_with("tokenizer.") && key != "tokenizer.ggml.token_type_count";
    !text && key != "general.name"
}

/// Lists with an entry per possible layer are cut to the layers that exist.
fn shortened(value: &Value, layers: usize) -> Value {
    match value {
        Value::Array(Array::F32(v)) if v.len() == 512 => {
            Value::Array(Array::F32(v[..layers].to_vec()))
        }
        Value::Array(Array::I32(v)) if v.len() == 512 => {
            Value::Array(Array::I32(v[..layers].to_vec()))
        }
        other => other.clone(),
    }
}

/// Metadata without numbers that say "unset".
fn without_unset(metadata: &Metadata) -> Metadata {
    let mut kept = Metadata::default();
    for (key, value) in metadata.iter() {
        if !unset(value) {
            kept.insert(key, value.clone());
        }
    }
    kept
}

fn unset(value: &Value) -> bool {
    match value {
        Value::U32(v) => *v == 0 || *v == u32::MAX,
        Value::I32(v) => *v == -1,
        Value::F32(v) => *v == 0.0 || v.is_infinite(),
        Value::Array(Array::F32(v)) => v.iter().all(|v| *v == 0.0),
        Value::Array(Array::I32(v)) => v.iter().all(|v| *v <= 0),
        Value::Array(a) => a.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_runs_of_characters() {
        assert!(fits("*.bias", "blk.0.attn_q.bias"));
        assert!(fits("blk.*.attn_q.*", "blk.0.attn_q.bias"));
        assert!(fits("output.weight", "output.weight"));
        assert!(!fits("output", "output.weight"));
        assert!(!fits("*.bias", "blk.0.attn_q.weight"));
    }
}
