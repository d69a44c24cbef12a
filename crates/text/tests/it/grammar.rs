//! Grammars against what their notation means, over a byte vocabulary and one with longer tokens.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokkata_text::grammar::{
    Grammar, GrammarError, GrammarSource, GrammarState, TokenTrie, Trigger, Vocabulary,
};

const EOS: u32 = 256;
/// Tokens that cross the borders of lexemes; the first is the one behind the end token.
const LONGER: [&str; 11] = [
    "ab", "abc", "\":", "\", \"", "{\"", "true", "call>{", ">{\"", "<call>", "null}", "}}",
];

/// One of them.
fn longer(text: &str) -> u32 {
    let place = LONGER.iter().position(|t| *t == text);
    EOS + 1 + place.expect(text) as u32
}

/// All bytes, an end token, and the longer ones.
fn vocabulary() -> Vocabulary {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let tokens = bytes
        .chain([b"<end>".to_vec()])
        .chain(LONGER.map(|text| text.as_bytes().to_vec()));
    Vocabulary {
        tokens: tokens.collect(),
        special: vec![EOS],
        eos: vec![EOS],
    }
}

fn trie() -> TokenTrie {
    TokenTrie::new(vocabulary()).expect("a vocabulary")
}

/// The same with a tokenizer that takes the longest token each time.
fn encoding_trie() -> TokenTrie {
    let tokens = vocabulary().tokens;
    let longest = move |text: &[u8]| {
        let fits = |(_, token): &(usize, &Vec<u8>)| text.starts_with(token);
        let found = tokens.iter().enumerate().filter(fits);
        found
            .max_by_key(|(_, token)| token.len())
            .map(|(id, token)| (id as u32, token.len()))
    };
    let encoder = move |text: &str| {
        let mut text = text.as_bytes();
        let mut ids = Vec::new();
        while let Some((id, len)) = longest(text) {
            ids.push(id);
            text = &text[len..];
        }
        ids
    };
    TokenTrie::with_encoder(vocabulary(), Arc::new(encoder)).expect("a vocabulary")
}

fn compile(source: GrammarSource) -> Grammar {
    Grammar::compile(source, &trie()).expect("a grammar")
}

/// Feeds bytes; whether all were accepted and the reply may end there.
fn matches(grammar: &Grammar, text: &str) -> bool {
    let mut state = grammar.start();
    text.bytes()
        .all(|byte| state.accept(u32::from(byte)).is_ok())
        && state.is_accepting()
}

fn check(source: &GrammarSource, valid: &[&str], invalid: &[&str]) {
    let grammar = compile(source.clone());
    for text in valid {
        assert!(matches(&grammar, text), "{source:?} refuses {text:?}");
    }
    for text in invalid {
        assert!(!matches(&grammar, text), "{source:?} accepts {text:?}");
    }
}

fn allowed(state: &mut GrammarState, trie: &TokenTrie) -> Vec<u32> {
    let mut mask = vec![0; trie.mask_len()];
    state.mask(&mut mask).expect("a mask");
    (0..mask.len() as u32 * 32)
        .filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
        .collect()
}

/// As many tools as an agent could have: each a kind of object of its own.
#[test]
fn a_choice_of_thousands_is_followed() {
    let object = |i: usize| {
        let name = format!("tool{i}");
        json!({
            "type": "object",
            "properties": {name.clone(): {"type": "string"}},
            "required": [name],
            "additionalProperties": false,
        })
    };
    let schema = json!({"anyOf": (0..5000).map(object).collect::<Vec<_>>()});
    let grammar = compile(GrammarSource::JsonSchema(schema));
    let trie = trie();
    let mut state = grammar.start();
    for byte in "{\"tool4321\":\"a".bytes() {
        assert!(allowed(&mut state, &trie).contains(&byte.into()));
        state.accept(byte.into()).expect("it is allowed");
    }
    assert!(!matches(&grammar, "{\"tool5000\":\"a\"}"));
}

fn gbnf(source: &str, valid: &[&str], invalid: &[&str]) {
    check(&GrammarSource::Gbnf(source.into()), valid, invalid);
}

