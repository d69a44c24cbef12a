//! Calls that have begun: what is certain of them before they end.

use serde_json::Value as Json;

use super::ToolCall;
use super::format::JsonKeys;
use super::scan::json_end;

/// A call of which not everything has come.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    id: Option<String>,
    name: String,
    arguments: Arguments,
}

#[derive(Clone, Debug)]
enum Arguments {
    /// An object in JSON, which begins so many bytes before the end of the text.
    Json { behind: usize },
    /// An object as it is told, less what is still to come.
    Text(String),
}

impl Begun {
    /// A call whose arguments begin at the start of `rest`, which reaches to the end of the text.
    pub(super) fn json(id: Option<String>, name: String, rest: &str) -> Self {
        let arguments = match rest.starts_with('{') {
            true => Arguments::Json { behind: rest.len() },
            false => Arguments::Text(String::new()),
        };
        Begun {
            id,
            name,
            arguments,
        }
    }

    /// A call whose arguments come one by one.
    pub(super) fn object(id: Option<String>, name: String) -> Self {
        Begun {
            id,
            name,
            arguments: Arguments::Text("{".to_owned()),
        }
    }

    /// An object of JSON so far that is a call; its id, if the format has one, must have come.
    pub(super) fn in_object(keys: &JsonKeys, object: &str) -> Option<Self> {
        let members = members(object);
        let Some(name) = &keys.name else {
            let first = members.into_iter().next()?;
            return Some(Self::json(None, first.key, first.rest));
        };
        let text = |key: &str| members.iter().find(|m| m.key == key)?.text();
        let id = match &keys.id {
            Some(key) => Some(text(key)?),
            None => None,
        };
        let name = text(name)?;
        let arguments = members.iter().find(|m| keys.are_arguments(&m.key));
        Some(Self::json(id, name, arguments.map_or("", |m| m.rest)))
    }

    /// Adds an argument.
    pub(super) fn add(&mut self, key: &str, value: &Json) {
        if let Arguments::Text(text) = &mut self.arguments {
            let comma = if text.len() > 1 { "," } else { "" };
            *text += &format!("{comma}{}:{value}", Json::String(key.to_owned()));
        }
    }

    /// The call whose last argument has been added.
    pub(super) fn end(self) -> ToolCall {
        let mut call = Open::new(self, "").call;
        call.arguments.push('}');
        call
    }
}

/// A call that is being written, and its arguments so far.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) call: ToolCall,
    walk: Option<Walk>,
}

/// Reads arguments while they are written.
#[derive(Clone, Debug)]
struct Walk {
    compact: Compact,
    /// Bytes of the text that are read.
    at: usize,
}

impl Open {
    /// The call that has begun in `text`.
    pub(super) fn new(begun: Begun, text: &str) -> Self {
        let (arguments, at) = match begun.arguments {
            Arguments::Json { behind } => (String::new(), Some(text.len() - behind)),
            Arguments::Text(arguments) => (arguments, None),
        };
        let call = ToolCall {
            id: begun.id,
            name: begun.name,
            arguments,
        };
        let compact = Compact::default();
        let walk = at.map(|at| Walk { compact, at });
        let mut open = Open { call, walk };
        open.grow(text);
        open
    }

    /// A tool that has been named; its arguments are the JSON that follows.
    pub(super) fn named(name: &str) -> Self {
        Self::new(Begun::json(None, name.to_owned(), ""), "")
    }

    /// Reads what has been added to the text; says whether the arguments are known to go on.
    pub(super) fn grow(&mut self, text: &str) -> bool {
        let Some(walk) = &mut self.walk else {
            return false;
        };
        let goes_on = walk
            .compact
            .push(&text[walk.at..], &mut self.call.arguments);
        walk.at = text.len();
        goes_on
    }

    /// As [`Self::grow`], where `text` is nothing but the arguments.
    pub(super) fn follow(&mut self, text: &str) {
        let bare = text.trim_start();
        if self.walk.is_none() && bare.starts_with('{') {
            self.walk = Some(Walk {
                compact: Compact::default(),
                at: text.len() - bare.len(),
            });
        }
        self.grow(text);
    }
}

/// Leaves out the white space between the parts of a JSON value, wherever its text is cut.
#[derive(Clone, Debug, Default)]
struct Compact {
    depth: usize,
    quoted: bool,
    escaped: bool,
    over: bool,
}

impl Compact {
    /// Adds to `out` what `text` adds to the value; says whether it goes on.
    fn push(&mut self, text: &str, out: &mut String) -> bool {
        for c in text.chars() {
            if self.over {
                break;
            }
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' if self.quoted => self.escaped = true,
                '"' => self.quoted = !self.quoted,
                _ if self.quoted => {}
                '{' | '[' => self.depth += 1,
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.over = self.depth == 0;
                }
                c if c.is_whitespace() => continue,
                _ => {}
            }
            out.push(c);
        }
        !self.over
    }
}

/// A JSON value without the white space between its parts.
pub(super) fn compact(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    Compact::default().push(value, &mut out);
    out
}

/// A member of an object that may not be complete.
pub(super) struct Member<'t> {
    pub(super) key: String,
    /// The value, if it is complete.
    pub(super) value: Option<&'t str>,
    /// The text from the value on.
    rest: &'t str,
}

impl Member<'_> {
    /// A complete string.
    pub(super) fn text(&self) -> Option<String> {
        serde_json::from_str(self.value?).ok()
    }
}

/// The members of a JSON object whose values have begun.
pub(super) fn members(object: &str) -> Vec<Member<'_>> {
    let mut members = Vec::new();
    let mut rest = object.strip_prefix('{').unwrap_or_default();
    while let Some(member) = member(rest) {
        let Some(value) = member.value else {
            members.push(member);
            break;
        };
        rest = &member.rest[value.len()..];
        members.push(member);
    }
    members
}

fn member(text: &str) -> Option<Member<'_>> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
    let end = json_end(text).filter(|_| text.starts_with('"'))?;
    let key = serde_json::from_str(&text[..end]).ok()?;
    let rest = text[end..].trim_start().strip_prefix(':')?.trim_start();
    let end = match rest.chars().next()? {
        '{' | '[' | '"' => json_end(rest),
        _ => rest.find(|c: char| c.is_whitespace() || ",}".contains(c)),
    };
    let value = end.map(|end| &rest[..end]);
    Some(Member { key, value, rest })
}
