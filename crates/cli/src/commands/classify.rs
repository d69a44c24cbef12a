//! `classify`: the labels that fit a text.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tokkata::{Labels, Pooling};

use super::examples;
use super::rerank::Format;
use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::load;
use crate::texts::{self, TextArgs};

/// Flags of `classify`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::CLASSIFY)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    texts: TextArgs,
    /// How to print: lines of text number, probability and label, or one JSON object
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// A label's probability.
type Choice = (String, f32);

pub(crate) fn run(args: &ClassifyArgs) -> Result<()> {
    let (_, rest) = args.model.split()?;
    let texts = args.texts.read(rest)?;
    let (checkpoint, options) = load::open(&args.model, &args.device, &args.sizes)?;
    let ids = texts::encode(&checkpoint, &texts)?;
    let name = texts::model_name(&checkpoint);
    let labels = Labels::of(&checkpoint)?;
    let mut model = texts::load(checkpoint, options, Some(Pooling::Rank), &ids)?;
    let scores = texts::vectors(&mut model, &ids)?;
    let choices: Vec<Vec<Choice>> = scores.iter().map(|s| ranked(&labels, s)).collect();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.output {
        Format::Text => print(&mut out, &choices)?,
        Format::Json => writeln!(out, "{}", to_json(&name, &choices))?,
    }
    Ok(out.flush()?)
}

/// Labels with their probabilities, best first.
fn ranked(labels: &Labels, scores: &[f32]) -> Vec<Choice> {
    let probabilities = labels.probabilities(scores).into_iter().enumerate();
    let mut all: Vec<Choice> = probabilities.map(|(i, p)| (labels.name(i), p)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn print(out: &mut impl Write, texts: &[Vec<Choice>]) -> Result<()> {
    for (i, choices) in texts.iter().enumerate() {
        for (label, p) in choices {
            writeln!(out, "{i}\t{p:.6}\t{label}")?;
        }
    }
    Ok(())
}

fn to_json(name: &str, texts: &[Vec<Choice>]) -> serde_json::Value {
    let score = |(label, p): &Choice| json!({"label": label, "score": p});
    let text = |(index, choices): (usize, &Vec<Choice>)| {
        let scores: Vec<serde_json::Value> = choices.iter().map(score).collect();
        json!({"index": index, "label": choices[0].0, "scores": scores})
    };
    let data: Vec<serde_json::Value> = texts.iter().enumerate().map(text).collect();
    json!({"object": "list", "model": name, "data": data})
}