/// Walks at random and compares each mask with what each token is told alone.
fn walk(grammar: &Grammar, trie: &TokenTrie, (seed, steps): (u64, usize)) {
    let mut random = seed;
    let mut state = grammar.start();
    let mut said = Vec::new();
    for _ in 0..steps {
        for token in state.forced() {
            if state.accept(token).is_err() {
                break;
            }
            said.push(token);
        }
        let allowed = allowed(&mut state, trie);
        for token in 0..trie.mask_len() as u32 * 32 {
            let alone = state.allows(token);
            assert_eq!(
                allowed.contains(&token),
                alone,
                "token {token} after {said:?}"
            );
        }
        if allowed.is_empty() || state.is_complete() {
            return;
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let token = allowed[(random >> 33) as usize % allowed.len()];
        state.accept(token).expect("the mask allows it");
        said.push(token);
        if token == EOS {
            return;
        }
    }
}

#[test]
fn masks_say_what_each_token_is_told_alone() {
    let sources = [
        GrammarSource::Regex(r"\w+".into()),
        GrammarSource::Regex(r"(\w|-){2,40}@\w{3,}".into()),
        GrammarSource::Regex(r"[^\x00-\x{7f}]+\d*".into()),
        GrammarSource::Regex(r"x[\u{c0}-\u{ff}]{3}.{1,12}\W".into()),
        GrammarSource::JsonSchema(json!({"type": "string", "pattern": r"^\w+$"})),
        GrammarSource::JsonSchema(json!({"type": "string", "maxLength": 9})),
        GrammarSource::JsonSchema(json!({"enum": ["\u{e9}\u{e8}", "\u{e9}\u{e9}x", true]})),
        GrammarSource::Lark("start: /\\w+/ \",\" /\\W+/".into()),
    ];
    for trie in [trie(), encoding_trie()] {
        for source in &sources {
            let grammar = Grammar::compile(source.clone(), &trie).expect("a grammar");
            (0..12).for_each(|seed| walk(&grammar, &trie, (seed, 24)));
        }
    }
}

#[test]
fn regular_expressions_match_whole_replies() {
    check(
        &GrammarSource::Regex("a*".into()),
        &["", "a", "aaa"],
        &["b", "ab"],
    );
    check(
        &GrammarSource::Regex(r"\d{2}/[é-ü]+".into()),
        &["12/éü"],
        &["1/é", "12/", "12/a"],
    );
    check(
        &GrammarSource::Regex("(a|ab)(c|bcd)".into()),
        &["ac", "abc", "abcd", "abbcd"],
        &["abb", "a"],
    );
}

#[test]
fn lark_is_taken_as_it_is() {
    let source = "start: \"(\" start \")\" | /[a-z]+/\n";
    check(
        &GrammarSource::Lark(source.into()),
        &["x", "((x))"],
        &["(x", "()"],
    );
    let broken = Grammar::compile(GrammarSource::Lark("start: nothing".into()), &trie());
    assert!(
        matches!(broken, Err(GrammarError::Refused(_))),
        "{broken:?}"
    );
}

#[test]
fn gbnf_without_recursion() {
    gbnf("root ::= [a-z]* \"a\"", &["a", "ba", "aaa"], &["", "b"]);
    gbnf(
        "root ::= \"x\" [^\\n\\x41-C]{2,3} # end\n",
        &["xab", "x~ü~"],
        &["xa", "xAb", "xabcd", "xa\n"],
    );
    gbnf(
        "root ::= a (\"-\" b)?\na ::= \"1\" | \"2\"\nb ::= a a",
        &["1", "2-12"],
        &["1-", "1-1"],
    );
    gbnf(
        "root ::= ( \"a\" |\n  \"b\"\n)+ .",
        &["ab", "aab", "a\n"],
        &["a", "c"],
    );
    gbnf(
        r#"root ::= "\"\\\u00e9\t" [\]\-]"#,
        &["\"\\é\t]", "\"\\é\t-"],
        &["\"\\é\t"],
    );
}

#[test]
fn gbnf_has_no_lexer() {
    gbnf(
        "root ::= \"(\" root \")\" | [a-z]+ \"z\"",
        &["az", "(zz)", "((abz))"],
        &["z", "(a)", "(az"],
    );
    gbnf(
        "root ::= \"a\" root \"ab\" | \"abc\" | \"\"",
        &["", "abc", "aab", "aabcab", "aaabab"],
        &["ab", "aba"],
    );
    gbnf(
        "root ::= one | two\none ::= \"ab\" root? \"d\"\ntwo ::= \"abc\" root? \"e\"",
        &["abd", "abce", "ababced"],
        &["abcd", "abe"],
    );
    gbnf(
        "root ::= ws item\nitem ::= \"[\" ws (item (\",\" ws item)*)? \"]\" ws\nws ::= [ \\t]*",
        &["[]", " [ [],[] ] "],
        &["[", "[,]", "[] x"],
    );
    gbnf(
        "root ::= root \"+\" t | t\nt ::= [0-9] | [0-9] [a-f]",
        &["1", "1+2a", "1a+2+3"],
        &["+1", "1aa"],
    );
}

#[test]
fn gbnf_errors_name_their_line() {
    let error = |source: &str| {
        Grammar::compile(GrammarSource::Gbnf(source.into()), &trie()).expect_err(source)
    };
    assert_eq!(
        error("root ::= \"a\"\nroot ::= \"b\"").to_string(),
        "GBNF line 2: the rule `root` is defined twice"
    );
    assert_eq!(
        error("root ::= x").to_string(),
        "GBNF line 1: the rule `x` is not defined"
    );
    assert_eq!(
        error("root ::= \"a\"\nx ::= \"b\" |\n  y\nz ::= \"c\"\n\n").to_string(),
        "GBNF line 3: the rule `y` is not defined"
    );
    assert_eq!(
        error("x ::= root\nroot ::= x\n\n").to_string(),
        "GBNF line 2: the rule `root` never ends: each of its alternatives leads back to itself"
    );
    assert_eq!(
        error("root ::= \"a\"\nroot ::=\n \"b\" |\n \"c\"\n").to_string(),
        "GBNF line 2: the rule `root` is defined twice"
    );
    assert_eq!(
        error("a ::= \"a\"").to_string(),
        "GBNF line 1: there is no rule `root`"
    );
    assert_eq!(
        error("root ::= \"a\n\n").to_string(),
        "GBNF line 3: unexpected end"
    );
    assert_eq!(
        error("root ::= [z-a]").to_string(),
        "GBNF line 1: a range ends before it begins"
    );
    assert_eq!(
        error("root ::= \"a\"{9,2}").to_string(),
        "GBNF line 1: the repetition count is out of range"
    );
}

#[test]
fn a_grammar_of_nothing_says_so() {
    let trie = trie();
    let grammar = compile(GrammarSource::Regex(r"[^\s\S]".into()));
    let mut mask = vec![0; trie.mask_len()];
    let error = grammar
        .start()
        .mask(&mut mask)
        .expect_err("nothing may come");
    assert_eq!(
        error.to_string(),
        "the grammar cannot go on: it allows nothing here, not even an end"
    );
}

#[test]
fn gbnf_of_json() {
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let valid = [
        "{}",
        "{\"a\": [1, -2.5e+3, \"x\\u00e9\\n\"], \"b\":{\"c\":null }}",
        "{\n  \"a\": true}",
    ];
    gbnf(
        json,
        &valid,
        &[
            "[]",
            "{\"a\"}",
            "{\"a\": 01}",
            "{\"a\": \"\n\"}",
            "{\"a\": tru}",
        ],
    );
}

#[test]
fn schemas_allow_what_they_say() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 3},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "next": {"$ref": "#"},
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    let valid = [
        r#"{"name":"abc"}"#,
        r#"{"name": "é", "tags": ["a", "b"]}"#,
        "{\n  \"name\": \"\",\n  \"next\": {\"name\": \"x\"}\n}",
    ];
    let invalid = [
        "{}",
        r#"{"name": "abcd"}"#,
        r#"{"name": "", "x": 1}"#,
        r#"{"name":"","tags":["c"]}"#,
        "{\"name\":  \"\"}",
    ];
    check(&GrammarSource::JsonSchema(schema), &valid, &invalid);
    check(
        &GrammarSource::JsonSchema(json!(true)),
        &["1", "[{}]", "\"x\""],
        &["x", "[1"],
    );
}

