//! What a template reveals of the format of answers.

/// The markers of a template's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    pub(super) reasoning: Option<Reasoning>,
    pub(super) calls: Option<Calls>,
    /// Markers around the visible answer that belong to no part.
    pub(super) wrappers: Vec<String>,
    /// Answers come in channels with a header each, as gpt-oss writes them.
    pub(super) channels: Option<Channels>,
}

impl OutputFormat {
    /// The text that opens the reasoning and the text that closes it.
    pub fn reasoning_markers(&self) -> Option<(&str, &str)> {
        self.reasoning
            .as_ref()
            .map(|markers| (markers.open.as_str(), markers.close.as_str()))
    }

    /// The text that a tool call begins with, for a lazily triggered grammar; `None` if calls are not marked.
    pub fn call_marker(&self) -> Option<&str> {
        self.calls
            .as_ref()
            .map(|calls| calls.open.as_str())
            .filter(|open| !open.is_empty())
    }

    /// Whether the template shows tool calls in a format that can be parsed.
    pub fn has_tool_calls(&self) -> bool {
        self.calls.is_some() || self.channels.is_some()
    }
}

/// Markers around reasoning, without the white space next to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub(super) open: String,
    pub(super) close: String,
}

/// The markers of one channel: `start`role`channel`name`message`text`end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) start: String,
    pub(super) channel: String,
    pub(super) message: String,
    /// The channel of the reasoning.
    pub(super) reasoning: String,
    /// What comes between the recipient's marker and a tool's name, such as ` to=functions.`.
    pub(super) recipient: String,
}

/// How tool calls are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    /// What comes once before the calls, if it is not `open` already.
    pub(super) section_open: String,
    /// What a call, or all of them, begins with.
    pub(super) open: String,
    pub(super) body: Body,
    /// What ends it.
    pub(super) close: String,
    pub(super) section_close: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// JSON objects, one or more, in a list or not.
    Json(JsonKeys),
    /// A header with the name, then JSON arguments.
    Named {
        header: Vec<Part>,
        before_arguments: String,
    },
    /// A header with the name, then arguments one by one.
    Pairs { header: Vec<Part>, pair: Pair },
    /// `[name(key='value')]`.
    Python,
    /// `name{key:value}` with strings between the given quotes.
    Bare { quote: String },
}

/// Where a JSON object keeps the parts of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonKeys {
    /// `None` where the name is itself the key of the arguments.
    pub(super) name: Option<String>,
    pub(super) arguments: String,
    pub(super) id: Option<String>,
}

/// A part of a call's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Literal(String),
    Name,
    Id,
    /// Something that differs from call to call, such as an index.
    Skip,
}

/// How one argument is written: `open` key `middle` value `close`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) open: String,
    /// Between key and value, less what depends on the value's type.
    pub(super) middle: (String, String),
    /// What stands between the two halves of `middle` if the value is a string and if it is not.
    pub(super) types: Option<(String, String)>,
    pub(super) close: String,
    /// White space that belongs to the markers around the value.
    pub(super) padding: (String, String),
}
