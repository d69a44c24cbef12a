//! Where an answer would open a call.

use std::sync::Arc;

use super::format::{Body, Calls, Header, OutputFormat};
use super::stream::OutputParser;

/// Markers that calls of one format may begin with.
const MARKERS: usize = 2;

/// What calls of a format begin with, byte by byte; cheap to clone.
#[derive(Clone, Debug)]
pub struct Openings {
    format: Arc<OutputFormat>,
    marks: Arc<[Mark]>,
}

/// An answer as far as it is written, and whether more bytes would open a call.
///
/// ```
/// use tokkata_text::parse::{OutputFormat, Openings};
/// use tokkata_text::template::ChatTemplate;
/// let template = ChatTemplate::parse(concat!(
///     "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<call>",
///     "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</call>{% endfor %}",
///     "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
/// ))?;
/// let openings = Openings::of(&OutputFormat::derive(&template)).expect("its calls have a marker");
/// let mut opening = openings.after("<|user|>2+2?<|end|><|assistant|>");
/// opening.push(b"The <call");
/// assert!(opening.opens(b">") && opening.opens(b"> it") && !opening.opens(b"er>"));
/// # Ok::<(), tokkata_text::template::TemplateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Opening {
    openings: Openings,
    /// The parser before the answer's first byte.
    start: OutputParser,
    text: Vec<u8>,
    matched: Matched,
    /// The parser behind so many bytes of the text.
    read: Option<(usize, OutputParser)>,
}

/// How much of each marker the end of a text is: bit `i` stands for its first `i + 1` steps.
pub type Matched = [u128; MARKERS];

/// A marker as steps, one byte each.
#[derive(Debug)]
struct Mark {
    /// By byte: the steps that it may be.
    steps: Box<[u128; 256]>,
    /// By byte: the steps after which it may come any number of times before the next one.
    stays: Box<[u128; 256]>,
    last: u128,
}

/// Bytes that may come any number of times behind a marker, and the one that settles it.
struct Tail {
    stays: fn(u8) -> bool,
    last: fn(u8) -> bool,
}

impl Mark {
    /// `text`, then perhaps a tail. Of a text beyond 127 bytes the first 127 count.
    fn new(text: &str, tail: Option<&Tail>) -> Self {
        let text = &text.as_bytes()[..text.len().min(127)];
        let (mut steps, mut stays) = (Box::new([0; 256]), Box::new([0; 256]));
        for (i, &byte) in text.iter().enumerate() {
            steps[usize::from(byte)] |= 1 << i;
        }
        let Some(tail) = tail else {
            let last = 1 << (text.len() - 1);
            return Mark { steps, stays, last };
        };
        let last = 1 << text.len();
        for byte in 0..=u8::MAX {
            if (tail.last)(byte) {
                steps[usize::from(byte)] |= last;
            }
            if (tail.stays)(byte) {
                stays[usize::from(byte)] |= last >> 1;
            }
        }
        Mark { steps, stays, last }
    }

    fn step(&self, matched: u128, byte: u8) -> u128 {
        let at = usize::from(byte);
        ((matched << 1 | 1) & self.steps[at]) | (matched & self.stays[at])
    }

    /// Whether a byte goes on with a marker that has begun.
    fn goes_on(&self, matched: u128, byte: u8) -> bool {
        let at = usize::from(byte);
        ((matched << 1) & self.steps[at]) | (matched & self.stays[at]) != 0
    }
}

/// Whether a text is markup rather than words, which answers may hold.
fn is_markup(marker: &str) -> bool {
    marker.contains(['<', '[', '|'])
}

fn marks_of(calls: &Calls) -> Vec<Mark> {
    let object = Tail {
        stays: |byte| byte.is_ascii_whitespace() || b"[],;".contains(&byte),
        last: |byte| byte == b'{',
    };
    let mark = |marker: &&str| {
        // Words open a call only with the object behind them.
        let tail = !is_markup(marker) && matches!(calls.body, Body::Json(_));
        Mark::new(marker, tail.then_some(&object))
    };
    let markers = [calls.open.as_str(), calls.section_open.as_str()];
    let markers = markers.iter().filter(|marker| !marker.is_empty());
    markers.map(mark).collect()
}

