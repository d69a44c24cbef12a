//! `bench serve`: measures a server that speaks OpenAI's dialect.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::ask::Caller;
use super::figures::{Answer, Limits, figures, table};
use super::plot::svg;
use crate::args::usage;
use crate::console::say;

/// Flags of `bench serve`.
#[derive(Debug, Args)]
pub(crate) struct BenchServeArgs {
    /// The server's address
    #[arg(
        long,
        visible_alias = "base-url",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    server: String,
    /// The model, if the server has several
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// The server's key
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Conversations
    #[arg(
        short = 'n',
        long,
        visible_alias = "num-prompts",
        value_name = "N",
        default_value_t = 32
    )]
    requests: usize,
    /// Answers under way at once
    #[arg(
        short = 'c',
        long,
        visible_alias = "max-concurrency",
        value_name = "N",
        default_value_t = 8
    )]
    concurrency: usize,
    /// Conversations that begin per second, at random times (Poisson); without it, one begins when another ends
    #[arg(long, visible_alias = "request-rate", value_name = "X")]
    rate: Option<f64>,
    /// Words of each prompt, which are about as many tokens
    #[arg(
        long,
        visible_alias = "random-input-len",
        value_name = "N",
        default_value_t = 512
    )]
    input_len: usize,
    /// Tokens of each answer
    #[arg(
        long,
        visible_alias = "random-output-len",
        value_name = "N",
        default_value_t = 128
    )]
    output_len: usize,
    /// Words that all prompts begin with, besides
    #[arg(
        long,
        visible_alias = "random-prefix-len",
        value_name = "N",
        default_value_t = 0
    )]
    prefix_len: usize,
    /// Questions of each conversation, one after another
    #[arg(long, value_name = "N", default_value_t = 1)]
    turns: usize,
    /// An answer is good below these: ttft:MS, itl:MS, e2e:MS
    #[arg(long, value_name = "LIMITS", num_args = 1..)]
    goodput: Vec<String>,
    /// Seed of prompts and times
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Draw the figures into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// How figures are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Numbers that look random (splitmix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Above 0, at most 1.
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 16] = [
            "the", "a", "fox", "lantern", "river", "stone", "walks", "sings", "over", "under",
            "small", "old", "and", "while", "rain", "light",
        ];
        let mut word = || WORDS[(self.next() % WORDS.len() as u64) as usize];
        (0..count).map(|_| word()).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn run(args: &BenchServeArgs) -> Result<()> {
    let limits = Limits::read(&args.goodput).map_err(usage)?;
    if args.requests == 0 || args.concurrency == 0 || args.turns == 0 || args.output_len == 0 {
        return Err(usage(
            "found 0, expected at least 1 for -n, -c, --turns and --output-len",
        ));
    }
    if args.rate.is_some_and(|r| !(r.is_finite() && r > 0.0)) {
        return Err(usage("found a rate that is not above 0"));
    }
    let patience = Some(Duration::from_secs(3600));
    let caller = Caller::new(&args.server, args.api_key.as_deref(), patience);
    let measured = measure(args, &caller)?;
    if let Some(path) = &args.plot {
        std::fs::write(path, svg(&measured.answers))
            .map_err(|e| anyhow!("{}: {e}", path.display()))?;
    }
    let failed = measured.faults.len();
    if let Some(fault) = measured
        .faults
        .first()
        .filter(|_| measured.answers.is_empty())
    {
        bail!("{fault}");
    }
    let figures = figures(&measured.answers, failed, measured.seconds, limits);
    match args.output {
        Format::Table => print!("{}", table(&figures)),
        Format::Json => println!("{figures}"),
    }
    if let Some(fault) = measured.faults.first() {
        say(&format!(
            "{failed} calls failed, the first of them: {fault}"
        ));
    }
    Ok(())
}

struct Measured {
    answers: Vec<Answer>,
    faults: Vec<String>,
    seconds: f64,
}

/// A conversation and when it begins.
struct Talk {
    begins: Duration,
    questions: Vec<String>,
}

