//! `inspect`: what a model file holds. Reads the header only.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroU32;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value as Json, json};
use tokkata::memory::MemoryNeed;
use tokkata::weights::FileWeights;
use tokkata::{Array, BuildOptions, Bytes, Checkpoint, OpenOptions, Value};

use super::examples;
use crate::args::ModelArgs;
use crate::load;

/// Elements of an array that are shown.
const SHOWN: usize = 6;
/// Characters of a text that are shown.
const SHOWN_CHARS: usize = 80;

/// Flags of `inspect`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::INSPECT)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Show texts and arrays whole
    #[arg(long)]
    full: bool,
    /// Tokens of context to tell the memory for [default: the model's, at most 4096]
    #[arg(short, long = "ctx-size", value_name = "N")]
    ctx: Option<NonZeroU32>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people.
    Text,
    /// One object.
    Json,
}

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.output {
        Format::Text => text(&checkpoint, args, &mut out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &object(&checkpoint, args))
                .map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

fn text(checkpoint: &Checkpoint, args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    let file = checkpoint.file();
    let line = |name: &str, value: String| format!("{name:<14} {value}");
    for part in file.part_names() {
        writeln!(out, "{}", line("file", part.to_owned()))?;
    }
    writeln!(
        out,
        "{}",
        line("size", Bytes(file.size_bytes()).to_string())
    )?;
    writeln!(
        out,
        "{}",
        line(
            "architecture",
            file.architecture().unwrap_or("none").to_owned()
        )
    )?;
    writeln!(out, "{}", line("runs", runs(checkpoint)))?;
    writeln!(
        out,
        "{}",
        line("parameters", checkpoint.n_params().to_string())
    )?;
    let bits = format!("{:.2}", bits_per_weight(checkpoint));
    writeln!(out, "{}", line("bits/weight", bits))?;
    if let Some((ctx, need)) = memory(checkpoint, args) {
        writeln!(out, "{}", line("memory", told(ctx, need)))?;
    }
    writeln!(out, "{}", line("tokenizer", tokenizer(checkpoint)))?;
    writeln!(out, "{}", line("tensors", file.tensors().len().to_string()))?;
    for (dtype, (count, bytes)) in types(checkpoint) {
        writeln!(out, "  {dtype:<8} {count:>5}  {}", Bytes(bytes))?;
    }
    let metadata = checkpoint.metadata();
    writeln!(out, "metadata       {}", metadata.len())?;
    let unread = checkpoint.unread_keys();
    for (key, value) in metadata.iter() {
        let note = if unread.contains(&key) {
            "  (not read)"
        } else {
            ""
        };
        writeln!(out, "  {key} = {}{note}", shown(value, args.full))?;
    }
    if args.tensors {
        for t in file.tensors() {
            writeln!(out, "  {:<40} {:<8} {:?}", t.name, t.dtype.name(), t.shape)?;
        }
        for p in file.packed() {
            let kept = p.kept.name();
            writeln!(
                out,
                "  {:<40} {kept:<8} {:?} {:?}",
                p.name, p.shape, p.scheme
            )?;
        }
    }
    Ok(())
}

/// Whether the model can be run, or why not.
fn runs(checkpoint: &Checkpoint) -> String {
    let ctx = checkpoint.trained_ctx().unwrap_or(1);
    match checkpoint.spec(ctx) {
        Ok(spec) => format!(
            "yes, {} layers, trained for {} tokens",
            spec.main.layers.len(),
            spec.n_ctx_train
        ),
        Err(error) => format!("no: {error}"),
    }
}

fn tokenizer(checkpoint: &Checkpoint) -> String {
    match checkpoint.tokenizer() {
        Ok(tokenizer) => format!("{} tokens", tokenizer.vocab_size()),
        Err(error) => format!("none: {error}"),
    }
}

/// Bits of tensors per element.
fn bits_per_weight(checkpoint: &Checkpoint) -> f64 {
    let file = checkpoint.file();
    let plain = file.tensors().iter().map(|t| t.bytes);
    let packed = file.packed().iter().map(tokkata::PackedWeight::bytes);
    let bytes: u64 = plain.chain(packed).sum();
    bytes as f64 * 8.0 / checkpoint.n_params().max(1) as f64
}

/// A context and what one sequence of it needs, if the model can be run.
fn memory(checkpoint: &Checkpoint, args: &InspectArgs) -> Option<(u32, MemoryNeed)> {
    let options = OpenOptions {
        ctx: args.ctx,
        ..OpenOptions::default()
    };
    let limits = options.limits_of(checkpoint).ok()?;
    let program = checkpoint.program(&limits, &BuildOptions::default()).ok()?;
    let weights = FileWeights::new(checkpoint.file(), None);
    Some((limits.ctx, MemoryNeed::of(&program, &weights)))
}

fn told(ctx: u32, need: MemoryNeed) -> String {
    format!(
        "{} for {ctx} tokens: weights {}, cache {} in F16",
        Bytes(need.total()),
        Bytes(need.weights),
        Bytes(need.caches)
    )
}

fn types(checkpoint: &Checkpoint) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
    for t in checkpoint.file().tensors() {
        let entry = types.entry(t.dtype.name()).or_default();
        entry.0 += 1;
        entry.1 += t.bytes;
    }
    for p in checkpoint.file().packed() {
        let entry = types.entry("packed").or_default();
        entry.0 += 1;
        entry.1 += p.bytes();
    }
    types
}

