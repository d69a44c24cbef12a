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
    prefill: Vec<Option<f64>>,
    decode: Vec<Option<f64>>,
    /// Share of the bandwidth measured in the same run that our decoding streams.
    streamed: Option<f64>,
    /// Products per cycle and core of our prefill.
    macs: Option<f64>,
}

/// The middle value, or the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
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

impl Line {
    pub(super) fn new(
        case: &Case,
        facts: &Facts,
        bandwidth: f64,
        engines: &[Engine],
        samples: &[Vec<Vec<Speed>>],
    ) -> Self {
        assert_eq!(engines.len(), samples.len());
        let prefill: Vec<_> = samples.iter().map(|s| best(s, |x| x.prefill)).collect();
        let decode: Vec<_> = samples.iter().map(|s| best(s, |x| x.decode)).collect();
        let cycles = machine::clock() * case.threads as f64;
        Line {
            case: case.clone(),
            streamed: decode[0].map(|rate| rate * facts.bytes / bandwidth),
            macs: prefill[0].map(|rate| rate * facts.macs / cycles),
            prefill,
            decode,
        }
    }

    /// The line as a row of a Markdown table.
    pub(super) fn row(&self) -> String {
        let mut text = format!("| {} |", self.case.name());
        for (rates, own) in [(&self.prefill, self.macs), (&self.decode, self.streamed)] {
            let _ = write!(text, " {} |", number(rates[0]));
            for peer in &rates[1..] {
                let ratio = rates[0].zip(*peer).map(|(ours, theirs)| ours / theirs);
                let _ = write!(text, " {} | {} |", number(*peer), ratio_text(ratio));
            }
            let _ = write!(
                text,
                " {} |",
                own.map_or("–".to_owned(), |x| format!("{x:.2}"))
            );
        }
        text
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

pub(super) fn number(rate: Option<f64>) -> String {
    rate.map_or("–".to_owned(), |r| format!("{r:.1}"))
}

fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |r| format!("{r:.2}×"))
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
