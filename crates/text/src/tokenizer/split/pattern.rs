//! Splitting expressions that have no scanner of their own.

use std::sync::Arc;

use fancy_regex::Regex;

use super::super::error::TokenizerError;

/// A regular expression, run with a bound on backtracking.
#[derive(Clone, Debug)]
pub(in super::super) struct Pattern {
    regex: Arc<Regex>,
}

impl Pattern {
    /// Compiles `source`.
    pub(in super::super) fn new(source: &str) -> Result<Self, TokenizerError> {
        let regex = Regex::new(source)
            .map_err(|e| TokenizerError::malformed(format!("expression `{source}`"), e))?;
        Ok(Pattern {
            regex: Arc::new(regex),
        })
    }

    /// Calls `emit` with every piece of `text` and whether it is a match.
    ///
    /// A text that would need too much backtracking stays whole from there on.
    pub(super) fn pieces<'a>(&self, text: &'a str, emit: &mut impl FnMut(&'a str, bool)) {
        let mut gap = 0;
        for found in self.regex.find_iter(text).map_while(Result::ok) {
            super::emit_if_any(&text[gap..found.start()], emit);
            if found.end() > found.start() {
                emit(found.as_str(), true);
            }
            gap = found.end();
        }
        super::emit_if_any(&text[gap..], emit);
    }
}
