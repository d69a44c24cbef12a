//! Answers as every shared template writes them, split back into what went in.

use crate::shown::{answer, call, expected_calls, tagged, templates, tools};
use serde_json::{Value as Json, json};
use tokkata_text::grammar::{Grammar, TokenTrie, Vocabulary};
use tokkata_text::parse::{
    Answer, Event, OutputFormat, OutputParser, Parsed, ToolCall, ToolChoice,
};
use tokkata_text::template::ChatTemplate;

/// Parses in one piece, and character by character, which must agree; the raws must be the input.
fn parse(format: &OutputFormat, prompt: &str, text: &str) -> Answer {
    let whole = events(format, prompt, &[text]);
    let pieces: Vec<String> = text.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let streamed = events(format, prompt, &pieces);
    let answer = Answer::from_events(whole);
    assert_eq!(Answer::from_events(streamed), answer, "streamed {text:?}");
    answer
}

fn events(format: &OutputFormat, prompt: &str, pieces: &[&str]) -> Vec<Parsed> {
    let mut parser = OutputParser::new(format, prompt, &tools());
    let mut events = Vec::new();
    for piece in pieces {
        let begun = parser.begun().cloned();
        let settled = parser.push(piece);
        goes_on(begun, &settled, &parser);
        events.extend(settled);
    }
    events.extend(parser.finish());
    assert_eq!(parser.begun(), None, "nothing goes on after {pieces:?}");
    let raw: String = events.iter().map(|parsed| parsed.raw.as_str()).collect();
    assert_eq!(raw, pieces.concat(), "every byte is accounted for");
    events
}

/// What was known of a call stays so, unless it is none.
fn goes_on(begun: Option<ToolCall>, settled: &[Parsed], parser: &OutputParser) {
    let Some(begun) = begun else { return };
    let event = settled.iter().find(|p| p.event != Event::Markup);
    let now = match event.map(|p| &p.event) {
        None => parser.begun(),
        Some(Event::ToolCall(call)) => Some(call),
        Some(_) => return,
    };
    let now = now.unwrap_or_else(|| panic!("{begun:?} is forgotten"));
    assert_eq!((&begun.id, &begun.name), (&now.id, &now.name));
    assert!(
        now.arguments.starts_with(&begun.arguments),
        "{begun:?} becomes {now:?}"
    );
}

fn read_calls(calls: &[ToolCall]) -> Vec<(String, Json)> {
    let read = |call: &ToolCall| {
        (
            call.name.clone(),
            serde_json::from_str(&call.arguments).expect("JSON arguments"),
        )
    };
    calls.iter().map(read).collect()
}

