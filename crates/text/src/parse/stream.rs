//! The streaming parser.

use serde_json::Value as Json;

use super::begun::Open;
use super::calls::{self, Place, Step};
use super::channels::ChannelParser;
use super::format::OutputFormat;
use super::recipients::RecipientParser;
use super::scan::{Found, find};
use super::{Event, Parsed, ToolCall};

/// Splits one answer as it arrives.
#[derive(Clone, Debug)]
pub struct OutputParser {
    format: OutputFormat,
    tools: Vec<Json>,
    mode: Mode,
    pending: String,
    channels: Option<ChannelParser>,
    recipients: Option<RecipientParser>,
    /// Nothing visible has come since the beginning or the last marker.
    blank: bool,
    begun: Option<Open>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Reasoning,
    Content,
    Call(Place),
}

/// What content begins with.
enum Lead {
    None,
    /// Perhaps a marker.
    Begins,
    Marker(usize, Mode),
}

impl OutputParser {
    /// A parser for the answer to `prompt`, the rendered text that the model goes on from: a prompt may already
    /// have opened the reasoning. `tools` are the request's tools; their schemas tell strings from numbers in formats
    /// that do not quote.
    pub fn new(format: &OutputFormat, prompt: &str, tools: &[Json]) -> Self {
        let channels = format
            .channels
            .as_ref()
            .map(|markers| ChannelParser::new(markers, prompt, tools));
        let recipients = format
            .recipients
            .as_ref()
            .map(|markers| RecipientParser::new(markers, prompt, tools));
        let mut parser = OutputParser {
            format: format.clone(),
            tools: tools.to_vec(),
            mode: Mode::Content,
            pending: String::new(),
            channels,
            recipients,
            blank: true,
            begun: None,
        };
        if parser.opens_reasoning(prompt) {
            parser.mode = Mode::Reasoning;
        }
        parser
    }

    fn opens_reasoning(&self, prompt: &str) -> bool {
        self.format.reasoning.as_ref().is_some_and(|markers| {
            !markers.open.is_empty() && prompt.trim_end().ends_with(&markers.open)
        })
    }

    /// Takes more of the answer and returns what is settled.
    pub fn push(&mut self, text: &str) -> Vec<Parsed> {
        self.pending.push_str(text);
        self.run(false)
    }

    /// Ends the answer and returns what was held back; nothing is ever lost.
    pub fn finish(&mut self) -> Vec<Parsed> {
        self.run(true)
    }

    /// The call that is being written, as far as it is known: it has this id and this name, and its arguments begin
    /// so, unless the text turns out to be no call. Only a [grammar](OutputFormat::tool_grammar) makes that certain.
    ///
    /// The event of the call, or of the text it turned out to be, is still to come.
    #[must_use]
    pub fn begun(&self) -> Option<&ToolCall> {
        let open = match (&self.channels, &self.recipients) {
            (Some(channels), _) => channels.begun(),
            (_, Some(recipients)) => recipients.begun(),
            _ => self.begun.as_ref(),
        };
        open.map(|open| &open.call)
    }

    /// Whether a marker of calls that ends here is one, and no text that speaks of it.
    pub(super) fn may_call(&self) -> bool {
        match (&self.channels, &self.recipients) {
            (Some(channels), _) => channels.may_call(&self.pending),
            (_, Some(recipients)) => recipients.calls(),
            _ => self.mode != Mode::Reasoning,
        }
    }

    fn run(&mut self, last: bool) -> Vec<Parsed> {
        let mut out = Vec::new();
        if let Some(channels) = &mut self.channels {
            channels.run(&mut self.pending, last, &mut out);
            return out;
        }
        if let Some(recipients) = &mut self.recipients {
            recipients.run(&mut self.pending, last, &mut out);
            return out;
        }
        while !self.pending.is_empty() {
            let going_on = match self.mode {
                Mode::Reasoning => self.reasoning(last, &mut out),
                Mode::Content => self.content(last, &mut out),
                Mode::Call(place) => self.call(place, last, &mut out),
            };
            if !going_on {
                break;
            }
        }
        out
    }

    fn take(&mut self, len: usize) -> String {
        let rest = self.pending.split_off(len);
        std::mem::replace(&mut self.pending, rest)
    }

    /// Emits the first `len` bytes as something.
    fn emit(&mut self, len: usize, out: &mut Vec<Parsed>, event: impl FnOnce(String) -> Event) {
        if len > 0 {
            let raw = self.take(len);
            out.push(Parsed {
                event: event(raw.clone()),
                raw,
            });
        }
    }

    fn markup(&mut self, len: usize, out: &mut Vec<Parsed>) {
        self.emit(len, out, |_| Event::Markup);
    }

    /// Drops white space at the start of a part; says whether there is text left.
    fn trim(&mut self, out: &mut Vec<Parsed>) -> bool {
        let space = self.pending.len() - self.pending.trim_start().len();
        self.markup(space, out);
        !self.pending.is_empty()
    }

