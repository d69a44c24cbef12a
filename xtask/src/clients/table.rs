//! The table of what passed and what did not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::known::Known;
use super::suites::Suite;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    Skipped,
}

/// A test that was run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) end: End,
    /// Why it did not pass.
    pub(crate) why: String,
}

/// A line of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    title: String,
    passed: usize,
    skipped: usize,
    /// Failures that are known, by reason.
    known: BTreeMap<String, usize>,
    /// Failures that are not.
    pub(crate) faults: Vec<String>,
    note: String,
}

impl Row {
    /// A suite that could not be run.
    pub(crate) fn skipped(suite: &Suite, why: &str) -> Self {
        let why = why.lines().next().unwrap_or_default();
        Row {
            title: suite.title.to_owned(),
            note: format!("not run: {why}"),
            ..Row::default()
        }
    }
}

/// A row per part of a suite.
pub(crate) fn rows(suite: &Suite, outcomes: &[Outcome], known: &Known) -> Vec<Row> {
    let mut row = Row {
        title: suite.title.to_owned(),
        ..Row::default()
    };
    for one in outcomes {
        let why = known.why(suite.name, &one.name);
        match (one.end, why) {
            (End::Passed, _) => row.passed += 1,
            (_, Some(why)) => *row.known.entry(why.to_owned()).or_insert(0) += 1,
            (End::Skipped, None) => row.skipped += 1,
            (End::Failed, None) => row.faults.push(format!("{}: {}", one.name, one.why)),
        }
    }
    vec![row]
}

/// The table in Markdown.
pub(crate) fn written(rows: &[Row]) -> String {
    let mut out =
        String::from("| suite | passed | failed | left out | why |\n|---|---|---|---|---|\n");
    for row in rows {
        let left: usize = row.known.values().sum::<usize>() + row.skipped;
        let mut whys: Vec<String> = row
            .known
            .iter()
            .map(|(why, n)| format!("{why} ({n})"))
            .collect();
        if row.skipped > 0 {
            whys.push(format!("skipped by the suite itself ({})", row.skipped));
        }
        whys.extend((!row.note.is_empty()).then(|| row.note.clone()));
        let (title, passed, failed) = (&row.title, row.passed, row.faults.len());
        let _ = writeln!(
            out,
            "| {title} | {passed} | {failed} | {left} | {} |",
            whys.join("; ")
        );
    }
    out
}

/// Puts the table into a document, in the place of the table below the heading of clients.
pub(crate) fn put(path: &Path, rows: &[Row]) -> Result<()> {
    let text = std::fs::read_to_string(path)?;
    let start = text
        .find("| suite |")
        .context("the document has no table of suites")?;
    let rest = &text[start..];
    let lines = rest
        .split_inclusive('\n')
        .take_while(|l| l.starts_with('|'));
    let end = start + lines.map(str::len).sum::<usize>();
    std::fs::write(
        path,
        format!("{}{}{}", &text[..start], written(rows), &text[end..]),
    )?;
    Ok(())
}

/// The cases of a report in JUnit's XML.
pub(crate) fn junit(text: &str) -> Vec<Outcome> {
    let attribute = |of: &str, name: &str| {
        let at = of.find(&format!("{name}=\""))? + name.len() + 2;
        Some(of[at..].split('"').next().unwrap_or_default().to_owned())
    };
    let cases = text.split("<testcase ").skip(1);
    cases
        .map(|case| {
            let case = case.split("</testcase>").next().unwrap_or(case);
            let fault = ["<failure", "<error"].iter().find_map(|tag| case.find(tag));
            let end = match (fault, case.contains("<skipped")) {
                (Some(_), _) => End::Failed,
                (None, true) => End::Skipped,
                (None, false) => End::Passed,
            };
            let why = fault
                .map(|at| &case[at..])
                .and_then(|f| attribute(f, "message"));
            Outcome {
                name: attribute(case, "name").unwrap_or_default(),
                end,
                why: why.unwrap_or_default().chars().take(400).collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_out_of_xml() {
        let text = r#"<testsuite><testcase name="GET /a" time="1"/><testcase name="POST /b"><failure type="x" message="1. Wrong">y</failure></testcase></testsuite>"#;
        let all = junit(text);
        assert_eq!((all[0].name.as_str(), all[0].end), ("GET /a", End::Passed));
        assert_eq!((all[1].end, all[1].why.as_str()), (End::Failed, "1. Wrong"));
    }
}
