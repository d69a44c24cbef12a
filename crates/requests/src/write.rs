//! What writes answers in a dialect, as JSON.

use serde_json::Value;

use crate::error::Result;
use crate::run::{Run, Step, Whole};

/// Writes the answers of one [`Run`]: piece by piece, or whole.
pub trait Write: Send {
    /// Whether pieces are asked for.
    fn streams(&self) -> bool;

    /// The object of all answers.
    ///
    /// # Errors
    /// A model without a tokenizer.
    fn whole(&mut self, all: &[Whole]) -> Result<Value>;

    /// Appends the objects that tell of a step.
    fn step(&mut self, run: &mut Run, step: Step, out: &mut Vec<Value>);

    /// Appends the objects after the last step.
    fn last(&mut self, out: &mut Vec<Value>);
}
