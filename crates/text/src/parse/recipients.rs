//! Answers in messages that begin with a line that names the recipient: a tool, or whoever reads the content.

use serde_json::Value as Json;

use super::begun::Open;
use super::format::Recipients;
use super::scan::json_end;
use super::{Event, Parsed, calls};

/// Names are short; a longer line is text.
const MAX_NAME: usize = 128;

/// Splits an answer in such messages.
#[derive(Clone, Debug)]
pub(super) struct RecipientParser {
    markers: Recipients,
    /// Names of the tools; empty if they are not known.
    tools: Vec<String>,
    place: Place,
    begun: Option<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A recipient's line is to come.
    Header,
    Content,
    Call(String),
}

/// What follows a mark.
enum Header {
    More,
    /// So many bytes, and whom they name.
    To(usize, Place),
    Text,
}

impl RecipientParser {
    pub(super) fn new(markers: &Recipients, prompt: &str, tools: &[Json]) -> Self {
        let name = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            function["name"].as_str().map(str::to_owned)
        };
        let place = if prompt.ends_with(&markers.mark) {
            Place::Header
        } else {
            Place::Content
        };
        RecipientParser {
            markers: markers.clone(),
            tools: tools.iter().filter_map(name).collect(),
            place,
            begun: None,
        }
    }

    /// The call that is being written.
    pub(super) fn begun(&self) -> Option<&Open> {
        self.begun.as_ref()
    }

    /// Whether a tool's line has come.
    pub(super) fn calls(&self) -> bool {
        matches!(self.place, Place::Call(_))
    }

    pub(super) fn run(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) {
        while !pending.is_empty() {
            let going_on = match self.place.clone() {
                Place::Header => self.header(pending, last, out),
                Place::Content => self.content(pending, last, out),
                Place::Call(name) => self.call(&name, pending, last, out),
            };
            if !going_on {
                return;
            }
        }
    }

    fn header(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) -> bool {
        match self.read_header(pending, last) {
            Header::More => false,
            Header::To(len, place) => {
                emit(pending, len, out, |_| Event::Markup);
                self.begun = match &place {
                    Place::Call(name) => Some(Open::named(name)),
                    _ => None,
                };
                self.place = place;
                true
            }
            Header::Text => {
                self.place = Place::Content;
                true
            }
        }
    }

    /// A recipient's line at the start of `text`.
    fn read_header(&self, text: &str, last: bool) -> Header {
        let Some(end) = text.find('\n') else {
            let name = text.len() <= MAX_NAME && text.trim().chars().all(in_name);
            return if name && !last {
                Header::More
            } else {
                Header::Text
            };
        };
        let name = text[..end].trim();
        if end > MAX_NAME {
            return Header::Text;
        }
        let known = self.tools.is_empty() || self.tools.iter().any(|tool| tool == name);
        if name == self.markers.content {
            Header::To(end + 1, Place::Content)
        } else if known && !name.is_empty() && name.chars().all(in_name) {
            Header::To(end + 1, Place::Call(name.to_owned()))
        } else {
            Header::Text
        }
    }

    fn content(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) -> bool {
        let mark = self.markers.mark.clone();
        let mut from = 0;
        while let Some(found) = pending[from..].find(&mark) {
            let at = from + found;
            match self.read_header(&pending[at + mark.len()..], last) {
                Header::More => {
                    emit(pending, at, out, Event::Content);
                    return false;
                }
                Header::To(..) => {
                    emit(pending, at, out, Event::Content);
                    emit(pending, mark.len(), out, |_| Event::Markup);
                    self.place = Place::Header;
                    return true;
                }
                Header::Text => from = at + 1,
            }
        }
        let held = (1..mark.len())
            .rev()
            .find(|&len| pending.ends_with(&mark[..len]))
            .filter(|_| !last);
        emit(
            pending,
            pending.len() - held.unwrap_or(0),
            out,
            Event::Content,
        );
        false
    }

    /// A call's arguments, or their text if they are not JSON.
    fn call(
        &mut self,
        name: &str,
        pending: &mut String,
        last: bool,
        out: &mut Vec<Parsed>,
    ) -> bool {
        let end = json_end(pending).filter(|_| pending.trim_start().starts_with('{'));
        let more = pending.trim_start().is_empty() || pending.trim_start().starts_with('{');
        if end.is_none() && more && !last {
            if let Some(open) = &mut self.begun {
                open.follow(pending);
            }
            return false;
        }
        let parsed = end.and_then(|end| {
            let arguments = pending[..end].trim();
            serde_json::from_str::<Json>(arguments).ok()?;
            Some((end, calls::call(None, name, arguments)))
        });
        (self.place, self.begun) = (Place::Content, None);
        if let Some((end, call)) = parsed {
            emit(pending, end, out, |_| Event::ToolCall(call));
        }
        true
    }
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.:".contains(c)
}

fn emit(
    pending: &mut String,
    len: usize,
    out: &mut Vec<Parsed>,
    event: impl FnOnce(String) -> Event,
) {
    let rest = pending.split_off(len);
    let raw = std::mem::replace(pending, rest);
    if !raw.is_empty() {
        let event = event(raw.clone());
        out.push(Parsed { event, raw });
    }
}