impl Openings {
    /// What opens calls of a format; `None` where they have no marker, and cannot be told from content before they end.
    #[must_use]
    pub fn of(format: &OutputFormat) -> Option<Self> {
        let name = Tail {
            stays: |byte| !byte.is_ascii_whitespace() && byte != b'<',
            last: |_| true,
        };
        let line = Tail {
            stays: |byte| byte != b'\n',
            last: |byte| byte == b'\n',
        };
        let marks = match (&format.channels, &format.recipients, &format.calls) {
            (Some(channels), ..) => {
                let tail = match channels.header {
                    Header::Channel { .. } => None,
                    Header::Recipient { .. } => Some(&name),
                };
                vec![Mark::new(&channels.recipient, tail)]
            }
            (_, Some(recipients), _) => vec![Mark::new(&recipients.mark, Some(&line))],
            (.., Some(calls)) => marks_of(calls),
            _ => Vec::new(),
        };
        (!marks.is_empty()).then(|| Openings {
            format: Arc::new(format.clone()),
            marks: marks.into(),
        })
    }

    /// The answer to a prompt, before its first byte.
    #[must_use]
    pub fn after(&self, prompt: &str) -> Opening {
        let mut matched = Matched::default();
        let mark = self.format.recipients.as_ref().map(|r| r.mark.as_str());
        // The prompt has begun the first message's line.
        if let Some(mark) = mark.filter(|mark| prompt.ends_with(mark)) {
            matched = mark.bytes().fold(matched, |m, byte| self.step(m, byte));
        }
        Opening {
            start: OutputParser::new(&self.format, prompt, &[]),
            text: Vec::new(),
            matched,
            read: None,
            openings: self.clone(),
        }
    }

    /// What is matched after one more byte.
    #[must_use]
    pub fn step(&self, matched: Matched, byte: u8) -> Matched {
        let mut next = Matched::default();
        for ((next, matched), mark) in next.iter_mut().zip(matched).zip(&*self.marks) {
            *next = mark.step(matched, byte);
        }
        next
    }

    /// Whether a byte goes on with a marker that has begun.
    #[must_use]
    pub fn goes_on(&self, matched: Matched, byte: u8) -> bool {
        let mut marks = self.marks.iter().zip(matched);
        marks.any(|(mark, matched)| mark.goes_on(matched, byte))
    }

    /// The ends of markers in `bytes`, which come behind what is matched, be they where calls may begin or not.
    pub fn ends<'a>(
        &'a self,
        matched: Matched,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = usize> + 'a {
        let mut matched = matched;
        bytes.iter().enumerate().filter_map(move |(at, &byte)| {
            matched = self.step(matched, byte);
            let mut marks = self.marks.iter().zip(matched);
            let ended = marks.any(|(mark, matched)| matched & mark.last != 0);
            ended.then_some(at + 1)
        })
    }
}

impl Opening {
    /// What is matched at the end of the text.
    #[must_use]
    pub fn matched(&self) -> Matched {
        self.matched
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether nothing is written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether `bytes` would open a call: they end a marker, and more may follow, where the parser reads it as one.
    pub fn opens(&mut self, bytes: &[u8]) -> bool {
        let ends: Vec<usize> = self.openings.ends(self.matched, bytes).collect();
        ends.into_iter().any(|end| self.is_read(&bytes[..end]))
    }

    /// Goes on with bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let step = |matched, &byte: &u8| self.openings.step(matched, byte);
        self.matched = bytes.iter().fold(self.matched, step);
        self.text.extend_from_slice(bytes);
    }

    /// Goes back to a length at which so much was matched.
    pub fn go_back(&mut self, len: usize, matched: Matched) {
        self.text.truncate(len);
        self.matched = matched;
        self.read = self.read.take().filter(|(read, _)| *read <= len);
    }

    /// Whether a marker that ends with these bytes would be read as one.
    fn is_read(&mut self, bytes: &[u8]) -> bool {
        let mut parser = self.parser().clone();
        parser.push(&String::from_utf8_lossy(bytes));
        parser.may_call()
    }

    /// The parser behind the text so far.
    fn parser(&mut self) -> &OutputParser {
        let whole = self.text.len();
        if self.read.as_ref().is_none_or(|(read, _)| *read != whole) {
            let mut parser = self.start.clone();
            parser.push(&String::from_utf8_lossy(&self.text));
            self.read = Some((whole, parser));
        }
        self.read.as_ref().map_or(&self.start, |(_, parser)| parser)
    }
}