#[test]
fn calls_of_every_template_are_read_back() {
    let (mut read, mut wrong, mut unseen) = (0, Vec::new(), Vec::new());
    for (name, template) in templates() {
        let format = OutputFormat::derive(&template);
        let mut seen = false;
        for count in [1, 2] {
            for (as_text, content) in [
                (false, json!("")),
                (false, Json::Null),
                (false, json!("I look.")),
                (true, json!("")),
                (true, Json::Null),
            ] {
                // Arguments as text are for templates that cannot take them as an object.
                if as_text && seen {
                    continue;
                }
                let expected = &expected_calls()[..count];
                let calls: Vec<Json> = expected
                    .iter()
                    .zip(["call0000a", "call0000b"])
                    .map(|((n, a), id)| call(id, n, a, as_text))
                    .collect();
                let turn = json!({"role": "assistant", "content": content, "tool_calls": calls});
                let Some((prompt, text)) = answer(&template, &turn, &json!({})) else {
                    continue;
                };
                if !expected.iter().all(|(name, _)| text.contains(name)) || text.contains("None") {
                    continue;
                }
                seen = true;
                let found = parse(&format, &prompt, &text);
                let expected: Vec<(String, Json)> = expected
                    .iter()
                    .map(|(n, a)| ((*n).to_owned(), a.clone()))
                    .collect();
                let visible = if text.contains("I look.") {
                    "I look."
                } else {
                    ""
                };
                if read_calls(&found.tool_calls) == expected
                    && [&found.content, &found.reasoning]
                        .iter()
                        .any(|text| text.trim() == visible)
                {
                    read += 1;
                } else {
                    wrong.push(format!("{name}: {text:?} gives {found:?}"));
                }
            }
        }
        if !seen {
            unseen.push(name);
        }
    }
    println!("{read} answers read back; no calls shown by {unseen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read == 0 || read >= 305, "only {read} answers read back");
}

#[test]
fn reasoning_of_every_template_is_split_off() {
    let (mut split, mut wrong) = (0, Vec::new());
    for (name, template) in templates() {
        // Its history leaves out a line that its prompt ends with.
        if name == "Apriel-1.6-15b-Thinker-fixed" {
            continue;
        }
        let format = OutputFormat::derive(&template);
        let turn = json!({"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two.\n\nFour.", "thinking": "Two and two.\n\nFour."});
        for extra in [
            json!({}),
            json!({"enable_thinking": true}),
            json!({"thinking": true}),
            json!({"enable_thinking": false}),
        ] {
            let Some((prompt, text)) = answer(&template, &turn, &extra) else {
                continue;
            };
            let markers = format.reasoning_markers();
            if markers.is_some_and(|(open, close)| {
                prompt.trim_end().ends_with(open) && !text.contains(close)
            }) {
                // The history leaves out what the prompt opened: no model could have written this.
                continue;
            }
            let found = parse(&format, &prompt, &text);
            let reasoning = if text.contains("Two and two.") {
                "Two and two.\n\nFour."
            } else {
                ""
            };
            if found.content.trim() == "It is 4."
                && found.reasoning.trim() == reasoning
                && found.tool_calls.is_empty()
            {
                split += usize::from(!reasoning.is_empty());
            } else {
                wrong.push(format!(
                    "{name} {extra}: {text:?} after {:?} gives {found:?}",
                    &prompt[prompt.len().saturating_sub(20)..]
                ));
            }
        }
    }
    println!("{split} answers with reasoning split");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(split == 0 || split >= 90, "only {split} answers split");
}

fn split(text: &str) -> Answer {
    parse(&tagged(), "<|im_start|>assistant\n", text)
}

#[test]
fn markers_are_derived() {
    let format = tagged();
    assert_eq!(format.reasoning_markers(), Some(("<think>", "</think>")));
    assert_eq!(format.call_marker(), Some("<tool_call>"));
    let nothing = OutputFormat::derive(
        &ChatTemplate::parse("{{ messages[0].content }}").expect("a template"),
    );
    assert!(!nothing.has_tool_calls() && nothing.reasoning_markers().is_none());
}

#[test]
fn what_only_looks_like_a_call_is_content() {
    for text in [
        "<tool_call>\nnot JSON</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argum",
        "<tool_call>{\"nome\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": }</tool_call>",
        "2 <tool_ 3 <",
        "the tag <think> is text here </think>",
    ] {
        let answer = split(text);
        assert!(
            answer.tool_calls.is_empty() && answer.reasoning.is_empty(),
            "{text}: {answer:?}"
        );
        let shown: String = answer.content.split_whitespace().collect();
        let given: String = text.split_whitespace().collect();
        assert!(
            given.contains(&shown) && shown.len() + "</tool_call>".len() >= given.len(),
            "{text}: {answer:?}"
        );
    }
}

#[test]
fn a_call_may_be_followed_by_text_and_calls() {
    let one = "<tool_call>{\"arguments\": {\"a\": \"</tool_call>\"}, \"name\": \"f\"}</tool_call>";
    let answer = split(&format!(
        "<think>\nA <tool_call> B\n</think>\n\nBefore {one}\n after\n{one}"
    ));
    assert_eq!(answer.reasoning, "A <tool_call> B");
    assert_eq!(answer.content, "Beforeafter");
    assert_eq!(answer.tool_calls.len(), 2);
    assert_eq!(answer.tool_calls[0].arguments, "{\"a\":\"</tool_call>\"}");
}

