//! Tests of others that cannot hold here, and why.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The list, in the order in which it is looked through.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Known {
    #[serde(default)]
    reason: Vec<Reason>,
}

/// A reason and the tests that it holds for.
#[derive(Debug, Deserialize)]
pub(crate) struct Reason {
    /// Which suite.
    suite: String,
    /// Why, in a few words.
    why: String,
    /// Names of tests; a star stands for anything.
    tests: Vec<String>,
}

impl Known {
    /// Reads the list.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        toml::from_str(&text).with_context(|| format!("{}", path.display()))
    }

    /// Why a test cannot hold here.
    pub(crate) fn why(&self, suite: &str, test: &str) -> Option<&str> {
        let fits = |r: &&Reason| r.suite == suite && r.tests.iter().any(|t| matches(t, test));
        self.reason.iter().find(fits).map(|r| r.why.as_str())
    }
}

/// Whether a name fits a pattern in which a star stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => rest.is_empty() || part.is_empty() || name.ends_with(part),
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, matches};

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("a::b", "a::b") && !matches("a::b", "a::b[1]"));
        assert!(matches("a::*", "a::b[1]") && matches("*vision*", "x::vision[2]"));
        assert!(matches("a*[1]", "a::b[1]") && !matches("a*[1]", "a::b[2]"));
        assert!(!matches("b*", "a::b") && !matches("a*b", "abc"));
    }

    #[test]
    fn the_first_reason_counts() {
        let text = "[[reason]]\nsuite = 's'\nwhy = 'one'\ntests = ['a*']\n[[reason]]\nsuite = 's'\nwhy = 'two'\ntests = ['*']";
        let known: Known = toml::from_str(text).expect("a list");
        assert_eq!(known.why("s", "ab"), Some("one"));
        assert_eq!(known.why("s", "b"), Some("two"));
        assert_eq!(known.why("t", "ab"), None);
    }
}
