//! Arguments of calls, filters and tests.

use super::error::{Result, type_error};
use super::value::Value;

/// Positional and keyword arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) keywords: Vec<(String, Value)>,
}

impl Args {
    pub(crate) fn of(positional: Vec<Value>) -> Self {
        Args {
            positional,
            keywords: Vec::new(),
        }
    }

    pub(crate) fn take_keyword(&mut self, name: &str) -> Option<Value> {
        let at = self.keywords.iter().position(|(known, _)| known == name)?;
        Some(self.keywords.remove(at).1)
    }

    /// Matches the arguments to parameter names, refusing what is left over.
    pub(crate) fn bind<const N: usize>(mut self, names: [&str; N]) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            return type_error(format!("too many arguments: at most {N} expected"));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional.drain(..)) {
            *slot = Some(value);
        }
        for (slot, name) in bound.iter_mut().zip(names) {
            if let Some(value) = self.take_keyword(name)
                && slot.replace(value).is_some()
            {
                return type_error(format!("argument {name} is given twice"));
            }
        }
        match self.keywords.first() {
            Some((name, _)) => type_error(format!("unexpected argument {name}")),
            None => Ok(bound),
        }
    }

    /// Removes and returns the first positional argument.
    pub(crate) fn shift(&mut self, what: &str) -> Result<Value> {
        if self.positional.is_empty() {
            return type_error(format!("{what} is missing"));
        }
        Ok(self.positional.remove(0))
    }
}

/// An argument that must be there.
pub(crate) fn required(value: Option<Value>, name: &str) -> Result<Value> {
    value.map_or_else(|| type_error(format!("argument {name} is missing")), Ok)
}

/// An optional flag.
pub(crate) fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}
