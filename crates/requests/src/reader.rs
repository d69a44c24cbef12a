//! The text of an answer, told part by part.

use tokkata::answer::{Event, OutputFormat, OutputParser, Parsed, ToolCall};

use crate::calls::Telling;
use crate::run::{Part, id};
use crate::served::Served;
use crate::talk::Reading;
use crate::word_tools;

/// Splits an answer's text, and tells of its calls.
pub(crate) struct Reader {
    /// `None` where all of it is content.
    parser: Option<OutputParser>,
    calls: usize,
    /// Calls of tools are text where there are no tools.
    has_tools: bool,
    one_call: bool,
    /// What begins as a call is one.
    calls_are_certain: bool,
    /// The call that is announced and has not ended.
    telling: Option<Telling>,
    /// Reasoning stays in the content, as the model wrote it.
    raw_reasoning: bool,
    /// The newest text is reasoning.
    reasons: bool,
}

/// How an answer is to be split.
pub(crate) fn format_of<'a>(model: &'a Served, reading: &Reading) -> &'a OutputFormat {
    match word_tools::form().filter(|_| reading.in_words) {
        Some(form) => &form.format,
        None => model.service.format(),
    }
}

impl Reader {
    /// Reads an answer in this format.
    pub(crate) fn new(reading: Option<(&Reading, &OutputFormat)>) -> Self {
        let parser = reading.map(|(r, format)| OutputParser::new(format, &r.prompt, &r.tools));
        let is = |of: fn(&Reading) -> bool| reading.is_some_and(|(r, _)| of(r));
        Reader {
            parser,
            calls: 0,
            has_tools: is(|r| !r.tools.is_empty()),
            one_call: is(|r| r.one_call),
            calls_are_certain: is(|r| r.calls_are_certain),
            telling: None,
            raw_reasoning: is(|r| r.raw_reasoning),
            reasons: false,
        }
    }

    /// Whether the newest text is reasoning.
    pub(crate) fn reasons(&self) -> bool {
        self.reasons
    }

    /// Whether a tool has been called.
    pub(crate) fn has_called(&self) -> bool {
        self.calls > 0
    }

    /// Whether the answer has the only call that it may have.
    pub(crate) fn is_over(&self) -> bool {
        self.one_call && self.calls > 0
    }