#[test]
fn unsupported_keywords_are_named() {
    let refused = |schema: Json| {
        Grammar::compile(GrammarSource::JsonSchema(schema), &trie())
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        refused(json!({"not": {"type": "null"}})),
        "the schema keyword `not` at # is not supported"
    );
    assert_eq!(
        refused(json!({"properties": {"a/b": {"items": {"uniqueItems": true}}}})),
        "the schema keyword `uniqueItems` at #/properties/a~1b/items is not supported"
    );
    assert_eq!(
        refused(
            json!({"$defs": {"x": {"anyOf": [true, {"if": true, "then": false}]}}, "$ref": "#/$defs/x"})
        ),
        "the schema keyword `if` at #/$defs/x/anyOf/1 is not supported"
    );
    assert!(refused(json!(false)).contains("allows nothing"));
    // Data that looks like keywords is not a keyword, and some values have no effect.
    for schema in [
        json!({"enum": [{"not": 1}]}),
        json!({"properties": {"not": {"type": "null"}}}),
        json!({"uniqueItems": false, "type": "array"}),
    ] {
        compile(GrammarSource::JsonSchema(schema));
    }
}

/// Every supported schema of a selection of the JSON-Schema-Test-Suite (draft 2020-12): no invalid document may
/// pass, and every valid one whose keys come in the schema's order must.
#[test]
fn the_schema_suite_agrees() {
    let suite: Vec<Json> = serde_json::from_str(include_str!("../grammar/schemas.json"))
        .expect("the selection is JSON");
    let trie = trie();
    let (mut compiled, mut documents) = (0, 0);
    for case in &suite {
        let grammar = Grammar::compile(GrammarSource::JsonSchema(case["schema"].clone()), &trie)
            .unwrap_or_else(|error| panic!("{}: {error}", case["schema"]));
        compiled += 1;
        for (kind, expected) in [("valid", true), ("invalid", false)] {
            for document in case[kind].as_array().expect("documents") {
                let text = document.as_str().expect("a document's text");
                assert_eq!(
                    matches(&grammar, text),
                    expected,
                    "{} on {text}",
                    case["schema"]
                );
                documents += 1;
            }
        }
    }
    assert!(
        compiled >= 100 && documents >= 500,
        "{compiled} schemas, {documents} documents"
    );
}

