//! OpenAI's dialect from outside, with the model in the box.

use crate::common::{ask, demo, get, options, post, post_with, start, stream};
use serde_json::{Value, json};
use tokkata_server::ServerOptions;

fn question(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": 60})
}

const LARGER: &str = "Which is larger, 482 or 1204?";

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }}])
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    let whole = ask("/v1/chat/completions", &question(LARGER));
    let text = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(text.contains("1204"), "{text}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        (&whole["object"], &whole["model"]),
        (&json!("chat.completion"), &json!("demo"))
    );
    let mut body = question(LARGER);
    body["stream_options"] = json!({"include_usage": true});
    let chunks = stream("/v1/chat/completions", &body);
    let piece = |c: &Value| {
        c["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    let joined: String = chunks.iter().filter_map(piece).collect();
    assert_eq!(joined, text);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"], json!([]));
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(last["usage"][count], whole["usage"][count], "{count}");
    }
    assert!(chunks[1]["usage"].is_null());
    let ids = post("/v1/chat/completions", &question(LARGER));
    assert!(ids.header("x-request-id").is_some());
}

#[test]
fn a_prefix_that_was_computed_is_not_computed_again() {
    // Prefixes are stored in runs of 32 tokens.
    let body = question(&"Count the letter e in the word cheese, please. ".repeat(5));
    ask("/v1/chat/completions", &body);
    let again = ask("/v1/chat/completions", &body);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached >= Some(32), "{cached:?}");
    assert_eq!(again["timings"]["cache_n"].as_u64(), cached);
}

#[test]
fn several_answers_differ_by_seed_and_the_first_is_the_only_one() {
    let mut body = question("Tell me a story about a fox and a lantern.");
    body["temperature"] = json!(1.2);
    body["seed"] = json!(7);
    body["max_tokens"] = json!(24);
    let alone = ask("/v1/chat/completions", &body);
    body["n"] = json!(3);
    let many = ask("/v1/chat/completions", &body);
    let text = |v: &Value, i: usize| v["choices"][i]["message"]["content"].clone();
    assert_eq!(text(&many, 0), text(&alone, 0));
    assert_ne!(text(&many, 1), text(&many, 2));
    assert_eq!(many["choices"].as_array().map(Vec::len), Some(3));
    assert_eq!(text(&many, 2), text(&ask("/v1/chat/completions", &body), 2));
    let chunks = stream("/v1/chat/completions", &body);
    let joined = |i: u64| -> String {
        let own = chunks.iter().filter(|c| c["choices"][0]["index"] == i);
        own.filter_map(|c| c["choices"][0]["delta"]["content"].as_str())
            .collect()
    };
    for i in 0..3 {
        assert_eq!(text(&many, i), joined(i as u64));
    }
}

#[test]
fn stops_biases_and_limits_are_honoured() {
    let mut body = question(LARGER);
    body["max_tokens"] = json!(2);
    let cut = ask("/v1/chat/completions", &body);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 2);
    body["max_tokens"] = json!(60);
    body["stop"] = json!(["04"]);
    let stopped = ask("/v1/chat/completions", &body);
    let text = stopped["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(!text.contains("04"), "{text}");
    assert_eq!(stopped["choices"][0]["stop_reason"], "04");
    let tokens = ask("/tokenize", &json!({"content": "1204"}));
    let mut banned = question(LARGER);
    let ids = tokens["tokens"].as_array().expect("tokens");
    let never = ids.iter().map(|id| (id.to_string(), json!(-100)));
    banned["logit_bias"] = Value::Object(never.collect());
    let other = ask("/v1/chat/completions", &banned);
    let text = other["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(!text.contains("1204"), "{text}");
}

#[test]
fn answers_follow_a_schema() {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9999});
    let schema = json!({"type": "object", "properties": {"larger": number}, "required": ["larger"], "additionalProperties": false});
    let mut body = question(LARGER);
    body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let answer = ask("/v1/chat/completions", &body);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    let read: Value = serde_json::from_str(text).expect("JSON");
    assert!(read["larger"].is_i64(), "{text}");
    let mut regex = question(LARGER);
    regex["structured_outputs"] = json!({"regex": "[A-C]{3}"});
    let answer = ask("/v1/chat/completions", &regex);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(
        text.len() == 3 && text.bytes().all(|b| (b'A'..=b'C').contains(&b)),
        "{text}"
    );
    let mut gbnf = question(LARGER);
    gbnf["grammar"] = json!("root ::= \"yes\" | \"no\"");
    let answer = ask("/v1/chat/completions", &gbnf);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(["yes", "no"].contains(&text), "{text}");
}