#[test]
fn a_prompt_may_have_opened_the_reasoning() {
    let answer = parse(
        &tagged(),
        "<|im_start|>assistant\n<think>\n",
        "Hm.\n</think>\n\nYes.",
    );
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("Hm.", "Yes.")
    );
    let answer = parse(
        &tagged(),
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "Yes.",
    );
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("", "Yes.")
    );
    let cut = parse(&tagged(), "<think>\n", "Hm, </thin");
    assert_eq!(cut.reasoning, "Hm, </thin");
}

#[test]
fn held_back_text_is_only_what_may_be_a_marker() {
    let mut parser = OutputParser::new(&tagged(), "", &[]);
    let mut shown = |piece: &str| Answer::from_events(parser.push(piece)).content;
    assert_eq!(shown("Hello <"), "Hello");
    assert_eq!(shown("b> x"), " <b> x");
    assert_eq!(shown(" <tool_c"), "");
    assert_eq!(shown("at>"), " <tool_cat>");
}

/// A marker behind a call that no second call follows is text.
#[test]
fn a_marker_without_a_call_stays_behind_a_call() {
    let call = r#"<tool_call>{"name": "f", "arguments": {}}"#;
    for rest in [
        "<tool_call>all",
        "<tool_call>",
        "</tool_call>\n<tool_call>no",
        "<tool",
    ] {
        let text = format!("{call}{rest}");
        let said = parse(&tagged(), "", &text);
        assert_eq!(said.tool_calls.len(), 1, "{text}");
        let kept = rest.trim_start_matches("</tool_call>").trim();
        assert_eq!(said.content, kept, "{text}");
    }
    let two = format!("{call}</tool_call>\n{call}</tool_call>");
    assert_eq!(parse(&tagged(), "", &two).tool_calls.len(), 2);
}

/// Marker fragments in random order: every byte comes out again, however the text is cut.
#[test]
fn no_text_is_ever_lost() {
    let pieces = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "{\"",
        "\\",
        "}",
        "]",
        "[",
        " ",
        "\n",
        "text",
        "é",
        "<",
        "<|im_end|>",
        "<|tool",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<function=",
        "<parameter=",
        "</parameter>",
        "<|channel|>",
        "analysis",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "</function>",
        "=",
        ">",
        "None",
        "f(",
        "a='",
        "')",
        ">>>",
        "all\n",
        "]<]minimax[>[",
        "<invoke name=\"f\">",
        "<a>",
        "</a>",
        " to=self",
        "<|eom|>",
    ];
    let formats: Vec<OutputFormat> = std::iter::once(tagged())
        .chain(templates().iter().map(|(_, t)| OutputFormat::derive(t)))
        .collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..4_000 {
        let text: String = (0..random(14) + 1)
            .map(|_| pieces[random(pieces.len())])
            .collect();
        parse(
            &formats[round % formats.len()],
            ["", "<think>\n"][random(2)],
            &text,
        );
    }
}

/// Calls that follow a grammar are known before they end: all of JSON that has come, and of other formats the arguments
/// that are complete.
#[test]
fn calls_are_known_while_they_are_written() {
    let name = "get_weather";
    let arguments = json!({"city": "Rome", "code": "one QQ two"});
    let (mut known, mut late) = (0, Vec::new());
    for (template_name, template) in templates() {
        let format = OutputFormat::derive(&template);
        let followed = format.tool_grammar(&tools(), ToolChoice::Auto);
        let turn = json!({"role": "assistant", "content": "", "tool_calls": [call("call0000a", name, &arguments, false)]});
        let shown = answer(&template, &turn, &json!({})).filter(|(_, text)| text.contains(name));
        let (Some((prompt, text)), Ok(Some(_))) = (shown, followed) else {
            continue;
        };
        let mut parser = OutputParser::new(&format, &prompt, &tools());
        let (before, _) = text.split_once("QQ").expect("the last argument");
        parser.push(before);
        let named = parser.begun().is_some_and(|begun| begun.name == name);
        let begun = parser.begun().map_or("", |begun| &begun.arguments);
        if named && begun.starts_with("{\"city\":\"Rome\"") {
            known += 1;
        } else {
            late.push(template_name);
        }
    }
    println!("{known} known early, and not {late:?}");
    assert!(
        // One writes a call's id behind its arguments.
        known == 0 || (known >= 50 && late.len() <= 1),
        "{known}, not {late:?}"
    );
}

