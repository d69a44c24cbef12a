//! The project's own checks and measurements: `cargo xtask COMMAND`.

mod ab;
mod bindings;
mod check;
mod clients;
mod conformance;
mod cuda;
mod demo;
mod fair;
mod features;
mod formats;
mod fuzz;
mod golden;
mod kernels;
mod licences;
mod load;
mod mutate;
mod notices;
mod oracle;
mod peers;
mod python;
mod real;
mod replay;
mod rules;
mod shell;
mod speech;
mod test;
mod threads;
mod web;
mod wgpu;
mod wheel;

use std::process::ExitCode;
use std::time::Instant;

use tokkata_conformance::drafts::{self, Cover, verify};

const USAGE: &str = "usage: cargo xtask COMMAND

  check                             format, lints, documentation, licences, size and name rules, fast tests
  capi                              the C library's tests, those that take minutes too, and an installation by cargo-c
  header                            the C library's header, held against its code
  python [--all] [--release|--wheel FILE]
                                    the Python package: a wheel in an environment of its own, types, tests; with
                                    --all also the adapters' packages and pyright
  wheel [--cuda] [--target TRIPLE] [--rust-src DIRECTORY] [--python PROGRAM]
                                    the Python package for others: for old systems, audited, tried where nothing else is;
                                    for another target with the sources of its standard library, tried by a Python of its
                                    own; with --cuda the package of the kernels for NVIDIA GPUs
  release [--target TRIPLE] [--rust-src DIRECTORY]
                                    the program for others: for old systems, its needs checked
  web [--test] [--rust-src DIRECTORY]
                                    the page that needs no server, in target/web; --test tries it in a headless Chromium
  test [ARGUMENTS]                  every test of the workspace, with one line of totals at the end
  drafts [--device NAME] [NAME…]    guesses of every kind with every way to draw in front of every golden's model, alone
                                    and among others, behind a stored prefix and not: texts and caches as without
  draws                             write the draws that every backend is held to, where they may change
  sanitize [--rust-src DIRECTORY]   the op suite and the replays under the thread sanitizer, with the standard
                                    library built for it from the toolchain's sources
  loom                              the thread pool in a model that tries every order of events
  golden [OPTIONS] [NAME…]          write goldens with the oracle
  conformance [--docs|--bisect|--mutate [--write]] [NAME…]
                                    which architectures agree; the table of models; where a run goes wrong;
                                    changes of descriptors that no golden notices
  bench-peers [OPTIONS]             our speed beside other engines', interleaved
  ab [OPTIONS] OLD NEW              two programs beside each other, in pairs, with others beside them if wanted
  fuzz [--seconds N] [TARGET…]      the fuzz targets, each for a while
  host                              what a step costs the host, apart from kernels and draws
  fair [OPTIONS] MODEL.gguf         what a long prompt does to those beside it
  replay MODEL.gguf [COMMITS]       how often n-grams guess this repository's own edits right
  load [OPTIONS] [MODEL…]           many callers at once, each answer as the request gets it alone
  clients [--program FILE] [--docs] [SUITE…]
                                    what others wrote for servers like ours, run against `tokkata serve`
  peers FOLDER [NAME]…              builds those engines, for this machine, for AVX2 and for AVX-512
  kernels [PROGRAM]                 whether the inner loops of an optimised build keep their sums in registers
  cuda LIBNVRTC [-v]                compiles the kernels for NVIDIA GPUs into the file that programs carry
  cuda LIBNVRTC --disturbed OUT     the same with warps that sleep now and then, into another file
  wgpu [--write] [--webgpu FOLDER] [--rust-src DIRECTORY]
                                    MSL, HLSL and SPIR-V of the kernels for GPUs of any maker, held against hashes; Tint reads them
                                    where FOLDER has the npm package webgpu; types for macOS and Windows are checked
  speech                            how exactly speech is computed: features, rules, rows, transcripts
  real FOLDER [--program FILE]      published weights beside llama.cpp and openai's code
  demo [--weights FILE] [--python PROGRAM]
                                    make the model inside the program anew; needs Python, PyTorch and a GPU
  notices                           write the licences of all packages into the file that goes with the program
  formats                           what is known of every element type, each cell found by trying";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("check") => check::run(),
        Some("capi") => bindings::capi(),
        Some("header") => bindings::header(),
        Some("python") => python::test(&args[1..]),
        Some("wheel") => wheel::wheel(&args[1..]),
        Some("web") => web::make(&args[1..]),
        Some("release") => wheel::release(&args[1..]),
        Some("clients") => clients::run(&args[1..]),
        Some("test") => test::run(&args[1..]),
        Some("sanitize") => threads::sanitize(&args[1..]),
        Some("loom") => threads::loom(),
        Some("peers") => peers::build::run(&args[1..]),
        Some("bench-peers") => peers::run(&args[1..]),
        Some("ab") => ab::run(&args[1..]),
        Some("load") => load::run(&args[1..]),
        Some("host") => host(),
        Some("replay") => replay::run(&args[1..]),
        Some("fair") => fair::run(&args[1..]),
        Some("cuda") => cuda::run(&args[1..]),
        Some("wgpu") => wgpu::run(&args[1..]),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("kernels") => kernels::run(&args[1..]),
        Some("notices") => notices::write(),
        Some("formats") => formats::run(),
        Some("conformance") => conformance::run(&args[1..]),
        Some("drafts") => every_draft(&args[1..]),
        Some("draws") => draws(),
        Some("golden") => golden::run(&args[1..]),
        Some("speech") => speech::run(),
        Some("real") => real::run(&args[1..]),
        Some("demo") => demo::demo(&args[1..]),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn host() -> anyhow::Result<()> {
    use tokkata_conformance::host_time::{Served, measured};
    println!("| sequences | depth | penalties | µs of a step |");
    println!("|---|---|---|---|");
    for (seqs, depth) in [(1, 1024), (1, 32_768), (8, 4096), (64, 32_768)] {
        for penalties in [false, true] {
            let served = Served {
                seqs,
                depth,
                penalties,
            };
            let us = measured(served).map_err(anyhow::Error::msg)?;
            let said = if penalties { "yes" } else { "no" };
            println!("| {seqs} | {depth} | {said} | {us:.1} |");
        }
    }
    Ok(())
}

/// Every kind of guess with every golden named, on the device named or on every one but the reference.
fn every_draft(args: &[String]) -> anyhow::Result<()> {
    let (only, names) = match args {
        [flag, only, names @ ..] if flag == "--device" => (only.as_str(), names),
        names => ("", names),
    };
    let (mut all, mut least) = drafts::names();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        anyhow::bail!("{unknown}: there is no such golden");
    }
    if !names.is_empty() {
        all.retain(|name| names.contains(name));
        least = 0;
    }
    let devices = tokkata_conformance::devices().into_iter();
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = |name: &str| name != "ref" && (only.is_empty() || name == only);
    let devices: Vec<_> = devices.filter(|d| wanted(d.name())).collect();
    anyhow::ensure!(!devices.is_empty(), "there is no device {only}");
    for device in devices {
        let start = Instant::now();
        let ran = verify(device.as_ref(), &all, Cover::All, (least, jobs));
        let (name, took) = (device.name(), start.elapsed().as_secs());
        println!(
            "{name}: texts and caches of the {ran} models that write text, of {}, are as without drafts ({took} s)",
            all.len()
        );
    }
    Ok(())
}

fn draws() -> anyhow::Result<()> {
    let path = shell::root().join("crates/conformance/data/draws.json");
    Ok(std::fs::write(path, tokkata_conformance::draws::made())?)
}
