//! Beam search, held against one that asks for single tokens.

use serde_json::{Value, json};

use crate::common::{ask, post, stream};

/// Token of a name as `return_tokens_as_token_ids` gives it.
fn token(name: &str) -> u64 {
    let number = name.strip_prefix("token_id:").expect("a token's id");
    number.parse().expect("a number")
}

/// The likeliest tokens behind a prompt, with the logarithms of their probabilities.
fn next(prompt: &[u64], most: usize) -> Vec<(u64, f64)> {
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": most,
        "return_tokens_as_token_ids": true, "ignore_eos": true,
    });
    let answer = ask("/v1/completions", &body);
    let top = &answer["choices"][0]["logprobs"]["top_logprobs"][0];
    let top = top.as_object().expect("the likeliest");
    let one = |(name, value): (&String, &Value)| (token(name), value.as_f64().expect("a number"));
    let mut all: Vec<(u64, f64)> = top.iter().map(one).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// The `n` best beams of so many tokens, where no token ends one.
fn reference(prompt: &[u64], n: usize, tokens: usize) -> Vec<(Vec<u64>, f64)> {
    let mut beams = vec![(Vec::new(), 0.0)];
    for _ in 0..tokens {
        let mut all = Vec::new();
        for (beam, sum) in &beams {
            let so_far = [prompt, beam].concat();
            for (id, logprob) in next(&so_far, 2 * n) {
                all.push(([beam.as_slice(), &[id]].concat(), sum + logprob));
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(n);
        beams = all;
    }
    beams
}

fn story() -> Vec<u64> {
    let ids = ask(
        "/tokenize",
        &json!({"content": "Once upon a time there was"}),
    );
    let ids = ids["tokens"].as_array().expect("tokens").iter();
    ids.map(|id| id.as_u64().expect("an id")).collect()
}

fn ids(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array().expect("tokens");
    ids.iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn beams_are_those_of_a_search_by_single_tokens() {
    let prompt = story();
    let body = json!({
        "prompt": prompt, "n": 3, "use_beam_search": true, "max_tokens": 5, "logprobs": 1,
        "return_token_ids": true, "ignore_eos": true,
    });
    let answer = ask("/v1/completions", &body);
    let choices = answer["choices"].as_array().expect("answers");
    let want = reference(&prompt, 3, 5);
    assert_eq!(choices.len(), want.len());
    for (choice, (tokens, sum)) in choices.iter().zip(&want) {
        assert_eq!(&ids(choice), tokens);
        let told = choice["logprobs"]["token_logprobs"]
            .as_array()
            .expect("numbers");
        let told: f64 = told.iter().filter_map(Value::as_f64).sum();
        assert!((told - sum).abs() < 1e-4, "{told} {sum}");
        assert_eq!(choice["finish_reason"], "length");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 15);
    let two = json!([prompt, prompt]);
    let mut both = body.clone();
    both["prompt"] = two;
    let both = ask("/v1/completions", &both);
    for i in 0..3 {
        assert_eq!(both["choices"][i]["text"], choices[i]["text"]);
        assert_eq!(both["choices"][3 + i]["text"], choices[i]["text"]);
    }
    let chunks = stream("/v1/completions", &body);
    for (i, choice) in choices.iter().enumerate() {
        let own = chunks.iter().filter(|c| c["choices"][0]["index"] == i);
        let text = own.filter_map(|c| c["choices"][0]["text"].as_str());
        assert_eq!(
            text.collect::<String>(),
            choice["text"].as_str().expect("text")
        );
    }
}

#[test]
fn answers_of_a_search_end_and_are_ordered_by_their_length_penalty() {
    let question = "Which is larger, 482 or 1204?";
    let mut body = json!({
        "messages": [{"role": "user", "content": question}], "max_tokens": 60,
        "temperature": 0, "logprobs": true,
    });
    let greedy = ask("/v1/chat/completions", &body);
    (body["n"], body["use_beam_search"]) = (json!(4), json!(true));
    let scores = |answer: &Value, penalty: f64| -> Vec<f64> {
        let one = |choice: &Value| {
            let tokens = choice["logprobs"]["content"].as_array().expect("tokens");
            let sum: f64 = tokens.iter().filter_map(|t| t["logprob"].as_f64()).sum();
            sum / (tokens.len() as f64).powf(penalty)
        };
        answer["choices"]
            .as_array()
            .expect("answers")
            .iter()
            .map(one)
            .collect()
    };
    let beams = ask("/v1/chat/completions", &body);
    assert_eq!(
        beams["choices"][0]["message"]["content"], greedy["choices"][0]["message"]["content"],
        "the model is sure of this"
    );
    assert_eq!(beams["choices"][0]["finish_reason"], "stop");
    let texts = |answer: &Value| -> Vec<String> {
        let all = answer["choices"].as_array().expect("answers").iter();
        all.map(|c| c["message"]["content"].to_string()).collect()
    };
    let mut different = texts(&beams);
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 4, "{different:?}");
    for penalty in [0.0, 1.0, 2.0] {
        body["length_penalty"] = json!(penalty);
        let beams = ask("/v1/chat/completions", &body);
        let scores = scores(&beams, penalty);
        // What ends an answer counts and is not told.
        assert!(scores.is_sorted_by(|a, b| a >= &(b - 0.5)), "{scores:?}");
    }
    body["stop"] = json!(["larger"]);
    let stopped = ask("/v1/chat/completions", &body);
    for text in texts(&stopped) {
        assert!(!text.contains("larger"), "{text}");
    }
}

#[test]
fn a_search_says_what_it_cannot_follow() {
    let plain = json!({"prompt": "a", "max_tokens": 2, "use_beam_search": true});
    let with = |name: &str, value: Value| {
        let mut body = plain.clone();
        body[name] = value;
        post("/v1/completions", &body)
    };
    assert_eq!(with("n", json!(2)).status, 200);
    for (name, value) in [
        ("frequency_penalty", json!(1)),
        ("logit_bias", json!({"5": 1})),
        ("grammar", json!("root ::= \"a\"")),
        ("min_tokens", json!(1)),
        ("best_of", json!(3)),
    ] {
        let reply = with(name, value);
        assert_eq!(reply.status, 400, "{name}: {}", reply.text);
        assert!(reply.text.contains("beam"), "{}", reply.text);
    }
    let mut alone = plain.clone();
    alone["use_beam_search"] = json!(false);
    alone["length_penalty"] = json!(2);
    assert_eq!(post("/v1/completions", &alone).status, 400);
    let zero = with("max_tokens", json!(0));
    assert_eq!(zero.json()["choices"][0]["text"], "");
}
