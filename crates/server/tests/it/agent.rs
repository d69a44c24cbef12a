//! A conversation that grows as an agent's does: each turn computes what is new in it, whatever the model keeps of the past.

use std::num::NonZeroU32;

use crate::common::{options, post_with, start};
use serde_json::{Value, json};
use tokkata::{Array, Checkpoint, Model, OpenOptions};
use tokkata_conformance::generate;
use tokkata_conformance::golden::Golden;
use tokkata_server::Named;

/// Positions that are stored together.
const BLOCK: usize = 32;
/// Tokens of the system's message and its tools.
const FIRST: usize = 1700;
/// Tokens of a tool's result.
const RESULT: usize = 60;
/// Tokens of an answer.
const ANSWER: usize = 20;

/// A tiny model of a family, with a vocabulary of names.
fn named(family: &str) -> Named {
    let mut golden = Golden::read(&Golden::folder(), family).expect("a golden");
    let len = golden.vocabulary();
    let tokens = (0..len).map(|i| format!("t{i}").into()).collect();
    let metadata = &mut golden.metadata;
    metadata.insert("tokenizer.ggml.model", "llama".into());
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokkata::Value::Array(Array::Str(tokens)),
    );
    let scores = tokkata::Value::Array(Array::F32(vec![0.0; len]));
    metadata.insert("tokenizer.ggml.scores", scores);
    let file = generate::model(&golden).expect("a file");
    let checkpoint = Checkpoint::new(file, &[]).expect("a model");
    let options = OpenOptions {
        seqs: 2,
        ctx: NonZeroU32::new(4096),
        threads: Some(1),
        ..OpenOptions::default()
    };
    let model = Model::load(checkpoint, &options, None).expect("a loaded model");
    Named {
        id: family.to_owned(),
        aliases: Vec::new(),
        tags: Vec::new(),
        service: model.serve().expect("a thread"),
        borrowed_template: true,
    }
}

/// Tokens that follow from a number.
fn tokens(count: usize, seed: usize) -> Vec<usize> {
    (0..count)
        .map(|i| 5 + (i * 7 + seed * 13 + i * i / 11) % 50)
        .collect()
}

/// One turn: its answer, and how many tokens of the prompt were computed.
fn turn(server: &str, prompt: &[usize], cached: bool) -> (Vec<usize>, usize) {
    let body = json!({"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": true,
        "return_token_ids": true, "cache_prompt": cached});
    let reply = post_with(server, "/v1/completions", &body, &[]);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    let ids = reply["choices"][0]["token_ids"].as_array().expect("ids");
    let ids = ids
        .iter()
        .filter_map(Value::as_u64)
        .map(|id| id as usize)
        .collect();
    let computed = reply["timings"]["prompt_n"].as_u64().expect("a number") as usize;
    let known = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(Some((prompt.len() - computed) as u64), known);
    (ids, computed)
}

fn ten_turns(family: &str) {
    let server = start(options(), vec![named(family)]);
    let alone = start(options(), vec![named(family)]);
    let mut history = tokens(FIRST, 0);
    for number in 0..10 {
        let before = history.len();
        history.extend(tokens(RESULT, number + 1));
        let (answer, computed) = turn(&server, &history, true);
        let new = if number == 0 { history.len() } else { RESULT };
        // What does not fill a block yet is computed again, and the newest token of the answer was never fed.
        assert!(
            computed <= new + BLOCK,
            "{family}: {computed} of {new} at turn {number}, after {before}"
        );
        if number == 9 {
            assert_eq!(turn(&alone, &history, true).0, answer, "{family}");
        }
        history.extend(answer);
    }
    assert_eq!(history.len(), FIRST + 10 * (RESULT + ANSWER));
}

#[test]
fn turn_ten_computes_what_is_new() {
    ten_turns("llama");
}

#[test]
fn turn_ten_computes_what_is_new_where_layers_have_windows() {
    ten_turns("gemma3");
}

#[test]
fn turn_ten_computes_what_is_new_where_states_cannot_go_back() {
    ten_turns("falcon-h1");
    ten_turns("rwkv7");
}
