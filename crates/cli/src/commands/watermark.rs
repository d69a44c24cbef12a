//! `watermark`: how likely a text is that was not drawn with a key. Reads no tensors.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use tokkata::{Detection, EncodeOptions, Watermark};

use super::examples;
use super::rerank::Format;
use crate::args::{ModelArgs, PromptArgs, read_stdin, token_ids, usage};
use crate::{load, watermark};

/// Flags of `watermark`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::WATERMARK)]
pub(crate) struct WatermarkArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    texts: PromptArgs,
    /// The watermark that the text was written with, as the flag of this name of `serve`, `run` and `complete`
    #[arg(long, value_name = "JSON", value_parser = watermark::parse)]
    watermark_config: Watermark,
    /// The token ids as they were drawn, such as 1,2,3, instead of a text
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
    /// How to print: a line a text with tokens that count, their score and how likely others have it, or one JSON object
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) fn run(args: &WatermarkArgs) -> Result<()> {
    let found: Vec<Detection> = tokens(args)?
        .iter()
        .map(|ids| args.watermark_config.detect(ids))
        .collect();
    let mut out = std::io::stdout().lock();
    match args.output {
        Format::Text => {
            for (i, d) in found.iter().enumerate() {
                writeln!(out, "{i}\t{}\t{:.3}\t{:.3e}", d.scored, d.score, d.p_value)?;
            }
        }
        Format::Json => {
            let one = |(index, d): (usize, &Detection)| json!({"index": index, "scored": d.scored, "score": d.score, "p_value": d.p_value});
            let data: Vec<_> = found.iter().enumerate().map(one).collect();
            writeln!(out, "{}", json!({"object": "list", "data": data}))?;
        }
    }
    Ok(out.flush()?)
}

fn tokens(args: &WatermarkArgs) -> Result<Vec<Vec<u32>>> {
    if let Some(ids) = &args.ids {
        return Ok(vec![token_ids(ids).map_err(usage)?]);
    }
    let (path, rest) = args.model.split()?;
    let mut texts = args.texts.read(rest)?;
    if texts.is_empty() {
        texts.push(read_stdin()?);
    }
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let tokenizer = checkpoint.tokenizer()?;
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let encoded = texts.iter().map(|t| tokenizer.encode_bytes(t, options));
    let encoded: Result<Vec<_>, _> = encoded.collect();
    encoded.map_err(|e| anyhow!("{}: the text to encode: {e}", path.display()))
}
