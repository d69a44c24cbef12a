//! `plan`: what a model computes, and what that costs on this machine. Reads the header only.

use std::io::Write;

use anyhow::{Result, bail};
use clap::Args;
use tokkata::cost::{Cost, Costs, StepClass, usual_classes};
use tokkata::measure::Rates;
use tokkata::memory::{MemoryNeed, available};
use tokkata::placement::places;
use tokkata::recast::Target;
use tokkata::weights::FileWeights;
use tokkata::{BuildOptions, Bytes, DType, Program, WeightSource, dump};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, SizeArgs};
use crate::console::Wait;
use crate::load;

/// Flags of `plan`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::PLAN)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Print the program alone, without costs or measurements
    #[arg(long)]
    dump: bool,
    /// Print the bytes and the arithmetic of every op of a decode step
    #[arg(long)]
    ops: bool,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let path = args.model.only_model()?;
    let checkpoint = load::checkpoint(path, &args.model.arch_files)?;
    let mut options = args.device.options(&args.model, DType::F16)?;
    args.sizes.apply(&mut options, checkpoint.trained_ctx())?;
    if !options.adapters.is_empty() {
        bail!("a plan tells nothing of adapters; leave --lora out");
    }
    let limits = options.limits_of(&checkpoint)?;
    let recast = options
        .quantize
        .map(|p| checkpoint.recast(Target::Preset(p)));
    let recast = recast.transpose()?;
    let plain = FileWeights::new(checkpoint.file(), None);
    let (spec, weights): (_, &dyn WeightSource) = match &recast {
        Some(recast) => (checkpoint.spec_of(recast, limits.ctx)?, recast),
        None => (checkpoint.spec(limits.ctx)?, &plain),
    };
    let mut program = checkpoint.program_of(&spec, &limits, &BuildOptions::default())?;
    let (device, notes) = places(&mut program, weights, &options)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    write!(out, "{}", dump::program(&program))?;
    if !args.dump {
        for line in notes.iter().filter(|_| device != "cpu") {
            writeln!(out, "{line}")?;
        }
        let costs = Costs::new(&program, weights);
        if args.ops {
            ops(&program, &costs, &mut out)?;
        }
        memory(MemoryNeed::of(&program, weights), &mut out)?;
        if device == "cpu" {
            let threads = options.load_options().threads;
            roofline(&program, &costs, threads, &mut out)?;
        }
    }
    Ok(out.flush()?)
}

fn ops(program: &Program, costs: &Costs<'_>, out: &mut impl Write) -> Result<()> {
    writeln!(out, "ops of one decode step after 0 positions")?;
    for plan in &program.plans {
        for node in &plan.nodes {
            let cost = costs.node(plan, node, StepClass::decode(0));
            let (site, name) = (node.site.to_string(), node.op.name());
            let (bytes, flops) = (cost.weight_bytes + cost.cache_bytes, cost.flops);
            writeln!(
                out,
                "  {site:<22} {name:<14} {bytes:>12} B {flops:>14} FLOP"
            )?;
        }
    }
    Ok(())
}

fn memory(need: MemoryNeed, out: &mut impl Write) -> Result<()> {
    writeln!(out, "memory")?;
    let available = available().map_or("unknown".to_owned(), |b| Bytes(b).to_string());
    let rows = [
        ("weights", Bytes(need.weights).to_string()),
        ("caches", Bytes(need.caches).to_string()),
        ("logits", Bytes(need.logits).to_string()),
        ("together", Bytes(need.total()).to_string()),
        ("available", available),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<22} {value}")?;
    }
    Ok(())
}

fn roofline(
    program: &Program,
    costs: &Costs<'_>,
    threads: usize,
    out: &mut impl Write,
) -> Result<()> {
    out.flush()?;
    let rates = {
        let _wait = Wait::new("measuring this machine");
        Rates::measure(threads, &costs.formats())
    };
    writeln!(
        out,
        "roofline at {rates}, measured here with {threads} threads"
    )?;
    let main = &program.plans[0];
    for (name, class) in usual_classes(&program.limits) {
        let (cost, set) = (costs.plan(main, class), costs.set_bytes(main, class));
        let least = main.nodes.iter().map(|node| costs.node(main, node, class));
        let seconds: f64 = least.map(|c| c.least(&rates, set).seconds).sum();
        let bound = cost.least(&rates, set).bound;
        writeln!(
            out,
            "  {name:<22} {}, bound by {bound}",
            class_line(&cost, class.rows as f64 / seconds)
        )?;
    }
    Ok(())
}

fn class_line(cost: &Cost, tokens_per_s: f64) -> String {
    let (weights, caches) = (Bytes(cost.weight_bytes), Bytes(cost.cache_bytes));
    let gflop = cost.flops as f64 / 1e9;
    format!(
        "weights {weights}, caches {caches}, {gflop:.2} GFLOP: at most {tokens_per_s:.1} tokens/s"
    )
}
