//! One table from the saved figures of several runs.

use anyhow::{Context, Result, bail};
use serde_json::Value as Json;

use super::report::{Rates, head, row};

/// What the runs that have a case measured.
#[derive(Debug)]
struct Merged {
    case: String,
    prefill: Vec<Rates>,
    decode: Vec<Rates>,
    macs: Vec<f64>,
    streamed: Vec<f64>,
}

/// The table of the runs in `files`: engines and cases in the order in which they first appear.
pub(super) fn table(files: &[&String]) -> Result<String> {
    let mut runs = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| (*file).clone())?;
        runs.push(serde_json::from_str(&text).with_context(|| (*file).clone())?);
    }
    merged(&runs)
}

fn merged(runs: &[Json]) -> Result<String> {
    let mut engines: Vec<&str> = Vec::new();
    let mut cases: Vec<Merged> = Vec::new();
    for name in runs.iter().flat_map(names) {
        if !engines.contains(&name) {
            engines.push(name);
        }
    }
    if engines.is_empty() {
        bail!("found no figures, expected files that `--save` wrote");
    }
    for run in runs {
        let own: Vec<&str> = names(run).collect();
        for line in run["lines"].as_array().into_iter().flatten() {
            let name = line["case"].as_str().unwrap_or_default();
            let at = cases.iter().position(|c| c.case == name);
            let at = at.unwrap_or_else(|| {
                cases.push(Merged {
                    case: name.to_owned(),
                    prefill: Vec::new(),
                    decode: Vec::new(),
                    macs: Vec::new(),
                    streamed: Vec::new(),
                });
                cases.len() - 1
            });
            let rates = |what: &str| {
                let of = |engine: &&str| {
                    let place = own.iter().position(|e| e == engine)?;
                    line[what][place].as_f64()
                };
                engines.iter().map(of).collect::<Vec<_>>()
            };
            cases[at].prefill.push(rates("prefill"));
            cases[at].decode.push(rates("decode"));
            cases[at].macs.extend(line["macs"].as_f64());
            cases[at].streamed.extend(line["streamed"].as_f64());
        }
    }
    let rows: String = cases.iter().map(|case| case.row() + "\n").collect();
    Ok(head(&engines) + &rows)
}

fn names(run: &Json) -> impl Iterator<Item = &str> {
    let names = run["engines"].as_array().into_iter().flatten();
    names.filter_map(Json::as_str)
}

impl Merged {
    fn row(&self) -> String {
        let prefill = (&self.prefill[..], &self.macs[..]);
        let decode = (&self.decode[..], &self.streamed[..]);
        row(&self.case, [prefill, decode])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(engines: &[&str], prefill: &[f64]) -> Json {
        json!({ "engines": engines, "lines": [
            { "case": "m q4_0 2t", "prefill": prefill, "decode": [null, null], "macs": prefill[0] / 10.0 },
        ] })
    }

    #[test]
    fn runs_give_medians_and_the_range_of_their_ratios() {
        let runs = [
            run(&["ours", "a"], &[30.0, 10.0]),
            run(&["ours", "a"], &[20.0, 10.0]),
            run(&["ours", "b"], &[10.0, 10.0]),
        ];
        let table = merged(&runs).unwrap();
        let row = table.lines().nth(2).unwrap();
        assert_eq!(
            row,
            "| m q4_0 2t | 20.0 | 10.0 | 2.50× (2.00–3.00) | 10.0 | 1.00× | 2.00 | – | – | – | – | – | – |"
        );
    }

    #[test]
    fn a_file_without_figures_is_an_error() {
        assert!(merged(&[json!({})]).is_err());
    }
}
