//! Uses what the text parsers read in every way a program does. The fuzz targets use this file too.

use std::sync::LazyLock;

use serde_json::json;
use tokkata_text::grammar::{Grammar, GrammarSource, TokenTrie, Vocabulary};
use tokkata_text::parse::{OutputFormat, OutputParser};
use tokkata_text::template::{ChatRequest, ChatTemplate, Clock};
use tokkata_text::tokenizer::{DecodeOptions, EncodeOptions, HfFiles, Tokenizer};

/// Tokens that a walk through a grammar takes.
const WALK: usize = 24;
const END: u32 = 256;
const SAMPLE: &str = "Hello, wörld! 12 <s> \u{1f600}\n  if (x) {";

static TRIE: LazyLock<TokenTrie> = LazyLock::new(|| {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let words = ["<end>", "ab", "\": ", "{\"", "12", "\\u"].map(|word| word.as_bytes().to_vec());
    let vocabulary = Vocabulary {
        tokens: bytes.chain(words).collect(),
        special: vec![END],
        eos: vec![END],
    };
    TokenTrie::new(vocabulary).expect("a vocabulary")
});

/// A grammar: the first byte tells its kind, the second chooses a way through it. Says whether it compiled.
pub(crate) fn grammar(input: &[u8]) -> bool {
    let [kind, choice, text @ ..] = input else {
        return false;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let source = match kind % 4 {
        0 => GrammarSource::Gbnf(text.to_owned()),
        1 => GrammarSource::Regex(text.to_owned()),
        2 => GrammarSource::Lark(text.to_owned()),
        _ => match serde_json::from_str(text) {
            Ok(schema) => GrammarSource::JsonSchema(schema),
            Err(_) => return false,
        },
    };
    match Grammar::compile(source, &TRIE) {
        Ok(grammar) => walk(&grammar, usize::from(*choice)),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
    true
}

/// Takes allowed tokens; what a mask allows is accepted.
fn walk(grammar: &Grammar, mut choice: usize) {
    let mut state = grammar.start();
    let mut mask = vec![0; grammar.mask_len()];
    for _ in 0..WALK {
        if state.mask(&mut mask).is_err() {
            return;
        }
        let bit = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
        let allowed: Vec<u32> = (0..mask.len() as u32 * 32).filter(bit).collect();
        if allowed.is_empty() {
            return;
        }
        let token = allowed[choice % allowed.len()];
        choice = choice.wrapping_mul(31).wrapping_add(7);
        state.accept(token).expect("the mask allows it");
        if token == END {
            return;
        }
    }
}

/// A template over a fixed conversation. Says whether it rendered.
pub(crate) fn template(input: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(template) = ChatTemplate::parse(source) else {
        return false;
    };
    let call = json!({"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}});
    let request = ChatRequest {
        messages: vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "<s>é"}]}),
            json!({"role": "assistant", "content": "x", "reasoning_content": "y", "tool_calls": [call]}),
            json!({"role": "tool", "content": "3", "tool_call_id": "1"}),
            json!({"role": "user", "content": "zqzq<|x|>"}),
        ],
        tools: Some(vec![
            json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}),
        ]),
        add_generation_prompt: true,
        now: Some(Clock::from_unix(0)),
        ..ChatRequest::default()
    };
    let Ok(rendered) = template.render(&request) else {
        return true;
    };
    let text = rendered.text();
    let mut end = 0;
    for range in rendered.untrusted() {
        assert!(end <= range.start && range.start < range.end);
        assert!(text.get(range.clone()).is_some(), "{range:?} of {text:?}");
        end = range.end;
    }
    true
}

/// An answer, and the template whose format it is in, cut apart at a zero byte. No text is lost, however it is cut.
pub(crate) fn answer(input: &[u8]) -> bool {
    let cut = input.iter().position(|&b| b == 0).unwrap_or(input.len());
    let (source, text) = (&input[..cut], input.get(cut + 1..).unwrap_or_default());
    let (Ok(source), Ok(text)) = (std::str::from_utf8(source), std::str::from_utf8(text)) else {
        return false;
    };
    let Ok(template) = ChatTemplate::parse(source) else {
        return false;
    };
    let format = OutputFormat::derive(&template);
    let mut parser = OutputParser::new(&format, "", &[]);
    let mut events = Vec::new();
    for piece in text.split_inclusive(|c: char| c.is_ascii_punctuation()) {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    let raw: String = events.iter().map(|event| event.raw.as_str()).collect();
    assert_eq!(raw, text);
    true
}

/// A tokenizer's file: the first byte tells which. Says whether it made a tokenizer.
pub(crate) fn tokenizer(input: &[u8]) -> bool {
    let [kind, bytes @ ..] = input else {
        return false;
    };
    let mut files = HfFiles::default();
    let bytes = Some(bytes.to_vec());
    match kind % 4 {
        0 => files.tokenizer_json = bytes,
        1 => files.tokenizer_model = bytes,
        2 => files.vocab_txt = bytes,
        _ => files.tiktoken = bytes,
    }
    let tokenizer = match Tokenizer::from_hf(&files) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return false;
        }
    };
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let ids = tokenizer.encode(SAMPLE, options);
    let size = tokenizer.vocab_size();
    assert!(
        ids.iter().all(|&id| (id as usize) < size),
        "{ids:?} of {size}"
    );
    let options = DecodeOptions {
        continues: false,
        special: true,
    };
    drop(tokenizer.decode(&ids, options));
    true
}
