//! An answer without tools holds no calls, however much the model wants one, and any other text.

use crate::shown::{answer, call, expected_calls, tagged, templates, tools};
use serde_json::{Value as Json, json};
use tokkata_text::parse::{Answer, Matched, Opening, Openings, OutputFormat, OutputParser};
use tokkata_text::template::ChatTemplate;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Every format with calls: its name, format, and a prompt with the calls that answer it.
fn shown_calls() -> Vec<(String, OutputFormat, String, String)> {
    let shows = |(name, template): (String, ChatTemplate)| {
        let format = OutputFormat::derive(&template);
        let turn = |as_text| {
            let both = expected_calls().into_iter().zip(["call0000a", "call0000b"]);
            let calls: Vec<Json> = both.map(|((n, a), id)| call(id, n, &a, as_text)).collect();
            json!({"role": "assistant", "content": "", "tool_calls": calls[..1]})
        };
        let shown = [false, true].iter().find_map(|&as_text| {
            let (prompt, text) = answer(&template, &turn(as_text), &json!({}))?;
            (calls(&format, &prompt, &text) > 0).then_some((prompt, text))
        });
        let (prompt, text) = shown?;
        Some((name, format, prompt, text))
    };
    templates().into_iter().filter_map(shows).collect()
}

/// Calls that the parser reads in an answer; without tools every name may be one.
fn calls(format: &OutputFormat, prompt: &str, text: &str) -> usize {
    let count = |tools: &[Json]| {
        let mut parser = OutputParser::new(format, prompt, tools);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        Answer::from_events(events).tool_calls.len()
    };
    count(&[]).max(count(&tools()))
}

/// Bytes, pieces of `text` cut at random, and pieces that go on with something else.
fn vocabulary(text: &str, random: &mut Random) -> Vec<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    for _ in 0..60 {
        let start = random.below(bytes.len());
        let end = (start + 1 + random.below(16)).min(bytes.len());
        tokens.push(bytes[start..end].to_vec());
        tokens.push([&bytes[start..end], b" so"].concat());
        tokens.push([b"no".as_slice(), &bytes[start..end]].concat());
    }
    tokens
}

/// What a model writes that wants nothing but `wanted`: each token goes on with it as far as it may, and where none may
/// it begins anew. Says also how often it was refused.
fn write(mut opening: Opening, wanted: &str, random: &mut Random) -> (String, usize) {
    let tokens = vocabulary(wanted, random);
    let (mut text, mut at, mut refused) = (Vec::new(), 0, 0);
    for _ in 0..400 {
        let rest = &wanted.as_bytes()[at..];
        let mut going_on: Vec<&Vec<u8>> = tokens.iter().filter(|t| rest.starts_with(t)).collect();
        // Now and then a token that holds what is wanted and more.
        if random.below(8) == 0 {
            let more =
                |t: &&Vec<u8>| t.len() > 3 && t.starts_with(&rest[..rest.len().min(t.len() - 3)]);
            going_on.extend(tokens.iter().filter(more));
        }
        let first = random.below(going_on.len().max(1));
        let last = going_on.len().saturating_sub(1);
        going_on.rotate_left(first.min(last));
        let allowed = going_on.iter().copied().find(|token| {
            let opens = opening.opens(token);
            refused += usize::from(opens);
            !opens
        });
        let any = || tokens.iter().rev().find(|token| !opening.opens(token));
        let token = allowed.or_else(any).expect("something may always come");
        opening.push(token);
        text.extend_from_slice(token);
        at = match allowed {
            Some(token) if rest.starts_with(token) && token.len() < rest.len() => at + token.len(),
            _ => 0,
        };
    }
    (String::from_utf8_lossy(&text).into_owned(), refused)
}

#[test]
fn a_model_that_wants_nothing_but_calls_writes_none() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut kept, mut unmarked) = (Vec::new(), Vec::new());
    for (name, format, prompt, wanted) in shown_calls() {
        let Some(openings) = Openings::of(&format) else {
            unmarked.push(name);
            continue;
        };
        let mut refusals = 0;
        for _ in 0..6 {
            let (text, refused) = write(openings.after(&prompt), &wanted, &mut random);
            refusals += refused;
            assert_eq!(calls(&format, &prompt, &text), 0, "{name}: {text}");
        }
        assert!(refusals > 0, "{name}: {wanted:?} was never refused");
        kept.push(name);
    }
    println!("{} formats are kept; no marker in {unmarked:?}", kept.len());
    assert!(kept.is_empty() || kept.len() >= 50, "only {}", kept.len());
}

