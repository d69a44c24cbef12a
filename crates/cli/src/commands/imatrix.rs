//! `imatrix`: how strongly a text uses each column of a model's weights.

mod statistics;

use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use tokkata::importance::{Collected, Collector, Importance};
use tokkata::perplexity::{Scorer, Sums, surprise};
use tokkata::{Checkpoint, DType, EncodeOptions, Model};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, PromptArgs, ThreadArgs, usage};
use crate::interrupt::Interrupt;
use crate::load;

/// The shortest chunk that leaves something to score.
const LEAST_CTX: u32 = 4;

/// How to write an importance matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// GGUF
    Gguf,
    /// What llama.cpp wrote before
    Dat,
}

/// Flags of `imatrix`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::IMATRIX)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The file to write
    #[arg(
        short,
        long,
        visible_alias = "output-file",
        value_name = "FILE",
        default_value = "imatrix.gguf"
    )]
    output: PathBuf,
    /// Its format
    #[arg(long, value_enum, default_value_t = OutputFormat::Gguf)]
    output_format: OutputFormat,
    /// Write it every N chunks, too
    #[arg(long, visible_alias = "ofreq", value_name = "N", default_value = "10")]
    output_frequency: NonZeroU32,
    /// Keep a copy of what there is every N chunks, named FILE.at_N; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    save_frequency: u32,
    /// Start from this importance matrix; given again, from all of them. Without a text they are only combined
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    in_file: Vec<PathBuf>,
    /// Measure the output matrix, too
    #[arg(long)]
    process_output: bool,
    /// Do not compute the perplexity
    #[arg(long, overrides_with = "ppl")]
    no_ppl: bool,
    /// Compute the perplexity, the default
    #[arg(long, hide = true)]
    ppl: bool,
    /// Skip so many chunks
    #[arg(
        long,
        visible_alias = "from-chunk",
        value_name = "N",
        default_value_t = 0
    )]
    chunk: usize,
    /// Read at most so many chunks; -1 for all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    chunks: i64,
    /// Tokens of a chunk
    #[arg(short, long = "ctx-size", value_name = "N", default_value = "512")]
    ctx: NonZeroU32,
    /// Rows of a step; more need more memory
    #[arg(long, value_name = "N", default_value = "128")]
    ubatch_size: NonZeroU32,
    /// Take special tokens in the text for what they are
    #[arg(long)]
    parse_special: bool,
    /// Only show what the importance matrix of --in-file says
    #[arg(long)]
    show_statistics: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &ImatrixArgs) -> Result<()> {
    if args.show_statistics {
        let [file] = args.in_file.as_slice() else {
            return Err(usage("give one importance matrix with --in-file"));
        };
        return statistics::show(&Importance::read(file)?);
    }
    let mut importance = Importance::default();
    for file in &args.in_file {
        let name = file.display().to_string();
        importance.merge(Importance::read(file)?, &name, args.ctx.get())?;
    }
    let texts = args.prompt.read(&[])?;
    match texts.as_slice() {
        [] if args.in_file.is_empty() => Err(usage("give a text with -f, or --in-file")),
        [] => save(args, &importance, &args.output),
        [text] => collect(args, importance, text),
        _ => Err(usage("give one text with -f or -p")),
    }
}

fn collect(args: &ImatrixArgs, mut importance: Importance, text: &[u8]) -> Result<()> {
    if args.ctx.get() < LEAST_CTX {
        let found = args.ctx;
        return Err(usage(format!(
            "found {found}, expected at least {LEAST_CTX} for -c"
        )));
    }
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let ids = tokens(args, &checkpoint, text)?;
    // Such models see a chunk as a whole, and predict no next token.
    let both_ways = checkpoint.spec(args.ctx.get())?.bidirectional;
    let rows = if both_ways {
        args.ctx
    } else {
        args.ubatch_size.min(args.ctx)
    };
    let scored = !args.no_ppl && !both_ways;
    let mut model = model(args, checkpoint, rows)?;
    let collected = if args.process_output {
        Collected::LayersAndOutput
    } else {
        Collected::Layers
    };
    let mut collector = Collector::new(model.program(), collected);
    importance.datasets.extend(args.prompt.name());
    collector.importance = importance;
    let mut scorer = Scorer::new(&mut model, args.ctx.get() as usize)?;
    if args.process_output {
        scorer = scorer.with_all_logits();
    }
    let sums = read(
        args,
        &ids,
        scored.then_some(Sums::default()),
        (&mut scorer, &mut collector),
    )?;
    save(args, &collector.importance, &args.output)?;
    if let Some(sums) = sums {
        let total = sums.exponential();
        let (mean, error) = (total.mean, total.error);
        let mut out = std::io::stdout();
        writeln!(out, "\nFinal estimate: PPL = {mean:.4} +/- {error:.5}")?;
    }
    Ok(())
}