#[test]
fn probabilities_come_with_text_and_with_streams() {
    let mut body = question(LARGER);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(3);
    body["max_tokens"] = json!(5);
    let answer = ask("/v1/chat/completions", &body);
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!(content.len(), 5);
    for entry in &content {
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let chunks = stream("/v1/chat/completions", &body);
    let each = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    let streamed: Vec<Value> = each.flatten().cloned().collect();
    assert_eq!(streamed, content);
}

#[test]
fn every_form_of_tool_choice_is_honoured() {
    let mut body = question("What is the weather in Paris?");
    body["tools"] = tools();
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "get_weather"}}),
    ] {
        body["tool_choice"] = choice.clone();
        let answer = ask("/v1/chat/completions", &body);
        let message = &answer["choices"][0]["message"];
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["name"], "get_weather", "{choice}: {message}");
        let arguments = call["arguments"].as_str().expect("text");
        let read: Value = serde_json::from_str(arguments).expect("JSON");
        assert!(read["city"].is_string(), "{arguments}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
    body["tool_choice"] = json!("none");
    let answer = ask("/v1/chat/completions", &body);
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    body["tool_choice"] = json!({"type": "function", "function": {"name": "no_such_tool"}});
    assert_eq!(post("/v1/chat/completions", &body).status, 400);
}

#[test]
fn calls_come_in_streams_and_their_results_are_read() {
    let mut body = question("What is the weather in Paris?");
    body["tools"] = tools();
    body["tool_choice"] = json!("required");
    body["logprobs"] = json!(true);
    let whole = ask("/v1/chat/completions", &body);
    let call = whole["choices"][0]["message"]["tool_calls"][0].clone();
    let chunks = stream("/v1/chat/completions", &body);
    let pieces = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array());
    let arguments: String = pieces
        .flatten()
        .filter_map(|p| p["function"]["arguments"].as_str())
        .collect();
    assert_eq!(call["function"]["arguments"], arguments.as_str());
    assert!(
        whole["choices"][0]["logprobs"]["content"]
            .as_array()
            .is_some_and(|c| !c.is_empty())
    );
    let talk = json!({"tools": tools(), "max_tokens": 30, "messages": [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
    ]});
    let answer = ask("/v1/chat/completions", &talk);
    assert!(answer["choices"][0]["message"]["content"].is_string());
    let shown = ask("/apply-template", &talk);
    let prompt = shown["prompt"].as_str().expect("text");
    assert!(
        prompt.contains("<tool_call>") && prompt.contains("sunny"),
        "{prompt}"
    );
}

#[test]
fn what_is_asked_for_is_honoured_refused_or_told() {
    let with = |name: &str, value: Value| {
        let mut body = question(LARGER);
        body["max_tokens"] = json!(1);
        body[name] = value;
        post("/v1/chat/completions", &body)
    };
    let told = with("store", json!(true)).json();
    assert_eq!(told["warnings"], json!(["store has no effect here"]));
    let told = with("brand_new", json!(1)).json();
    assert_eq!(
        told["warnings"],
        json!(["brand_new is not a known field and was ignored"])
    );
    assert!(with("user", json!("me")).json().get("warnings").is_none());
    for (name, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(2)),
        ("n", json!(0)),
        ("logit_bias", json!({"999999": 1})),
        ("response_format", json!({"type": "json_schema"})),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "object", "patternProperties": 3}}}),
        ),
        ("grammar", json!("root ::= (")),
        ("tool_choice", json!("required")),
        ("lora", json!([{"id": 0, "scale": 1}])),
        ("chat_template", json!("{{ 1 }}")),
        ("mirostat", json!(2)),
        ("top_logprobs", json!(5)),
        ("modalities", json!(["audio"])),
        ("messages", json!([])),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]),
        ),
    ] {
        let reply = with(name, value.clone());
        assert_eq!(reply.status, 400, "{name} {value}: {}", reply.text);
        let error = reply.json();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert_eq!(error["error"]["code"], 400);
        assert!(
            error["error"]["message"]
                .as_str()
                .is_some_and(|m| m.len() > 10)
        );
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_counts() {
    let reply = post("/v1/chat/completions", &question(&"word ".repeat(2000)));
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "exceed_context_size_error");
    assert_eq!(error["n_ctx"], 1024);
    assert!(error["n_prompt_tokens"].as_u64() > Some(1024));
}

