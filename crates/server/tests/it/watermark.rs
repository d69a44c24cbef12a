//! Answers with the server's watermark.

use serde_json::{Value, json};
use tokkata::{Sampling, Watermark};
use tokkata_server::ServerOptions;

use crate::common::{demo, options, post, post_with, start};

const KEY: u64 = 0x5eed_0000_0000_002a;

fn marking() -> String {
    let sampling = Sampling {
        // The model in the box is sure of most words.
        temperature: 4.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        watermark: Some(Watermark::new(KEY)),
        ..Sampling::default()
    };
    let options = ServerOptions {
        sampling,
        ..options()
    };
    start(options, vec![demo()])
}

fn asked(more: &Value) -> Value {
    let mut body = json!({
        "prompt": "Once upon a time", "max_tokens": 150, "seed": 3, "ignore_eos": true, "return_token_ids": true,
    });
    for (name, value) in more.as_object().expect("members") {
        body[name] = value.clone();
    }
    body
}

/// How likely somebody without the key writes these tokens.
fn chance(key: u64, choice: &Value) -> f64 {
    let ids = choice["token_ids"].as_array().expect("tokens");
    let ids: Vec<u32> = ids
        .iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect();
    assert_eq!(ids.len(), 150);
    Watermark::new(key).detect(&ids).p_value
}

#[test]
fn a_servers_watermark_is_in_its_answers_unless_a_request_does_without() {
    let server = marking();
    let choice = |more: Value| {
        let reply = post_with(&server, "/v1/completions", &asked(&more), &[]).json();
        assert!(reply.get("warnings").is_none(), "{reply}");
        reply["choices"][0].clone()
    };
    let marked = choice(json!({}));
    assert!(chance(KEY, &marked) < 1e-6);
    assert!(chance(KEY + 1, &marked) > 1e-3);
    assert_eq!(choice(json!({"watermarking": true})), marked);
    // Another seed draws where contexts come again alone.
    assert!(chance(KEY, &choice(json!({"seed": 4}))) < 1e-6);
    let plain = choice(json!({"watermarking": false}));
    assert!(chance(KEY, &plain) > 1e-3);
    let several = post_with(&server, "/v1/completions", &asked(&json!({"n": 3})), &[]).json();
    for choice in several["choices"].as_array().expect("choices") {
        assert!(chance(KEY, choice) < 1e-6);
    }
}

#[test]
fn a_watermark_that_cannot_be_is_told() {
    let server = marking();
    let warned = |reply: Value| reply["warnings"][0].as_str().unwrap_or_default().to_owned();
    let body = json!({"prompt": "Once", "max_tokens": 2, "watermarking": true});
    let plain = warned(post("/v1/completions", &body).json());
    assert!(plain.contains("no key"), "{plain}");
    let body = json!({"prompt": "Once", "max_tokens": 2, "watermarking": true, "temperature": 0});
    let greedy = warned(post_with(&server, "/v1/completions", &body, &[]).json());
    assert!(greedy.contains("greedy"), "{greedy}");
    let wrong = json!({"prompt": "Once", "max_tokens": 2, "watermarking": "yes"});
    assert_eq!(post("/v1/completions", &wrong).status, 400);
}
