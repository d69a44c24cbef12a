//! Answers in messages: each has a header that names its channel, its recipient or both.

use serde_json::Value as Json;

use super::begun::Open;
use super::calls::{Place, Step};
use super::format::{Calls, Channels, Header};
use super::scan::{Found, find};
use super::{Event, Parsed, ToolCall, calls};

/// Splits an answer in channels.
#[derive(Clone, Debug)]
pub(super) struct ChannelParser {
    markers: Channels,
    tools: Vec<Json>,
    /// The header so far, while one is being read.
    header: Option<String>,
    kind: Kind,
    begun: Option<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    Call(String),
}

impl ChannelParser {
    pub(super) fn new(markers: &Channels, prompt: &str, tools: &[Json]) -> Self {
        // The prompt may have begun the header, or even ended it.
        let begun = prompt.rfind(&markers.start).map_or("", |at| &prompt[at..]);
        let (header, kind) = match begun.split_once(&*markers.message) {
            Some((header, _)) => (None, markers.kind(header)),
            None => (Some(begun.to_owned()), Kind::Content),
        };
        let mut parser = ChannelParser {
            markers: markers.clone(),
            tools: tools.to_vec(),
            header,
            kind,
            begun: None,
        };
        parser.begin();
        parser
    }

    /// The call that is being written.
    pub(super) fn begun(&self) -> Option<&Open> {
        self.begun.as_ref()
    }

    /// Notes that the message names a tool.
    fn begin(&mut self) {
        self.begun = match (&self.kind, &self.markers.calls) {
            (Kind::Call(name), None) => Some(Open::named(name)),
            _ => None,
        };
    }

    /// Reads so much of a message to a tool.
    fn grow(&mut self, text: &str) {
        match (&self.markers.calls, &mut self.begun) {
            (None, Some(open)) => open.follow(text),
            (Some(calls), begun) => {
                let step = calls::step(calls, text.trim_start(), Place::Start, false, &self.tools);
                if let Step::More(Some(found)) = step {
                    *begun = Some(Open::new(found, text));
                }
            }
            _ => {}
        }
    }

    /// Whether the header, of which `pending` is the rest so far, names a tool or can name nobody else.
    pub(super) fn may_call(&self, pending: &str) -> bool {
        let Some(header) = &self.header else {
            return matches!(self.kind, Kind::Call(_));
        };
        self.markers.may_call(&(header.clone() + pending))
    }

    pub(super) fn run(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) {
        while !pending.is_empty() {
            let going_on = if self.header.is_some() {
                self.read_header(pending, last, out)
            } else {
                self.read_body(pending, last, out)
            };
            if !going_on {
                return;
            }
        }
    }

    fn read_header(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) -> bool {
        let Some(at) = pending.find(&self.markers.message) else {
            if last {
                emit(pending, usize::MAX, out, Event::Content);
            }
            return false;
        };
        let raw = emit(pending, at + self.markers.message.len(), out, |_| {
            Event::Markup
        });
        let header = self.header.take().unwrap_or_default() + &raw;
        self.kind = self.markers.kind(&header);
        self.begin();
        true
    }

    fn read_body(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) -> bool {
        let ends: Vec<&str> = self.markers.ends.iter().map(String::as_str).collect();
        let found = find(pending, &ends);
        let (len, marker) = match found {
            Found::At(index, at) => (at, Some(ends[index])),
            Found::Held(_) if last => (pending.len(), None),
            Found::Held(at) => (at, None),
        };
        match (&self.kind, marker) {
            (Kind::Reasoning, _) => drop(emit(pending, len, out, Event::Reasoning)),
            (Kind::Content, _) => drop(emit(pending, len, out, Event::Content)),
            (Kind::Call(_), None) if !last => {
                self.grow(&pending[..len]);
                return false;
            }
            (Kind::Call(name), _) => match &self.markers.calls {
                None => drop(emit(pending, len, out, |text| call(name, text))),
                Some(calls) => marked(calls, pending, len, (&self.tools, out)),
            },
        }
        self.begun = None;
        let Some(marker) = marker else { return false };
        let starts = marker == self.markers.start;
        let marker = marker.to_owned();
        emit(pending, marker.len(), out, |_| Event::Markup);
        self.header = Some(if starts { marker } else { String::new() });
        true
    }
}

