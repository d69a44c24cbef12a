//! Results as a table, as CSV or as JSON, under llama-bench's names.

use std::io::{Stdout, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Map, Value as Json, json};
use tokkata::Model;

use super::BenchArgs;
use super::measure::Test;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A Markdown table.
    Md,
    /// Comma-separated values.
    Csv,
    /// One JSON array.
    Json,
    /// One JSON object per line.
    Jsonl,
}

/// One test's results.
pub(super) struct Row {
    fields: Map<String, Json>,
    test: String,
}

impl Row {
    pub(super) fn new(model: &Model, args: &BenchArgs, test: &Test, samples_ns: &[u64]) -> Self {
        let rate = |&ns: &u64| test.tokens() as f64 * 1e9 / ns.max(1) as f64;
        let samples_ts: Vec<f64> = samples_ns.iter().map(rate).collect();
        let ns: Vec<f64> = samples_ns.iter().map(|&n| n as f64).collect();
        let mut fields = about(model);
        let mut set = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        set("n_batch", json!(args.batch_size));
        set("n_ubatch", json!(args.ubatch_size));
        set("n_threads", json!(model.threads()));
        set("type_k", json!(cache_type(model)));
        set("type_v", json!(cache_type(model)));
        set("n_prompt", json!(test.prompt));
        set("n_gen", json!(test.generated));
        set("n_depth", json!(test.depth));
        set("n_parallel", json!(test.sequences));
        set("test_time", json!(utc(SystemTime::now())));
        set("avg_ns", json!(mean(&ns).round() as u64));
        set("stddev_ns", json!(deviation(&ns).round() as u64));
        set("avg_ts", json!(mean(&samples_ts)));
        set("stddev_ts", json!(deviation(&samples_ts)));
        set("samples_ns", json!(samples_ns));
        set("samples_ts", json!(samples_ts));
        Row {
            fields,
            test: test.name(),
        }
    }

    fn number(&self, name: &str) -> f64 {
        self.fields[name].as_f64().unwrap_or(0.0)
    }

    fn text(&self, name: &str) -> &str {
        self.fields[name].as_str().unwrap_or("")
    }

    fn markdown(&self) -> String {
        let size = format!("{:.2} MiB", self.number("model_size") / (1 << 20) as f64);
        let params = millions(self.number("model_n_params"));
        let rate = format!(
            "{:.2} ± {:.2}",
            self.number("avg_ts"),
            self.number("stddev_ts")
        );
        format!(
            "| {:<30} | {size:>10} | {params:>10} | {:<10} | {:>7} | {:>15} | {rate:>20} |",
            self.text("model_type"),
            self.text("backends"),
            self.number("n_threads"),
            self.test,
        )
    }

    fn csv(&self) -> String {
        let cells = self
            .fields
            .iter()
            .filter(|(name, _)| !name.starts_with("samples"));
        let quoted = |(_, value): (&String, &Json)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            format!("\"{}\"", text.replace('"', "\"\""))
        };
        cells.map(quoted).collect::<Vec<_>>().join(",")
    }

    fn csv_header(&self) -> String {
        let names = self
            .fields
            .keys()
            .filter(|name| !name.starts_with("samples"));
        names.cloned().collect::<Vec<_>>().join(",")
    }
}

/// What does not depend on the test.
fn about(model: &Model) -> Map<String, Json> {
    let file = model.checkpoint().file();
    let params = model.checkpoint().n_params();
    let size: u64 = file.tensors().iter().map(|t| t.bytes).sum();
    let kind = file
        .metadata()
        .uint("general.file_type")
        .and_then(|n| u32::try_from(n).ok());
    let kind = kind.and_then(tokkata::file_type_name).unwrap_or("unknown");
    let arch = file.architecture().unwrap_or("unknown");
    let pairs = [
        ("build_commit", json!(env!("CARGO_PKG_VERSION"))),
        ("build_number", json!(0)),
        ("cpu_info", json!(cpu_name())),
        ("gpu_info", json!("")),
        ("backends", json!(model.device().to_uppercase())),
        ("model_filename", json!(file.path().display().to_string())),
        (
            "model_type",
            json!(format!("{arch} {} {kind}", billions(params as f64))),
        ),
        ("model_size", json!(size)),
        ("model_n_params", json!(params)),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn cache_type(model: &Model) -> String {
    model.limits().kv_dtype.name().to_lowercase()
}

fn millions(n: f64) -> String {
    if n >= 1e9 {
        format!("{:.2} B", n / 1e9)
    } else {
        format!("{:.2} M", n / 1e6)
    }
}

fn billions(n: f64) -> String {
    if n >= 1e8 {
        format!("{:.1}B", n / 1e9)
    } else {
        format!("{:.2}M", n / 1e6)
    }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// The sample standard deviation; 0 for a single sample.
fn deviation(samples: &[f64]) -> f64 {
    let (n, mean) = (samples.len() as f64, mean(samples));
    let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
    if n > 1.0 {
        (squares / (n - 1.0)).sqrt()
    } else {
        0.0
    }
}

/// `2026-11-21T10:09:03Z`, by the calendar algorithm of Hinnant's "chrono-compatible low-level date algorithms".
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Prints rows as they come.
pub(super) struct Report {
    format: Format,
    out: Stdout,
    rows: usize,
}

impl Report {
    pub(super) fn new(format: Format) -> Self {
        Report {
            format,
            out: std::io::stdout(),
            rows: 0,
        }
    }

    pub(super) fn add(&mut self, row: &Row) -> Result<()> {
        let first = self.rows == 0;
        self.rows += 1;
        match self.format {
            Format::Md => {
                if first {
                    writeln!(self.out, "{MD_HEADER}")?;
                }
                writeln!(self.out, "{}", row.markdown())?;
            }
            Format::Csv => {
                if first {
                    writeln!(self.out, "{}", row.csv_header())?;
                }
                writeln!(self.out, "{}", row.csv())?;
            }
            Format::Json => {
                let text = serde_json::to_string_pretty(&row.fields)?.replace('\n', "\n  ");
                write!(self.out, "{}  {text}", if first { "[\n" } else { ",\n" })?;
            }
            Format::Jsonl => writeln!(self.out, "{}", Json::Object(row.fields.clone()))?,
        }
        Ok(self.out.flush()?)
    }

    pub(super) fn finish(mut self) -> Result<()> {
        match self.format {
            Format::Json if self.rows == 0 => writeln!(self.out, "[]")?,
            Format::Json => writeln!(self.out, "\n]")?,
            Format::Md => writeln!(self.out, "\nbuild: tokkata {}", env!("CARGO_PKG_VERSION"))?,
            Format::Csv | Format::Jsonl => {}
        }
        Ok(self.out.flush()?)
    }
}

const MD_HEADER: &str = "\
| model                          |       size |     params | backend    | threads |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        assert_eq!(
            (mean(&[2.0, 4.0]), deviation(&[2.0, 4.0])),
            (3.0, 2f64.sqrt())
        );
        assert_eq!(deviation(&[2.0]), 0.0);
    }

    #[test]
    fn times_are_utc() {
        let at = |s| utc(UNIX_EPOCH + std::time::Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(at(1_795_255_743), "2026-11-21T10:09:03Z");
    }
}