/// The tokens of all chunks.
fn tokens(args: &ImatrixArgs, checkpoint: &Checkpoint, text: &[u8]) -> Result<Vec<u32>> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: args.parse_special,
    };
    let ids = checkpoint.tokenizer()?.encode_bytes(text, options);
    let ids = ids.map_err(|e| anyhow!("{}: the text: {e}", checkpoint.path().display()))?;
    let ctx = args.ctx.get() as usize;
    let skipped = args.chunk.saturating_mul(ctx).min(ids.len());
    let ids = &ids[skipped..];
    if ids.len() < 2 * ctx {
        let (found, least) = (ids.len(), 2 * ctx);
        return Err(anyhow!(
            "found a text of {found} tokens, expected at least {least}; use a longer text or a smaller context (-c)"
        ));
    }
    let most = usize::try_from(args.chunks).unwrap_or(usize::MAX);
    Ok(ids[..most.min(ids.len() / ctx) * ctx].to_vec())
}

fn model(args: &ImatrixArgs, checkpoint: Checkpoint, rows: NonZeroU32) -> Result<Model> {
    let mut options = args.device.options(&args.model, DType::F16)?;
    options.threads = args.threads.count();
    options.ctx = Some(args.ctx);
    options.rows = rows.get();
    options.logit_rows = options.rows;
    options.no_prefix_cache = true;
    options.product_inputs = true;
    load::load(checkpoint, &options)
}

/// Reads chunk by chunk, saving now and then; scores them into `sums`, if there are any.
fn read(
    args: &ImatrixArgs,
    ids: &[u32],
    mut sums: Option<Sums>,
    (scorer, collector): (&mut Scorer<'_>, &mut Collector),
) -> Result<Option<Sums>> {
    let (interrupt, ctx) = (Interrupt::catch(), args.ctx.get());
    for (i, chunk) in ids.chunks(ctx as usize).enumerate() {
        match &mut sums {
            None => scorer.unscored(chunk, collector)?,
            Some(sums) => {
                scorer.watched(chunk, collector, |logits, next| {
                    sums.add(surprise(logits, next));
                })?;
                print!("[{}]{:.4},", i + 1, sums.exponential().mean);
                std::io::stdout().flush()?;
            }
        }
        let before = collector.importance.chunks;
        collector.importance.count_chunks(ctx);
        save_between(args, &collector.importance, before)?;
        if interrupt.check().is_break() {
            return Err(anyhow!("stopped after {} chunks", i + 1));
        }
    }
    Ok(sums)
}

/// Saves when a multiple of one of the frequencies was passed since there were `before` chunks.
fn save_between(args: &ImatrixArgs, importance: &Importance, before: u32) -> Result<()> {
    let due = |every: u32| every > 0 && importance.chunks / every > before / every;
    if due(args.output_frequency.get()) {
        save(args, importance, &args.output)?;
    }
    if due(args.save_frequency) {
        let mut copy = args.output.clone().into_os_string();
        copy.push(format!(".at_{}", importance.chunks));
        save(args, importance, Path::new(&copy))?;
    }
    Ok(())
}

fn save(args: &ImatrixArgs, importance: &Importance, path: &Path) -> Result<()> {
    match args.output_format {
        OutputFormat::Gguf => importance.write(path).map(drop)?,
        OutputFormat::Dat => importance.write_old(path)?,
    }
    Ok(())
}