#[test]
fn a_call_is_known_from_its_name_on() {
    let mut parser = OutputParser::new(&tagged(), "", &[]);
    let mut known = |piece: &str| {
        assert_eq!(parser.push(piece), []);
        parser
            .begun()
            .map(|c| (c.name.clone(), c.arguments.clone()))
    };
    let f = |arguments: &str| Some(("f".to_owned(), arguments.to_owned()));
    assert_eq!(known("<tool_call>\n{\"name\" : \"f"), None);
    assert_eq!(known("\""), f(""));
    assert_eq!(known(", \"arguments\": "), f(""));
    assert_eq!(known("{ \"a b\" : [1, 2.50,"), f("{\"a b\":[1,2.50,"));
    assert_eq!(known(" \"\\"), f("{\"a b\":[1,2.50,\"\\"));
    assert_eq!(known("\" }\" ] "), f("{\"a b\":[1,2.50,\"\\\" }\"]"));
    assert_eq!(known("}"), f("{\"a b\":[1,2.50,\"\\\" }\"]}"));
    assert!(matches!(
        &parser.push("}")[..],
        [Parsed {
            event: Event::ToolCall(_),
            ..
        }]
    ));
}

/// The grammar derived for a template's calls accepts the calls as the template writes them, and no other tool's.
#[test]
fn tool_grammars_accept_what_templates_write() {
    let tokens: Vec<Vec<u8>> = (0..=255u8)
        .map(|byte| vec![byte])
        .chain([b"<end>".to_vec()])
        .collect();
    let trie = TokenTrie::new(Vocabulary {
        tokens,
        special: vec![256],
        eos: vec![256],
    })
    .expect("a vocabulary");
    let (mut followed, mut wrong) = (0, Vec::new());
    for (name, template) in templates() {
        let format = OutputFormat::derive(&template);
        let Some((source, trigger)) = format
            .tool_grammar(&tools(), ToolChoice::Auto)
            .expect("plain schemas")
        else {
            continue;
        };
        let grammar = Grammar::compile_with(source.clone(), trigger, &trie)
            .unwrap_or_else(|e| panic!("{name}: {e}\n{source:?}"));
        for count in [1, 2] {
            let calls: Vec<Json> = expected_calls()[..count]
                .iter()
                .zip(["call0000a", "call0000b"])
                .map(|((n, a), id)| call(id, n, a, false))
                .collect();
            let turn = json!({"role": "assistant", "content": "", "tool_calls": calls});
            let Some((_, text)) = answer(&template, &turn, &json!({})) else {
                continue;
            };
            if !text.contains("get_weather") || text.contains("True") || text.contains("\\u00fc") {
                continue;
            }
            let follow = |text: &str| {
                let mut state = grammar.start();
                text.bytes()
                    .position(|byte| state.accept(u32::from(byte)).is_err())
            };
            if let Some(at) = follow(&text) {
                wrong.push(format!(
                    "{name}: stops before {:?} of {text:?}\n{source:?}",
                    String::from_utf8_lossy(&text.as_bytes()[at..])
                ));
            } else if follow(&text.replace("get_weather", "get_whether")).is_none() {
                wrong.push(format!("{name}: any name is accepted"));
            } else {
                followed += 1;
            }
        }
    }
    println!("{followed} answers followed");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        followed == 0 || followed >= 70,
        "only {followed} answers followed"
    );
}
