//! The format of tool calls.

use super::super::format::{Body, Calls, JsonKeys, OutputFormat, Pair, Part, Reasoning};
use super::super::{Answer, OutputParser, ToolCall};
use super::probe::{CONTENT, IDS, NAMES, NUMBER, NUMBER_KEY, Probe, Shape, TEXT, TEXT_KEY};

/// The rendered calls and what surrounds them.
struct Sample {
    /// The answer with one call.
    one: String,
    /// The answer with two, if the template allows it.
    two: Option<String>,
    /// What an answer ends with.
    end: String,
}

/// Calls that the template never writes into a conversation, but names in its instructions.
const KNOWN: [(&str, &str, bool); 4] = [
    ("<tool_call>", "</tool_call>", false),
    ("<|tool_call_start|>", "<|tool_call_end|>", true),
    ("<|tool_call|>", "", false),
    ("functools", "", false),
];

pub(super) fn derive(
    probe: &Probe<'_>,
    reasoning: Option<&Reasoning>,
    wrappers: &[String],
) -> Option<Calls> {
    let markers: Vec<&str> = reasoning
        .iter()
        .flat_map(|markers| [&*markers.open, &*markers.close])
        .chain(wrappers.iter().map(|w| &**w))
        .collect();
    let shown = Sample::new(probe, &markers).and_then(|sample| {
        json_calls(&sample)
            .or_else(|| python_calls(&sample))
            .or_else(|| bare_calls(&sample))
            .or_else(|| other_calls(&sample))
    });
    shown.or_else(|| known_calls(probe.source()))
}

/// Calls that stand alone in messages whose headers end with `message`.
pub(super) fn in_messages(probe: &Probe<'_>, message: &str) -> Option<Calls> {
    let sample = Sample::new(probe, &[message])?;
    let calls = other_calls(&sample)?;
    Some(Calls {
        section_open: String::new(),
        section_close: String::new(),
        ..calls
    })
}

/// Whether the format reads the probes themselves back; one that does not is no format.
pub(super) fn reads_back(probe: &Probe<'_>, format: &OutputFormat) -> bool {
    [1, 2].into_iter().all(|count| {
        let Some(text) = probe.answer(Shape::Calls {
            count,
            content: false,
        }) else {
            return true;
        };
        // Where recipients are named, the prompt has begun the first message.
        let prompt = match &format.recipients {
            Some(_) => probe.prompt(),
            None => "",
        };
        let mut parser = OutputParser::new(format, prompt, &[]);
        let mut events = parser.push(&text);
        events.extend(parser.finish());
        let calls = Answer::from_events(events).tool_calls;
        let same = |(call, name): (&ToolCall, &&str)| {
            call.name == **name && call.arguments.contains(TEXT) && call.arguments.contains(NUMBER)
        };
        calls.len() == count && calls.iter().zip(&NAMES).all(same)
    })
}

fn known_calls(source: &str) -> Option<Calls> {
    let (open, close, python) = KNOWN
        .into_iter()
        .find(|(open, close, _)| source.contains(open) && source.contains(close))?;
    let keys = JsonKeys {
        name: Some("name".into()),
        arguments: "arguments".into(),
        id: None,
    };
    Some(Calls {
        section_open: String::new(),
        open: open.to_owned(),
        body: if python {
            Body::Python
        } else {
            Body::Json(keys)
        },
        close: close.to_owned(),
        section_close: String::new(),
    })
}

/// What precedes a tool's name in a channel's header.
pub(super) fn recipient(probe: &Probe<'_>) -> Option<String> {
    let whole = probe.whole(Shape::Calls {
        count: 1,
        content: false,
    })?;
    let at = whole
        .rfind(&format!("to=functions.{}", NAMES[0]))
        .map(|_| " to=functions.".to_owned());
    at.or_else(|| {
        whole
            .contains(&format!(" to={}", NAMES[0]))
            .then(|| " to=".to_owned())
    })
}

impl Sample {
    /// Renders calls; `markers` belong to reasoning or content and are left out.
    fn new(probe: &Probe<'_>, markers: &[&str]) -> Option<Sample> {
        let clean = |text: String| {
            let text = markers
                .iter()
                .fold(text, |text, marker| text.replace(marker, ""));
            text.trim_start().to_owned()
        };
        let sample = |count| {
            let calls = |content| probe.answer(Shape::Calls { count, content });
            // With content before the call, what comes before the content is not part of the call.
            let after_content = calls(true).and_then(|text| {
                let after = text.split_once(CONTENT)?.1;
                after.contains(NAMES[0]).then(|| after.to_owned())
            });
            let shortest = after_content.into_iter().chain(calls(false)).map(clean);
            shortest.min_by_key(String::len)
        };
        let plain = probe.answer(Shape::Plain).unwrap_or_default();
        let end = plain
            .split_once(CONTENT)
            .map_or("", |(_, end)| end)
            .trim()
            .to_owned();
        Some(Sample {
            one: sample(1)?,
            two: sample(2),
            end,
        })
    }

