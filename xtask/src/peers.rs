//! `bench-peers`: our speed beside other engines', on the same files and threads, in one run.
//!
//! Peers are binaries that take llama-bench's flags and print its JSON. In every round each engine runs once in each
//! of its settings, one after the other; medians over the rounds are compared with the peer's best setting.

pub(crate) mod build;
mod engine;
mod machine;
mod merge;
mod report;
mod suite;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::engine::Engine;
use self::report::Line;
use self::suite::Case;

const USAGE: &str =
    "usage: cargo xtask bench-peers [--peer NAME=LLAMA_BENCH]… [--ours TOKKATA] [--models FOLDER]
       [--rounds N] [--threads N] [--device NAME] [--full] [--quick] [--only TEXT]… [--save FILE] [--write]
       cargo xtask bench-peers --merge FILE… [--write]

  --peer     another engine's llama-bench; without one only our own figures are printed
  --ours     the command to measure (default target/release/tokkata)
  --models   where made-up models are kept (default target/bench-models)
  --rounds   interleaved rounds whose medians count (default 3)
  --threads  so many threads in every case
  --device   on a GPU, such as cuda:0, with its own list of models; peers get all layers there (-ngl 99)
  --full     every model, format and thread count; hours
  --quick    peers with flash attention only
  --only     cases whose name contains this, or ends with it before a '$'; may be given several times
  --save     also write the figures to this file, case by case
  --merge    no measurements: the medians of the saved figures of several runs, and the range of their ratios
  --write    put the table into docs/performance.md";

struct Options {
    peers: Vec<(String, PathBuf)>,
    ours: PathBuf,
    models: PathBuf,
    rounds: usize,
    threads: Option<usize>,
    device: Option<String>,
    full: bool,
    quick: bool,
    only: Vec<String>,
    save: Option<PathBuf>,
    write: bool,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == "--merge") {
        let (write, files): (Vec<_>, Vec<_>) = args[1..].iter().partition(|arg| *arg == "--write");
        return show(&merge::table(&files)?, !write.is_empty());
    }
    let options = parse(args)?;
    let mut engines = vec![Engine::ours(&options.ours)];
    for (name, path) in &options.peers {
        engines.push(Engine::peer(name, path, options.quick)?);
    }
    let cases = match &options.device {
        Some(device) => suite::on_device(device),
        None => suite::cases(options.full, options.threads),
    };
    let wanted = |c: &&Case| {
        let name = c.name();
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|only| match only.strip_suffix('$') {
                    Some(end) => name.ends_with(end),
                    None => name.contains(only),
                })
    };
    let names: Vec<&str> = engines.iter().map(|e| e.name.as_str()).collect();
    let mut lines = Vec::new();
    for case in cases.iter().filter(wanted) {
        let line = measure(case, &engines, &options)?;
        eprintln!("{}", line.row());
        lines.push(line);
        if let Some(file) = &options.save {
            std::fs::write(file, report::saved(&names, &lines).to_string())?;
        }
    }
    show(&report::table(&names, &lines), options.write)
}

fn show(table: &str, write: bool) -> Result<()> {
    print!("{table}");
    if write {
        report::write(table)?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let root = crate::shell::root();
    let mut options = Options {
        peers: Vec::new(),
        ours: root.join("target/release/tokkata"),
        models: root.join("target/bench-models"),
        rounds: 3,
        threads: None,
        device: None,
        full: false,
        quick: false,
        only: Vec::new(),
        save: None,
        write: false,
    };
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--peer" => {
                let text = value()?;
                let (name, path) = text.split_once('=').context("expected --peer NAME=PATH")?;
                options.peers.push((name.to_owned(), path.into()));
            }
            "--ours" => options.ours = value()?.into(),
            "--models" => options.models = value()?.into(),
            "--rounds" => options.rounds = value()?.parse()?,
            "--threads" => options.threads = Some(value()?.parse()?),
            "--device" => options.device = Some(value()?.clone()),
            "--only" => options.only.push(value()?.clone()),
            "--save" => options.save = Some(value()?.into()),
            "--quick" => options.quick = true,
            "--full" => options.full = true,
            "--write" => options.write = true,
            _ => bail!("{USAGE}"),
        }
    }
    Ok(options)
}

/// Runs every engine in turn, round after round.
fn measure(case: &Case, engines: &[Engine], options: &Options) -> Result<Line> {
    let file = case.file(&options.ours, &options.models)?;
    let mut samples: Vec<Vec<Vec<engine::Speed>>> = engines
        .iter()
        .map(|e| vec![Vec::new(); e.settings(case).len()])
        .collect();
    let bandwidth = || match case.device {
        None => machine::bandwidth(case.threads),
        Some(_) => 0.0,
    };
    let mut bandwidths = Vec::new();
    for _ in 0..options.rounds {
        let before = bandwidth();
        for (i, (engine, samples)) in engines.iter().zip(&mut samples).enumerate() {
            for (setting, samples) in engine.settings(case).iter().zip(samples) {
                samples.push(engine.run(&file, case, setting)?);
            }
            // Others may use the machine: what it gives right before and after our run is what that had.
            if i == 0 {
                bandwidths.push(before.midpoint(bandwidth()));
            }
        }
    }
    let facts = engine::facts(&options.ours, &file)?;
    Ok(Line::new(case, &facts, &bandwidths, engines, &samples))
}
