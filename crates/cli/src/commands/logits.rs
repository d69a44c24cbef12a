//! `logits`: the logits of given tokens, as a safetensors file.

use std::hash::{DefaultHasher, Hasher};
use std::num::NonZeroU32;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::probe::{Probe, ProbeInput};
use tokkata::{
    Checkpoint, DType, EncodeOptions, Model, OpenOptions, SafetensorsOutput, SafetensorsWriter,
    ScorePlan,
};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, PromptArgs, ThreadArgs, refuse, token_ids, usage};
use crate::console::{Wait, say};
use crate::load;

/// Bytes of logits that a step may leave unless a chunk was asked for.
const STEP_BYTES: u64 = 64 << 20;

/// Flags of `logits`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::LOGITS)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The tokens, such as 1,2,3
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
    /// Tokens of the decoder, whose logits are written, where the others are the encoder's
    #[arg(long, value_name = "IDS", value_parser = ids_of)]
    decoder_ids: Option<Ids>,
    /// Also write the logits of so many multi-token-prediction heads, as `draft.0`, `draft.1`…
    #[arg(long, value_name = "N", default_value_t = 0)]
    drafts: usize,
    /// Where to write; one tensor `logits`, f32, [tokens, vocabulary]
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens per step
    #[arg(long, value_name = "N")]
    chunk: Option<NonZeroU32>,
    /// Compute so many copies in every step; the last one's logits are written
    #[arg(long, value_name = "K", default_value = "1")]
    sequences: NonZeroU32,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Tokens of context [default: as many as there are tokens]
    #[arg(short, long = "ctx-size", value_name = "N")]
    ctx: Option<NonZeroU32>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Ids of one flag.
#[derive(Clone, Debug)]
struct Ids(Vec<u32>);

fn ids_of(text: &str) -> Result<Ids, String> {
    match token_ids(text)? {
        ids if ids.is_empty() => Err("found no token, expected at least one".to_owned()),
        ids => Ok(Ids(ids)),
    }
}

pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let ids = ids(args, &checkpoint)?;
    if args.decoder_ids.is_some() || args.drafts > 0 {
        return probe(args, &checkpoint, &ids);
    }
    let options = options(args, ids.len())?;
    let plan = ScorePlan {
        chunk: options.rows as usize / args.sequences.get() as usize,
        copies: args.sequences.get() as usize,
    };
    let mut model = load::load(checkpoint, &options)?;
    let whole = model.is_diffusion();
    if whole && args.chunk.is_some() {
        return Err(usage(
            "a model whose rows see each other takes its tokens whole, without --chunk",
        ));
    }
    let chunk = match args.chunk {
        _ if whole => ids.len(),
        Some(chunk) => chunk.get() as usize,
        None => fitting(&model, plan),
    };
    let plan = ScorePlan { chunk, ..plan };
    score(&mut model, &ids, plan, args)
}

/// Logits of plans that only look at a sequence whole.
fn probe(args: &LogitsArgs, checkpoint: &Checkpoint, ids: &[u32]) -> Result<()> {
    if args.chunk.is_some() || args.sequences.get() > 1 {
        return Err(usage(
            "--decoder-ids and --drafts take a sequence whole, without --chunk and --sequences",
        ));
    }
    let (ids, encoder_ids) = match &args.decoder_ids {
        Some(decoder) => (decoder.0.as_slice(), ids),
        None => (ids, &[][..]),
    };
    let mut options = args.device.options(&args.model, DType::F32)?;
    options.threads = args.threads.count();
    let input = ProbeInput {
        ids,
        encoder_ids,
        drafts: args.drafts,
    };
    let wait = Wait::new("computing logits");
    let probed = Probe::load(checkpoint, &options, input, None)?.run()?;
    drop(wait);
    let mut writer = SafetensorsWriter::new(&args.output, []);
    let shape = [ids.len(), probed.logits.len() / ids.len()];
    writer.declare("logits", DType::F32, &shape)?;
    for number in 0..probed.drafts.len() {
        writer.declare(&format!("draft.{number}"), DType::F32, &shape)?;
    }
    let mut out = writer.create()?;
    for rows in std::iter::once(&probed.logits).chain(&probed.drafts) {
        let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        write(&mut out, &bytes)?;
    }
    out.finish()?;
    Ok(())
}

fn ids(args: &LogitsArgs, checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    let texts = args.prompt.read(&[])?;
    let ids = match (&args.ids, texts.as_slice()) {
        (Some(ids), []) => token_ids(ids).map_err(usage)?,
        (None, [text]) => {
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            let ids = checkpoint.tokenizer()?.encode_bytes(text, options);
            ids.map_err(|e| anyhow!("{}: the prompt: {e}", checkpoint.path().display()))?
        }
        _ => {
            return Err(usage(
                "give the tokens with --ids, or one text with -p or -f",
            ));
        }
    };
    if ids.is_empty() {
        return Err(usage("no tokens were given; --ids needs at least one"));
    }
    Ok(ids)
}

fn options(args: &LogitsArgs, tokens: usize) -> Result<OpenOptions> {
    let (_, rest) = args.model.split()?;
    refuse(rest)?;
    let mut options = args.device.options(&args.model, DType::F32)?;
    let chunk = args
        .chunk
        .map_or(tokens.min(512) as u32, |n| n.get().min(tokens as u32));
    options.threads = args.threads.count();
    options.ctx = args.ctx.or(NonZeroU32::new(tokens as u32));
    options.seqs = args.sequences.get();
    options.rows = chunk.saturating_mul(options.seqs);
    options.logit_rows = options.rows;
    options.no_prefix_cache = true;
    Ok(options)
}

/// A chunk whose logits stay within [`STEP_BYTES`].
fn fitting(model: &Model, plan: ScorePlan) -> usize {
    let row = u64::from(model.n_vocab()) * 4 * plan.copies as u64;
    plan.chunk.min((STEP_BYTES / row.max(1)) as usize).max(1)
}

fn score(model: &mut Model, ids: &[u32], plan: ScorePlan, args: &LogitsArgs) -> Result<()> {
    let n_vocab = model.n_vocab() as usize;
    let mut writer = SafetensorsWriter::new(&args.output, []);
    writer.declare("logits", DType::F32, &[ids.len(), n_vocab])?;
    let mut out = writer.create()?;
    let wait = Wait::new("computing logits");
    let mut hashes = vec![0u64; ids.len()];
    let mut failed = None;
    let mut differing = None;
    model.logits(ids, plan, |copy, position, row| {
        wait.set(position as u64, ids.len() as u64);
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        let hash = hash(&bytes);
        if copy == 0 {
            hashes[position] = hash;
        } else if hashes[position] != hash && differing.is_none() {
            differing = Some((copy, position));
        }
        if copy + 1 == plan.copies && failed.is_none() {
            failed = write(&mut out, &bytes).err();
        }
    })?;
    drop(wait);
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some((copy, position)) = differing {
        say(&format!(
            "warning: copy {copy} differs from copy 0 at position {position}"
        ));
    }
    out.finish()?;
    Ok(())
}

fn write(out: &mut SafetensorsOutput, bytes: &[u8]) -> Result<()> {
    Ok(out.write(bytes)?)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
