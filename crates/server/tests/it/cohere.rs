//! Cohere's dialect, and what else vLLM's routers and callers ask for.

use crate::common::{ask, demo, get, options, post, post_with, start};
use serde_json::{Value, json};
use tokkata_server::ServerOptions;

const LARGER: &str = "Which is larger, 482 or 1204?";

fn question(more: &Value) -> Value {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": LARGER}], "max_tokens": 60});
    let more = more.as_object().expect("members").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

#[test]
fn a_chat_says_what_openai_s_says() {
    let same = ask("/v1/chat/completions", &question(&json!({})));
    let text = same["choices"][0]["message"]["content"].clone();
    for path in ["/v2/chat", "/cohere/v2/chat"] {
        let answer = ask(path, &question(&json!({"logprobs": true})));
        assert_eq!(
            answer["message"]["content"],
            json!([{"type": "text", "text": text}])
        );
        assert_eq!(answer["finish_reason"], "COMPLETE");
        let tokens = &answer["usage"]["tokens"];
        assert_eq!(tokens["output_tokens"], same["usage"]["completion_tokens"]);
        let told = answer["logprobs"].as_array().expect("probabilities");
        let texts: String = told.iter().filter_map(|t| t["text"].as_str()).collect();
        assert_eq!(texts.trim(), text);
    }
    let cut = ask(
        "/v2/chat",
        &question(&json!({"max_tokens": 1, "seed": 3, "k": 5, "p": 0.9})),
    );
    assert_eq!(cut["finish_reason"], "MAX_TOKENS");
    let stopped = ask("/v2/chat", &question(&json!({"stop_sequences": ["1204"]})));
    assert_eq!(stopped["finish_reason"], "STOP_SEQUENCE");
    let schema = json!({"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_object", "json_schema": schema}});
    let formed = ask("/v2/chat", &question(&format));
    let text = formed["message"]["content"][0]["text"]
        .as_str()
        .expect("text");
    assert_eq!(
        serde_json::from_str::<Value>(text).expect("JSON"),
        json!({"n": 7})
    );
}

#[test]
fn its_streams_open_and_close_what_they_tell() {
    let whole = ask("/v2/chat", &question(&json!({})));
    let reply = post("/v2/chat", &question(&json!({"stream": true})));
    assert!(reply.text.contains("event: content-delta\n") && reply.text.ends_with("[DONE]\n\n"));
    let events = reply.events();
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    let mut order = kinds.clone();
    order.dedup();
    let want = [
        "message-start",
        "content-start",
        "content-delta",
        "content-end",
        "message-end",
    ];
    assert_eq!(order, want);
    let content = |e: &Value| {
        e["delta"]["message"]["content"]["text"]
            .as_str()
            .map(str::to_owned)
    };
    let text: String = events.iter().filter_map(content).collect();
    assert_eq!(whole["message"]["content"][0]["text"], text);
    assert_eq!(
        events.last().expect("an end")["delta"]["usage"],
        whole["usage"]
    );
}

#[test]
fn its_calls_of_tools_come_whole_and_in_pieces() {
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}}});
    let body = question(
        &json!({"tools": [tool], "tool_choice": "REQUIRED", "max_tokens": 120,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}]}),
    );
    let answer = ask("/v2/chat", &body);
    assert_eq!(answer["finish_reason"], "TOOL_CALL", "{answer}");
    let function = &answer["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "get_weather");
    let mut body = body;
    body["stream"] = json!(true);
    let events = post("/v2/chat", &body).events();
    let kind = |e: &&Value, kind: &str| e["type"] == kind;
    assert!(events.iter().any(|e| kind(&e, "tool-call-start")));
    assert!(events.iter().any(|e| kind(&e, "tool-call-end")));
    let piece = |e: &Value| {
        e["delta"]["message"]["tool_calls"]["function"]["arguments"]
            .as_str()
            .map(str::to_owned)
    };
    let arguments: String = events.iter().filter_map(piece).collect();
    assert_eq!(function["arguments"], arguments);
}

#[test]
fn its_errors_are_sentences() {
    for (body, about) in [
        (json!({"messages": []}), "model"),
        (json!({"model": "demo", "messages": "a"}), "messages"),
        (question(&json!({"raw_prompting": true})), "raw_prompting"),
        (question(&json!({"thinking": {"type": "much"}})), "thinking"),
    ] {
        for path in ["/v2/chat", "/cohere/v2/chat/render"] {
            let reply = post(path, &body);
            assert_eq!(reply.status, 400, "{}", reply.text);
            let reply = reply.json();
            assert!(reply.get("error").is_none());
            let text = reply["message"].as_str().expect("a message");
            assert!(text.contains(about), "{text}");
        }
    }
    let reply = post(
        "/v2/embed",
        &json!({"model": "demo", "texts": ["a"], "input_type": "x"}),
    );
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["message"], reply.json()["error"]["message"]);
}

