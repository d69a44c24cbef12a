//! `perplexity`: how well a model predicts a text, alone or beside a base run.

mod base;
mod report;

use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::perplexity::{Divergence, PackedRow, Scorer, Sums, surprise};
use tokkata::{Checkpoint, DType, EncodeOptions, Model};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, PromptArgs, ThreadArgs, usage};
use crate::load;
use base::{BaseHeader, BaseReader, BaseWriter};

/// Context of a chunk unless one was asked for, as in llama.cpp's tool.
const DEFAULT_CTX: NonZeroU32 = NonZeroU32::new(512).expect("512 is not 0");
/// The shortest context that leaves something to score.
const LEAST_CTX: u32 = 4;

/// Flags of `perplexity`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::PERPLEXITY)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens of a chunk [default: 512]
    #[arg(short, long = "ctx-size", value_name = "N")]
    ctx: Option<NonZeroU32>,
    /// Score at most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Save this run's predictions; with --kl-divergence, compare with those saved
    #[arg(long, visible_alias = "save-all-logits", value_name = "FILE")]
    kl_divergence_base: Option<PathBuf>,
    /// Compare with the predictions of --kl-divergence-base; the text is taken from there
    #[arg(long, requires = "kl_divergence_base")]
    kl_divergence: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    match &args.kl_divergence_base {
        Some(base) if args.kl_divergence => compare(args, checkpoint, BaseReader::open(base)?),
        _ => score(args, checkpoint),
    }
}

/// Loads the model for chunks of `ctx` tokens.
fn model(args: &PerplexityArgs, checkpoint: Checkpoint, ctx: u32) -> Result<Model> {
    let mut options = args.device.options(&args.model, DType::F16)?;
    options.threads = args.threads.count();
    options.ctx = NonZeroU32::new(ctx);
    options.rows = options.rows.min(ctx);
    options.logit_rows = options.rows.min(256);
    options.no_prefix_cache = true;
    load::load(checkpoint, &options)
}

fn text(args: &PerplexityArgs, checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    let texts = args.prompt.read(&[])?;
    let [text] = texts.as_slice() else {
        return Err(usage("give one text with -f or -p"));
    };
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let ids = checkpoint.tokenizer()?.encode_bytes(text, options);
    ids.map_err(|e| anyhow!("{}: the text: {e}", checkpoint.path().display()))
}

fn score(args: &PerplexityArgs, checkpoint: Checkpoint) -> Result<()> {
    let ctx = args.ctx.unwrap_or(DEFAULT_CTX).get();
    if ctx < LEAST_CTX {
        return Err(usage(format!(
            "found {ctx}, expected at least {LEAST_CTX} for -c"
        )));
    }
    let ids = text(args, &checkpoint)?;
    let length = ctx as usize;
    if ids.len() < 2 * length {
        let (found, least) = (ids.len(), 2 * length);
        return Err(anyhow!(
            "found a text of {found} tokens, expected at least {least}; use a longer text or a smaller context (-c)"
        ));
    }
    let count = args.chunks.unwrap_or(usize::MAX).min(ids.len() / length);
    let ids = &ids[..count * length];
    let mut model = model(args, checkpoint, ctx)?;
    let mut scorer = Scorer::new(&mut model, length)?;
    let base = args.kl_divergence_base.as_ref();
    let header = BaseHeader::new(ctx, scorer.n_vocab(), ids);
    let mut base = base
        .map(|path| BaseWriter::create(path, &header))
        .transpose()?;
    let mut sums = Sums::default();
    for (i, chunk) in ids.chunks(length).enumerate() {
        score_chunk(&mut scorer, chunk, &mut sums, base.as_mut())?;
        print!("[{}]{:.4},", i + 1, sums.exponential().mean);
        std::io::stdout().flush()?;
    }
    base.map(BaseWriter::finish).transpose()?;
    let total = sums.exponential();
    let mut out = std::io::stdout();
    writeln!(out)?;
    writeln!(
        out,
        "Final estimate: PPL = {:.4} +/- {:.5}",
        total.mean, total.error
    )?;
    Ok(())
}

fn score_chunk(
    scorer: &mut Scorer<'_>,
    chunk: &[u32],
    sums: &mut Sums,
    base: Option<&mut BaseWriter>,
) -> Result<()> {
    let mut rows = Vec::new();
    scorer.chunk(chunk, |logits, next| {
        sums.add(surprise(logits, next));
        if base.is_some() {
            rows.push(PackedRow::pack(logits));
        }
    })?;
    match base {
        Some(base) => rows.iter().try_for_each(|row| base.write(row)),
        None => Ok(()),
    }
}

fn compare(args: &PerplexityArgs, checkpoint: Checkpoint, mut base: BaseReader) -> Result<()> {
    let header = base.header().clone();
    if args.ctx.is_some_and(|ctx| ctx.get() < header.ctx) {
        let ctx = header.ctx;
        return Err(usage(format!(
            "the base run had {ctx} tokens of context, expected no less for -c"
        )));
    }
    let mut model = model(args, checkpoint, header.ctx)?;
    let mut scorer = Scorer::new(&mut model, header.ctx as usize)?;
    base.expect_vocab(scorer.n_vocab())?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", report::HEAD)?;
    let mut all = Divergence::default();
    let chunks = header.tokens.chunks(header.ctx as usize);
    for (i, chunk) in chunks.take(args.chunks.unwrap_or(usize::MAX)).enumerate() {
        let rows: Result<Vec<PackedRow>> = (0..scorer.scored()).map(|_| base.row()).collect();
        let mut rows = rows?.into_iter();
        scorer.chunk(chunk, |logits, next| {
            if let Some(row) = rows.next() {
                all.add(logits, &row, next);
            }
        })?;
        writeln!(out, "{}", report::line(i + 1, &all))?;
    }
    write!(out, "{}", report::summary(&mut all))?;
    Ok(())
}