    /// What more text settles.
    pub(crate) fn read(&mut self, text: &[u8]) -> Vec<Part> {
        let text = String::from_utf8_lossy(text);
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            Some(parser) => {
                let parsed = parser.push(&text);
                let mut parts = self.parts(parsed);
                self.tell(&mut parts);
                parts
            }
            None => vec![Part::Content(text.into_owned())],
        }
    }

    /// Tells of the call that is being written.
    fn tell(&mut self, parts: &mut Vec<Part>) {
        let tells = self.calls_are_certain && !(self.is_over());
        let Some(begun) = self.parser.as_ref().and_then(OutputParser::begun) else {
            return;
        };
        if tells {
            let head = || (self.calls, begun.id.clone().unwrap_or_else(|| id("call_")));
            self.telling
                .get_or_insert_with(|| Telling::begin(head(), &begun.name, parts))
                .grow(&begun.arguments, parts);
        }
    }

    /// What was held back.
    pub(crate) fn read_last(&mut self) -> Vec<Part> {
        let Some(parser) = &mut self.parser else {
            return Vec::new();
        };
        let begun = parser.begun().map(|begun| begun.arguments.clone());
        let parsed = parser.finish();
        let ends = |p: &Parsed| matches!(p.event, Event::ToolCall(_));
        if parsed.iter().any(ends) {
            return self.parts(parsed);
        }
        match self.telling.take() {
            Some(telling) => {
                let mut parts = Vec::new();
                let raw = parsed.into_iter().map(|p| p.raw).collect();
                telling.break_off(&begun.unwrap_or_default(), raw, &mut parts);
                parts
            }
            None => self.parts(parsed),
        }
    }

    fn parts(&mut self, parsed: Vec<Parsed>) -> Vec<Part> {
        let mut parts = Vec::with_capacity(parsed.len());
        for piece in parsed {
            if matches!(piece.event, Event::ToolCall(_)) && !self.has_tools {
                parts.push(Part::Content(piece.raw));
                continue;
            }
            if self.is_over() {
                break;
            }
            self.reasons = matches!(piece.event, Event::Reasoning(_));
            let is_text = matches!(piece.event, Event::Reasoning(_) | Event::Content(_));
            if let Some(telling) = self.telling.take_if(|_| is_text) {
                // Its text follows.
                telling.break_off("", String::new(), &mut parts);
                self.calls += 1;
            }
            match piece.event {
                Event::Reasoning(_) if self.raw_reasoning => parts.push(Part::Content(piece.raw)),
                Event::Reasoning(text) => parts.push(Part::Reasoning(text)),
                Event::Content(text) => parts.push(Part::Content(text)),
                Event::ToolCall(call) => self.call(call, &mut parts),
                Event::Markup if self.raw_reasoning && !self.has_tools => {
                    parts.push(Part::Content(piece.raw));
                }
                Event::Markup => {}
            }
        }
        parts
    }

    /// A call is complete.
    fn call(&mut self, call: ToolCall, parts: &mut Vec<Part>) {
        let head = (self.calls, call.id.unwrap_or_else(|| id("call_")));
        let telling = self.telling.take();
        let telling = telling.unwrap_or_else(|| Telling::begin(head, &call.name, parts));
        telling.end(&call.arguments, parts);
        self.calls += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokkata::ChatTemplate;

    use super::*;
    use crate::calls::Stage;

    /// A call in JSON, one whose arguments come one by one, and one in a message of its own.
    const FORMS: [&str; 3] = [
        "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>",
        "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
        "<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
    ];

    fn format(form: &str) -> OutputFormat {
        let text = format!(
            "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{form}{{% endfor %}}<|end|>{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
        );
        OutputFormat::derive(&ChatTemplate::parse(&text).expect("a template"))
    }

    fn reading(calls_are_certain: bool) -> Reading {
        let properties = json!({"city": {"type": "string"}, "days": {"type": "array"}});
        let tool = json!({"type": "function", "function": {"name": "get_weather",
            "parameters": {"type": "object", "properties": properties}}});
        Reading {
            prompt: "<|user|>?<|end|><|assistant|>".to_owned(),
            tools: vec![tool],
            one_call: false,
            calls_are_certain,
            in_words: false,
            raw_reasoning: false,
        }
    }

    /// The parts of calls, without their ids, and how many of them came before the last piece of text.
    fn told(format: &OutputFormat, certain: bool, texts: &[&str]) -> (Vec<Part>, usize) {
        let mut reader = Reader::new(Some((&reading(certain), format)));
        let (mut parts, mut early) = (Vec::new(), 0);
        for text in texts {
            early = parts.len();
            parts.extend(reader.read(text.as_bytes()));
        }
        parts.extend(reader.read_last());
        parts.retain(|part| matches!(part, Part::Call(_)));
        for part in &mut parts {
            if let Part::Call(call) = part {
                call.id.clear();
            }
        }
        (parts, early)
    }

    const CITY: &str = "Llanfairpwllgwyngyll \\\"quoted\\\" ü";

    fn texts() -> [String; 3] {
        let city: String = serde_json::from_str(&format!("\"{CITY}\"")).expect("a text");
        [
            format!(
                "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{CITY}\", \"days\": [1, 2, 3, 4, 5, 6]}}}}\n</tool_call>"
            ),
            format!(
                "<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n[1, 2, 3, 4, 5, 6]\n</parameter>\n</function>\n</tool_call>"
            ),
            format!(
                "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>[1, 2, 3, 4, 5, 6]</arg_value>\n</tool_call>"
            ),
        ]
    }

    #[test]
    fn calls_come_in_the_same_pieces_wherever_their_text_is_cut() {
        for (form, text) in FORMS.iter().zip(texts()) {
            let format = format(form);
            let (whole, _) = told(&format, true, &[&text]);
            assert!(whole.len() >= 5, "{text}: {whole:?}");
            let arguments: String = whole
                .iter()
                .map(|part| match part {
                    Part::Call(call) => call.arguments.as_str(),
                    _ => "",
                })
                .collect();
            assert_eq!(
                arguments,
                format!("{{\"city\":\"{CITY}\",\"days\":[1,2,3,4,5,6]}}")
            );
            let cuts = (0..text.len()).filter(|at| text.is_char_boundary(*at));
            for at in cuts {
                let (parts, _) = told(&format, true, &[&text[..at], &text[at..]]);
                assert_eq!(parts, whole, "cut at {at}");
            }
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            let (parts, _) = told(&format, true, &letters);
            assert_eq!(parts, whole);
            // Whoever cannot be certain hears the same, but not before the end.
            let end = text.rfind("</").expect("a marker");
            let cut = [&text[..end - 2], &text[end - 2..]];
            let (parts, early) = told(&format, false, &cut);
            assert_eq!((parts, early), (whole.clone(), 0), "{text}");
            let (_, early) = told(&format, true, &cut);
            assert!(early >= 2, "{text}: {early} parts came early");
        }
    }

    #[test]
    fn a_call_that_breaks_off_keeps_what_it_has() {
        let (format, text) = (format(FORMS[0]), &texts()[0]);
        let cut = text.find(" 4,").expect("the list");
        let (parts, _) = told(&format, true, &[&text[..cut]]);
        let mut all = String::new();
        for part in &parts {
            let Part::Call(call) = part else { continue };
            all += &call.arguments;
            if let Stage::BreaksOff(raw) = &call.stage {
                assert_eq!(raw, &text[..cut]);
            }
        }
        assert_eq!(all, format!("{{\"city\":\"{CITY}\",\"days\":[1,2,3,"));
        assert!(matches!(parts.last(), Some(Part::Call(call)) if call.stage != Stage::Ends));
        // What nobody has heard of is text.
        let mut reader = Reader::new(Some((&reading(true), &format)));
        assert_eq!(reader.read(b"<tool_call>\n{\"name\": \"get_w"), []);
        assert!(matches!(&reader.read_last()[..], [Part::Content(_), ..]));
    }
}
