//! The commands, one module each.

mod archs;
mod bench;
mod classify;
#[cfg_attr(not(feature = "server"), path = "commands/no_client.rs")]
mod client;
mod complete;
mod convert;
mod detokenize;
mod devices;
mod doctor;
mod embed;
mod examples;
mod imatrix;
mod inspect;
mod legal;
mod logits;
mod manual;
mod parse;
mod perplexity;
mod plan;
mod profile;
mod pull;
mod quantize;
mod rerank;
mod run;
#[cfg_attr(not(feature = "server"), path = "commands/no_serve.rs")]
mod serve;
mod split;
mod template;
mod tokenize;
mod transcribe;
mod tune;
mod watermark;

use anyhow::Result;
use clap::Subcommand;

/// What to do.
// Parsed once per run.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat with a model, or ask it once with -p
    #[command(visible_alias = "chat")]
    Run(run::RunArgs),
    /// Answer over HTTP, as OpenAI's, Anthropic's, Cohere's, Ollama's and llama.cpp's servers do
    #[command(visible_alias = "server")]
    Serve(serve::ServeArgs),
    /// Continue a text
    #[command(visible_alias = "completion")]
    Complete(complete::CompleteArgs),
    /// Turn texts into vectors
    Embed(embed::EmbedArgs),
    /// Write down speech
    Transcribe(transcribe::TranscribeArgs),
    /// Order documents by how well they answer a query
    Rerank(rerank::RerankArgs),
    /// Say which of a model's labels fit a text
    Classify(classify::ClassifyArgs),
    /// Measure speed; `bench serve` measures a server
    Bench(bench::BenchArgs),
    /// Measure a server
    #[command(hide = true)]
    BenchServe(client::BenchServeArgs),
    /// Print what Codex or Claude Code need to talk to a server
    Launch(client::LaunchArgs),
    /// Show what a model file holds
    #[command(visible_alias = "show")]
    Inspect(inspect::InspectArgs),
    /// Show what can compute on this machine
    ///
    /// Each line names what `--device` takes, and says what it is, or why it cannot be used.
    #[command(after_long_help = examples::DEVICES)]
    Devices,
    /// Try every device on small models, measure it, and write a report to send
    Doctor(doctor::DoctorArgs),
    /// Show what a model computes, and what that costs on this machine
    Plan(plan::PlanArgs),
    /// Show where the time of a model's steps goes
    Profile(profile::ProfileArgs),
    /// Measure which kernels are fastest on this machine, for later runs
    Tune(tune::TuneArgs),
    /// Show the tokens of a text
    Tokenize(tokenize::TokenizeArgs),
    /// Show the text of tokens
    Detokenize(detokenize::DetokenizeArgs),
    /// Say how likely it is that a text was written with a watermark's key
    Watermark(watermark::WatermarkArgs),
    /// Show a conversation as its chat template writes it
    Template(template::TemplateArgs),
    /// Show how a raw answer is split
    Parse(parse::ParseArgs),
    /// List the known architectures, or check a descriptor
    Archs(archs::ArchsArgs),
    /// Write the logits of given tokens to a file
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Measure which columns of a model's weights a text uses, for quantize
    Imatrix(imatrix::ImatrixArgs),
    /// Write a model in smaller element types
    Quantize(quantize::QuantizeArgs),
    /// Write a model in another container: a directory as GGUF, a GGUF file as safetensors
    Convert(convert::ConvertArgs),
    /// Download a model into the cache and tell where it is
    #[command(visible_alias = "download")]
    Pull(pull::PullArgs),
    /// List the models in the cache
    #[command(visible_alias = "list", after_long_help = examples::LS)]
    Ls,
    /// Delete models from the cache
    #[command(visible_alias = "remove")]
    Rm(pull::RemoveArgs),
    /// Print the licences of everything that the program is made of
    ///
    /// They are long: each package's own text stands behind its name.
    #[command(visible_alias = "licenses", after_long_help = examples::LICENCES)]
    Licences,
    /// Print what a shell needs to complete the command line
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions(manual::CompletionsArgs),
    /// Write manual pages into a folder
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Cut a model into several files
    Split(split::SplitArgs),
    /// Put a split model together
    Merge(split::MergeArgs),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Command::Run(args) => run::run(&args),
            Command::Serve(args) => serve::run(args),
            Command::Complete(args) => complete::run(&args),
            Command::Embed(args) => embed::run(&args),
            Command::Transcribe(args) => transcribe::run(&args),
            Command::Rerank(args) => rerank::run(&args),
            Command::Classify(args) => classify::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::BenchServe(args) => client::bench(&args),
            Command::Launch(args) => client::launch(&args),
            Command::Inspect(args) => inspect::run(&args),
            Command::Devices => devices::run(),
            Command::Doctor(args) => doctor::run(&args),
            Command::Plan(args) => plan::run(&args),
            Command::Profile(args) => profile::run(&args),
            Command::Tune(args) => tune::run(&args),
            Command::Tokenize(args) => tokenize::run(&args),
            Command::Detokenize(args) => detokenize::run(&args),
            Command::Watermark(args) => watermark::run(&args),
            Command::Template(args) => template::run(&args),
            Command::Parse(args) => parse::run(&args),
            Command::Archs(args) => archs::run(&args),
            Command::Logits(args) => logits::run(&args),
            Command::Perplexity(args) => perplexity::run(&args),
            Command::Imatrix(args) => imatrix::run(&args),
            Command::Quantize(args) => quantize::run(&args),
            Command::Convert(args) => convert::run(&args),
            Command::Pull(args) => pull::pull(&args),
            Command::Ls => pull::list(),
            Command::Rm(args) => pull::remove(&args),
            Command::Licences => legal::run(),
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
            Command::Split(args) => split::split(&args),
            Command::Merge(args) => split::merge(&args),
        }
    }
}
