//! How requests are read and answers written where a request does not say.

use crate::error::{ApiError, Result};
use crate::fields::Fields;

/// What holds for every request of a caller, whatever it says.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// An unknown field is an error.
    pub strict_fields: bool,
    /// A last message of the assistant is continued.
    pub prefill: bool,
    /// Streams tell what they cost, whether asked to or not.
    pub usage_always: bool,
    /// Answers tell how long they took, as vLLM's `metrics`.
    pub metrics: bool,
    /// Tokens whose probabilities are told are called by their ids.
    pub tokens_by_id: bool,
    /// Replies show the prompt.
    pub verbose: bool,
    /// What the answer's reasoning is called.
    pub reasoning: ReasoningNames,
}

impl Style {
    /// Whether a stream tells at its end what it cost, and whether each of its pieces does; `stream` is still unread.
    ///
    /// # Errors
    /// A `stream_options` that is not understood.
    pub fn usage(&self, fields: &mut Fields) -> Result<(bool, bool)> {
        let (mut last, mut each) = (self.usage_always, self.usage_always);
        let streams = fields.peek("stream").is_some_and(|s| s == true);
        if let Some(mut options) = fields.nested("stream_options")? {
            if !streams {
                let text = "is only allowed when stream is true";
                return Err(ApiError::field("stream_options", text));
            }
            last |= options.boolean("include_usage")?.unwrap_or(false);
            let continuous = options.boolean("continuous_usage_stats")?;
            each |= last && continuous.unwrap_or(false);
            options.labels(&["include_obfuscation"]);
            options.close(self.strict_fields, fields)?;
        }
        Ok((last, each))
    }
}

impl Default for Style {
    fn default() -> Self {
        Style {
            strict_fields: false,
            prefill: true,
            usage_always: false,
            metrics: false,
            tokens_by_id: false,
            verbose: false,
            reasoning: ReasoningNames::Both,
        }
    }
}

/// How a model that can think does so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Whether to think; `None` as the template has it.
    pub on: Option<bool>,
    /// How hard, in the template's words.
    pub effort: Option<String>,
    /// Tokens of reasoning at most.
    pub budget: Option<usize>,
    /// What the model has thought last when the budget ends.
    pub message: String,
}

impl Thinking {
    /// What this says, and what the other one says where this says nothing.
    #[must_use]
    pub fn or(self, other: &Thinking) -> Thinking {
        // A request that says whether to think, or how long, has said both.
        let says = self.on.is_some() || self.budget.is_some();
        let (on, budget) = match says {
            true => (self.on, self.budget),
            false => (other.on, other.budget),
        };
        Thinking {
            on,
            budget,
            effort: self.effort.or_else(|| other.effort.clone()),
            message: match self.message.is_empty() {
                true => other.message.clone(),
                false => self.message,
            },
        }
    }
}

/// What the answer's reasoning is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningNames {
    /// `reasoning_content` and `reasoning`.
    Both,
    /// `reasoning_content`.
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// It stays in the content, as the model wrote it.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_s_own_thinking_comes_first() {
        let own = |on, budget| Thinking {
            on,
            budget,
            ..Thinking::default()
        };
        let usual = own(Some(true), Some(9));
        assert_eq!(Thinking::default().or(&usual), usual);
        assert_eq!(own(Some(false), None).or(&usual), own(Some(false), None));
        assert_eq!(own(None, Some(3)).or(&usual), own(None, Some(3)));
    }
}