#[test]
fn a_prompt_is_rendered_and_can_be_handed_on() {
    let body = question(&json!({"temperature": 0.125, "stop_sequences": ["END"]}));
    let rendered = ask("/cohere/v2/chat/render", &body);
    assert_eq!(rendered["sampling_params"]["temperature"], 0.125);
    assert_eq!(rendered["sampling_params"]["stop"], json!(["END"]));
    let text = ask("/detokenize", &json!({"tokens": rendered["token_ids"]}));
    assert!(text["prompt"].as_str().is_some_and(|p| p.contains(LARGER)));
    let plain = ask("/v1/chat/completions", &question(&json!({})));
    let mut other = question(&json!({"return_token_ids": true}));
    other["messages"][0]["content"] = json!("Something else?");
    other["kv_transfer_params"] = json!({"prompt_token_ids": rendered["token_ids"]});
    let answer = ask("/v1/chat/completions", &other);
    assert_eq!(answer["prompt_token_ids"], rendered["token_ids"]);
    assert_eq!(
        answer["choices"][0]["message"],
        plain["choices"][0]["message"]
    );
    other["kv_transfer_params"] = json!({"prompt_token_ids": [u32::MAX]});
    assert_eq!(post("/v1/chat/completions", &other).status, 400);
}

#[test]
fn a_continued_message_is_repeated_where_that_is_asked() {
    let mut body =
        question(&json!({"continue_final_message": true, "add_generation_prompt": false}));
    body["messages"] =
        json!([{"role": "user", "content": LARGER}, {"role": "assistant", "content": "1204 is"}]);
    let plain = ask("/v1/chat/completions", &body)["choices"][0]["message"]["content"].clone();
    body["echo"] = json!(true);
    let echoed = ask("/v1/chat/completions", &body)["choices"][0]["message"]["content"].clone();
    let want = format!("1204 is{}", plain.as_str().expect("text"));
    assert_eq!(echoed, want);
    body["stream"] = json!(true);
    let events = post("/v1/chat/completions", &body).events();
    let piece = |e: &Value| {
        e["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(events.iter().filter_map(piece).collect::<String>(), want);
}

#[test]
fn texts_are_scored_by_what_the_model_would_say_next() {
    let labels = [5, 9, 7];
    let body = json!({"model": "demo", "query": "One two ", "items": ["three", "four"], "label_token_ids": labels});
    let answer = ask("/generative_scoring", &body);
    let next = json!({"prompt": ["One two three", "One two four"], "max_tokens": 1, "logprobs": 1,
        "ignore_eos": true, "logprob_token_ids": labels, "return_tokens_as_token_ids": true});
    let next = ask("/v1/completions", &next);
    for i in 0..2 {
        let top = &next["choices"][i]["logprobs"]["top_logprobs"][0];
        let of = |id: u32| top[format!("token_id:{id}")].as_f64().expect("told").exp();
        let want = of(5) / labels.map(of).iter().sum::<f64>();
        let score = answer["data"][i]["score"].as_f64().expect("a score");
        assert!((score - want).abs() < 1e-6, "{score} {want}");
        assert_eq!(answer["data"][i]["index"], i);
    }
    let mut raw = body.clone();
    raw["apply_softmax"] = json!(false);
    let raw = ask("/generative_scoring", &raw)["data"][0]["score"].as_f64();
    let score = answer["data"][0]["score"].as_f64();
    assert!(raw < score, "{raw:?} {score:?}");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    for (name, wrong) in [
        ("items", json!([])),
        ("items", json!("a")),
        ("label_token_ids", json!([])),
        ("label_token_ids", json!([u32::MAX])),
        ("query", json!(7)),
    ] {
        let mut body = body.clone();
        body[name] = wrong;
        assert_eq!(post("/generative_scoring", &body).status, 400, "{name}");
    }
}

#[test]
fn times_are_told_where_the_server_is_told_to() {
    let server = start(
        ServerOptions {
            tells_times: true,
            ..options()
        },
        vec![demo()],
    );
    let of = |path: &str, body: &Value| post_with(&server, path, body, &[]);
    let body = question(&json!({}));
    let metrics = of("/v1/chat/completions", &body).json()["metrics"].clone();
    for name in [
        "time_to_first_token_ms",
        "generation_time_ms",
        "queue_time_ms",
        "mean_itl_ms",
        "tokens_per_second",
    ] {
        assert!(
            metrics[name].as_f64().is_some_and(|x| x >= 0.0),
            "{metrics}"
        );
    }
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 1});
    let prompt = json!({"prompt": "One", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 1});
    for (path, body) in [
        ("/v1/chat/completions", question(&usage)),
        ("/v1/completions", prompt),
    ] {
        let events = of(path, &body).events();
        let (last, others) = events.split_last().expect("events");
        assert!(others.iter().all(|e| e.get("metrics").is_none()));
        assert!(last["metrics"]["time_to_first_token_ms"].as_f64() > Some(0.0));
        assert!(last["metrics"].get("mean_itl_ms").is_none(), "{last}");
    }
    let silent = ask("/v1/chat/completions", &body);
    assert!(silent.get("metrics").is_none());
    assert_eq!(get("/health").status, 200);
}
