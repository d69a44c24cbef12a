//! Reading the markers off rendered conversations.
//!
//! Each probe is a conversation whose name, id, argument keys, values, reasoning and content are words that occur
//! nowhere else. What stands between them in the rendered text is what the template puts there.

mod calls;
mod probe;

use crate::template::ChatTemplate;

use super::format::{Channels, Header, OutputFormat, Reasoning, Recipients};
use probe::{CONTENT, NAMES, Probe, REASON, Shape, TEXT_KEY};

/// Markers that templates know how to cut out of an earlier answer, although they never write them.
const KNOWN_REASONING: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<thinking>", "</thinking>"),
];

impl OutputFormat {
    /// Derives the format of answers from a template. A template that shows neither reasoning nor calls gives a
    /// format in which everything is content.
    pub fn derive(template: &ChatTemplate) -> Self {
        let probe = Probe::new(template);
        if let Some(channels) = channels(&probe) {
            return OutputFormat {
                channels: Some(channels),
                ..OutputFormat::default()
            };
        }
        let messages = OutputFormat {
            channels: messages(&probe),
            recipients: recipients(&probe),
            ..OutputFormat::default()
        };
        if messages != OutputFormat::default() && calls::reads_back(&probe, &messages) {
            return messages;
        }
        let reasoning = reasoning(&probe).or_else(|| known_reasoning(template.source()));
        let mut wrappers = wrappers(&probe, reasoning.as_ref());
        let calls = calls::derive(&probe, reasoning.as_ref(), &wrappers);
        wrappers.extend(turn_ends(&probe));
        let format = OutputFormat {
            reasoning,
            calls,
            wrappers,
            channels: None,
            recipients: None,
        };
        if calls::reads_back(&probe, &format) {
            format
        } else {
            OutputFormat {
                calls: None,
                ..format
            }
        }
    }
}

fn known_reasoning(source: &str) -> Option<Reasoning> {
    let known = KNOWN_REASONING
        .iter()
        .find(|(_, close)| source.contains(close));
    known.map(|(open, close)| Reasoning {
        open: (*open).to_owned(),
        close: (*close).to_owned(),
    })
}

fn reasoning(probe: &Probe<'_>) -> Option<Reasoning> {
    let whole = probe.whole(Shape::Reasoned)?;
    let (before, rest) = whole.split_once(REASON)?;
    let (between, _) = rest.split_once(CONTENT)?;
    let (before, between) = (before.trim_end(), between.trim());
    if between.is_empty() || between.contains("'type'") || between.contains("\"type\"") {
        return None;
    }
    let plain = probe.answer(Shape::Plain).unwrap_or_default();
    let wrapper = plain
        .split_once(CONTENT)
        .map_or("", |(before, _)| before)
        .trim();
    let pair = marker_ends(between).rev().find_map(|end| {
        let open = opposite(&between[..end])?;
        before
            .ends_with(&open)
            .then(|| (open, between[..end].to_owned()))
    });
    let (open, close) = pair.unwrap_or_else(|| {
        let close = between.strip_suffix(wrapper).map_or(between, str::trim_end);
        let open = probe
            .prompt_beyond(before)
            .unwrap_or_else(|| last_marker(before));
        (open.to_owned(), close.to_owned())
    });
    let ambiguous = open.is_empty() || close.is_empty() || wrapper.ends_with(&open);
    (!ambiguous).then_some(Reasoning { open, close })
}

/// The offsets after each marker in a text.
fn marker_ends(text: &str) -> impl DoubleEndedIterator<Item = usize> {
    text.match_indices(['>', ']'])
        .map(|(at, mark)| at + mark.len())
}

/// The opening marker that a closing one answers.
fn opposite(close: &str) -> Option<String> {
    let pairs = [
        ("</", "<"),
        ("[/", "["),
        ("<|END_", "<|START_"),
        ("<|close|>", "<|open|>"),
        ("<|/", "<|"),
        ("_end", "_start"),
        ("suffix", "prefix"),
    ];
    let (from, to) = pairs.into_iter().find(|(from, _)| close.contains(from))?;
    Some(close.replacen(from, to, 1))
}

fn closing(open: &str) -> Option<String> {
    let pairs = [
        ("<|START_", "<|END_"),
        ("<|open|>", "<|close|>"),
        ("[", "[/"),
        ("<", "</"),
    ];
    let (from, to) = pairs.into_iter().find(|(from, _)| open.starts_with(from))?;
    Some(open.replacen(from, to, 1))
}

/// The last marker of a text: from its last opening bracket, or its last line.
fn last_marker(text: &str) -> &str {
    let line = text.trim_end().rsplit('\n').next().unwrap_or_default();
    let bracket = if line.ends_with(['>', ']']) {
        line.rfind(['<', '['])
    } else {
        None
    };
    &line[bracket.unwrap_or(0)..]
}