#[test]
fn masks_equal_what_is_accepted() {
    let trie = trie();
    let source = GrammarSource::JsonSchema(
        json!({"properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}),
    );
    let grammar = Grammar::compile(source, &trie).expect("a grammar");
    let mut state = grammar.start();
    for byte in b"{\"a\": true}" {
        let mask = allowed(&mut state, &trie);
        let accepted: Vec<u32> = (0..268)
            .filter(|token| state.clone().accept(*token).is_ok())
            .collect();
        assert_eq!(mask, accepted, "before {:?}", char::from(*byte));
        state.accept(u32::from(*byte)).expect("valid JSON");
    }
    assert_eq!(allowed(&mut state, &trie), [EOS]);
    assert!(state.is_complete());
    state.accept(EOS).expect("the end");
    assert!(state.accept(u32::from(b'x')).is_err());
}

#[test]
fn forced_text_is_encoded_by_the_tokenizer() {
    let tokens: Vec<Vec<u8>> = (0..=255u8)
        .map(|b| vec![b])
        .chain([b"<end>".to_vec(), b"name".to_vec()])
        .collect();
    let encoder = |text: &str| {
        let mut out = Vec::new();
        let mut rest = text.as_bytes();
        while let Some(&first) = rest.first() {
            let (token, len) = if rest.starts_with(b"name") {
                (257, 4)
            } else {
                (u32::from(first), 1)
            };
            out.push(token);
            rest = &rest[len..];
        }
        out
    };
    let vocabulary = Vocabulary {
        tokens,
        special: vec![EOS],
        eos: vec![EOS],
    };
    let trie = TokenTrie::with_encoder(vocabulary, Arc::new(encoder)).expect("a vocabulary");
    let source = GrammarSource::Regex("\\{\"name\":[0-9]+\\}".into());
    let mut state = Grammar::compile(source, &trie).expect("a grammar").start();
    let forced = state.forced();
    assert_eq!(
        forced,
        [
            u32::from(b'{'),
            u32::from(b'"'),
            257,
            u32::from(b'"'),
            u32::from(b':')
        ]
    );
    for token in forced {
        state.accept(token).expect("forced tokens are allowed");
    }
    assert!(state.forced().is_empty());
}

fn feed(state: &mut GrammarState, text: &str) -> Result<(), GrammarError> {
    text.bytes()
        .try_for_each(|byte| state.accept(u32::from(byte)))
}

#[test]
fn a_trigger_frees_what_comes_before_it() {
    let trie = trie();
    let trigger = Trigger::Once(b"</think>".to_vec());
    let grammar = Grammar::compile_with(GrammarSource::Regex("[0-9]+".into()), trigger, &trie)
        .expect("a grammar");
    let mut state = grammar.start();
    feed(&mut state, "any <</think text </thin").expect("free");
    assert!(!state.is_active() && state.is_accepting());
    feed(&mut state, "k </think>").expect("free up to the trigger");
    assert!(state.is_active() && !state.is_accepting());
    assert_eq!(
        state.accept(u32::from(b'x')),
        Err(GrammarError::Token(u32::from(b'x')))
    );
    feed(&mut state, "42").expect("the grammar's");
    assert!(state.is_accepting());
    assert!(allowed(&mut state, &trie).contains(&EOS));
}

#[test]
fn a_token_may_not_run_past_its_trigger() {
    let trie = trie();
    let source = GrammarSource::Regex("\\{[0-9]*\\}".into());
    let grammar =
        Grammar::compile_with(source, Trigger::Each(b"<call>".to_vec()), &trie).expect("a grammar");
    let mut state = grammar.start();
    assert!(
        allowed(&mut state, &trie).contains(&longer("call>{")),
        "no match has begun"
    );
    state.accept(u32::from(b'<')).expect("free");
    let mask = allowed(&mut state, &trie);
    assert!(
        !mask.contains(&longer("call>{")) && mask.contains(&longer(">{\"")) && mask.contains(&EOS)
    );
    assert!(state.accept(longer("call>{")).is_err());
    feed(&mut state, "call>{7}").expect("a call");
    assert!(!state.is_active(), "after a match text is free again");
    feed(&mut state, " text ").expect("free");
    state
        .accept(longer("<call>"))
        .expect("the trigger as one token");
    assert!(state.is_active());
    state.rollback(2).expect("two tokens back");
    assert!(!state.is_active());
    state.rollback(7).expect("into the first call");
    assert!(state.is_active());
    feed(&mut state, "8}").expect("another end");
}

#[test]
fn rolling_back_restores_the_mask() {
    let trie = trie();
    let grammar =
        Grammar::compile(GrammarSource::Regex("ab*c|xy".into()), &trie).expect("a grammar");
    let mut state = grammar.start();
    let mut masks = Vec::new();
    for byte in b"abbc" {
        masks.push(allowed(&mut state, &trie));
        state.accept(u32::from(*byte)).expect("allowed");
    }
    state.accept(EOS).expect("the end");
    assert_eq!(
        state.rollback(9),
        Err(GrammarError::Rollback {
            asked: 9,
            accepted: 5
        })
    );
    state.rollback(2).expect("two back");
    assert_eq!(allowed(&mut state, &trie), masks[3]);
    state.rollback(3).expect("all back");
    assert_eq!(allowed(&mut state, &trie), masks[0]);
}

#[test]
fn a_trigger_may_wait_for_another_text() {
    let trie = trie();
    let trigger = Trigger::EachAfter {
        first: b"</t>".to_vec(),
        text: b"<call>".to_vec(),
    };
    let source = GrammarSource::Regex("[0-9]+;".into());
    let grammar = Grammar::compile_with(source, trigger, &trie).expect("a grammar");
    let mut state = grammar.start();
    feed(&mut state, "a <call>x").expect("reasoning may speak of calls");
    assert!(!state.is_active() && state.is_accepting());
    feed(&mut state, "</t><ca").expect("free");
    let here = state.clone();
    feed(&mut state, "ll>").expect("the trigger");
    assert!(state.is_active() && state.accept(u32::from(b'x')).is_err());
    state.rollback(3).expect("three tokens");
    assert_eq!(format!("{state:?}"), format!("{here:?}"));
    state.rollback(12).expect("all but five");
    feed(&mut state, "l>x").expect("reasoning again");
    feed(&mut state, "</t> <call>12;y<call>").expect("a call, and the next");
    assert!(state.is_active());
}