/// Where a piece of a call is refused, the call would have been read, had it come.
#[test]
fn only_what_would_be_a_call_is_refused() {
    for (name, format, prompt, wanted) in shown_calls() {
        let Some(openings) = Openings::of(&format) else {
            continue;
        };
        for before in ["", "Well: ", "Über 3 < 4, [x] and f(x) | g. "] {
            let text = format!("{before}{wanted}");
            let mut opening = openings.after(&prompt);
            let refused = text.bytes().position(|byte| {
                let opens = opening.opens(&[byte]);
                opening.push(&[byte]);
                opens
            });
            let reads = calls(&format, &prompt, &text) > 0;
            assert_eq!(refused.is_some(), reads, "{name}: {text:?}");
        }
    }
}

fn refused(openings: &Openings, prompt: &str, text: &str) -> Option<usize> {
    let mut opening = openings.after(prompt);
    text.bytes().position(|byte| {
        let opens = opening.opens(&[byte]);
        opening.push(&[byte]);
        opens
    })
}

#[test]
fn text_that_only_begins_like_a_call_may_come() {
    for (name, format, prompt, _) in shown_calls() {
        let Some(openings) = Openings::of(&format) else {
            continue;
        };
        let plain = "if a < b || c[0] > d { print(\"functools\") } <b>Tool</b> [1, 2] ```json\n[3]``` >>> x + 1\n";
        assert_eq!(refused(&openings, &prompt, plain), None, "{name}");
        for marker in format.call_markers() {
            for end in (1..marker.len()).filter(|&end| marker.is_char_boundary(end)) {
                let text = format!("{}q {} or so", &marker[..end], &marker[..end]);
                // A section's marker may begin with a call's.
                if !format.call_markers().any(|m| text.contains(m)) {
                    assert_eq!(refused(&openings, &prompt, &text), None, "{name}: {text}");
                }
            }
        }
    }
}

#[test]
fn reasoning_may_speak_of_calls() {
    let openings = Openings::of(&tagged()).expect("a marker");
    let thought = "<think>\nA <tool_call> B\n";
    let after = "</think>\n\n<tool_call>";
    let at = refused(&openings, "assistant\n", &format!("{thought}{after}"));
    assert_eq!(at, Some(thought.len() + after.len() - 1));
    let opened = refused(&openings, "assistant\n<think>\n", "A <tool_call> B");
    assert_eq!(opened, None);
    assert_eq!(
        refused(&openings, "assistant\n", "A <tool_call> B"),
        Some(12)
    );
}

#[test]
fn a_token_is_refused_for_what_it_holds() {
    let openings = Openings::of(&tagged()).expect("a marker");
    let mut opening = openings.after("assistant\n");
    for token in ["<tool_call>", "ab<tool_call>cd", "</think><tool_call>"] {
        assert!(opening.opens(token.as_bytes()), "{token}");
    }
    // Half a character, then a marker.
    opening.push(&"é<tool".as_bytes()[1..]);
    opening.push(b"<tool");
    assert!(opening.opens(b"_call>") && opening.opens(b"_call>\n{") && !opening.opens(b"_call"));
    assert!(!opening.opens(b"_cell>") && !opening.opens(b" _call>"));
}

#[test]
fn what_is_taken_back_was_never_written() {
    let openings = Openings::of(&tagged()).expect("a marker");
    let pieces = [
        "<tool",
        "_call",
        "<",
        "tool_call",
        "<think>",
        "</think>",
        "é",
        "text ",
    ];
    let mut random = Random(77);
    for _ in 0..300 {
        let mut opening = openings.after("");
        let mut before: Vec<(usize, Matched)> = Vec::new();
        let mut text = String::new();
        for _ in 0..20 {
            if random.below(3) == 0 && !before.is_empty() {
                let at = random.below(before.len());
                let (len, matched) = before[at];
                opening.go_back(len, matched);
                text.truncate(len);
                before.truncate(at);
            } else {
                let piece = pieces[random.below(pieces.len())];
                before.push((opening.len(), opening.matched()));
                opening.push(piece.as_bytes());
                text.push_str(piece);
            }
            let mut fresh = openings.after("");
            fresh.push(text.as_bytes());
            for end in [">", "_call>", "<tool_call>"] {
                assert_eq!(
                    opening.opens(end.as_bytes()),
                    fresh.opens(end.as_bytes()),
                    "{text:?}"
                );
            }
        }
    }
}