/// Markers around plain content, such as those of a response section.
fn wrappers(probe: &Probe<'_>, reasoning: Option<&Reasoning>) -> Vec<String> {
    let Some(plain) = probe.answer(Shape::Plain) else {
        return Vec::new();
    };
    let Some((before, after)) = plain.split_once(CONTENT) else {
        return Vec::new();
    };
    let mut before = before.trim().to_owned();
    if let Some(markers) = reasoning {
        before = before
            .replace(&markers.open, "")
            .replace(&markers.close, "");
    }
    let open = before.trim();
    if open.is_empty() || !open.starts_with(['<', '[']) {
        return Vec::new();
    }
    let close = closing(open).filter(|close| after.contains(close.as_str()));
    std::iter::once(open.to_owned()).chain(close).collect()
}

/// The markers that end a turn, from each of them on.
fn turn_ends(probe: &Probe<'_>) -> Vec<String> {
    let plain = probe.answer(Shape::Plain).unwrap_or_default();
    let end = plain.split_once(CONTENT).map_or("", |(_, end)| end).trim();
    let starts = end.match_indices(['<', '[']).map(|(at, _)| &end[at..]);
    let plain = |end: &&str| {
        end.ends_with(['>', ']']) && (4..80).contains(&end.len()) && !end.contains(' ')
    };
    starts.filter(plain).map(str::to_owned).collect()
}

/// Channels: the reasoning's header ends with a marker of the message, and names a channel before it.
fn channels(probe: &Probe<'_>) -> Option<Channels> {
    let answer = probe.whole(Shape::Reasoned)?;
    let (before, _) = answer.split_once(REASON)?;
    let (head, channel) = before.rsplit_once("<|channel|>")?;
    let name = channel.strip_suffix("<|message|>")?;
    let start = head.rfind("<|start|>").map(|_| "<|start|>".to_owned())?;
    let recipient = calls::recipient(probe).unwrap_or_else(|| " to=".to_owned());
    let marker = |word: &str| start.replace("start", word);
    Some(Channels {
        message: "<|message|>".to_owned(),
        ends: [
            start.clone(),
            marker("end"),
            marker("return"),
            marker("call"),
        ]
        .into(),
        header: Header::Channel {
            marker: "<|channel|>".to_owned(),
            reasoning: name.to_owned(),
        },
        start,
        recipient,
        calls: None,
    })
}

/// Messages whose headers name their recipient, be it the model itself: `<|start|>assistant to=self<|message|>`.
fn messages(probe: &Probe<'_>) -> Option<Channels> {
    const RECIPIENT: &str = " to=";
    let (start, message) = ("<|start|>", "<|message|>");
    let reasoned = probe.whole(Shape::Reasoned)?;
    let plain = probe.whole(Shape::Plain)?;
    let part = |text: &str, word: &str| {
        let (before, after) = text.split_once(word)?;
        let head = before.strip_suffix(message)?;
        let (_, to) = head[head.rfind(start)?..].split_once(RECIPIENT)?;
        let end = after.split(start).next().unwrap_or(after).trim();
        Some((to.to_owned(), end.to_owned()))
    };
    let (reasoning, between) = part(&reasoned, REASON)?;
    let (content, end) = part(&plain, CONTENT)?;
    Some(Channels {
        start: start.to_owned(),
        message: message.to_owned(),
        ends: [start.to_owned(), between, end].into(),
        header: Header::Recipient { reasoning, content },
        recipient: RECIPIENT.to_owned(),
        calls: calls::in_messages(probe, message),
    })
}

/// Messages that begin with a line that names their recipient, such as `>>>all` and `>>>tool`.
fn recipients(probe: &Probe<'_>) -> Option<Recipients> {
    let call = probe.whole(Shape::Calls {
        count: 1,
        content: false,
    })?;
    let at = call.rfind(&format!("{{\"{TEXT_KEY}\""))?;
    let before = call[..at].strip_suffix('\n')?.strip_suffix(NAMES[0])?;
    let symbol = |c: char| c.is_ascii_punctuation();
    let mark = &before[before.trim_end_matches(symbol).len()..];
    let plain = probe.whole(Shape::Plain)?;
    let before = plain.split_once(CONTENT)?.0.strip_suffix('\n')?;
    let content = &before[before.rfind(mark)? + mark.len()..];
    let named = !content.is_empty() && content.chars().all(char::is_alphanumeric);
    (named && mark.len() > 1).then(|| Recipients {
        mark: mark.to_owned(),
        content: content.to_owned(),
    })
}
