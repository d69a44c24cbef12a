//! `profile`: where the time of a model's steps goes, op by op, beside what this machine could do.

mod collect;
mod html;
mod report;

use std::io::Write;
use std::num::NonZeroU32;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tokkata::DType;

use self::report::Report;
use super::examples;
use crate::args::{DeviceArgs, ModelArgs, ThreadArgs};
use crate::console::Wait;
use crate::load;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns of text
    Table,
    /// One JSON object
    Json,
    /// A page that shows widths as time
    Html,
}

/// What the rows of the table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Group {
    /// Kinds of kernels
    Op,
    /// Kernels by their role in a layer
    Role,
    /// Layers
    Layer,
}

/// Flags of `profile`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::PROFILE)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt that is measured; 0 for none
    #[arg(short = 'p', long, value_name = "N", default_value_t = 256)]
    n_prompt: u32,
    /// Tokens that are decoded one by one and measured; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32)]
    n_gen: u32,
    /// Tokens that are cached before
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    n_depth: u32,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Rows of the table
    #[arg(long, value_enum, default_value_t = Group::Role)]
    by: Group,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let mut options = args.device.options(&args.model, DType::F16)?;
    let tokens = args.n_depth + args.n_prompt + args.n_gen;
    options.ctx = NonZeroU32::new(tokens.max(1));
    options.threads = args.threads.count();
    options.no_prefix_cache = true;
    let threads = options.load_options().threads;
    let mut model = load::load(checkpoint, &options)?;
    let phases = collect::phases(&mut model, args.n_depth, args.n_prompt, args.n_gen)?;
    let report = {
        let _wait = Wait::new("measuring this machine");
        Report::new(&model, &phases, threads)
    };
    let mut out = std::io::stdout().lock();
    match args.output {
        Format::Table => report.table(args.by, &mut out)?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report.json())?)?,
        Format::Html => out.write_all(html::page(&report).as_bytes())?,
    }
    Ok(out.flush()?)
}
