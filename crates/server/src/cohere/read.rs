//! A chat of Cohere's under OpenAI's names.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::wrong;

/// Fields that are called otherwise elsewhere.
const NAMES: [(&str, &str); 3] = [("stop_sequences", "stop"), ("k", "top_k"), ("p", "top_p")];

/// The same request for whoever reads OpenAI's.
pub(super) fn translated(value: Value) -> Result<Value> {
    let Value::Object(mut body) = value else {
        return Ok(value);
    };
    for (theirs, ours) in NAMES {
        if let Some(value) = body.shift_remove(theirs) {
            body.insert(ours.to_owned(), value);
        }
    }
    if body.get("raw_prompting").is_some_and(|on| on == true) {
        let text = "the model's template is always used; /v1/completions takes a prompt as it is";
        return Err(ApiError::field("raw_prompting", text));
    }
    // Calls follow their schemas anyway.
    for name in ["raw_prompting", "strict_tools"] {
        body.shift_remove(name);
    }
    if let Some(choice) = body.get_mut("tool_choice")
        && let Some(word) = choice.as_str()
    {
        *choice = word.to_ascii_lowercase().into();
    }
    thinking(&mut body)?;
    format(&mut body)?;
    if let Some(Value::Array(messages)) = body.get_mut("messages") {
        messages.iter_mut().for_each(message);
    }
    Ok(body.into())
}

/// Whether to think, and for how long.
fn thinking(body: &mut Map<String, Value>) -> Result<()> {
    let Some(thinking) = body.shift_remove("thinking").filter(|t| !t.is_null()) else {
        return Ok(());
    };
    let on = match thinking["type"].as_str() {
        Some("enabled") => true,
        Some("disabled") => false,
        _ => {
            return Err(wrong(
                "thinking.type",
                &thinking["type"],
                "enabled or disabled",
            ));
        }
    };
    body.insert("enable_thinking".to_owned(), on.into());
    if !thinking["token_budget"].is_null() {
        let budget = thinking["token_budget"].clone();
        body.insert("thinking_token_budget".to_owned(), budget);
    }
    Ok(())
}

/// A schema stands beside the type here, not within it.
fn format(body: &mut Map<String, Value>) -> Result<()> {
    let Some(Value::Object(format)) = body.get_mut("response_format") else {
        return Ok(());
    };
    let schema = format.shift_remove("json_schema");
    let Some(schema) = schema.or_else(|| format.shift_remove("schema")) else {
        return Ok(());
    };
    if format.get("type").is_none_or(|t| t != "json_object") {
        let text = "a schema goes with the type json_object";
        return Err(ApiError::field("response_format", text));
    }
    *format = Map::new();
    format.insert("type".to_owned(), "json_schema".into());
    let named = json!({"name": "answer", "schema": schema});
    format.insert("json_schema".to_owned(), named);
    Ok(())
}

/// Results of tools come as documents, and what a model planned before its calls is what it said.
fn message(message: &mut Value) {
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        for part in parts.iter_mut().filter(|p| p["type"] == "document") {
            let text = match &part["document"]["data"] {
                Value::String(text) => text.clone(),
                data => data.to_string(),
            };
            *part = json!({"type": "text", "text": text});
        }
    }
    let Some(message) = message.as_object_mut() else {
        return;
    };
    message.shift_remove("citations");
    if let Some(plan) = message.shift_remove("tool_plan").filter(|p| !p.is_null())
        && message.get("content").is_none_or(Value::is_null)
    {
        message.insert("content".to_owned(), plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_of_cohere_s_is_one_of_openai_s() {
        let theirs = json!({
            "model": "m", "k": 4, "p": 0.5, "stop_sequences": ["END"], "tool_choice": "REQUIRED",
            "thinking": {"type": "enabled", "token_budget": 9}, "strict_tools": true,
            "response_format": {"type": "json_object", "json_schema": {"type": "object"}},
            "messages": [
                {"role": "assistant", "tool_plan": "I look.", "tool_calls": []},
                {"role": "tool", "tool_call_id": "1", "content": [
                    {"type": "document", "document": {"data": {"a": 1}}}, {"type": "text", "text": "b"}]},
            ],
        });
        let ours = json!({
            "model": "m", "stop": ["END"], "top_k": 4, "top_p": 0.5, "tool_choice": "required",
            "enable_thinking": true, "thinking_token_budget": 9,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
            "messages": [
                {"role": "assistant", "tool_calls": [], "content": "I look."},
                {"role": "tool", "tool_call_id": "1", "content": [
                    {"type": "text", "text": "{\"a\":1}"}, {"type": "text", "text": "b"}]},
            ],
        });
        assert_eq!(translated(theirs).expect("a request"), ours);
        for wrong in [
            json!({"raw_prompting": true}),
            json!({"thinking": {"type": "much"}}),
            json!({"response_format": {"type": "text", "schema": {}}}),
        ] {
            assert!(translated(wrong).is_err());
        }
    }
}
