//! `quantize`: a model in smaller element types.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tokkata::importance::Importance;
use tokkata::quantize::{Override, Quantization, QuantizeOptions};
use tokkata::{Bytes, DType, MixOptions, ModelFile, Preset};

use super::examples;
use crate::args::{ModelArgs, refuse, threads as threads_of, usage};
use crate::console::say;
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::Bar;

/// Flags of `quantize`. After the model: the file to write (without one it lies beside the model), a type such as q4_k_m
/// or its number, or COPY, and threads (without them as -t says).
#[derive(Debug, Args)]
#[command(after_long_help = examples::QUANTIZE, override_usage = "tokkata quantize [OPTIONS] IN [OUT] TYPE [THREADS]")]
pub(crate) struct QuantizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Importance of columns: an importance matrix of llama.cpp's, of either format
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Use importance only for tensors with this in their name
    #[arg(long, value_name = "NAME", conflicts_with = "exclude_weights")]
    include_weights: Vec<String>,
    /// Use no importance for tensors with this in their name
    #[arg(long, value_name = "NAME")]
    exclude_weights: Vec<String>,
    /// The type of tensors whose name matches; the first that matches counts
    #[arg(long, value_name = "REGEX=TYPE", value_parser = |text: &str| Override::parse(text))]
    tensor_type: Vec<Override>,
    /// Give every tensor the same type
    #[arg(long)]
    pure: bool,
    /// Write as many files as IN has
    #[arg(long)]
    keep_split: bool,
    /// The type of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    output_tensor_type: Option<DType>,
    /// The type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    token_embedding_type: Option<DType>,
    /// Leave the output matrix as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Take tensors that are quantised already, at a loss
    #[arg(long)]
    allow_requantize: bool,
    /// Only show the types and sizes
    #[arg(long)]
    dry_run: bool,
    /// Threads; -1 for the default [default: one per processor]
    #[arg(short, long, value_name = "N", value_parser = threads_of, allow_negative_numbers = true)]
    threads: Option<i64>,
}

/// What the arguments without flags say.
struct Places {
    output: PathBuf,
    preset: Option<&'static Preset>,
    threads: Option<usize>,
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::from_name(text).ok_or_else(|| format!("found '{text}', expected a type such as q8_0"))
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let (input, rest) = args.model.split()?;
    let places = places(args, input, rest)?;
    let file = load::file(input)?;
    let options = options(args, &places)?;
    let plan = Quantization::plan(&file, &options)?;
    if args.dry_run {
        return show(&plan);
    }
    if file
        .part_names()
        .any(|part| same(Path::new(part), &places.output))
    {
        return Err(usage("found IN and OUT to be the same file, expected two"));
    }
    tell_fallbacks(&plan);
    let interrupt = Interrupt::catch();
    let mut bar = Bar::new("quantizing");
    let start = std::time::Instant::now();
    let paths = plan.write(&places.output, |done, total| {
        bar.set(done, total);
        interrupt.check()
    })?;
    drop(bar);
    tell_result(&file, &plan, &paths, start.elapsed().as_secs_f64());
    Ok(())
}

/// Whether both name one file that exists.
fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn places(args: &QuantizeArgs, input: &Path, rest: &[OsString]) -> Result<Places> {
    let Some(first) = rest.first() else {
        return Err(usage("no type was given, expected one such as q4_k_m"));
    };
    if let Some(preset) = preset(first) {
        let name = first.to_string_lossy().to_uppercase();
        let output = input.with_file_name(format!("ggml-model-{name}.gguf"));
        return finish(args, output, preset, &rest[1..]);
    }
    let Some(name) = rest.get(1) else {
        return Err(unknown(first));
    };
    let preset = preset(name).ok_or_else(|| unknown(name))?;
    finish(args, PathBuf::from(first), preset, &rest[2..])
}