    /// A text less the end of the turn.
    fn without_end<'s>(&'s self, tail: &'s str) -> &'s str {
        let tail = tail.trim();
        let mut end = self.end.as_str();
        // The end of a turn after a call may be only part of the end after content.
        while !end.is_empty() {
            if let Some(rest) = tail.strip_suffix(end) {
                return rest.trim_end();
            }
            let next = end
                .char_indices()
                .skip(1)
                .find(|(_, c)| "<[".contains(*c))
                .map_or(end.len(), |(at, _)| at);
            end = &end[next..];
        }
        tail
    }
}

fn json_calls(sample: &Sample) -> Option<Calls> {
    let text = &sample.one;
    let at = text.find(&format!("\"{}\"", NAMES[0]))?;
    let before = text[..at].trim_end();
    let (name, start) = match before.strip_suffix(':') {
        Some(key) => {
            let key = key.trim_end().strip_suffix('"')?;
            let quote = key.rfind('"')?;
            (
                Some(key[quote + 1..].to_owned()),
                object_start(&text[..quote])?,
            )
        }
        None => (None, before.strip_suffix('{')?.len()),
    };
    let end = start + super::super::scan::json_end(&text[start..])?;
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text[start..end]).ok()?;
    let arguments = object
        .iter()
        .find(|(_, value)| value.to_string().contains(TEXT_KEY))
        .map(|(key, _)| key.clone())?;
    let id = object
        .iter()
        .find(|(_, value)| value.as_str() == Some(IDS[0]))
        .map(|(key, _)| key.clone());
    let open = text[..start].trim().trim_end_matches('[').trim().to_owned();
    let close = sample
        .without_end(&text[end..])
        .trim()
        .trim_start_matches(']')
        .trim()
        .to_owned();
    Some(Calls {
        section_open: String::new(),
        open: opening_marker(&open),
        body: Body::Json(JsonKeys {
            name,
            arguments,
            id,
        }),
        close: first_marker(&close).to_owned(),
        section_close: String::new(),
    })
}

