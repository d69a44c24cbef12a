//! `ab`: two programs, or one with two sets of flags, measured in turn on the same shapes.
//!
//! Each pair runs both once, every other pair the other way round; the ratio of a pair is new to old. The median of
//! the ratios is given with the 95 % interval that the order of the ratios allows (binomial, no shape assumed).
//!
//! With `--loops` other threads want the cores meanwhile; with `--command` whole commands are measured by the clock.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

const USAGE: &str = "usage: cargo xtask ab [OPTIONS] OLD NEW

  OLD, NEW   programs with their flags, such as 'target/old/tokkata' and 'target/new/tokkata -t 1'
  --pairs    interleaved pairs (default 15, at least 6)
  --threads  worker threads of programs that have no -t among their flags (default 2)
  --shape    a made-up model, as bench --synthetic takes it (default smollm2-135m:q8_0 and qwen3-0.6b:q4_k_m)
  --test     PP:TG:DEPTH, tokens of a prompt, tokens after it, and tokens before both; again for more
             (default 256:0:0 16:0:0 0:32:0 0:16:1024)
  --reps     repetitions of a test in each run (default 6)
  --fastest  of these the fastest counts, not the median: others who share a machine only make it slower
  --command  a command in the place of tests, such as 'run -m demo -p Hello --temp 0'; runs per second count
  --loops    busy loops beside all that is measured (default 0)
  --floor    fails when the lower end of an interval is below this (default 0.97)";

/// Prompt, generated tokens and depth of each test.
const TESTS: [&str; 4] = ["256:0:0", "16:0:0", "0:32:0", "0:16:1024"];

#[derive(Debug)]
struct Options {
    pairs: usize,
    threads: String,
    shapes: Vec<String>,
    tests: Vec<[usize; 3]>,
    reps: String,
    fastest: bool,
    commands: Vec<String>,
    loops: usize,
    floor: f64,
    programs: [String; 2],
}

fn test(text: &str) -> Result<[usize; 3]> {
    let parts: Vec<usize> = text.split(':').filter_map(|n| n.parse().ok()).collect();
    let test = <[usize; 3]>::try_from(parts)
        .ok()
        .filter(|t| t[0] + t[1] > 0);
    test.with_context(|| format!("found --test {text}, expected PP:TG:DEPTH such as 256:0:0"))
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options {
        pairs: 15,
        threads: "2".to_owned(),
        shapes: Vec::new(),
        tests: Vec::new(),
        reps: "6".to_owned(),
        fastest: false,
        commands: Vec::new(),
        loops: 0,
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
            "--test" => options.tests.push(test(&value()?)?),
            "--reps" => options.reps = value()?,
            "--fastest" => options.fastest = true,
            "--command" => options.commands.push(value()?),
            "--loops" => options.loops = value()?.parse().context(USAGE)?,
            "--floor" => options.floor = value()?.parse().context(USAGE)?,
            flag if flag.starts_with('-') => bail!("found {flag}; {USAGE}"),
            _ => programs.push(arg.clone()),
        }
    }
    let Ok(programs) = <[String; 2]>::try_from(programs) else {
        bail!(USAGE);
    };
    if options.pairs < 6 {
        bail!("found {} pairs, expected at least 6", options.pairs);
    }
    if options.tests.is_empty() {
        options.tests = TESTS.iter().map(|t| test(t)).collect::<Result<_>>()?;
    }
    if options.shapes.is_empty() && options.commands.is_empty() {
        options.shapes = ["smollm2-135m:q8_0", "qwen3-0.6b:q4_k_m"]
            .map(str::to_owned)
            .into();
    }
    options.programs = programs;
    Ok(options)
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let files = made_up(&options)?;
    let _loops = Loops::start(options.loops);
    let mut slow = Vec::new();
    println!("| shape | test | old | new | new / old | 95 % |");
    println!("|---|---|---|---|---|---|");
    let mut compare = |name: [&str; 2], once: &dyn Fn(&str) -> Result<f64>| -> Result<()> {
        let pairs = (0..options.pairs).map(|i| pair(&options.programs, i, once));
        let line = Line::of(&pairs.collect::<Result<Vec<_>>>()?);
        println!("| {} | {} | {line}", name[0], name[1]);
        if line.interval.0 < options.floor {
            slow.push(format!("{}: {:.3}", name.join(" "), line.interval.0));
        }
        Ok(())
    };
    for (shape, file) in options.shapes.iter().zip(&files) {
        for test in &options.tests {
            let name = format!("pp{} tg{} @{}", test[0], test[1], test[2]);
            let args = bench(file, test, &options.reps);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let once =
                |program: &str| measured(program, (&args, &options.threads), options.fastest);
            compare([shape, &name], &once)?;
        }
    }
    for command in &options.commands {
        let once = |program: &str| clocked(program, command);
        compare([command, "runs/s"], &once)?;
    }
    if slow.is_empty() {
        return Ok(());
    }
    bail!("below {}: {}", options.floor, slow.join("; "))
}