fn talks(args: &BenchServeArgs) -> Vec<Talk> {
    let mut draws = Draws(args.seed);
    let prefix = draws.words(args.prefix_len);
    let mut begins = 0.0;
    (0..args.requests)
        .map(|_| {
            begins += args.rate.map_or(0.0, |rate| -draws.share().ln() / rate);
            let first = format!("{prefix} {}", draws.words(args.input_len))
                .trim()
                .to_owned();
            let rest = (1..args.turns).map(|_| draws.words(16)).collect::<Vec<_>>();
            Talk {
                begins: Duration::from_secs_f64(begins),
                questions: std::iter::once(first).chain(rest).collect(),
            }
        })
        .collect()
}

fn measure(args: &BenchServeArgs, caller: &Caller) -> Result<Measured> {
    let talks = talks(args);
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let (answers, faults) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(talk) = talks.get(next.fetch_add(1, Ordering::Relaxed)) {
            std::thread::sleep(talk.begins.saturating_sub(began.elapsed()));
            let mut messages = Vec::new();
            for question in &talk.questions {
                messages.push(json!({"role": "user", "content": question}));
                match ask(args, caller, &mut messages) {
                    Ok(answer) => answers
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(answer),
                    Err(error) => {
                        let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
                        faults.push(format!("{error:#}"));
                        break;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..args.concurrency.min(talks.len()) {
            std::thread::Builder::new().spawn_scoped(scope, work)?;
        }
        Ok(())
    })?;
    Ok(Measured {
        seconds: began.elapsed().as_secs_f64(),
        answers: answers.into_inner().unwrap_or_else(PoisonError::into_inner),
        faults: faults.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

fn ask(args: &BenchServeArgs, caller: &Caller, messages: &mut Vec<Value>) -> Result<Answer> {
    let mut body = json!({
        "messages": messages,
        "max_tokens": args.output_len,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if let Some(model) = &args.model {
        body["model"] = model.as_str().into();
    }
    let asked = Instant::now();
    let mut answer = Answer::default();
    let (mut text, mut last) = (String::new(), None);
    caller.stream("/v1/chat/completions", &body, |event| {
        let delta = &event["choices"][0]["delta"];
        let said = ["content", "reasoning_content", "reasoning"].iter();
        let said = said
            .filter_map(|n| delta[*n].as_str())
            .find(|t| !t.is_empty());
        if let Some(said) = said {
            let now = Instant::now();
            match last.replace(now) {
                None => answer.first = (now - asked).as_secs_f64(),
                Some(before) => answer.gaps.push((now - before).as_secs_f64()),
            }
            text.push_str(said);
        }
        let usage = &event["usage"];
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            answer.tokens = tokens;
            answer.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            let cached = &usage["prompt_tokens_details"]["cached_tokens"];
            answer.cached_tokens = cached.as_u64().unwrap_or(0);
        }
        Ok(())
    })?;
    answer.whole = asked.elapsed().as_secs_f64();
    if last.is_none() {
        bail!("an answer had no text");
    }
    if answer.tokens == 0 {
        answer.tokens = answer.gaps.len() as u64 + 1;
    }
    messages.push(json!({"role": "assistant", "content": text}));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchServeArgs,
    }

    #[test]
    fn conversations_share_their_beginning_and_come_at_the_rate_that_was_asked_for() {
        let line = "x --rate 10 -n 400 --prefix-len 5 --input-len 3 --turns 2";
        let args = Line::parse_from(line.split(' ')).args;
        let talks = talks(&args);
        let prefix = |t: &Talk| {
            t.questions[0]
                .split(' ')
                .take(5)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(
            talks
                .iter()
                .all(|t| prefix(t) == prefix(&talks[0]) && t.questions.len() == 2)
        );
        assert!(talks.windows(2).any(|t| t[0].questions != t[1].questions));
        let seconds = talks[399].begins.as_secs_f64();
        assert!((30.0..50.0).contains(&seconds), "{seconds}");
    }
}
