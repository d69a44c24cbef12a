//! The table.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value as Json, json};

use super::engine::{Engine, Facts, Speed};
use super::machine;
use super::suite::Case;
use crate::shell;

const BEGIN: &str = "<!-- table: bench-peers -->";
const END: &str = "<!-- end of table -->";

/// Medians of one case: ours, then each peer's best setting.
pub(super) struct Line {
    case: Case,
    prefill: Rates,
    decode: Rates,
    /// Share of the bandwidth measured before and after each run that our decoding streams.
    streamed: Option<f64>,
    /// Products per cycle and core of our prefill.
    macs: Option<f64>,
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

/// The best median over an engine's settings.
fn best(settings: &[Vec<Speed>], of: fn(&Speed) -> Option<f64>) -> Option<f64> {
    let medians = settings
        .iter()
        .filter_map(|runs| median(runs.iter().filter_map(of).collect()));
    medians.max_by(f64::total_cmp)
}

/// Tokens per byte that could be read meanwhile, by what was measured around each run of an engine.
fn streamed(settings: &[Vec<Speed>], bandwidths: &[f64]) -> Option<f64> {
    let shares = settings.iter().filter_map(|runs| {
        let runs = runs.iter().zip(bandwidths);
        median(runs.filter_map(|(run, b)| Some(run.decode? / b)).collect())
    });
    shares.max_by(f64::total_cmp)
}

impl Line {
    pub(super) fn new(
        case: &Case,
        facts: &Facts,
        bandwidths: &[f64],
        engines: &[Engine],
        samples: &[Vec<Vec<Speed>>],
    ) -> Self {
        assert_eq!(engines.len(), samples.len());
        let prefill: Vec<_> = samples.iter().map(|s| best(s, |x| x.prefill)).collect();
        let decode: Vec<_> = samples.iter().map(|s| best(s, |x| x.decode)).collect();
        let cycles = machine::clock() * case.threads as f64;
        // Bandwidth and cycles are the processor's.
        let own = |x: Option<f64>| x.filter(|_| case.device.is_none());
        Line {
            case: case.clone(),
            streamed: own(streamed(&samples[0], bandwidths).map(|share| share * facts.bytes)),
            macs: own(prefill[0].map(|rate| rate * facts.macs / cycles)),
            prefill,
            decode,
        }
    }

    /// The line as a row of a Markdown table.
    pub(super) fn row(&self) -> String {
        let halves = [
            (std::slice::from_ref(&self.prefill), self.macs.as_slice()),
            (std::slice::from_ref(&self.decode), self.streamed.as_slice()),
        ];
        row(&self.case.name(), halves)
    }
}

/// Rates by engine.
pub(super) type Rates = Vec<Option<f64>>;

/// A row: per half of the table the rates of one or more runs, by engine, and what is said of ours alone.
pub(super) fn row(name: &str, halves: [(&[Rates], &[f64]); 2]) -> String {
    let mut text = format!("| {name} |");
    for (runs, own) in halves {
        let rate = |engine: usize| median(runs.iter().filter_map(|r| r[engine]).collect());
        let _ = write!(text, " {} |", number(rate(0)));
        for engine in 1..runs[0].len() {
            let ratio = |run: &Rates| Some(run[0]? / run[engine]?);
            let ratios = ratios(runs.iter().filter_map(ratio).collect());
            let _ = write!(text, " {} | {ratios} |", number(rate(engine)));
        }
        let own = median(own.to_vec()).map_or("–".to_owned(), |x| format!("{x:.2}"));
        let _ = write!(text, " {own} |");
    }
    text
}

/// The median, and of several runs the range.
fn ratios(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    match (all[..].first(), median(all.clone()), all[..].last()) {
        (Some(least), Some(middle), Some(most)) if all.len() > 1 => {
            format!("{middle:.2}× ({least:.2}–{most:.2})")
        }
        (_, Some(only), _) => format!("{only:.2}×"),
        _ => "–".to_owned(),
    }
}

/// The figures of a run, for [`super::merge`].
pub(super) fn saved(engines: &[&str], lines: &[Line]) -> Json {
    let line = |l: &Line| {
        json!({
            "case": l.case.name(),
            "prefill": &l.prefill,
            "decode": &l.decode,
            "macs": l.macs,
            "streamed": l.streamed,
        })
    };
    json!({ "engines": engines, "lines": lines.iter().map(line).collect::<Vec<_>>() })
}

fn number(rate: Option<f64>) -> String {
    rate.map_or("–".to_owned(), |r| format!("{r:.1}"))
}

/// The whole table.
pub(super) fn table(engines: &[&str], lines: &[Line]) -> String {
    let rows: String = lines.iter().map(|l| l.row() + "\n").collect();
    head(engines) + &rows
}

/// The first two lines of a table.
pub(super) fn head(engines: &[&str]) -> String {
    let mut head = "| model |".to_owned();
    for (what, own) in [("prefill", "MAC/cycle/core"), ("decode", "of bandwidth")] {
        let _ = write!(head, " {what}: {} |", engines[0]);
        for peer in &engines[1..] {
            let _ = write!(head, " {peer} | ratio |");
        }
        let _ = write!(head, " {own} |");
    }
    let rule = "|---".repeat(head.matches('|').count() - 1) + "|";
    format!("{head}\n{rule}\n")
}

/// Replaces the table in the documentation.
pub(super) fn write(table: &str) -> Result<()> {
    let path = shell::root().join("docs/performance.md");
    let text = std::fs::read_to_string(&path)?;
    let (head, rest) = text
        .split_once(BEGIN)
        .context("docs/performance.md has no table")?;
    let (_, tail) = rest.split_once(END).context("the table has no end")?;
    Ok(std::fs::write(
        path,
        format!("{head}{BEGIN}\n{table}{END}{tail}"),
    )?)
}
