//! `load`: many callers at once over tiny models, each answer held against the one it gets alone.

use anyhow::{Context, Result, bail};
use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::load::{Figures, Load, run as run_load};

const USAGE: &str =
    "usage: cargo xtask load [--requests N] [--seed S] [--in-flight N] [--device cpu|slow] [MODEL…]

  --requests   over all models (default 2000)
  --seed       what they are (default 1)
  --in-flight  at once (default 256)
  --device     slow: news come late, several works run ahead and chain (default cpu)
  MODEL        goldens (default one with full, one with windowed and one with recurrent caches)";

/// Full, windowed, and recurrent beside full.
const MODELS: [&str; 3] = ["llama", "gemma3", "falcon-h1"];

pub(crate) fn run(args: &[String]) -> Result<()> {
    let mut load = Load {
        requests: 2000,
        seed: 1,
        in_flight: 256,
        slow: false,
    };
    let (mut models, mut args) = (Vec::new(), args.iter());
    while let Some(arg) = args.next() {
        let mut value = || args.next().map(String::as_str).context(USAGE);
        match arg.as_str() {
            "--requests" => load.requests = value()?.parse().context(USAGE)?,
            "--seed" => load.seed = value()?.parse().context(USAGE)?,
            "--in-flight" => load.in_flight = value()?.parse().context(USAGE)?,
            "--device" => {
                load.slow = match value()? {
                    "cpu" => false,
                    "slow" => true,
                    _ => bail!(USAGE),
                }
            }
            flag if flag.starts_with('-') => bail!(USAGE),
            model => models.push(model),
        }
    }
    if models.is_empty() {
        models = MODELS.to_vec();
    }
    let mut wrong = 0;
    for (i, model) in models.iter().enumerate() {
        let golden = Golden::read(&Golden::folder(), model).map_err(anyhow::Error::msg)?;
        let share = load.requests / models.len() + usize::from(i < load.requests % models.len());
        let own = Load {
            requests: share,
            ..load
        };
        let figures = run_load(&golden, &CpuBackend, own).map_err(anyhow::Error::msg)?;
        tell(&figures);
        wrong += figures.faults.len();
    }
    match wrong {
        0 => Ok(()),
        n => bail!("{n} things are wrong"),
    }
}

fn tell(figures: &Figures) {
    let kinds: Vec<String> = figures
        .requests
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    println!("{}: {}", figures.model, kinds.join(", "));
    let (slabs, wanted) = figures.slabs;
    println!("  caches: {slabs} slabs, {wanted} for all in flight");
    let (together, alone) = figures.took;
    println!(
        "  together {:.1} s, one by one {:.1} s",
        together.as_secs_f64(),
        alone.as_secs_f64()
    );
    let mib = |bytes: u64| bytes >> 20;
    let (middle, end) = figures.resident;
    println!(
        "  memory {} MiB in the middle, {} MiB at the end",
        mib(middle),
        mib(end)
    );
    for fault in figures.faults.iter().take(20) {
        println!("  wrong: {fault}");
    }
    println!("  {} wrong", figures.faults.len());
}