fn object(checkpoint: &Checkpoint, args: &InspectArgs) -> Json {
    let file = checkpoint.file();
    let metadata: Map<String, Json> = file
        .metadata()
        .iter()
        .map(|(k, v)| (k.to_owned(), json_of(v, args.full)))
        .collect();
    let types: Map<String, Json> = types(checkpoint)
        .into_iter()
        .map(|(t, (count, bytes))| (t.to_owned(), json!({"tensors": count, "bytes": bytes})))
        .collect();
    let tensors: Vec<Json> = file
        .tensors()
        .iter()
        .map(
            |t| json!({"name": t.name, "type": t.dtype.name(), "shape": t.shape, "bytes": t.bytes}),
        )
        .collect();
    let memory = memory(checkpoint, args).map(|(ctx, need)| {
        json!({
            "ctx": ctx,
            "weights_bytes": need.weights,
            "cache_bytes": need.caches,
            "logits_bytes": need.logits,
            "total_bytes": need.total(),
        })
    });
    json!({
        "files": file.part_names().collect::<Vec<_>>(),
        "size_bytes": file.size_bytes(),
        "architecture": file.architecture(),
        "runs": runs(checkpoint),
        "parameters": checkpoint.n_params(),
        "bits_per_weight": bits_per_weight(checkpoint),
        "memory": memory,
        "tokenizer": tokenizer(checkpoint),
        "types": types,
        "metadata": metadata,
        "unread_metadata": checkpoint.unread_keys(),
        "tensors": tensors,
    })
}

/// A value as one line of text.
fn shown(value: &Value, full: bool) -> String {
    match json_of(value, full) {
        Json::Array(items) => {
            let rest = match value {
                Value::Array(array) if array.len() > items.len() => {
                    format!(", … {} in all", array.len())
                }
                _ => String::new(),
            };
            let items: Vec<String> = items.iter().map(Json::to_string).collect();
            format!("[{}{rest}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

fn json_of(value: &Value, full: bool) -> Json {
    match value {
        Value::Array(array) => {
            let n = if full {
                array.len()
            } else {
                array.len().min(SHOWN)
            };
            Json::Array(
                (0..n)
                    .filter_map(|i| Array::get(array, i))
                    .map(|v| json_of(&v, full))
                    .collect(),
            )
        }
        Value::Str(text) => Json::String(cut(&text.to_string(), full)),
        Value::Bool(b) => Json::Bool(*b),
        Value::F32(x) => short_float(*x),
        Value::F64(x) => json!(x),
        other => other
            .as_int()
            .map_or_else(|| json!(other.as_uint()), |n| json!(n)),
    }
}

/// The shortest decimal of an f32, not that of the f64 nearest to it.
fn short_float(x: f32) -> Json {
    x.to_string()
        .parse::<f64>()
        .map_or(Json::Null, |x| json!(x))
}

fn cut(text: &str, full: bool) -> String {
    if full || text.chars().count() <= SHOWN_CHARS {
        return text.to_owned();
    }
    let head: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{head}…")
}
