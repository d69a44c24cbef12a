//! What a template reveals of the format of answers.

/// The markers of a template's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    pub(super) reasoning: Option<Reasoning>,
    pub(super) calls: Option<Calls>,
    /// Markers around the visible answer that belong to no part.
    pub(super) wrappers: Vec<String>,
    /// Answers come in messages with a header each.
    pub(super) channels: Option<Channels>,
    /// Answers come in messages that begin with a line that names the recipient.
    pub(super) recipients: Option<Recipients>,
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
        self.marked_calls()
            .map(|calls| calls.open.as_str())
            .filter(|open| !open.is_empty())
    }

    /// Every text that calls begin with: the marker of a call, and that of a section of them.
    pub fn call_markers(&self) -> impl Iterator<Item = &str> {
        let calls = self.marked_calls().into_iter();
        let markers = calls.flat_map(|calls| [calls.open.as_str(), calls.section_open.as_str()]);
        markers.filter(|marker| !marker.is_empty())
    }

    /// Whether the template shows tool calls in a format that can be parsed.
    pub fn has_tool_calls(&self) -> bool {
        self.calls.is_some() || self.channels.is_some() || self.recipients.is_some()
    }

    /// Calls with markers, be they in messages of their own.
    pub(super) fn marked_calls(&self) -> Option<&Calls> {
        let in_messages = || self.channels.as_ref()?.calls.as_ref();
        self.calls.as_ref().or_else(in_messages)
    }
}

/// Markers around reasoning, without the white space next to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub(super) open: String,
    pub(super) close: String,
}

/// The markers of one message: `start`header`message`text, then one of `ends`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) start: String,
    pub(super) message: String,
    pub(super) ends: Vec<String>,
    pub(super) header: Header,
    /// What comes between the recipient's marker and a tool's name, such as ` to=functions.`.
    pub(super) recipient: String,
    /// How a message to a tool writes the call; `None` for arguments in JSON.
    pub(super) calls: Option<Calls>,
}

/// What a header says of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A channel after a marker, as gpt-oss writes it, and the channel of the reasoning.
    Channel { marker: String, reasoning: String },
    /// The recipient alone: those of the reasoning and of the content.
    Recipient { reasoning: String, content: String },
}

/// Messages of `mark`recipient, a new line and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recipients {
    pub(super) mark: String,
    /// The recipient of the content.
    pub(super) content: String,
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
    /// A header with the name, then elements named after their keys: `mark<key>`value`mark</key>`. Lists hold elements
    /// named `item`.
    Elements { header: Vec<Part>, mark: String },
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

impl JsonKeys {
    /// Whether the arguments stand under this key; models mix up the two that are most common.
    pub(super) fn are_arguments(&self, key: &str) -> bool {
        [self.arguments.as_str(), "arguments", "parameters"].contains(&key)
    }
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
