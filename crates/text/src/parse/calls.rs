//! Reading tool calls.

use serde_json::{Map, Value as Json};

use super::ToolCall;
use super::begun::{Begun, compact, members};
use super::elements::{self, Elements};
use super::format::{Body, Calls, JsonKeys, Pair, Part};
use super::pythonic;
use super::scan::{json_end, skip_space};

/// Headers are short; a longer one is text that happens to look like a call.
const MAX_HEADER: usize = 1_024;

/// Where in a section of calls the text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the first marker.
    Start,
    /// After a marker, with so many calls read.
    Inside { calls: usize },
}

/// What the next bytes are.
#[derive(Debug)]
pub(super) enum Step {
    /// Not enough text yet; perhaps a call has begun.
    More(Option<Begun>),
    Markup(usize, Place),
    Calls(Vec<ToolCall>, usize, Place),
    /// The section is over after so many bytes.
    End(usize),
    /// So many bytes are not a call.
    Fail(usize),
}

/// Why a single call was not read.
enum Trouble {
    More,
    Fail,
}

impl From<elements::Trouble> for Trouble {
    fn from(trouble: elements::Trouble) -> Self {
        match trouble {
            elements::Trouble::More => Trouble::More,
            elements::Trouble::Fail => Trouble::Fail,
        }
    }
}

type Read<T> = Result<T, Trouble>;

/// Reads one step of a section that begins with a marker of `calls`.
pub(super) fn step(calls: &Calls, text: &str, place: Place, last: bool, tools: &[Json]) -> Step {
    let Place::Inside { calls: read } = place else {
        return first_step(calls, text, last, tools);
    };
    match &calls.body {
        Body::Json(keys) => json_step(calls, keys, text, read, last),
        Body::Python => python_step(calls, text, read, last),
        _ => next_call(calls, text, read, last, tools),
    }
}

/// The opening marker is markup only if a call follows; otherwise it is text.
fn first_step(calls: &Calls, text: &str, last: bool, tools: &[Json]) -> Step {
    let own = matches!(calls.body, Body::Json(_) | Body::Python);
    let marker = if own || text.starts_with(&calls.open) {
        &calls.open
    } else {
        &calls.section_open
    };
    let skipped = if own || !text.starts_with(&calls.open) {
        marker.len()
    } else {
        0
    };
    match step(
        calls,
        &text[skipped..],
        Place::Inside { calls: 0 },
        last,
        tools,
    ) {
        Step::Calls(found, len, next) => Step::Calls(found, skipped + len, next),
        Step::More(begun) => Step::More(begun),
        _ => Step::Fail(marker.len()),
    }
}

fn starts(text: &str, marker: &str) -> bool {
    !marker.is_empty() && text.starts_with(marker)
}

/// Whether `text` is the beginning of `marker`, and more may come.
fn begins(text: &str, marker: &str, last: bool) -> bool {
    !last && marker.len() > text.len() && marker.starts_with(text)
}

/// Ends a section, or gives the marker back as text if no call came.
fn over(calls: &Calls, read: usize, len: usize) -> Step {
    if read > 0 {
        Step::End(len)
    } else {
        Step::Fail(calls.open.len().min(len))
    }
}

fn json_step(calls: &Calls, keys: &JsonKeys, text: &str, read: usize, last: bool) -> Step {
    let bare = skip_space(text);
    let space = text.len() - bare.len();
    if starts(bare, &calls.close) {
        return over(calls, read, space + calls.close.len());
    }
    if begins(bare, &calls.close, last) {
        return Step::More(None);
    }
    let rest = bare.trim_start_matches(|c: char| c.is_whitespace() || "[],;".contains(c));
    let lead = text.len() - rest.len();
    if rest.is_empty() {
        return if last {
            over(calls, read, lead)
        } else {
            Step::More(None)
        };
    }
    if begins(rest, &calls.close, last) {
        return Step::More(None);
    }
    if lead > space && starts(rest, &calls.close) {
        return Step::Markup(lead, Place::Inside { calls: read });
    }
    if begins(rest, &calls.open, last) {
        return Step::More(None);
    }
    if starts(rest, &calls.open) {
        // As at the start, a marker is markup only if a call follows.
        let inside = Place::Inside { calls: read + 1 };
        return match first_step(calls, rest, last, &[]) {
            Step::Calls(found, len, _) => Step::Calls(found, lead + len, inside),
            Step::More(begun) => Step::More(begun),
            _ => Step::End(lead.min(space)),
        };
    }
    if !rest.starts_with('{') {
        return if read > 0 {
            Step::End(lead.min(space))
        } else {
            Step::Fail(0)
        };
    }
    let Some(end) = json_end(rest) else {
        return match last {
            true => Step::Fail(0),
            false => Step::More(Begun::in_object(keys, rest)),
        };
    };
    match from_object(keys, &rest[..end]) {
        Some(found) => Step::Calls(found, lead + end, Place::Inside { calls: read + 1 }),
        None => Step::Fail(lead + end),
    }
}

