//! Calls of tools, told while they are written.
//!
//! A call is announced by its name, its arguments follow in pieces, and then its end. Where a piece ends depends on the
//! arguments alone: behind the first character with which it has [`PIECE`] bytes, an escape of JSON being one character.

use serde_json::Value;

use crate::run::Part;

/// Bytes of a piece, at least; the last one may be shorter.
pub const PIECE: usize = 16;
/// What arguments begin with that are the text of a tool.
const INPUT: &str = "{\"input\":\"";

/// A call of a tool, or what is new of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its place among the answer's calls.
    pub index: usize,
    /// Its own id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, JSON, or what is new of them.
    pub arguments: String,
    /// How far it has come.
    pub stage: Stage,
}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its tool is known.
    Begins,
    /// So are more of its arguments.
    GoesOn,
    /// It is complete.
    Ends,
    /// The answer ended within it; this is all of it as the model wrote it.
    BreaksOff(String),
}

impl Call {
    /// Goes on with what is new of it.
    pub fn take(&mut self, new: Call) {
        self.arguments += &new.arguments;
        self.stage = new.stage;
    }

    /// The text of a tool that takes one rather than an object.
    pub fn text(&self) -> String {
        let mut text = InputText::default();
        text.push(&self.arguments) + &text.end()
    }
}

/// Tells of a call.
pub(crate) struct Telling {
    head: Call,
    /// Bytes of its arguments that are told.
    told: usize,
}

impl Telling {
    /// Announces it.
    pub(crate) fn begin((index, id): (usize, String), name: &str, parts: &mut Vec<Part>) -> Self {
        let head = Call {
            index,
            id,
            name: name.to_owned(),
            arguments: String::new(),
            stage: Stage::Begins,
        };
        parts.push(Part::Call(head.clone()));
        Telling { head, told: 0 }
    }

    fn tell(&self, arguments: &str, stage: Stage) -> Part {
        Part::Call(Call {
            arguments: arguments.to_owned(),
            stage,
            ..self.head.clone()
        })
    }

    /// Tells the whole pieces of the arguments so far.
    pub(crate) fn grow(&mut self, arguments: &str, parts: &mut Vec<Part>) {
        while let Some(len) = piece(&arguments[self.told..]) {
            let end = self.told + len;
            parts.push(self.tell(&arguments[self.told..end], Stage::GoesOn));
            self.told = end;
        }
    }

    /// Tells the rest of the arguments.
    fn rest(&mut self, arguments: &str, parts: &mut Vec<Part>) {
        self.grow(arguments, parts);
        let rest = &arguments[self.told..];
        if !rest.is_empty() {
            parts.push(self.tell(rest, Stage::GoesOn));
        }
    }

    /// Tells that it is complete.
    pub(crate) fn end(mut self, arguments: &str, parts: &mut Vec<Part>) {
        self.rest(arguments, parts);
        parts.push(self.tell("", Stage::Ends));
    }

    /// Tells that the answer ended within it; `raw` is what the model wrote.
    pub(crate) fn break_off(mut self, arguments: &str, raw: String, parts: &mut Vec<Part>) {
        self.rest(arguments, parts);
        parts.push(self.tell("", Stage::BreaksOff(raw)));
    }
}

/// The length of the piece that arguments begin with; `None` before it is complete.
fn piece(arguments: &str) -> Option<usize> {
    let mut len = 0;
    while len < PIECE {
        len += character(&arguments[len..])?;
    }
    Some(len)
}

/// The length of the character at the start of JSON; `None` while it is not certain.
fn character(json: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    match (bytes.first()?, bytes.get(1)) {
        (b'\\', None) => None,
        (b'\\', Some(b'u')) => {
            let unit = json.get(2..6)?;
            // The first half of a pair.
            let unit = u16::from_str_radix(unit, 16).unwrap_or_default();
            let is_half = (0xd800..0xdc00).contains(&unit);
            match (is_half, bytes.get(6), bytes.get(7)) {
                (true, None, _) | (true, Some(b'\\'), None) => None,
                (true, Some(b'\\'), Some(b'u')) => (bytes.len() >= 12).then_some(12),
                _ => Some(6),
            }
        }
        (b'\\', Some(_)) => json[1..].chars().next().map(|c| 1 + c.len_utf8()),
        _ => json.chars().next().map(char::len_utf8),
    }
}