/// The beginning of the object that a key belongs to.
fn object_start(before: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in before.bytes().enumerate().rev() {
        match byte {
            b'}' => depth += 1,
            b'{' if depth == 0 => return Some(at),
            b'{' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A marker that stands for itself: text without any bracket or symbol would be found everywhere.
fn opening_marker(text: &str) -> String {
    let text = text.trim();
    if text.chars().all(char::is_alphanumeric) {
        String::new()
    } else {
        text.to_owned()
    }
}

fn python_calls(sample: &Sample) -> Option<Calls> {
    let text = &sample.one;
    let at = text.find(&format!("{}(", NAMES[0]))?;
    let shown = [
        format!("{TEXT_KEY}='{TEXT}'"),
        format!("{TEXT_KEY}=\"{TEXT}\""),
    ];
    if !shown.iter().any(|shown| text.contains(shown.as_str())) {
        return None;
    }
    let close = at + text[at..].find(')')? + 1;
    let open = text[..at].trim().trim_end_matches('[').trim();
    let close = sample
        .without_end(&text[close..])
        .trim()
        .trim_start_matches(']')
        .trim();
    Some(Calls {
        section_open: String::new(),
        open: opening_marker(open),
        body: Body::Python,
        close: close.to_owned(),
        section_close: String::new(),
    })
    .filter(|calls| !calls.open.is_empty())
}

fn bare_calls(sample: &Sample) -> Option<Calls> {
    let text = &sample.one;
    let at = text.find(&format!("{}{{", NAMES[0]))?;
    let rest = &text[at + NAMES[0].len() + 1..];
    let value = rest
        .strip_prefix(TEXT_KEY)
        .or_else(|| rest.split_once(TEXT_KEY).map(|(_, rest)| rest))?
        .strip_prefix(':')?;
    let quote = value.split_once(TEXT)?.0.to_owned();
    let frame = Frame::new(sample, at, last_value_end(text)?)?;
    Some(Calls {
        section_open: frame.section_open.trim().to_owned(),
        open: frame.open.trim().to_owned(),
        body: Body::Bare { quote },
        close: frame
            .close
            .rsplit('}')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned(),
        section_close: String::new(),
    })
}

/// Calls with a header and their own closing marker.
fn other_calls(sample: &Sample) -> Option<Calls> {
    let text = &sample.one;
    let name = text[..text.find(TEXT_KEY)?].rfind(NAMES[0])?;
    let arguments = text.find(&format!("{{\"{TEXT_KEY}\""));
    let (header_end, arguments_end) = match arguments {
        Some(at) => (at, at + super::super::scan::json_end(&text[at..])?),
        None => (text.find(TEXT_KEY)?, last_value_end(text)?),
    };
    let frame = Frame::new(
        sample,
        text.find(IDS[0]).map_or(name, |id| id.min(name)),
        arguments_end,
    )?;
    let header = &text[frame.variable..header_end];
    let body = match arguments {
        Some(_) => {
            let (parts, before) = split_header(header);
            Body::Named {
                header: parts,
                before_arguments: before,
            }
        }
        None => {
            let (parts, before) = split_header(header);
            match element_mark(text) {
                Some(mark) => elements(header, mark)?,
                None => {
                    let (header, pair) = pairs(text, parts, &before)?;
                    Body::Pairs { header, pair }
                }
            }
        }
    };
    let last = match &body {
        Body::Pairs { pair, .. } => pair.close.clone(),
        Body::Elements { mark, .. } => format!("{mark}</{NUMBER_KEY}>"),
        _ => String::new(),
    };
    let close = frame.close.trim();
    let close = close.strip_prefix(&last).unwrap_or(close).trim().to_owned();
    Some(Calls {
        section_open: frame.section_open.trim().to_owned(),
        open: frame.open.trim().to_owned(),
        body,
        close,
        section_close: frame.section_close.trim().to_owned(),
    })
    .filter(|calls| calls.open.contains(['<', '[', '|']))
}

/// What precedes the tags of elements that are named after arguments.
fn element_mark(text: &str) -> Option<&str> {
    let value = text.find(TEXT)? + TEXT.len();
    let (mark, _) = text[value..].split_once(&format!("</{TEXT_KEY}>"))?;
    let opening = format!("{mark}<{TEXT_KEY}>{TEXT}");
    (!mark.contains('\n') && text.contains(&opening)).then_some(mark)
}

/// The format of elements, from what stands between the first variable and the first key.
fn elements(header: &str, mark: &str) -> Option<Body> {
    let header = header.strip_suffix('<')?.strip_suffix(mark)?;
    let (mut parts, after) = split_header(header);
    if !after.is_empty() {
        parts.push(Part::Literal(after));
    }
    Some(Body::Elements {
        header: parts,
        mark: mark.to_owned(),
    })
}

/// The end of the last argument's value.
fn last_value_end(text: &str) -> Option<usize> {
    let number = text.rfind(NUMBER)? + NUMBER.len();
    let string = text.rfind(TEXT)? + TEXT.len();
    Some(number.max(string))
}

/// What surrounds a call, split into what comes once and what comes each time.
struct Frame {
    variable: usize,
    section_open: String,
    open: String,
    close: String,
    section_close: String,
}

impl Frame {
    fn new(sample: &Sample, variable: usize, arguments_end: usize) -> Option<Frame> {
        let before = &sample.one[..variable];
        let after = sample.without_end(&sample.one[arguments_end..]).to_owned();
        let whole = Frame {
            variable,
            section_open: String::new(),
            open: before.to_owned(),
            close: after.clone(),
            section_close: String::new(),
        };
        let Some(between) = sample.two.as_deref().and_then(between) else {
            return Some(whole);
        };
        let open = common_end(before, &between);
        let open = &before[before.len() - open..];
        let open = &open[marker_start(open)..];
        let rest = between[..between.len() - open.len()].trim();
        let close_len = common_start(rest, &after);
        Some(Frame {
            section_open: before[..before.len() - open.len()].to_owned(),
            open: open.to_owned(),
            section_close: after[close_len..].to_owned(),
            close: after[..close_len].to_owned(),
            ..whole
        })
        .filter(|frame| !frame.open.trim().is_empty())
    }
}

/// Where the first marker of a text starts: `]<` is the beginning of one, too.
fn marker_start(text: &str) -> usize {
    let at = text.find(['<', '[']).unwrap_or(0);
    match text[..at].strip_suffix(']') {
        Some(before) if text[at..].starts_with('<') => before.len(),
        _ => at,
    }
}

/// A text up to the end of its first marker.
fn first_marker(text: &str) -> &str {
    let text = text.trim_start();
    text.find(['>', ']']).map_or(text, |end| &text[..=end])
}

/// What stands between the arguments of the first call and the first variable of the second.
fn between(two: &str) -> Option<String> {
    let name = two[..two.rfind(TEXT_KEY)?].rfind(NAMES[1])?;
    let second = two.find(IDS[1]).map_or(name, |id| id.min(name));
    let first = &two[..second];
    let start = last_value_end(first)?;
    // JSON arguments end with a brace of their own.
    let start = if first[..start].contains(&format!("{{\"{TEXT_KEY}\"")) {
        start + first[start..].find('}')? + 1
    } else {
        start
    };
    Some(first[start..].to_owned())
}

fn common_end(a: &str, b: &str) -> usize {
    let same = a
        .chars()
        .rev()
        .zip(b.chars().rev())
        .take_while(|(a, b)| a == b);
    same.map(|(c, _)| c.len_utf8()).sum()
}

fn common_start(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(c, _)| c.len_utf8()).sum()
}

/// A header as parts, and the literal after its last variable.
fn split_header(header: &str) -> (Vec<Part>, String) {
    let (mut parts, mut rest) = (Vec::new(), header);
    loop {
        let next = [(NAMES[0], Part::Name), (IDS[0], Part::Id)]
            .into_iter()
            .filter_map(|(word, part)| rest.find(word).map(|at| (at, word.len(), part)))
            .min_by_key(|(at, ..)| *at);
        let Some((at, len, part)) = next else { break };
        if at > 0 {
            parts.push(Part::Literal(rest[..at].trim().to_owned()));
        }
        parts.push(part);
        rest = &rest[at + len..];
    }
    // An index differs from call to call.
    let digits = rest.trim_start_matches([':', '.', '#', '"']);
    let lead = &rest[..rest.len() - digits.len()];
    if !lead.is_empty() && digits.starts_with(|c: char| c.is_ascii_digit()) {
        parts.push(Part::Literal(lead.to_owned()));
        parts.push(Part::Skip);
        rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    (parts, rest.trim().to_owned())
}

/// The format of single arguments, from one that is a string and one that is not.
fn pairs(text: &str, mut header: Vec<Part>, before: &str) -> Option<(Vec<Part>, Pair)> {
    let text_key = text.find(TEXT_KEY)?;
    let text_value = text_key + text[text_key..].find(TEXT)?;
    let number_key = text.find(NUMBER_KEY)?;
    let number_value = number_key + text[number_key..].find(NUMBER)?;
    let middle = &text[text_key + TEXT_KEY.len()..text_value];
    let other = &text[number_key + NUMBER_KEY.len()..number_value];
    let between = text[text_value + TEXT.len()..].split_once(NUMBER_KEY)?.0;
    // The opening marker is what the first key and the second have in common before them.
    let open = &before[before.len() - common_end(before, between.trim_end())..];
    let open = open[open.find(['<', '[']).unwrap_or(0)..].trim();
    let rest = before[..before.len() - open.len()].trim();
    // An index differs from call to call.
    match rest.split_once(|c: char| c.is_ascii_digit()) {
        Some((literal, after)) => {
            let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
            header.extend([Part::Literal(literal.to_owned()), Part::Skip]);
            header.extend((!after.is_empty()).then(|| Part::Literal(after.to_owned())));
        }
        None if rest.is_empty() => {}
        None => header.push(Part::Literal(rest.to_owned())),
    }
    let close = between.trim_end().strip_suffix(open)?;
    let (middle, types, after) = split_types(middle, other);
    let lead = if after.ends_with('\n') { "\n" } else { "" };
    let tail = if close.starts_with('\n') { "\n" } else { "" };
    let pair = Pair {
        open: open.to_owned(),
        middle: (middle, after.trim().to_owned()),
        types,
        close: close.trim().to_owned(),
        padding: (lead.to_owned(), tail.to_owned()),
    };
    (!pair.open.is_empty() && !pair.middle.0.is_empty() && !pair.close.is_empty())
        .then_some((header, pair))
}

/// What stands between key and value, split around what depends on the value's type.
fn split_types(string: &str, number: &str) -> (String, Option<(String, String)>, String) {
    if string == number {
        return (string.trim().to_owned(), None, string.to_owned());
    }
    let start = common_start(string, number);
    let end = common_end(&string[start..], &number[start..]);
    // Whole words: `string` and `integer` may share letters.
    let start = string[..start]
        .rfind(|c: char| !c.is_alphanumeric())
        .map_or(0, |at| at + 1);
    let end = string[string.len() - end..]
        .find(|c: char| !c.is_alphanumeric())
        .map_or(0, |at| end - at);
    let types = (
        string[start..string.len() - end].to_owned(),
        number[start..number.len() - end].to_owned(),
    );
    (
        string[..start].trim().to_owned(),
        Some(types),
        string[string.len() - end..].to_owned(),
    )
}