/// The calls in the first `len` bytes, or these bytes as content.
fn marked(
    calls: &Calls,
    pending: &mut String,
    len: usize,
    (tools, out): (&[Json], &mut Vec<Parsed>),
) {
    match marked_calls(calls, &pending[..len], tools) {
        Some(found) => {
            let raw = emit(pending, len, &mut Vec::new(), Event::Content);
            let mut raws = vec![raw].into_iter();
            out.extend(found.into_iter().map(|call| Parsed {
                event: Event::ToolCall(call),
                raw: raws.next().unwrap_or_default(),
            }));
        }
        None => drop(emit(pending, len, out, Event::Content)),
    }
}

fn marked_calls(calls: &Calls, text: &str, tools: &[Json]) -> Option<Vec<ToolCall>> {
    let (mut rest, mut place) = (text.trim(), Place::Start);
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (len, next) = match calls::step(calls, rest, place, true, tools) {
            Step::Calls(more, len, next) => {
                found.extend(more);
                (len, next)
            }
            Step::Markup(len, next) if len > 0 => (len, next),
            _ => return None,
        };
        (rest, place) = (rest[len..].trim_start(), next);
    }
    (!found.is_empty()).then_some(found)
}

/// A call, or its text if the arguments are not JSON.
fn call(name: &str, text: String) -> Event {
    match serde_json::from_str::<Json>(text.trim()) {
        Ok(_) => Event::ToolCall(calls::call(None, name, text.trim())),
        Err(_) => Event::Content(text),
    }
}

fn emit(
    pending: &mut String,
    len: usize,
    out: &mut Vec<Parsed>,
    event: impl FnOnce(String) -> Event,
) -> String {
    let rest = pending.split_off(len.min(pending.len()));
    let raw = std::mem::replace(pending, rest);
    if !raw.is_empty() {
        out.push(Parsed {
            event: event(raw.clone()),
            raw: raw.clone(),
        });
    }
    raw
}

impl Channels {
    /// The recipient that a header names, and whether its name is over.
    fn recipient_in<'h>(&self, header: &'h str) -> Option<(&'h str, bool)> {
        let (_, after) = header.split_once(&*self.recipient)?;
        let end = after.find(|c: char| c.is_whitespace() || c == '<');
        Some((&after[..end.unwrap_or(after.len())], end.is_some()))
    }

    fn may_call(&self, header: &str) -> bool {
        let Some((to, over)) = self.recipient_in(header) else {
            return false;
        };
        let is = |name: &String| name == to || !over && name.starts_with(to);
        match &self.header {
            Header::Channel { .. } => true,
            Header::Recipient { reasoning, content } => !is(reasoning) && !is(content),
        }
    }

    fn kind(&self, header: &str) -> Kind {
        let recipient = self.recipient_in(header).map(|(to, _)| to);
        match (&self.header, recipient) {
            (Header::Recipient { reasoning, .. }, Some(to)) if to == reasoning => Kind::Reasoning,
            (Header::Recipient { content, .. }, Some(to)) if to == content => Kind::Content,
            (_, Some(to)) => Kind::Call(to.to_owned()),
            (Header::Recipient { .. }, None) => Kind::Content,
            (Header::Channel { marker, reasoning }, None) => {
                let channel = header.rsplit_once(&**marker).map_or("", |(_, after)| after);
                if channel.trim_start().starts_with(&**reasoning) {
                    Kind::Reasoning
                } else {
                    Kind::Content
                }
            }
        }
    }
}
