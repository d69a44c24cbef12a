//! Reasoning: whether a model thinks before it answers, and for how long.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use tokkata::answer::OutputFormat;
use tokkata::chat::chat_request;
use tokkata::{ChatTemplate, EncodeOptions, Message, Tokenizer};

/// What a model that can think is told about it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reasoning")]
pub(crate) struct ThinkArgs {
    /// Think before the answer, if the model can
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "on", default_value_t = When::Auto, hide_default_value = true)]
    think: When,
    /// Answer at once
    #[arg(long, conflicts_with_all = ["think", "reasoning_budget"])]
    no_think: bool,
    /// Tokens of thought at most; -1 for no limit, 0 to answer at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    reasoning_budget: i64,
    /// What the model has thought last when the budget ends
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    reasoning_budget_message: String,
    /// How hard to think, in the template's words, such as low, medium or high
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    reasoning_effort: Option<String>,
}

/// Whether to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// As the template has it.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// What templates call the switch.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// How a conversation thinks.
#[derive(Clone, Debug, Default)]
pub(super) struct Thought {
    /// Text that opens reasoning and text that closes it, if the template shows them.
    markers: Option<(String, String)>,
    /// Tokens of reasoning at most.
    budget: Option<usize>,
    message: String,
    /// The template knows no switch, so the prompt says that the thinking is over.
    skip: bool,
}

impl ThinkArgs {
    /// Whether to think, if it was said.
    pub(crate) fn on(&self) -> Option<bool> {
        match self.think {
            _ if self.no_think => Some(false),
            When::Auto => None,
            When::On => Some(true),
            When::Off => Some(false),
        }
    }

    /// Tokens of thought at most, if it was said.
    pub(crate) fn budget(&self) -> Option<usize> {
        usize::try_from(self.reasoning_budget).ok()
    }

    /// What the model has thought last when the budget ends.
    pub(crate) fn message(&self) -> &str {
        &self.reasoning_budget_message
    }

    /// How hard to think, if it was said.
    pub(crate) fn effort(&self) -> Option<&str> {
        self.reasoning_effort.as_deref()
    }

    /// Adds the names that the template reads.
    pub(super) fn settle(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        names: &mut Map<String, Value>,
    ) -> Thought {
        let off = self.no_think || self.think == When::Off || self.reasoning_budget == 0;
        if off || self.think == When::On {
            for switch in SWITCHES {
                names.insert(switch.to_owned(), Value::Bool(!off));
            }
        }
        if let Some(level) = &self.reasoning_effort {
            names.insert("reasoning_effort".to_owned(), level.as_str().into());
        }
        let format = OutputFormat::derive(template);
        let markers = format.reasoning_markers();
        let markers = markers.map(|(open, close)| (open.to_owned(), close.to_owned()));
        let silent = || {
            let mut other = names.clone();
            SWITCHES.iter().for_each(|s| drop(other.remove(*s)));
            prompt(template, tokenizer, names) == prompt(template, tokenizer, &other)
        };
        Thought {
            skip: off && markers.is_some() && silent(),
            markers,
            budget: usize::try_from(self.reasoning_budget)
                .ok()
                .filter(|&n| n > 0),
            message: self.reasoning_budget_message.clone(),
        }
    }
}

/// The prompt of a first question.
fn prompt(template: &ChatTemplate, tokenizer: &Tokenizer, names: &Map<String, Value>) -> String {
    let mut request = chat_request(&[Message::new("user", "?")], tokenizer);
    request.extra.clone_from(names);
    let rendered = template.render(&request);
    rendered.map_or_else(|_| String::new(), |r| r.text().to_owned())
}

impl Thought {
    /// Whether reasoning may be ended before the model ends it.
    pub(super) fn may_cut(&self) -> bool {
        self.budget.is_some()
    }

    /// What goes after a prompt so that the model answers at once.
    pub(super) fn skipped(&self, prompt: &str) -> Option<String> {
        let (open, close) = self.markers.as_ref().filter(|_| self.skip)?;
        Some(match prompt.trim_end().ends_with(open.as_str()) {
            true => format!("\n{close}\n\n"),
            false => format!("{open}\n\n{close}\n\n"),
        })
    }

    /// The text that closes the reasoning, if prompts open it and leave it open.
    pub(super) fn close_of_open(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        names: &Map<String, Value>,
    ) -> Option<String> {
        let (open, close) = self.markers.as_ref().filter(|_| !self.skip)?;
        let prompt = prompt(template, tokenizer, names);
        let opened = !open.is_empty() && prompt.trim_end().ends_with(open.as_str());
        opened.then(|| close.clone())
    }

    /// A count of the reasoning in the answer to a prompt.
    pub(super) fn watch(&self, prompt: &str, tokenizer: &Tokenizer) -> Option<Watch> {
        let ((open, close), budget) = self.markers.as_ref().zip(self.budget)?;
        let inside = !open.is_empty() && prompt.trim_end().ends_with(open.as_str());
        Some(Watch {
            open: ids(open, tokenizer),
            close: ids(close, tokenizer),
            seen: Vec::new(),
            inside,
            thought: 0,
            budget,
        })
    }

    /// What ends the reasoning when its budget is spent.
    pub(super) fn ending(&self) -> String {
        let close = self.markers.as_ref().map_or("", |m| m.1.as_str());
        format!("{}\n{close}\n\n", self.message)
    }
}

/// The tokens of text in which special ones are spelled out.
pub(super) fn ids(text: &str, tokenizer: &Tokenizer) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    tokenizer.encode(text, options)
}

/// Counts the tokens between the markers of reasoning.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    open: Vec<u32>,
    close: Vec<u32>,
    seen: Vec<u32>,
    inside: bool,
    thought: usize,
    budget: usize,
}

impl Watch {
    /// Whether the budget is spent with this token.
    pub(super) fn spent(&mut self, token: u32) -> bool {
        self.seen.push(token);
        if self.inside {
            self.thought += 1;
            self.inside = !self.seen.ends_with(&self.close);
        } else {
            self.inside = self.seen.ends_with(&self.open);
        }
        self.inside && self.thought >= self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(inside: bool) -> Watch {
        Watch {
            open: vec![1],
            close: vec![2, 3],
            seen: Vec::new(),
            inside,
            thought: 0,
            budget: 3,
        }
    }

    #[test]
    fn only_tokens_between_the_markers_count() {
        let spent = |mut watch: Watch, tokens: &[u32]| tokens.iter().position(|t| watch.spent(*t));
        assert_eq!(spent(watch(true), &[7, 7, 7, 7]), Some(2));
        assert_eq!(spent(watch(false), &[7, 7, 1, 7, 7, 7]), Some(5));
        assert_eq!(spent(watch(true), &[7, 2, 3, 7, 7, 7, 7]), None);
        assert_eq!(spent(watch(false), &[7, 7, 7, 7, 7]), None);
    }
}
