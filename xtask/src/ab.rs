//! `ab`: two programs, or one with two sets of flags, measured in turn on the same shapes.
//!
//! Each pair runs both once, every other pair the other way round; the ratio of a pair is new to old. The median of
//! the ratios is given with the 95 % interval that the order of the ratios allows (binomial, no shape assumed).

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

const USAGE: &str = "usage: cargo xtask ab [--pairs N] [--threads N] [--shape SHAPE:MIX]… [--floor X] OLD NEW

  OLD, NEW   programs with their flags, such as 'target/old/tokkata' and 'target/new/tokkata --pin-threads'
  --pairs    interleaved pairs (default 15, at least 6)
  --threads  worker threads (default 2)
  --shape    a made-up model, as bench --synthetic takes it (default smollm2-135m:q8_0 and qwen3-0.6b:q4_k_m)
  --floor    fails when the lower end of an interval is below this (default 0.97)";

/// Prompt, generated tokens and depth of each test.
const TESTS: [(&str, &str, &str); 4] = [
    ("256", "0", "0"),
    ("16", "0", "0"),
    ("0", "32", "0"),
    ("0", "16", "1024"),
];

struct Options {
    pairs: usize,
    threads: String,
    shapes: Vec<String>,
    floor: f64,
    programs: [String; 2],
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        pairs: 15,
        threads: "2".to_owned(),
        shapes: Vec::new(),
        floor: 0.97,
        programs: [String::new(), String::new()],
    };
    let (mut programs, mut args) = (Vec::new(), args.iter());
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().context(USAGE);
        match arg.as_str() {
            "--pairs" => options.pairs = value()?.parse().context(USAGE)?,
            "--threads" => options.threads = value()?,
            "--shape" => options.shapes.push(value()?),
            "--floor" => options.floor = value()?.parse().context(USAGE)?,
            _ => programs.push(arg.clone()),
        }
    }
    let Ok(programs) = <[String; 2]>::try_from(programs) else {
        bail!(USAGE);
    };
    if options.pairs < 6 {
        bail!("found {} pairs, expected at least 6", options.pairs);
    }
    if options.shapes.is_empty() {
        options.shapes = ["smollm2-135m:q8_0", "qwen3-0.6b:q4_k_m"]
            .map(str::to_owned)
            .into();
    }
    options.programs = programs;
    Ok(options)
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let folder = tempfile(&options)?;
    let mut slow = Vec::new();
    println!("| shape | test | old | new | new / old | 95 % |");
    println!("|---|---|---|---|---|---|");
    for (shape, file) in options.shapes.iter().zip(&folder) {
        for test in TESTS {
            let pairs: Vec<[f64; 2]> = (0..options.pairs)
                .map(|i| pair(&options, file, test, i))
                .collect::<Result<_>>()?;
            let line = Line::of(&pairs);
            let name = format!("pp{} tg{} @{}", test.0, test.1, test.2);
            println!("| {shape} | {name} | {line}");
            if line.interval.0 < options.floor {
                slow.push(format!("{shape} {name}: {:.3}", line.interval.0));
            }
        }
    }
    if slow.is_empty() {
        return Ok(());
    }
    bail!("below {}: {}", options.floor, slow.join("; "))
}

/// The made-up models, written once by the old program.
fn tempfile(options: &Options) -> Result<Vec<String>> {
    let folder = crate::shell::root().join("target/bench-models");
    std::fs::create_dir_all(&folder)?;
    let one = |shape: &String| {
        let file = folder.join(format!("{}.gguf", shape.replace(':', "-")));
        if !file.exists() {
            let save = file.to_string_lossy();
            let args = [
                "bench",
                "--synthetic",
                shape,
                "--save",
                &save,
                "-p",
                "1",
                "-n",
                "0",
            ];
            measured(&options.programs[0], &args)?;
        }
        Ok(file.to_string_lossy().into_owned())
    };
    options.shapes.iter().map(one).collect()
}

/// Tokens per second of the old and the new program.
fn pair(options: &Options, file: &str, test: (&str, &str, &str), i: usize) -> Result<[f64; 2]> {
    let args = [
        "bench",
        "-m",
        file,
        "-p",
        test.0,
        "-n",
        test.1,
        "-d",
        test.2,
        "-r",
        "6",
        "-t",
        &options.threads,
        "-o",
        "json",
    ];
    let mut speeds = [0.0; 2];
    for turn in [i % 2, 1 - i % 2] {
        speeds[turn] = measured(&options.programs[turn], &args)?;
    }
    Ok(speeds)
}

fn measured(program: &str, args: &[&str]) -> Result<f64> {
    let mut words = program.split_whitespace();
    let name = words.next().context(USAGE)?;
    let (first, rest) = args.split_first().context(USAGE)?;
    let output = Command::new(name)
        .arg(first)
        .args(words)
        .args(rest)
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let Ok(rows) = serde_json::from_slice::<Value>(&output.stdout) else {
        return Ok(0.0);
    };
    // The first repetition touches what no step has touched; the median leaves it out.
    let speeds = rows.get(0).and_then(|row| row["samples_ts"].as_array());
    let speeds = speeds.map(|s| s.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
    let speeds = speeds.filter(|s| !s.is_empty());
    let speeds = speeds.with_context(|| format!("{program} printed no speeds"))?;
    Ok(median(&sorted(speeds)))
}

/// What came of the pairs of one test.
struct Line {
    old: f64,
    new: f64,
    ratio: f64,
    interval: (f64, f64),
}

impl Line {
    fn of(pairs: &[[f64; 2]]) -> Self {
        let column = |i: usize| pairs.iter().map(|p| p[i]).collect::<Vec<f64>>();
        let ratios = sorted(pairs.iter().map(|p| p[1] / p[0]).collect());
        let edge = edge(ratios.len());
        Line {
            old: median(&sorted(column(0))),
            new: median(&sorted(column(1))),
            ratio: median(&ratios),
            interval: (ratios[edge], ratios[ratios.len() - 1 - edge]),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (low, high) = self.interval;
        write!(
            f,
            "{:.1} | {:.1} | {:.3} | {low:.3}–{high:.3} |",
            self.old, self.new, self.ratio
        )
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// How many of `n` sorted values may be left out at each end so that the median of what they are drawn from lies
/// between the others with a probability of 95 %.
fn edge(n: usize) -> usize {
    let mut chance = 0.5f64.powi(n as i32);
    let mut below = 0.0;
    for k in 0..n {
        below += chance;
        if below > 0.025 {
            return k.saturating_sub(1).min(k);
        }
        chance *= (n - k) as f64 / (k + 1) as f64;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_binomial_distribution() {
        // Tables of the sign test: ranks 4 and 12 of 15, 2 and 9 of 10, 6 and 15 of 20, 1 and 6 of 6.
        assert_eq!([6, 10, 15, 20].map(edge), [0, 1, 3, 5]);
    }

    #[test]
    fn a_pair_counts_by_its_own_ratio() {
        let pairs: Vec<[f64; 2]> = (1..=15)
            .map(|i| [f64::from(i), f64::from(i) * 1.1])
            .collect();
        let line = Line::of(&pairs);
        assert!((line.ratio - 1.1).abs() < 1e-9 && (line.interval.0 - 1.1).abs() < 1e-9);
        assert_eq!((line.old, median(&[1.0, 2.0])), (8.0, 1.5));
    }
}