    fn reasoning(&mut self, last: bool, out: &mut Vec<Parsed>) -> bool {
        let Some(markers) = self.format.reasoning.clone() else {
            return false;
        };
        if self.blank {
            if !self.trim(out) {
                return false;
            }
            if self.pending.starts_with(&markers.open) {
                self.markup(markers.open.len(), out);
                return true;
            }
            if !last && markers.open.starts_with(&self.pending) {
                return false;
            }
        }
        let found = find(&self.pending, &[&markers.close]);
        let end = self.text_end(found, last);
        self.blank &= end == 0;
        self.emit(end, out, Event::Reasoning);
        let Found::At(_, at) = found else {
            return false;
        };
        self.markup(at - end + markers.close.len(), out);
        (self.mode, self.blank) = (Mode::Content, true);
        true
    }

    /// How much text is settled: white space before a marker, or what may become one, is not.
    fn text_end(&self, found: Found, last: bool) -> usize {
        match found {
            Found::At(_, at) => self.pending[..at].trim_end().len(),
            Found::Held(_) if last => self.pending.len(),
            Found::Held(at) => self.pending[..at].trim_end().len(),
        }
    }

    fn content(&mut self, last: bool, out: &mut Vec<Parsed>) -> bool {
        if self.blank && !self.trim(out) {
            return false;
        }
        if self.blank {
            if self.bare_call() {
                self.mode = Mode::Call(Place::Inside { calls: 0 });
                return true;
            }
            match self.reasoning_marker(last) {
                Lead::None => {}
                Lead::Begins => return false,
                Lead::Marker(len, mode) => {
                    self.markup(len, out);
                    self.mode = mode;
                    return true;
                }
            }
        }
        let markers = self.content_markers();
        let refs: Vec<&str> = markers.iter().map(|(marker, _)| marker.as_str()).collect();
        let found = find(&self.pending, &refs);
        if let (true, Found::Held(at)) = (last, found) {
            // A reply may stop in the middle of the markers that end it.
            let markers_only = self.pending[at..].ends_with(['>', ']']);
            let text = if markers_only { at } else { self.pending.len() };
            self.emit(text, out, Event::Content);
            self.markup(self.pending.len(), out);
            return false;
        }
        let end = self.text_end(found, last);
        self.blank &= end == 0;
        self.emit(end, out, Event::Content);
        let Found::At(index, at) = found else {
            return false;
        };
        self.markup(at - end, out);
        let (marker, next) = &markers[index];
        match next {
            Mode::Call(_) => self.mode = *next,
            _ => {
                self.markup(marker.len(), out);
                (self.mode, self.blank) = (*next, true);
            }
        }
        true
    }

    /// A reasoning marker where content would begin; further on it is text that speaks of it.
    fn reasoning_marker(&self, last: bool) -> Lead {
        let Some(markers) = &self.format.reasoning else {
            return Lead::None;
        };
        let begins = |marker: &str| {
            !last && marker.len() > self.pending.len() && marker.starts_with(&self.pending)
        };
        // The close alone ends reasoning that the prompt opened and closed, or that is empty.
        for (marker, mode) in [
            (&markers.open, Mode::Reasoning),
            (&markers.close, Mode::Content),
        ] {
            if self.pending.starts_with(marker) {
                return Lead::Marker(marker.len(), mode);
            }
        }
        if begins(&markers.open) || begins(&markers.close) {
            Lead::Begins
        } else {
            Lead::None
        }
    }

    /// Calls without a marker: a JSON object at the start of the answer.
    fn bare_call(&self) -> bool {
        let unmarked = self
            .format
            .calls
            .as_ref()
            .is_some_and(|calls| calls.open.is_empty());
        unmarked && self.pending.starts_with('{')
    }

    fn content_markers(&self) -> Vec<(String, Mode)> {
        let mut markers = Vec::new();
        if let Some(calls) = &self.format.calls {
            let start = Mode::Call(Place::Start);
            markers.push((calls.section_open.clone(), start));
            markers.push((calls.open.clone(), start));
        }
        markers.extend(
            self.format
                .wrappers
                .iter()
                .map(|wrapper| (wrapper.clone(), Mode::Content)),
        );
        markers.retain(|(marker, _)| !marker.is_empty());
        markers
    }

    fn call(&mut self, place: Place, last: bool, out: &mut Vec<Parsed>) -> bool {
        let mut begun = self.begun.take();
        if begun.as_mut().is_some_and(|open| open.grow(&self.pending)) && !last {
            self.begun = begun;
            return false;
        }
        let Some(calls) = self.format.calls.clone() else {
            return false;
        };
        match calls::step(&calls, &self.pending, place, last, &self.tools) {
            Step::More(begun) => {
                self.begun = begun.map(|begun| Open::new(begun, &self.pending));
                false
            }
            Step::Markup(len, next) => {
                self.markup(len, out);
                self.mode = Mode::Call(next);
                true
            }
            Step::Calls(found, len, next) => {
                let raw = self.take(len);
                let mut raws = vec![raw].into_iter();
                for call in found {
                    out.push(Parsed {
                        event: Event::ToolCall(call),
                        raw: raws.next().unwrap_or_default(),
                    });
                }
                self.mode = Mode::Call(next);
                true
            }
            Step::End(len) => {
                self.markup(len, out);
                (self.mode, self.blank) = (Mode::Content, true);
                true
            }
            Step::Fail(len) => {
                let len = if len == 0 { self.first_char() } else { len };
                self.emit(len, out, Event::Content);
                (self.mode, self.blank) = (Mode::Content, false);
                true
            }
        }
    }

    fn first_char(&self) -> usize {
        self.pending.chars().next().map_or(0, char::len_utf8)
    }
}
