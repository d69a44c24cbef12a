//! Chat templates, rendered as Python's Jinja2 renders them under Transformers' settings.
//!
//! The syntax tree comes from `minijinja`; the evaluation is our own, for two reasons. Templates rely on Python's
//! semantics in places where minijinja differs (`str(None)`, `repr` of lists, `Markup`, sandbox rules). And every
//! string here carries its **origin** byte by byte through concatenation, slicing, `trim`, `split`, `replace`,
//! `tojson` and the rest, so that [`Rendered`] can say which bytes the template wrote and which came from
//! messages, tools or documents. A special token may only be recognised inside the former.
//!
//! Trusted are the template's own text, `bos_token`, `eos_token`, numbers, and a message's `role` when it is a plain
//! word (templates build markers like `<|user|>` around it). Everything else in the request is untrusted.
//!
//! ```
//! use tokkata_text::template::{ChatRequest, ChatTemplate};
//! let template = ChatTemplate::parse("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}")?;
//! let request = ChatRequest {
//!     messages: vec![serde_json::json!({"role": "user", "content": "Hi <|end|>"})],
//!     ..ChatRequest::default()
//! };
//! let rendered = template.render(&request)?;
//! assert_eq!(rendered.text(), "<|user|>Hi <|end|><|end|>");
//! assert_eq!(rendered.untrusted(), &[8..18]);
//! # Ok::<(), tokkata_text::template::TemplateError>(())
//! ```

mod args;
mod clock;
mod continuation;
mod error;
mod eval;
mod exec;
mod filters;
mod functions;
mod methods;
mod ops;
mod predicates;
mod printf;
mod python;
mod request;
mod scope;
mod source;
mod text;
mod value;

use std::ops::Range;
use std::rc::Rc;

pub use clock::Clock;
pub use error::TemplateError;
pub use request::ChatRequest;

use error::Result;
use exec::Interpreter;
use scope::Scope;
use text::Text;

/// A chat template that has been read and found well-formed.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
}

/// A rendered conversation that knows which of its bytes the template wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    untrusted: Vec<Range<usize>>,
}

/// A run of rendered text of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'r> {
    /// The text.
    pub text: &'r str,
    /// Whether the template wrote it, so that special tokens may be recognised in it.
    pub trusted: bool,
}

impl ChatTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line, if it does not parse.
    pub fn parse(source: &str) -> Result<Self> {
        let source = source::without_generation_tags(source);
        source::parse(&source)?;
        Ok(ChatTemplate { source })
    }

    /// The template's source, with `{% generation %}` turned into a condition that always holds.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// What the template raises, what Python would raise, or a limit exceeded.
    pub fn render(&self, request: &ChatRequest) -> Result<Rendered> {
        if !request.continue_final_message {
            return Ok(self
                .run(request, &request.scope(&request.messages)?)?
                .into());
        }
        let (messages, last) = continuation::tag(&request.messages)?;
        let text = self.run(request, &request.scope(&messages)?)?;
        Ok(continuation::cut(&text, &last)?.into())
    }

    fn run(&self, request: &ChatRequest, scope: &Rc<Scope>) -> Result<Text> {
        let tree = source::parse(&self.source)?;
        let clock = request.now.unwrap_or_else(Clock::now_utc);
        Interpreter::new(clock, request.size()).render(&tree, scope)
    }
}

impl From<Text> for Rendered {
    fn from(text: Text) -> Self {
        let (text, untrusted) = text.into_parts();
        Rendered { text, untrusted }
    }
}

impl Rendered {
    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole text, owned.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The byte ranges that came from the request: sorted, disjoint, on character boundaries.
    pub fn untrusted(&self) -> &[Range<usize>] {
        &self.untrusted
    }

    /// The text as runs of one origin. Encode the whole text at once and let special tokens match only inside
    /// trusted runs: encoding the runs one by one would cut tokens at their borders.
    pub fn segments(&self) -> Vec<Segment<'_>> {
        let mut out = Vec::with_capacity(2 * self.untrusted.len() + 1);
        let mut at = 0;
        for range in &self.untrusted {
            if at < range.start {
                out.push(Segment {
                    text: &self.text[at..range.start],
                    trusted: true,
                });
            }
            out.push(Segment {
                text: &self.text[range.clone()],
                trusted: false,
            });
            at = range.end;
        }
        if at < self.text.len() {
            out.push(Segment {
                text: &self.text[at..],
                trusted: true,
            });
        }
        out
    }
}
