//! Splitting a raw answer into reasoning, content and tool calls, in the format the chat template itself shows.
//!
//! [`OutputFormat::derive`] renders short conversations with known names, arguments and reasoning, and reads the
//! markers off the result: no model or format is named. [`OutputParser`] then splits a stream of text. Text that might
//! be the beginning of a marker is held back; a call that does not parse comes out as content. Every event carries the
//! bytes it stands for, and together they are the whole input.
//!
//! The text must contain the special tokens (`<tool_call>`, `</think>`, …) except the ones that end the reply.
//!
//! ```
//! use tokkata_text::parse::{Event, OutputFormat, OutputParser};
//! use tokkata_text::template::ChatTemplate;
//! let template = ChatTemplate::parse(concat!(
//!     "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>",
//!     "{% endif %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
//! ))?;
//! let mut parser = OutputParser::new(&OutputFormat::derive(&template), "<|user|>2+2?<|end|><|assistant|>", &[]);
//! let mut events = parser.push("<think>Easy.</thi");
//! events.extend(parser.push("nk>4"));
//! events.extend(parser.finish());
//! assert!(matches!(&events[1].event, Event::Reasoning(text) if text == "Easy."));
//! assert!(matches!(&events.last().unwrap().event, Event::Content(text) if text == "4"));
//! # Ok::<(), tokkata_text::template::TemplateError>(())
//! ```

mod begun;
mod calls;
mod channels;
mod constrain;
mod derive;
mod elements;
mod format;
mod opens;
mod pythonic;
mod recipients;
mod scan;
mod stream;

pub use constrain::{LARK, ToolChoice};
pub use format::OutputFormat;
pub use opens::{Matched, Opening, Openings};
pub use stream::OutputParser;

/// A piece of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More of the visible answer.
    Content(String),
    /// A complete tool call.
    ToolCall(ToolCall),
    /// Markers and the white space around them, which belong to no part.
    Markup,
}

/// An event and the raw text it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What it means.
    pub event: Event,
    /// The raw text; the raws of all events, joined, are the raw answer.
    pub raw: String,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, if the format has one.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments, as JSON text: as the model wrote them, less white space between their parts, where it writes JSON.
    pub arguments: String,
}

/// A whole answer, split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The reasoning.
    pub reasoning: String,
    /// The visible answer.
    pub content: String,
    /// The tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

impl Answer {
    /// Gathers events into one answer.
    pub fn from_events(events: impl IntoIterator<Item = Parsed>) -> Self {
        let mut answer = Answer::default();
        for parsed in events {
            match parsed.event {
                Event::Reasoning(text) => answer.reasoning.push_str(&text),
                Event::Content(text) => answer.content.push_str(&text),
                Event::ToolCall(call) => answer.tool_calls.push(call),
                Event::Markup => {}
            }
        }
        answer
    }
}
