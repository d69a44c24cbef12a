//! `doctor`: small models on every device, held against the reference, and a short measurement: one report to send.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tokkata::probe::{Probe, ProbeInput};
use tokkata::synthetic::Synthetic;
use tokkata::{Checkpoint, DType, OpenOptions};

use super::bench::speeds;
use super::examples;
use crate::console::{Wait, say};
use crate::load;

/// Small models: mixes of most formats, and one with experts.
const SMALL: [&str; 9] = [
    "tiny:f16",
    "tiny:bf16",
    "tiny:q8_0",
    "tiny:q4_0",
    "tiny:q4_k_m",
    "tiny:q6_k",
    "tiny:iq4_xs",
    "tiny:q2_k",
    "tiny-moe:q4_k_m",
];
/// What is measured.
const MEASURED: &str = "smollm2-135m:q4_0";
/// Tokens of a small case.
const TOKENS: u32 = 80;
/// Squared error, of all squares, that a right device may have: activations may be rounded to bytes.
const MOST_ERROR: f64 = 1e-3;

/// Flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::DOCTOR)]
pub(crate) struct DoctorArgs {
    /// Only this device, by a name that `devices` lists; may be given several times
    #[arg(short, long, value_name = "NAME")]
    device: Vec<String>,
    /// Do not measure speed
    #[arg(long)]
    no_bench: bool,
    /// Write the report to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let present = tokkata::present();
    let mut report = machine();
    for (name, what) in &present {
        writeln!(report, "- {name}: {what}")?;
    }
    let folder = tempfile::tempdir()?;
    let small = made(folder.path(), &SMALL)?;
    let names = present.iter().map(|d| &d.0);
    let mut names: Vec<&String> = names.filter(|n| *n == "cpu" || n.contains(':')).collect();
    if !args.device.is_empty() {
        names = args.device.iter().collect();
    }
    let mut wrong = 0;
    for name in names {
        writeln!(report, "\n## {name}\n")?;
        wrong += cases(name, &small, &mut report)?;
        let software = present
            .iter()
            .any(|d| d.0 == *name && d.1.contains(", in software"));
        match args.no_bench || software {
            true => {}
            false => measure(name, folder.path(), &mut report)?,
        }
    }
    match &args.output {
        Some(path) => std::fs::write(path, &report)?,
        None => print!("{report}"),
    }
    match wrong {
        0 => Ok(()),
        n => anyhow::bail!("{n} of the cases are wrong or failed"),
    }
}

/// What the report begins with.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|l| l.strip_prefix("model name"));
    let cpu = cpu.map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    format!(
        "# Report of tokkata doctor\n\n- {}\n- {} {} {cpu}\n",
        crate::FACTS.replace('\n', "; "),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

/// Writes models into a folder.
fn made(folder: &Path, names: &[&'static str]) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut all = Vec::new();
    for &name in names {
        let synthetic = Synthetic::parse(name)?;
        let path = folder.join(format!("{}.gguf", name.replace(':', "-")));
        let wait = Wait::new(format!("making up {}", synthetic.title()));
        synthetic.write(&path, |done, total| wait.set(done, total))?;
        all.push((name, path));
    }
    Ok(all)
}

/// Logits of a model on a device.
fn logits(checkpoint: &Checkpoint, device: &str) -> Result<Vec<f32>> {
    let options = OpenOptions {
        device: Some(device.to_owned()),
        kv: DType::F16,
        ..OpenOptions::default()
    };
    let ids: Vec<u32> = (0..TOKENS).map(|i| i * 37 % 500).collect();
    let input = ProbeInput {
        ids: &ids,
        encoder_ids: &[],
        drafts: 0,
    };
    Ok(Probe::load(checkpoint, &options, input, None)?
        .run()?
        .logits)
}

/// The small cases on a device; how many are wrong or fail.
fn cases(name: &str, small: &[(&str, PathBuf)], report: &mut String) -> Result<usize> {
    let mut wrong = 0;
    writeln!(report, "| model | squared error | |\n|---|---|---|")?;
    for (model, path) in small {
        let wait = Wait::new(format!("{model} on {name}"));
        let checkpoint = load::checkpoint(path, &[])?;
        let want = logits(&checkpoint, "ref")?;
        let found = logits(&checkpoint, name);
        drop(wait);
        match found {
            Ok(found) => {
                let error = error(&want, &found);
                let right = error < MOST_ERROR;
                wrong += usize::from(!right);
                let said = if right { "right" } else { "WRONG" };
                writeln!(report, "| {model} | {error:.1e} | {said} |")?;
            }
            Err(why) => {
                wrong += 1;
                writeln!(report, "| {model} | | FAILED: {why} |")?;
            }
        }
    }
    Ok(wrong)
}

/// The squared error, of all squares.
fn error(want: &[f32], found: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = want.iter().zip(found).map(|(a, b)| square(a - b)).sum();
    match want.len() == found.len() {
        true => error / want.iter().map(|&x| square(x)).sum::<f64>(),
        false => f64::INFINITY,
    }
}

/// Speed of a small model.
fn measure(name: &str, folder: &Path, report: &mut String) -> Result<()> {
    let path = folder.join("measured.gguf");
    if !path.exists() {
        let made = made(folder, &[MEASURED])?;
        std::fs::rename(&made[0].1, &path)?;
    }
    let wait = Wait::new(format!("measuring {name}"));
    let options = OpenOptions {
        device: Some(name.to_owned()),
        ctx: NonZeroU32::new(1024),
        no_prefix_cache: true,
        ..OpenOptions::default()
    };
    let measured = speeds(&path, &options);
    drop(wait);
    match measured {
        Ok([prompt, answer, behind]) => writeln!(
            report,
            "\n{MEASURED}: prompts of 256 tokens {prompt:.0} tok/s, answers {answer:.1} tok/s, behind 512 tokens {behind:.1} tok/s"
        )?,
        Err(why) => {
            say(&format!("{name} cannot be measured: {why}"));
            writeln!(report, "\n{MEASURED}: {why}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::error;

    #[test]
    fn errors_are_shares_of_all_squares() {
        assert_eq!(error(&[3.0, 4.0], &[3.0, 4.5]), 0.01);
        assert_eq!(error(&[3.0, 4.0], &[3.0]), f64::INFINITY);
        assert!(error(&[1.0], &[f32::NAN]).is_nan());
    }
}