/// The text of a tool that takes one, out of the arguments `{"input": "…"}`, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct InputText {
    arguments: String,
    /// Bytes of the arguments whose text is told.
    read: usize,
    over: bool,
}

impl InputText {
    /// What a piece of the arguments adds to the text.
    pub fn push(&mut self, piece: &str) -> String {
        self.arguments += piece;
        if self.over || !self.arguments.starts_with(INPUT) {
            return String::new();
        }
        let from = self.read.max(INPUT.len());
        let mut end = from;
        while !self.over {
            let rest = &self.arguments[end..];
            self.over = rest.starts_with('"');
            match character(rest).filter(|_| !self.over) {
                Some(len) => end += len,
                None => break,
            }
        }
        self.read = end;
        let text = format!("\"{}\"", &self.arguments[from..end]);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// The text of arguments that are none such: what they say the input is, or all of them.
    pub fn end(&self) -> String {
        if self.read > 0 {
            return String::new();
        }
        let read: Value = serde_json::from_str(&self.arguments).unwrap_or_default();
        let input = read["input"].as_str().map(str::to_owned);
        input.unwrap_or_else(|| self.arguments.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: &str = r#"{"input":"say \"ü\" \ud83d\ude00\\ and \u00fc, 日本語 and \n more \ud83d.","n":[1,2.5]}"#;

    /// The parts of a call of which so many bytes are known one after the other.
    fn told(ends: &[usize]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut telling = Telling::begin((0, "call".to_owned()), "say", &mut parts);
        for end in ends {
            telling.grow(&ARGUMENTS[..*end], &mut parts);
        }
        telling.end(ARGUMENTS, &mut parts);
        parts
    }

    fn pieces(parts: &[Part]) -> Vec<&str> {
        let calls = parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        });
        let grown = calls.filter(|call| call.stage == Stage::GoesOn);
        grown.map(|call| call.arguments.as_str()).collect()
    }

    #[test]
    fn pieces_are_the_same_wherever_the_text_is_cut() {
        let whole = told(&[]);
        let all = pieces(&whole);
        assert_eq!(all.concat(), ARGUMENTS);
        let (last, others) = all.split_last().expect("pieces");
        assert!(
            last.len() < PIECE + 12
                && others
                    .iter()
                    .all(|p| (PIECE..PIECE + 12).contains(&p.len()))
        );
        let cuts = |at: usize| ARGUMENTS.is_char_boundary(at);
        let cuts: Vec<usize> = (0..ARGUMENTS.len()).filter(|at| cuts(*at)).collect();
        for at in &cuts {
            assert_eq!(told(&[*at]), whole, "cut at {at}");
        }
        assert_eq!(told(&cuts), whole);
    }

    #[test]
    fn no_piece_ends_within_an_escape() {
        for start in 0..32 {
            let text = format!(
                "{}\\ud83d\\ude00\\\\\\\"x\\u00fc{}",
                "a".repeat(start),
                "b".repeat(32)
            );
            let len = piece(&text).expect("a piece");
            let read = format!("\"{}\"", &text[..len]);
            assert!(serde_json::from_str::<String>(&read).is_ok(), "{read}");
        }
    }

    #[test]
    fn the_text_of_a_tool_comes_in_pieces_of_its_arguments() {
        let call = |arguments: &str| Call {
            index: 0,
            id: String::new(),
            name: String::new(),
            arguments: arguments.to_owned(),
            stage: Stage::Ends,
        };
        let good = ARGUMENTS.replace("\\ud83d.", "");
        assert_eq!(
            call(&good).text(),
            "say \"ü\" 😀\\ and ü, 日本語 and \n more "
        );
        let mut text = InputText::default();
        let (mut rest, mut read) = (good.as_str(), String::new());
        while let Some(len) = piece(rest) {
            let more = text.push(&rest[..len]);
            assert!(!more.is_empty() || read.ends_with("more "), "{rest}");
            read += &more;
            rest = &rest[len..];
        }
        read += &text.push(rest);
        assert_eq!(read + &text.end(), call(&good).text());
        for (arguments, input) in [
            (r#"{"input": "a"}"#, "a"),
            (r#"{"text":"b","input":"c"}"#, "c"),
            (r#"{"text":"b"}"#, r#"{"text":"b"}"#),
            (r#"{"input":""}"#, ""),
            (r#"{"input":"cut \u00"#, "cut "),
        ] {
            assert_eq!(call(arguments).text(), input, "{arguments}");
        }
    }
}