fn from_object(keys: &JsonKeys, object: &str) -> Option<Vec<ToolCall>> {
    serde_json::from_str::<Map<String, Json>>(object).ok()?;
    let members = members(object);
    let Some(name) = &keys.name else {
        let each = members
            .iter()
            .map(|m| Some(call(None, &m.key, m.value?)))
            .collect::<Option<Vec<_>>>();
        return each.filter(|calls| !calls.is_empty());
    };
    let text = |key: &str| members.iter().find(|m| m.key == key)?.text();
    let name = text(name)?;
    let id = keys.id.as_ref().and_then(|key| text(key));
    let arguments = members.iter().find(|m| keys.are_arguments(&m.key));
    let arguments = arguments.map_or(Some("{}"), |m| m.value)?;
    Some(vec![call(id, &name, arguments)])
}

/// A call whose arguments are this JSON.
pub(super) fn call(id: Option<String>, name: &str, arguments: &str) -> ToolCall {
    // Some models write the arguments as a string of JSON.
    let inner = serde_json::from_str::<String>(arguments).ok();
    let inner = inner.filter(|text| serde_json::from_str::<Map<String, Json>>(text).is_ok());
    ToolCall {
        id,
        name: name.to_owned(),
        arguments: inner.unwrap_or_else(|| compact(arguments)),
    }
}

fn python_step(calls: &Calls, text: &str, read: usize, last: bool) -> Step {
    let bare = skip_space(text);
    let space = text.len() - bare.len();
    if starts(bare, &calls.close) {
        return over(calls, read, space + calls.close.len());
    }
    if begins(bare, &calls.close, last) {
        return Step::More(None);
    }
    if read > 0 {
        return Step::End(0);
    }
    match pythonic::calls(bare) {
        Ok(Some((found, len))) => Step::Calls(found, space + len, Place::Inside { calls: 1 }),
        Ok(None) if !last => Step::More(None),
        _ => Step::Fail(0),
    }
}

/// Formats where each call has its own markers.
fn next_call(calls: &Calls, text: &str, read: usize, last: bool, tools: &[Json]) -> Step {
    let bare = skip_space(text);
    let space = text.len() - bare.len();
    if begins(bare, &calls.open, last) {
        return Step::More(None);
    }
    if !starts(bare, &calls.open) {
        return match section_end(calls, bare, last) {
            None => Step::More(None),
            Some(0) if read == 0 => Step::Fail(0),
            Some(0) => Step::End(0),
            Some(len) => over(calls, read, space + len),
        };
    }
    let mut reader = Reader {
        rest: &bare[calls.open.len()..],
        last,
        tools,
        begun: None,
    };
    let found = match &calls.body {
        Body::Named {
            header,
            before_arguments,
        } => reader.named(header, before_arguments),
        Body::Pairs { header, pair } => reader.pairs(header, pair, &calls.close),
        Body::Elements { header, mark } => reader.elements(header, mark),
        Body::Bare { quote } => reader.bare(quote),
        Body::Json(_) | Body::Python => Err(Trouble::Fail),
    };
    match found.and_then(|found| reader.close(&calls.close).map(|()| found)) {
        Ok(found) => Step::Calls(
            vec![found],
            text.len() - reader.rest.len(),
            Place::Inside { calls: read + 1 },
        ),
        Err(Trouble::More) if !last => Step::More(reader.begun),
        Err(_) => Step::Fail(space + calls.open.len()),
    }
}

