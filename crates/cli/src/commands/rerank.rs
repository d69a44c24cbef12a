//! `rerank`: documents in the order in which they answer a query.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokkata::{Checkpoint, Pooling, pair};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::load;
use crate::texts::{self, TextArgs};

/// Flags of `rerank`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::RERANK)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the documents are to answer
    #[arg(long, value_name = "TEXT")]
    query: String,
    #[command(flatten)]
    documents: TextArgs,
    /// Print no more than the best N
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,
    /// How to print: lines of score, place and document, or one JSON object
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line per result.
    Text,
    /// What servers answer.
    Json,
}

pub(crate) fn run(args: &RerankArgs) -> Result<()> {
    let (_, rest) = args.model.split()?;
    let documents = utf8(args.documents.read(rest)?)?;
    let (checkpoint, options) = load::open(&args.model, &args.device, &args.sizes)?;
    let ids = pairs(&checkpoint, &args.query, &documents)?;
    let name = texts::model_name(&checkpoint);
    let mut model = texts::load(checkpoint, options, Some(Pooling::Rank), &ids)?;
    let scores = texts::vectors(&mut model, &ids)?;
    let mut order: Vec<(usize, f32)> = scores.iter().map(|s| s[0]).enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(args.top_n.unwrap_or(usize::MAX));
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.output {
        Format::Text => {
            for (index, score) in order {
                writeln!(out, "{score:.6}\t{index}\t{}", documents[index])?;
            }
        }
        Format::Json => {
            let tokens: usize = ids.iter().map(Vec::len).sum();
            writeln!(out, "{}", to_json(&name, &order, tokens))?;
        }
    }
    Ok(out.flush()?)
}

fn utf8(documents: Vec<Vec<u8>>) -> Result<Vec<String>> {
    let one = |(i, bytes)| {
        String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            anyhow!(
                "document {}: found bytes that are not UTF-8 at offset {at}",
                i + 1
            )
        })
    };
    documents.into_iter().enumerate().map(one).collect()
}

fn pairs(checkpoint: &Checkpoint, query: &str, documents: &[String]) -> Result<Vec<Vec<u32>>> {
    let ids = documents.iter().map(|d| pair(checkpoint, query, d));
    Ok(ids.collect::<tokkata::Result<_>>()?)
}

fn to_json(name: &str, order: &[(usize, f32)], tokens: usize) -> serde_json::Value {
    let result = |&(index, score): &(usize, f32)| json!({"index": index, "relevance_score": score});
    let results: Vec<serde_json::Value> = order.iter().map(result).collect();
    json!({
        "model": name,
        "object": "list",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results,
    })
}