/// Threads that want a core each, until they are dropped.
struct Loops(Arc<AtomicBool>);

impl Loops {
    fn start(count: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..count {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Loops(over)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The made-up models, written once by the old program.
fn made_up(options: &Options) -> Result<Vec<String>> {
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
            measured(&options.programs[0], (&args, &options.threads), false)?;
        }
        Ok(file.to_string_lossy().into_owned())
    };
    options.shapes.iter().map(one).collect()
}

fn bench(file: &str, test: &[usize; 3], reps: &str) -> Vec<String> {
    let [prompt, written, depth] = test.map(|n| n.to_string());
    let args = [
        "bench", "-m", file, "-p", &prompt, "-n", &written, "-d", &depth, "-r", reps, "-o", "json",
    ];
    args.map(str::to_owned).into()
}

/// Speeds of the old and the new program, the old one first in every other pair.
fn pair(programs: &[String; 2], i: usize, once: &dyn Fn(&str) -> Result<f64>) -> Result<[f64; 2]> {
    let mut speeds = [0.0; 2];
    for turn in [i % 2, 1 - i % 2] {
        speeds[turn] = once(&programs[turn])?;
    }
    Ok(speeds)
}

/// A program's command: its own flags come behind the command's name.
fn command(program: &str, args: &[&str]) -> Result<Command> {
    let mut words = program.split_whitespace();
    let mut command = Command::new(words.next().context(USAGE)?);
    let (first, rest) = args.split_first().context(USAGE)?;
    command.arg(first).args(words).args(rest);
    command.stdin(Stdio::null());
    Ok(command)
}

fn output(program: &str, mut command: Command) -> Result<Vec<u8>> {
    let output = command.output();
    let output = output.with_context(|| format!("{program} cannot be started"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Runs of a command that a second has room for.
fn clocked(program: &str, line: &str) -> Result<f64> {
    let args: Vec<&str> = line.split_whitespace().collect();
    let command = command(program, &args)?;
    let start = Instant::now();
    output(program, command)?;
    Ok(1.0 / start.elapsed().as_secs_f64())
}

/// Tokens per second of a bench: of its fastest repetition, or the median.
fn measured(program: &str, (args, threads): (&[&str], &str), fastest: bool) -> Result<f64> {
    let mut command = command(program, args)?;
    let own = |word: &str| word == "-t" || word == "--threads";
    if !program.split_whitespace().any(own) {
        command.args(["-t", threads]);
    }
    let stdout = output(program, command)?;
    let Ok(rows) = serde_json::from_slice::<Value>(&stdout) else {
        return Ok(0.0);
    };
    // The first repetition touches what no step has touched; the median leaves it out.
    let speeds = rows.get(0).and_then(|row| row["samples_ts"].as_array());
    let speeds = speeds.map(|s| s.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
    let speeds = speeds.filter(|s| !s.is_empty());
    let speeds = speeds.with_context(|| format!("{program} printed no speeds"))?;
    let speeds = sorted(speeds);
    Ok(match fastest {
        true => speeds[speeds.len() - 1],
        false => median(&speeds),
    })
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
    fn options_are_read() {
        let read = |text: &str| {
            let args: Vec<String> = text.split(' ').map(str::to_owned).collect();
            parse(&args)
        };
        let options = read("--loops 2 --test 16:0:0 --test 0:6:32 --pairs 7 old new").unwrap();
        assert_eq!((options.loops, options.pairs), (2, 7));
        assert_eq!(options.tests, [[16, 0, 0], [0, 6, 32]]);
        assert_eq!((options.shapes.len(), options.programs.len()), (2, 2));
        let usual = read("--command run old new").unwrap();
        assert_eq!((usual.shapes.len(), usual.commands.len()), (0, 1));
        assert_eq!(usual.tests.len(), TESTS.len());
        for wrong in [
            "--test 16:0 a b",
            "--test 0:0:5 a b",
            "--loop 2 a b",
            "a",
            "--pairs 5 a b",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn whole_commands_are_clocked_with_flags_behind_their_name() {
        let shown = |program: &str| {
            let command = command(program, &["run", "-m", "demo"]).unwrap();
            let words = command.get_args().map(|a| a.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown("tokkata -t 1"), "run -t 1 -m demo");
        let speed = clocked("sleep", "0.05").unwrap();
        assert!((1.0..20.0).contains(&speed), "{speed}");
        assert!(clocked("false", "x").is_err());
    }

    #[test]
    fn loops_run_until_they_are_dropped() {
        let loops = Loops::start(2);
        let over = Arc::clone(&loops.0);
        assert!(!over.load(Ordering::Relaxed));
        drop(loops);
        let start = Instant::now();
        while Arc::strong_count(&over) > 1 {
            assert!(start.elapsed().as_secs() < 10, "they go on");
            std::thread::yield_now();
        }
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