fn finish(
    args: &QuantizeArgs,
    output: PathBuf,
    preset: Option<&'static Preset>,
    rest: &[OsString],
) -> Result<Places> {
    let Some((threads, rest)) = rest.split_first() else {
        let threads = args.threads.and_then(|n| usize::try_from(n).ok());
        return Ok(Places {
            output,
            preset,
            threads,
        });
    };
    refuse(rest)?;
    let number = threads_of(&threads.to_string_lossy());
    let number = number.map_err(|e| usage(format!("{e}, as a number of threads")))?;
    let threads = usize::try_from(number).ok();
    Ok(Places {
        output,
        preset,
        threads,
    })
}

/// `Some(None)` means to copy.
fn preset(name: &OsString) -> Option<Option<&'static Preset>> {
    let name = name.to_str()?;
    if name.eq_ignore_ascii_case("copy") {
        return Some(None);
    }
    let by_number = || Preset::from_file_type(name.parse().ok()?);
    Preset::from_name(name).or_else(by_number).map(Some)
}

fn unknown(name: &OsString) -> anyhow::Error {
    let known: Vec<&str> = tokkata::PRESETS.iter().map(|p| p.name).collect();
    usage(format!(
        "found the type '{}', expected COPY or one of {}",
        name.display(),
        known.join(", ")
    ))
}

fn options(args: &QuantizeArgs, places: &Places) -> Result<QuantizeOptions> {
    let threads = places.threads;
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    let importance = args.imatrix.as_ref().map(|path| importance(args, path));
    let mix = MixOptions {
        pure: args.pure,
        has_importance: args.imatrix.is_some(),
        output: args.output_tensor_type,
        embedding: args.token_embedding_type,
        keep_output: args.leave_output_tensor,
        overrides: args.tensor_type.clone(),
    };
    Ok(QuantizeOptions {
        preset: places.preset,
        mix,
        importance: importance.transpose()?,
        keep_split: args.keep_split,
        requantize: args.allow_requantize,
        threads: threads.unwrap_or_else(all),
    })
}

fn importance(args: &QuantizeArgs, path: &Path) -> Result<(Importance, String)> {
    let mut importance = Importance::read(path)?;
    let named = |names: &[String], tensor: &str| names.iter().any(|n| tensor.contains(n.as_str()));
    importance.entries.retain(|tensor, _| {
        let included = args.include_weights.is_empty() || named(&args.include_weights, tensor);
        included && !named(&args.exclude_weights, tensor)
    });
    Ok((importance, path.display().to_string()))
}

fn show(plan: &Quantization<'_>) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for t in plan.tensors() {
        let (from, to) = (t.source.dtype, t.dtype);
        let size = Bytes(t.bytes());
        writeln!(out, "{:<40} {from:>8} -> {to:<8} {size}", t.source.name)?;
    }
    let total = plan
        .tensors()
        .iter()
        .map(tokkata::quantize::Target::bytes)
        .sum();
    writeln!(out, "{}", Bytes(total))?;
    Ok(out.flush()?)
}

fn tell_fallbacks(plan: &Quantization<'_>) {
    let fallen = plan.tensors().iter();
    let fallen: Vec<_> = fallen.filter(|t| t.instead_of.is_some()).collect();
    if let Some(first) = fallen.first() {
        let wanted = first.instead_of.map_or("", DType::name);
        say(&format!(
            "warning: the rows of {} tensors do not fit the blocks wanted; {} becomes {} instead of {wanted}",
            fallen.len(),
            first.source.name,
            first.dtype
        ));
    }
}

fn tell_result(file: &ModelFile, plan: &Quantization<'_>, paths: &[PathBuf], seconds: f64) {
    let elements = file.tensors().iter();
    let elements: usize = elements.map(tokkata::TensorInfo::elements).sum();
    let after: u64 = plan
        .tensors()
        .iter()
        .map(tokkata::quantize::Target::bytes)
        .sum();
    let before: u64 = file.tensors().iter().map(|t| t.bytes).sum();
    let bits = |bytes: u64| bytes as f64 * 8.0 / elements.max(1) as f64;
    let first = paths.first().map(|p| p.display().to_string());
    say(&format!(
        "{}: {} of tensors ({:.2} bits per weight) from {} ({:.2}) in {seconds:.1} s",
        first.unwrap_or_default(),
        Bytes(after),
        bits(after),
        Bytes(before),
        bits(before),
    ));
}
