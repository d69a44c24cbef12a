//! Answers in channels: each message has a header that names its channel and, for a call, its recipient.

use super::format::Channels;
use super::scan::{Found, find};
use super::{Event, Parsed, calls};

/// Splits an answer in channels.
#[derive(Clone, Debug)]
pub(super) struct ChannelParser {
    markers: Channels,
    /// The header so far, while one is being read.
    header: Option<String>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    Call(String),
}

impl ChannelParser {
    pub(super) fn new(markers: &Channels, prompt: &str) -> Self {
        // The prompt may have begun the header, or even ended it.
        let begun = prompt.rfind(&markers.start).map_or("", |at| &prompt[at..]);
        let (header, kind) = match begun.split_once(&*markers.message) {
            Some((header, _)) => (None, markers.kind(header)),
            None => (Some(begun.to_owned()), Kind::Content),
        };
        ChannelParser {
            markers: markers.clone(),
            header,
            kind,
        }
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
        true
    }

    fn read_body(&mut self, pending: &mut String, last: bool, out: &mut Vec<Parsed>) -> bool {
        let ends = self.markers.ends();
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        let found = find(pending, &ends);
        let (len, marker) = match found {
            Found::At(index, at) => (at, Some(ends[index])),
            Found::Held(_) if last => (pending.len(), None),
            Found::Held(at) => (at, None),
        };
        match (&self.kind, marker) {
            (Kind::Reasoning, _) => drop(emit(pending, len, out, Event::Reasoning)),
            (Kind::Content, _) => drop(emit(pending, len, out, Event::Content)),
            (Kind::Call(_), None) if !last => return false,
            (Kind::Call(name), _) => {
                let name = name.clone();
                emit(pending, len, out, |text| call(&name, text));
            }
        }
        let Some(marker) = marker else { return false };
        let starts = marker == self.markers.start;
        emit(pending, marker.len(), out, |_| Event::Markup);
        self.header = Some(if starts {
            marker.to_owned()
        } else {
            String::new()
        });
        true
    }
}

/// A call, or its text if the arguments are not JSON.
fn call(name: &str, text: String) -> Event {
    match serde_json::from_str::<serde_json::Value>(text.trim()) {
        Ok(arguments) => Event::ToolCall(calls::call(None, name, &arguments)),
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
    fn kind(&self, header: &str) -> Kind {
        if let Some((_, after)) = header.split_once(&*self.recipient) {
            let end = after
                .find(|c: char| c.is_whitespace() || c == '<')
                .unwrap_or(after.len());
            return Kind::Call(after[..end].to_owned());
        }
        let channel = header
            .rsplit_once(&*self.channel)
            .map_or("", |(_, after)| after);
        if channel.trim_start().starts_with(&self.reasoning) {
            Kind::Reasoning
        } else {
            Kind::Content
        }
    }

    /// What ends a message: the next one's start, or the markers that templates end messages with.
    fn ends(&self) -> Vec<String> {
        let marker = |word: &str| self.start.replace("start", word);
        vec![
            self.start.clone(),
            marker("end"),
            marker("return"),
            marker("call"),
        ]
    }
}