#[test]
fn texts_are_continued_with_echo_and_probabilities() {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 4, "echo": true, "logprobs": 2});
    let answer = ask("/v1/completions", &body);
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().expect("text");
    assert!(text.starts_with("Once upon a time"), "{text}");
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    let prompt = answer["usage"]["prompt_tokens"].as_u64().expect("a count") as usize;
    assert_eq!(tokens.len(), prompt + 4);
    assert!(logprobs["token_logprobs"][0].is_null());
    assert!(logprobs["token_logprobs"][1].as_f64() <= Some(0.0));
    let joined: String = tokens.iter().filter_map(Value::as_str).collect();
    assert_eq!(joined, text);
    // A token's probability is the same whether it was drawn or given.
    let given = json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 2});
    let again = ask("/v1/completions", &given);
    let of = |v: &Value, i: usize| {
        v["choices"][0]["logprobs"]["token_logprobs"][i]
            .as_f64()
            .expect("a number")
    };
    let again_tokens = &again["choices"][0]["logprobs"]["tokens"];
    if again_tokens == &logprobs["tokens"] {
        for i in 1..tokens.len() {
            assert!((of(&again, i) - of(&answer, i)).abs() < 0.05, "{i}");
        }
    }
    assert_eq!(again["usage"]["completion_tokens"], 0);
}

#[test]
fn several_prompts_and_the_best_of_several_answers() {
    let body =
        json!({"prompt": ["One", "Two"], "n": 2, "max_tokens": 3, "temperature": 1.0, "seed": 3});
    let answer = ask("/v1/completions", &body);
    let indices: Vec<u64> = answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .filter_map(|c| c["index"].as_u64())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let best = json!({"prompt": "One", "best_of": 4, "max_tokens": 5, "temperature": 1.5, "seed": 3, "logprobs": 0});
    let best = ask("/v1/completions", &best);
    let all = json!({"prompt": "One", "n": 4, "max_tokens": 5, "temperature": 1.5, "seed": 3, "logprobs": 0});
    let all = ask("/v1/completions", &all);
    let mean = |c: &Value| {
        let list = c["logprobs"]["token_logprobs"].as_array().expect("a list");
        list.iter().filter_map(Value::as_f64).sum::<f64>() / list.len() as f64
    };
    let likeliest = all["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(mean)
        .fold(f64::MIN, f64::max);
    assert!((mean(&best["choices"][0]) - likeliest).abs() < 1e-9);
    assert_eq!(
        best["usage"]["completion_tokens"],
        all["usage"]["completion_tokens"]
    );
    assert_eq!(
        post("/v1/completions", &json!({"prompt": "a", "suffix": "b"})).status,
        400
    );
    assert_eq!(post("/v1/completions", &json!({"prompt": []})).status, 400);
}

#[test]
fn tokens_are_counted_and_turned_back() {
    let there = ask(
        "/tokenize",
        &json!({"content": "Once upon a time", "with_pieces": true}),
    );
    let ids: Vec<Value> = there["tokens"]
        .as_array()
        .expect("tokens")
        .iter()
        .map(|t| t["id"].clone())
        .collect();
    assert_eq!(there["count"], ids.len());
    let back = ask("/detokenize", &json!({"tokens": ids}));
    assert_eq!(
        (&back["content"], &back["prompt"]),
        (&json!("Once upon a time"), &json!("Once upon a time"))
    );
    let talk = ask("/v1/tokenize", &question("Hi"));
    let counted = ask("/v1/chat/completions/input_tokens", &question("Hi"));
    assert_eq!(talk["count"], counted["input_tokens"]);
    assert_eq!(
        post("/detokenize", &json!({"tokens": [99_999_999]})).status,
        400
    );
}

#[test]
fn models_and_figures_are_told() {
    let models = get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["max_model_len"], 1024);
    assert_eq!(models["data"][0]["meta"]["n_vocab"], 2048);
    assert_eq!(get("/v1/models/small").json()["id"], "demo");
    assert_eq!(get("/v1/models/other").status, 404);
    assert_eq!(get("/health").json(), json!({"status": "ok"}));
    ask("/v1/chat/completions", &question(LARGER));
    let metrics = get("/metrics").text;
    for name in [
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
        "vllm:cache_config_info{model_name=\"demo\",block_size=\"",
        "vllm:time_to_first_token_seconds_bucket{",
        "vllm:request_success_total{model_name=\"demo\",finished_reason=\"stop\"}",
        "\nllamacpp:tokens_predicted_total ",
        "tokkata:generated_tokens_total{",
    ] {
        assert!(metrics.contains(name), "{name}");
    }
    let props = get("/props").json();
    assert_eq!(props["total_slots"], 4);
    assert!(
        props["chat_template"]
            .as_str()
            .is_some_and(|t| t.contains("im_start"))
    );
    let info = get("/tokenizer_info").json();
    assert_eq!(info["chat_template"], props["chat_template"]);
    assert_eq!(info["eos_token"], props["eos_token"]);
    assert_eq!(
        info["model_max_length"],
        ask("/tokenize", &json!({"prompt": "a"}))["max_model_len"]
    );
    assert_eq!(get("/slots").json().as_array().map(Vec::len), Some(4));
    assert_eq!(get("/nowhere").json()["error"]["type"], "not_found_error");
}