/// How much of the section's end the text begins with: its markers may come one by one. `None` if more may come.
fn section_end(calls: &Calls, text: &str, last: bool) -> Option<usize> {
    let close = &calls.section_close;
    if begins(text, close, last) {
        return None;
    }
    let ends = close
        .match_indices(['>', ']'])
        .map(|(at, mark)| at + mark.len())
        .chain([close.len()]);
    Some(
        ends.filter(|end| text.starts_with(&close[..*end]))
            .max()
            .unwrap_or(0),
    )
}

/// Reads one call from the text after its opening marker.
struct Reader<'t> {
    rest: &'t str,
    last: bool,
    tools: &'t [Json],
    /// What is known of the call, while it is not read to its end.
    begun: Option<Begun>,
}

impl<'t> Reader<'t> {
    fn until(&mut self, marker: &str, limit: usize) -> Read<&'t str> {
        match self.rest.find(marker) {
            Some(at) if at <= limit => {
                let (found, rest) = self.rest.split_at(at);
                self.rest = &rest[marker.len()..];
                Ok(found)
            }
            None if self.rest.len() <= limit => Err(Trouble::More),
            _ => Err(Trouble::Fail),
        }
    }

    /// The closing marker; a reply that ends without it is taken as it is.
    fn close(&mut self, close: &str) -> Read<()> {
        let bare = skip_space(self.rest);
        if let Some(rest) = bare.strip_prefix(close) {
            self.rest = rest;
            return Ok(());
        }
        if begins(bare, close, self.last) {
            Err(Trouble::More)
        } else {
            Ok(())
        }
    }

    fn named(&mut self, header: &[Part], before_arguments: &str) -> Read<ToolCall> {
        let text = self.until(before_arguments, MAX_HEADER)?;
        let (name, id) = fields(header, text).ok_or(Trouble::Fail)?;
        let bare = skip_space(self.rest);
        if !bare.is_empty() && !bare.starts_with(['{', '"']) {
            return Err(Trouble::Fail);
        }
        self.begun = Some(Begun::json(id.clone(), name.clone(), bare));
        let end = json_end(bare).ok_or(Trouble::More)?;
        let arguments = &bare[..end];
        serde_json::from_str::<Json>(arguments).map_err(|_| Trouble::Fail)?;
        self.rest = &bare[end..];
        Ok(call(id, &name, arguments))
    }

    /// A call whose arguments are added by `read`.
    fn adding(
        &mut self,
        mut call: Begun,
        read: impl FnOnce(&mut Self, &mut Begun) -> Read<()>,
    ) -> Read<ToolCall> {
        let all = read(self, &mut call);
        self.begun = Some(call.clone());
        all.map(|()| call.end())
    }

    fn pairs(&mut self, header: &[Part], pair: &Pair, close: &str) -> Read<ToolCall> {
        let end = [pair.open.as_str(), close]
            .iter()
            .filter_map(|marker| self.rest.find(marker))
            .min();
        let end = end.ok_or(if self.rest.len() > MAX_HEADER {
            Trouble::Fail
        } else {
            Trouble::More
        })?;
        let (text, rest) = self.rest.split_at(end);
        let (name, id) = fields(header, text).ok_or(Trouble::Fail)?;
        self.rest = rest;
        self.adding(Begun::object(id, name.clone()), |reader, call| {
            loop {
                reader.rest = skip_space(reader.rest);
                let rest = reader.rest;
                if rest.starts_with(close) {
                    return Ok(());
                }
                if !rest.starts_with(&pair.open) {
                    let more = begins(rest, close, false) || begins(rest, &pair.open, false);
                    return Err(if more { Trouble::More } else { Trouble::Fail });
                }
                let (key, value) = reader.pair(pair, &name)?;
                call.add(&key, &value);
            }
        })
    }

    fn pair(&mut self, pair: &Pair, tool: &str) -> Read<(String, Json)> {
        self.rest = &self.rest[pair.open.len()..];
        let key = self.until(&pair.middle.0, MAX_HEADER)?.trim().to_owned();
        let kind = match &pair.types {
            Some(_) => Some(self.until(&pair.middle.1, MAX_HEADER)?),
            None => None,
        };
        let value = self.until(&pair.close, usize::MAX)?;
        let value = value.strip_prefix(&*pair.padding.0).unwrap_or(value);
        let value = value.strip_suffix(&*pair.padding.1).unwrap_or(value);
        let string = match (&pair.types, kind, declared_string(self.tools, tool, &key)) {
            (Some((string, _)), Some(kind), _) => Some(kind == string),
            (_, _, declared) => declared,
        };
        Ok((key, typed(value, string)))
    }

    fn elements(&mut self, header: &[Part], mark: &str) -> Read<ToolCall> {
        let rest = self.rest;
        let text = self.until(mark, MAX_HEADER)?;
        self.rest = &rest[text.len()..];
        let (name, id) = fields(header, text).ok_or(Trouble::Fail)?;
        let schema = parameters(self.tools, &name).unwrap_or(&Json::Null);
        self.adding(Begun::object(id, name.clone()), |reader, call| {
            let mut elements = Elements {
                rest: reader.rest,
                mark,
            };
            while let Some((key, value)) = elements.field(schema)? {
                call.add(key, &value);
            }
            reader.rest = elements.rest;
            Ok(())
        })
    }

    fn bare(&mut self, quote: &str) -> Read<ToolCall> {
        let end = self.rest.find('{').ok_or(if self.rest.len() > MAX_HEADER {
            Trouble::Fail
        } else {
            Trouble::More
        })?;
        let (name, rest) = self.rest.split_at(end);
        match pythonic::bare(rest, quote) {
            Ok(Some((arguments, len))) => {
                self.rest = &rest[len..];
                Ok(ToolCall {
                    id: None,
                    name: name.trim().to_owned(),
                    arguments: arguments.to_string(),
                })
            }
            Ok(None) => Err(Trouble::More),
            Err(()) => Err(Trouble::Fail),
        }
    }
}

