//! Grammars, and walks through them by hand.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokkata::grammar::{Grammar as Compiled, GrammarSource, GrammarState};

/// A grammar, compiled for a model's vocabulary.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Grammar(pub(crate) Compiled);

/// The source of a grammar: "json_schema", "regex", "lark" or "gbnf".
pub(crate) fn source(kind: &str, text: String) -> PyResult<GrammarSource> {
    Ok(match kind {
        "json_schema" => {
            let schema = serde_json::from_str(&text);
            let wrong = |e| PyValueError::new_err(format!("the schema is no JSON: {e}"));
            GrammarSource::JsonSchema(schema.map_err(wrong)?)
        }
        "regex" => GrammarSource::Regex(text),
        "lark" => GrammarSource::Lark(text),
        "gbnf" => GrammarSource::Gbnf(text),
        other => {
            let message = format!("found '{other}', expected json_schema, regex, lark or gbnf");
            return Err(PyValueError::new_err(message));
        }
    })
}

#[pymethods]
impl Grammar {
    /// A walk from the beginning.
    fn start(&self) -> Matcher {
        Matcher {
            state: Mutex::new(self.0.start()),
            words: self.0.mask_len(),
        }
    }
}

/// One answer on its way through a grammar.
#[pyclass(frozen, module = "tokkata")]
pub(crate) struct Matcher {
    state: Mutex<GrammarState>,
    words: usize,
}

impl Matcher {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut GrammarState) -> Result<T, tokkata::grammar::GrammarError>,
    ) -> PyResult<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut state).map_err(|e| PyValueError::new_err(e.to_string()))
    }
}

#[pymethods]
impl Matcher {
    /// What may come next: one bit per token, little-endian words of 32 bits.
    fn mask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut words = vec![0u32; self.words];
        py.detach(|| self.with(|state| state.mask(&mut words)))?;
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Takes a token; ValueError if it may not come next.
    fn accept(&self, token: u32) -> PyResult<()> {
        self.with(|state| state.accept(token))
    }

    /// Takes back the newest tokens.
    fn rollback(&self, tokens: usize) -> PyResult<()> {
        self.with(|state| state.rollback(tokens))
    }
}