#[test]
fn llama_cpp_s_completion_is_answered_in_its_terms() {
    let body =
        json!({"prompt": "Once upon a time", "n_predict": 4, "n_probs": 2, "return_tokens": true});
    let answer = ask("/completion", &body);
    assert_eq!(answer["tokens_predicted"], 4);
    assert_eq!(
        (&answer["stop"], &answer["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(4));
    assert_eq!(
        answer["completion_probabilities"].as_array().map(Vec::len),
        Some(4)
    );
    assert!(answer["timings"]["prompt_n"].is_u64());
    let chunks = stream("/completion", &body);
    let joined: String = chunks
        .iter()
        .filter_map(|c| c["content"].as_str())
        .collect();
    assert_eq!(answer["content"], joined.as_str());
    assert_eq!(chunks[chunks.len() - 1]["stop"], true);
    let chosen = ask(
        "/completion",
        &json!({"prompt": "a", "n_predict": 1, "response_fields": ["content", "timings/prompt_n"]}),
    );
    let names: Vec<&String> = chosen.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["content", "timings/prompt_n"]);
    let two = ask(
        "/completion",
        &json!({"prompt": ["a", "b"], "n_predict": 1}),
    );
    assert_eq!(two.as_array().map(Vec::len), Some(2));
    let refused = post(
        "/infill",
        &json!({"input_prefix": "a", "input_suffix": "b"}),
    );
    assert_eq!(refused.status, 501);
}

#[test]
fn tokens_are_called_by_their_ids() {
    let mut body = question(LARGER);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(2);
    body["return_tokens_as_token_ids"] = json!(true);
    let answer = ask("/v1/chat/completions", &body);
    let content = &answer["choices"][0]["logprobs"]["content"];
    for token in content.as_array().expect("tokens") {
        let others = token["top_logprobs"].as_array().expect("others");
        for one in others.iter().chain([token]) {
            assert_eq!(one["token"], format!("token_id:{}", one["id"]));
        }
    }
    let body = json!({"prompt": "One two", "max_tokens": 2, "logprobs": 1, "echo": true,
        "return_tokens_as_token_ids": true});
    let answer = ask("/v1/completions", &body);
    let logprobs = &answer["choices"][0]["logprobs"];
    let is_id = |name: &str| name.starts_with("token_id:");
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    assert!(tokens.iter().all(|t| t.as_str().is_some_and(is_id)));
    let top = logprobs["top_logprobs"].as_array().expect("others");
    let mut names = top
        .iter()
        .filter_map(Value::as_object)
        .flat_map(|o| o.keys());
    assert!(names.all(|name| is_id(name)), "{top:?}");
}

/// The likeliest tokens of the first place of an answer, as pairs of an id and a logarithm.
fn first_place(answer: &Value) -> Vec<(u64, f64)> {
    let others = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    let pair = |one: &Value| (one["id"].as_u64(), one["logprob"].as_f64());
    let pairs = others.as_array().expect("others").iter().map(pair);
    pairs.filter_map(|(id, x)| Some((id?, x?))).collect()
}

#[test]
fn chosen_tokens_are_told_as_if_they_were_the_likeliest() {
    let mut body = question(LARGER);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(4);
    body["max_tokens"] = json!(3);
    let plain = ask("/v1/chat/completions", &body);
    let likeliest = first_place(&plain);
    let chosen = [likeliest[3].0, likeliest[1].0];
    body["logprob_token_ids"] = json!(chosen);
    let answer = ask("/v1/chat/completions", &body);
    assert_eq!(
        answer["choices"][0]["message"],
        plain["choices"][0]["message"]
    );
    let want = [likeliest[0], likeliest[3], likeliest[1]];
    assert_eq!(first_place(&answer), want);
    // The one that was drawn is not told twice.
    body["logprob_token_ids"] = json!([likeliest[0].0]);
    assert_eq!(
        first_place(&ask("/v1/chat/completions", &body)),
        likeliest[..1]
    );
    body["stream"] = json!(true);
    let streamed = post("/v1/chat/completions", &body).events();
    let told = streamed
        .iter()
        .find(|e| e["choices"][0]["logprobs"].is_object());
    assert_eq!(first_place(told.expect("probabilities")), likeliest[..1]);
    let body = json!({"prompt": "One two", "max_tokens": 2, "logprobs": 1, "echo": true,
        "logprob_token_ids": [7, 9], "return_tokens_as_token_ids": true});
    let answer = ask("/v1/completions", &body);
    let top = answer["choices"][0]["logprobs"]["top_logprobs"]
        .as_array()
        .expect("places");
    for place in top.iter().filter_map(Value::as_object) {
        assert!(place.contains_key("token_id:7") && place.contains_key("token_id:9"));
        assert!(place.len() <= 3, "{place:?}");
    }
    for wrong in [
        json!([u32::MAX]),
        json!(["a"]),
        json!((0..21).collect::<Vec<u32>>()),
    ] {
        let body = json!({"prompt": "One", "logprobs": 0, "logprob_token_ids": wrong});
        assert_eq!(post("/v1/completions", &body).status, 400);
    }
    let body = json!({"prompt": "One", "logprob_token_ids": [5]});
    assert_eq!(post("/v1/completions", &body).status, 400);
}

#[test]
fn all_tokens_are_told_where_the_server_allows_it() {
    let server = start(
        ServerOptions {
            most_logprobs: Some(usize::MAX),
            ..options()
        },
        vec![demo()],
    );
    let mut body = question(LARGER);
    body["logprobs"] = json!(true);
    body["max_tokens"] = json!(2);
    body["top_logprobs"] = json!(20);
    let few = first_place(&ask("/v1/chat/completions", &body));
    for most in [-1, 30] {
        body["top_logprobs"] = json!(most);
        let answer = post_with(&server, "/v1/chat/completions", &body, &[]);
        let all = first_place(&answer.json());
        assert_eq!(all[..20], few);
        assert!(all.is_sorted_by(|a, b| a.1 >= b.1));
        let sum: f64 = all.iter().map(|one| one.1.exp()).sum();
        match most {
            30 => assert_eq!(all.len(), 30),
            _ => assert!((sum - 1.0).abs() < 1e-2, "{sum}"),
        }
    }
    body["top_logprobs"] = json!(-1);
    assert_eq!(post("/v1/chat/completions", &body).status, 400);
}

#[test]
fn the_probabilities_of_a_prompt_are_told() {
    let body = json!({"prompt": ["One two three", "Four"], "max_tokens": 1, "prompt_logprobs": 2,
        "return_token_ids": true});
    let answer = ask("/v1/completions", &body);
    for choice in answer["choices"].as_array().expect("choices") {
        let ids = choice["prompt_token_ids"].as_array().expect("ids");
        let places = choice["prompt_logprobs"].as_array().expect("places");
        assert_eq!(places.len(), ids.len());
        assert!(places[0].is_null());
        for (id, place) in ids.iter().zip(places).skip(1) {
            let own = &place[&id.to_string()];
            let place = place.as_object().expect("tokens by their ids");
            let rank = own["rank"].as_u64().expect("a rank");
            assert!(place.len() == 2 + usize::from(rank > 2), "{place:?}");
            let first = place.values().find(|one| one["rank"] == 1);
            let of = |one: &Value| one["logprob"].as_f64().expect("a number");
            assert!(first.is_some_and(|first| of(first) >= of(own)), "{place:?}");
        }
    }
    // A stream tells the prompt's tokens once for each answer, and all that were drawn.
    let body = json!({"prompt": ["One two three", "Four"], "max_tokens": 3, "ignore_eos": true,
        "stream": true, "return_token_ids": true});
    let chunks = stream("/v1/completions", &body);
    for (i, whole) in answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .enumerate()
    {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own: Vec<&Value> = own.filter(|choice| choice["index"] == i).collect();
        assert_eq!(own[0]["prompt_token_ids"], whole["prompt_token_ids"]);
        assert!(own[1..].iter().all(|c| c["prompt_token_ids"].is_null()));
        let ids = own.iter().filter_map(|c| c["token_ids"].as_array());
        assert_eq!(ids.flatten().count(), 3);
    }
    let plain = ask(
        "/v1/completions",
        &json!({"prompt": "One", "max_tokens": 1}),
    );
    assert!(plain["choices"][0]["prompt_logprobs"].is_null());
    let mut body = question(LARGER);
    body["prompt_logprobs"] = json!(0);
    let answer = ask("/v1/chat/completions", &body);
    let places = answer["prompt_logprobs"].as_array().expect("places");
    assert_eq!(answer["usage"]["prompt_tokens"], places.len());
    for wrong in [json!(-1), json!(21)] {
        body["prompt_logprobs"] = wrong;
        assert_eq!(post("/v1/chat/completions", &body).status, 400);
    }
    body["prompt_logprobs"] = json!(1);
    body["stream"] = json!(true);
    assert_eq!(post("/v1/chat/completions", &body).status, 400);
}

/// The token that ends an answer is none of its text, but one of its tokens.
#[test]
fn the_tokens_of_an_answer_end_with_what_ended_it() {
    let mut body = question(LARGER);
    body["return_token_ids"] = json!(true);
    body["temperature"] = json!(0);
    let ids = |choices: &[&Value]| -> Vec<u64> {
        let ids = choices.iter().filter_map(|c| c["token_ids"].as_array());
        ids.flatten().filter_map(Value::as_u64).collect()
    };
    let whole = ask("/v1/chat/completions", &body);
    let own = ids(&[&whole["choices"][0]]);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["usage"]["completion_tokens"], own.len());
    let text = |ids: &[u64]| ask("/detokenize", &json!({"tokens": ids}))["content"].clone();
    let (end, answer) = own.split_last().expect("tokens");
    assert_eq!(text(answer), whole["choices"][0]["message"]["content"]);
    assert_eq!(text(&[*end]), "<|im_end|>");
    body["stream"] = json!(true);
    let chunks = stream("/v1/chat/completions", &body);
    let choices: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]).collect();
    assert_eq!(ids(&choices), own);
    // Who says no hears of it; who says nothing does not.
    body["stream"] = json!(false);
    body["return_token_ids"] = json!(false);
    let said = |body: &Value| {
        let whole = ask("/v1/chat/completions", body);
        [
            whole.get("prompt_token_ids"),
            whole["choices"][0].get("token_ids"),
        ]
        .map(Option::<&Value>::cloned)
    };
    assert_eq!(said(&body), [Some(Value::Null), Some(Value::Null)]);
    body["return_token_ids"].take();
    assert_eq!(said(&body), [None, None]);
    let whole = ask(
        "/v1/completions",
        &json!({"prompt": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
            "temperature": 0, "return_token_ids": true, "max_tokens": 200}),
    );
    assert_eq!(ids(&[&whole["choices"][0]]).last(), Some(end));
}

#[test]
fn options_of_a_stream_are_for_streams() {
    let mut body = question(LARGER);
    body["stream_options"] = json!({"include_usage": true});
    let refused = post("/v1/chat/completions", &body);
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("stream_options"), "{}", refused.text);
    body["stream_options"] = json!({"continuous_usage_stats": true});
    let chunks = stream("/v1/chat/completions", &body);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    let body = json!({"prompt": "One two", "max_tokens": 3, "ignore_eos": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = stream("/v1/completions", &body);
    let last = &chunks[chunks.len() - 1]["usage"];
    for chunk in &chunks {
        assert_eq!(chunk["usage"]["prompt_tokens"], last["prompt_tokens"]);
    }
}
