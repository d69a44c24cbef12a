//! What is known not to agree, and where the oracle itself is coarse: lists with reasons, never looser tests.

use std::path::Path;

use super::Outcome;
use crate::models::Failure;

/// Largest error of an agreeing model.
pub const AGREES: f64 = 1e-6;
/// Largest error where the oracle's own tables or scans set the floor.
pub const COARSE: f64 = 1e-5;

/// The lists beside the goldens.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    failing: Vec<Entry>,
    coarse: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    backend: String,
    reason: String,
}

impl Expectations {
    /// Reads `failing.txt` and `coarse.txt`: lines of a golden, a backend or `all`, and the reason.
    ///
    /// # Errors
    /// A line without a reason.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        Ok(Expectations {
            failing: entries(&folder.join("failing.txt"))?,
            coarse: entries(&folder.join("coarse.txt"))?,
        })
    }

    /// Whether a golden is listed as failing on a backend, and why.
    #[must_use]
    pub fn failing(&self, name: &str, backend: &str) -> Option<&str> {
        listed(&self.failing, name, backend)
    }

    /// The largest error at which a golden agrees.
    #[must_use]
    pub fn bound(&self, name: &str, backend: &str) -> f64 {
        match listed(&self.coarse, name, backend) {
            Some(_) => COARSE,
            None => AGREES,
        }
    }

    /// What is wrong with a golden's outcomes: disagreement, or agreement of a golden that is listed as failing.
    #[must_use]
    pub fn judge(
        &self,
        name: &str,
        backend: &str,
        found: &Result<Vec<Outcome>, Failure>,
    ) -> Option<String> {
        let fault = self.fault(name, backend, found);
        match (fault, self.failing(name, backend)) {
            (Some(fault), None) => Some(fault),
            (None, Some(reason)) => Some(format!("agrees, but is listed as failing: {reason}")),
            _ => None,
        }
    }

    fn fault(
        &self,
        name: &str,
        backend: &str,
        found: &Result<Vec<Outcome>, Failure>,
    ) -> Option<String> {
        let outcomes = match found {
            Ok(outcomes) => outcomes,
            Err(e) => return Some(e.clone()),
        };
        let bound = self.bound(name, backend);
        outcomes.iter().find_map(|(way, outcome)| match outcome {
            Ok(Some(error)) if *error <= bound => None,
            Ok(None) => None,
            Ok(Some(error)) => Some(format!("{way}: NMSE {error:.1e}")),
            Err(e) => Some(format!("{way}: {e}")),
        })
    }
}

fn listed<'a>(entries: &'a [Entry], name: &str, backend: &str) -> Option<&'a str> {
    let fits = |e: &&Entry| e.name == name && (e.backend == "all" || e.backend == backend);
    entries.iter().find(fits).map(|e| e.reason.as_str())
}

/// A list that is not there is empty.
fn entries(path: &Path) -> Result<Vec<Entry>, Failure> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(entry).collect()
}

fn entry(line: &str) -> Result<Entry, Failure> {
    let mut words = line.splitn(3, char::is_whitespace);
    let mut word = || Some(words.next()?.trim().to_owned());
    let entry = word().zip(word()).zip(word());
    let ((name, backend), reason) = entry.ok_or(format!("no reason in: {line}"))?;
    Ok(Entry {
        name,
        backend,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_failure_that_passes_is_a_fault() {
        let failing = vec![entry("x ref not yet").unwrap()];
        let lists = Expectations {
            failing,
            ..Expectations::default()
        };
        let agrees = Ok(vec![("whole", Ok(Some(1e-9)))]);
        let differs = Ok(vec![("whole", Ok(Some(1e-3)))]);
        assert!(lists.judge("x", "ref", &agrees).is_some());
        assert!(lists.judge("x", "ref", &differs).is_none());
        assert!(lists.judge("x", "cpu", &differs).is_some());
        assert!(lists.judge("x", "cpu", &agrees).is_none());
        assert!(entry("x ref").is_err());
    }
}