/// The name and the id in a header's text.
fn fields(header: &[Part], text: &str) -> Option<(String, Option<String>)> {
    let (mut name, mut id, mut rest) = (None, None, text);
    for (i, part) in header.iter().enumerate() {
        if let Part::Literal(literal) = part {
            rest = skip_space(rest)
                .strip_prefix(literal.trim())
                .unwrap_or(rest);
            continue;
        }
        let end = match header.get(i + 1) {
            _ if *part == Part::Skip => rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len()),
            Some(Part::Literal(next)) if !next.trim().is_empty() => {
                rest.find(next.trim()).unwrap_or(rest.len())
            }
            _ => rest.len(),
        };
        let value = rest[..end].trim().to_owned();
        rest = &rest[end..];
        match part {
            Part::Name => name = Some(value),
            Part::Id => id = Some(value).filter(|id| !id.is_empty()),
            _ => {}
        }
    }
    let name = name.filter(|name| !name.is_empty() && !name.contains(['<', '>', '\n']))?;
    (!rest.contains(char::is_alphanumeric)).then_some((name, id))
}

/// The schema of a tool's arguments.
fn parameters<'t>(tools: &'t [Json], tool: &str) -> Option<&'t Json> {
    let mut functions = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool));
    let function = functions.find(|function| function["name"] == tool)?;
    function.get("parameters")
}

/// Whether a tool's schema says that this argument is a string.
fn declared_string(tools: &[Json], tool: &str, key: &str) -> Option<bool> {
    let kind = &parameters(tools, tool)?["properties"].get(key)?["type"];
    kind.as_str().map(|kind| kind == "string")
}

pub(super) fn typed(value: &str, string: Option<bool>) -> Json {
    let text = || Json::String(value.to_owned());
    match (string, serde_json::from_str::<Json>(value)) {
        (Some(true), _) | (None, Ok(Json::String(_))) => text(),
        (_, Ok(parsed)) => parsed,
        // Templates that print values as Python does teach models to write them so.
        (_, Err(_)) => match value {
            "True" => Json::Bool(true),
            "False" => Json::Bool(false),
            "None" => Json::Null,
            _ => text(),
        },
    }
}
