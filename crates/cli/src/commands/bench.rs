//! `bench`: tokens per second, with llama-bench's flags and columns.

mod grid;
mod measure;
mod report;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tokkata::synthetic::Synthetic;
use tokkata::{DType, Drafts, Model, OpenOptions};

use self::grid::Numbers;
use self::measure::Test;
use self::report::{Format, Report};
use super::examples;
use crate::args::{DeviceArgs, DraftArgs, ModelArgs, most_threads, refuse, usage};
use crate::console::{Wait, say};
use crate::load;

/// Flags of `bench`. Numbers may be lists `a,b` and ranges `first-last+step` or `first-last*factor`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::BENCH)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Make a model up: SHAPE:MIX, such as qwen3-0.6b:q4_0
    #[arg(long, value_name = "SHAPE:MIX")]
    synthetic: Option<String>,
    /// Keep the made-up model in this file
    #[arg(long, value_name = "FILE", requires = "synthetic")]
    save: Option<PathBuf>,
    /// Prompt tokens; 0 for no prompt test
    #[arg(short = 'p', long, value_name = "N", default_value = "512")]
    n_prompt: Vec<Numbers>,
    /// Generated tokens; 0 for no generation test
    #[arg(short = 'n', long, value_name = "N", default_value = "128")]
    n_gen: Vec<Numbers>,
    /// Also test a prompt and a generation together: PROMPT,GEN
    #[arg(long, value_name = "P,G", value_parser = grid::pair)]
    pg: Vec<(usize, usize)>,
    /// Tokens that are cached before a test
    #[arg(short = 'd', long, value_name = "N", default_value = "0")]
    n_depth: Vec<Numbers>,
    /// Sequences at once
    #[arg(long, value_name = "N", default_value = "1")]
    npl: Vec<Numbers>,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    repetitions: usize,
    /// Threads [default: one per physical core]
    #[arg(short, long, value_name = "N")]
    threads: Vec<Numbers>,
    /// Tokens handed over at once
    #[arg(short, long, value_name = "N", default_value_t = 2048)]
    batch_size: u32,
    /// Rows of a step
    #[arg(long, value_name = "N", default_value_t = 512)]
    ubatch_size: u32,
    /// Do not run anything before the first measurement
    #[arg(long)]
    no_warmup: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Md)]
    output: Format,
    #[command(flatten)]
    device: DeviceArgs,
    /// Generate as answers are generated, measured from the first token on: drawn, and with drafts, of which --spec-synth-rates says how many are right
    #[arg(long)]
    answers: bool,
    #[command(flatten)]
    drafts: DraftArgs,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if args.repetitions == 0 || args.ubatch_size == 0 || args.batch_size == 0 {
        return Err(usage("found 0, expected at least 1 for -r, -b and -ub"));
    }
    let most = most_threads();
    if let Some(found) = grid::all(&args.threads).find(|n| !(1..=most).contains(n)) {
        let text = format!("found {found} for -t, expected 1 to {most}");
        return Err(usage(text));
    }
    let subject = Subject::find(args)?;
    let tests = tests(args);
    let mut report = Report::new(args.output);
    for threads in thread_counts(args) {
        let mut model = load(args, &subject, threads, &tests)?;
        for test in &tests {
            let samples = measure::run(&mut model, test, args.repetitions, !args.no_warmup)?;
            report.add(&report::Row::new(&model, args, test, &samples))?;
        }
    }
    report.finish()
}

/// Tokens per second of a file's prompts of 256 tokens, and of its answers at once and behind 512 tokens.
pub(super) fn speeds(path: &Path, options: &OpenOptions) -> Result<[f64; 3]> {
    let mut model = Model::open(path, options)?;
    let test = |prompt, generated, depth| Test {
        prompt,
        generated,
        depth,
        sequences: 1,
        answers: true,
    };
    let mut all = [0.0; 3];
    let tests = [test(256, 0, 0), test(0, 64, 0), test(0, 64, 512)];
    for (speed, test) in all.iter_mut().zip(tests) {
        let mut samples = measure::run(&mut model, &test, 3, true)?;
        samples.sort_unstable();
        *speed = test.tokens() as f64 * 1e9 / samples[1] as f64;
    }
    Ok(all)
}

/// The file to be measured; a made-up one that is not kept goes away with it.
struct Subject {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Subject {
    fn find(args: &BenchArgs) -> Result<Self> {
        let Some(name) = &args.synthetic else {
            let path = args.model.only_model()?.to_owned();
            return Ok(Subject {
                path,
                _temporary: None,
            });
        };
        let (model, rest) = args.model.split_optional()?;
        if model.is_some() {
            return Err(usage(
                "found a model file and --synthetic, expected one of them",
            ));
        }
        refuse(rest)?;
        let synthetic = Synthetic::parse(name).map_err(|e| usage(e.to_string()))?;
        let subject = match &args.save {
            Some(path) => Subject {
                path: path.clone(),
                _temporary: None,
            },
            None => {
                let dir = tempfile::tempdir()?;
                Subject {
                    path: dir.path().join("synthetic.gguf"),
                    _temporary: Some(dir),
                }
            }
        };
        write(synthetic, &subject.path)?;
        Ok(subject)
    }
}

/// Makes a model up in a file.
pub(super) fn write(synthetic: Synthetic, path: &Path) -> Result<()> {
    let wait = Wait::new(format!("making up {}", synthetic.title()));
    synthetic.write(path, |done, total| wait.set(done, total))?;
    Ok(())
}

/// Every combination that is asked for, in llama-bench's order.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for depth in grid::all(&args.n_depth) {
        for sequences in grid::all(&args.npl) {
            let test = |prompt, generated| Test {
                prompt,
                generated,
                depth,
                sequences: sequences.max(1),
                answers: args.answers,
            };
            tests.extend(
                grid::all(&args.n_prompt)
                    .filter(|&n| n > 0)
                    .map(|n| test(n, 0)),
            );
            tests.extend(
                grid::all(&args.n_gen)
                    .filter(|&n| n > 0)
                    .map(|n| test(0, n)),
            );
            tests.extend(args.pg.iter().map(|&(p, g)| test(p, g)));
        }
    }
    tests
}

fn thread_counts(args: &BenchArgs) -> Vec<Option<usize>> {
    if args.threads.is_empty() {
        return vec![None];
    }
    grid::all(&args.threads).map(|n| Some(n.max(1))).collect()
}

fn load(
    args: &BenchArgs,
    subject: &Subject,
    threads: Option<usize>,
    tests: &[Test],
) -> Result<Model> {
    let checkpoint = load::checkpoint(&subject.path, &args.model.arch_files)?;
    let mut options = args.device.options(&args.model, DType::F16)?;
    let most = |f: fn(&Test) -> usize| tests.iter().map(f).max().unwrap_or(1) as u32;
    let tokens = most(|t| t.depth + t.prompt + t.generated);
    if checkpoint
        .trained_ctx()
        .is_some_and(|n| n > 0 && n < tokens)
    {
        say("warning: the tests go beyond the context that the model was trained for");
    }
    options.threads = threads;
    options.ctx = std::num::NonZeroU32::new(tokens);
    options.seqs = most(|t| t.sequences);
    options.rows = args.ubatch_size.min(args.batch_size).max(options.seqs);
    options.no_prefix_cache = true;
    options.drafts = Drafts::none();
    if args.answers {
        args.drafts.apply(&args.model, &mut options)?;
    }
    load::load(checkpoint, &options)
}
