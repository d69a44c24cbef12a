//! Calls of tools that are sent while they are written.

use crate::common::{ask, stream};
use serde_json::{Value, json};

/// The least bytes of a piece.
const PIECE: usize = 16;
/// Tokens of an answer that ends within its call.
const FEW: usize = 24;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 24, "maxLength": 48},
            "days": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 4, "maxItems": 6},
        },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Tells the weather in a city.", "parameters": schema()}}],
        "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 200, "timings_per_token": true,
    })
}

fn messages() -> Value {
    json!({
        "model": "demo", "max_tokens": 200,
        "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
        "tools": [{"name": "get_weather", "input_schema": schema()}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    })
}

fn responses() -> Value {
    json!({
        "input": "What is the weather in Rome?", "max_output_tokens": 200,
        "tools": [{"type": "function", "name": "get_weather", "parameters": schema()}],
        "tool_choice": "required", "parallel_tool_calls": false,
    })
}

/// All pieces but the last are whole ones, and together they are the arguments.
fn check_pieces(pieces: &[&str], arguments: &str) {
    assert_eq!(pieces.concat(), arguments);
    let (_, whole) = pieces.split_last().expect("pieces");
    assert!(
        whole.len() >= 2 && whole.iter().all(|p| (PIECE..PIECE + 4).contains(&p.len())),
        "{pieces:?}"
    );
}

/// The deltas of a stream's only call, each with how many tokens there were.
fn deltas(chunks: &[Value]) -> Vec<(&Value, u64)> {
    let delta = |c: &'_ Value| {
        let calls = c["choices"][0]["delta"]["tool_calls"].get(0);
        calls.map(|_| c["timings"]["predicted_n"].as_u64().expect("a count"))
    };
    let found = chunks.iter().filter_map(|c| Some((c, delta(c)?)));
    found
        .map(|(c, count)| (&c["choices"][0]["delta"]["tool_calls"][0], count))
        .collect()
}

#[test]
fn chats_announce_a_call_and_send_its_arguments_in_pieces() {
    let whole = ask("/v1/chat/completions", &chat());
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    let arguments = call["function"]["arguments"].as_str().expect("text");
    let chunks = stream("/v1/chat/completions", &chat());
    let deltas = deltas(&chunks);
    let (first, at) = deltas[0];
    assert_eq!(
        (&first["index"], &first["type"], &first["function"]),
        (
            &json!(0),
            &json!("function"),
            &json!({"name": "get_weather", "arguments": ""})
        )
    );
    assert!(
        first["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("call_"))
    );
    let bare =
        |d: &Value| d.get("id").is_none() && d["function"].get("name").is_none() && d["index"] == 0;
    assert!(deltas[1..].iter().all(|(d, _)| bare(d)), "{deltas:?}");
    let pieces = deltas[1..]
        .iter()
        .map(|(d, _)| d["function"]["arguments"].as_str());
    let pieces: Vec<&str> = pieces.map(|p| p.expect("a piece")).collect();
    check_pieces(&pieces, arguments);
    // They come while the call is written.
    let (_, last) = deltas[deltas.len() - 1];
    assert!(at + 10 < last, "announced after {at} tokens of {last}");
    let times: Vec<u64> = deltas.iter().map(|(_, count)| *count).collect();
    assert!(
        times.windows(2).filter(|t| t[0] < t[1]).count() >= 3,
        "{times:?}"
    );
    let ends = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["finish_reason"].as_str());
    assert_eq!(ends.collect::<Vec<_>>(), ["tool_calls"]);
}

#[test]
fn a_call_that_breaks_off_is_told_as_far_as_it_has_come() {
    let mut body = chat();
    body["max_tokens"] = json!(FEW);
    let whole = ask("/v1/chat/completions", &body);
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("length"), &Value::Null)
    );
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        .as_str()
        .expect("text");
    assert!(
        arguments.starts_with("{\"city\":\"") && !arguments.ends_with('}'),
        "{arguments}"
    );
    let chunks = stream("/v1/chat/completions", &body);
    let pieces: String = deltas(&chunks)
        .iter()
        .filter_map(|(d, _)| d["function"]["arguments"].as_str())
        .collect();
    assert_eq!(pieces, arguments);
    let mut body = responses();
    body["max_output_tokens"] = json!(FEW);
    let response = ask("/v1/responses", &body);
    let item = &response["output"][0];
    assert_eq!(
        (&response["status"], &item["status"], &item["arguments"]),
        (
            &json!("incomplete"),
            &json!("incomplete"),
            &json!(arguments)
        )
    );
    // Where a call is an object, what there is of it is shown as it was written.
    let mut body = messages();
    body["max_tokens"] = json!(FEW);
    let message = ask("/v1/messages", &body);
    assert_eq!(message["stop_reason"], "max_tokens");
    let text = message["content"][0]["text"].as_str().expect("text");
    assert!(
        text.contains("get_weather") && text.contains("\"city\""),
        "{text}"
    );
}

#[test]
fn responses_tell_of_a_call_while_it_is_written() {
    let whole = ask("/v1/responses", &responses());
    let arguments = whole["output"][0]["arguments"].as_str().expect("text");
    let events = stream("/v1/responses", &responses());
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    let delta = "response.function_call_arguments.delta";
    let mut order = kinds.clone();
    order.dedup();
    assert_eq!(
        order,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            delta,
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let of = |kind: &str| {
        events
            .iter()
            .filter(move |e| e["type"] == kind)
            .cloned()
            .collect::<Vec<_>>()
    };
    let item = &of("response.output_item.added")[0]["item"];
    assert_eq!(
        (&item["name"], &item["arguments"], &item["status"]),
        (&json!("get_weather"), &json!(""), &json!("in_progress"))
    );
    let deltas = of(delta);
    assert!(
        deltas
            .iter()
            .all(|e| e["item_id"] == item["id"] && e["output_index"] == 0)
    );
    let pieces: Vec<&str> = deltas.iter().filter_map(|e| e["delta"].as_str()).collect();
    check_pieces(&pieces, arguments);
    assert_eq!(
        of("response.function_call_arguments.done")[0]["arguments"],
        arguments
    );
    assert_eq!(
        of("response.completed")[0]["response"]["output"][0]["arguments"],
        arguments
    );
}

#[test]
fn messages_tell_of_a_call_while_it_is_written() {
    let whole = ask("/v1/messages", &messages());
    let events = stream("/v1/messages", &messages());
    let starts: Vec<&Value> = events
        .iter()
        .filter(|e| e["type"] == "content_block_start")
        .collect();
    let stops = events
        .iter()
        .filter(|e| e["type"] == "content_block_stop")
        .count();
    assert_eq!((starts.len(), stops), (1, 1));
    let block = &starts[0]["content_block"];
    assert_eq!(
        (&block["type"], &block["name"], &block["input"]),
        (&json!("tool_use"), &json!("get_weather"), &json!({}))
    );
    let pieces: Vec<&str> = events
        .iter()
        .filter(|e| e["delta"]["type"] == "input_json_delta" && e["index"] == 0)
        .filter_map(|e| e["delta"]["partial_json"].as_str())
        .collect();
    check_pieces(&pieces, &pieces.concat());
    let input: Value = serde_json::from_str(&pieces.concat()).expect("JSON");
    assert_eq!(input, whole["content"][0]["input"]);
}
