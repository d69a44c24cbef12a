//! A request of Anthropic's as a conversation.

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::options::Thinking;
use crate::params::{Params, text_format};
use crate::served::Served;
use crate::talk::{Talk, ToolUse};

/// What was asked for.
pub(super) struct Asked {
    pub(super) talk: Talk,
    pub(super) params: Params,
    pub(super) stream: bool,
    /// The reasoning is not shown.
    pub(super) hides_thinking: bool,
}

pub(super) fn request(app: &App, model: &Served, fields: &mut Fields) -> Result<Asked> {
    let mut messages = system(fields.take("system"))?;
    let given = match fields.needed("messages")? {
        Value::Array(given) => given,
        other => return Err(wrong("messages", &other, "a list")),
    };
    for (i, message) in given.into_iter().enumerate() {
        read_message(&format!("messages[{i}]"), message, &mut messages)?;
    }
    if messages.iter().all(|m| m["role"] == "system") {
        return Err(ApiError::field(
            "messages",
            "at least one message is required",
        ));
    }
    let tools = tools(fields)?;
    let (tool_use, parallel) = tool_choice(fields, !tools.is_empty())?;
    let (mut thinking, hides_thinking) = thinking(fields)?;
    model.warn_of_template(fields, !tools.is_empty());
    let stop = fields.texts("stop_sequences")?;
    let tokenizer = model.service.tokenizer()?;
    let mut params = Params::take(fields, &model.defaults, tokenizer)?;
    params.stop.extend(stop.unwrap_or_default());
    params.stop.retain(|s| !s.is_empty());
    params.max_tokens = fields.count(&["max_tokens"])?.or(model.defaults.max_tokens);
    if params.max_tokens == Some(0) {
        return Err(ApiError::field(
            "max_tokens",
            "found 0, expected at least 1",
        ));
    }
    if let Some(mut config) = fields.nested("output_config")? {
        thinking.effort = config.text("effort")?;
        if let Some(format) = config.nested("format")? {
            params.grammar = text_format(format, fields)?;
        }
        config.close(app.options.strict_fields, fields)?;
    }
    let continues = messages.last().is_some_and(|m| {
        m["role"] == "assistant" && m.get("tool_calls").is_none() && m["content"] != ""
    });
    let stream = fields.boolean("stream")?.unwrap_or(false);
    fields.labels(&[
        "metadata",
        "betas",
        "anthropic_version",
        "anthropic_beta",
        "user_profile_id",
    ]);
    fields.hints(&[
        "context_management",
        "service_tier",
        "cache_control",
        "inference_geo",
        "speed",
    ]);
    fields.refuse(&["mcp_servers", "container"], "tools are not run here")?;
    fields.finish(app.options.strict_fields)?;
    Ok(Asked {
        talk: Talk {
            messages,
            tools,
            tool_use,
            parallel,
            thinking,
            continues,
            opens: true,
            ..Talk::default()
        },
        params,
        stream,
        hides_thinking,
    })
}

/// The system prompt: a text or blocks of text.
fn system(value: Option<Value>) -> Result<Vec<Value>> {
    let text = match value {
        None => return Ok(Vec::new()),
        Some(value) => block_text("system", value)?,
    };
    Ok(match text.is_empty() {
        true => Vec::new(),
        false => vec![json!({"role": "system", "content": text})],
    })
}

/// The text of a content that must be text.
fn block_text(path: &str, content: Value) -> Result<String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let each = blocks.into_iter().enumerate();
            let each = each.map(|(i, block)| text_of_block(&format!("{path}[{i}]"), &block));
            Ok(each.collect::<Result<Vec<String>>>()?.join("\n"))
        }
        other => Err(wrong(path, &other, "a string or a list of blocks")),
    }
}

fn text_of_block(path: &str, block: &Value) -> Result<String> {
    let kind = block["type"].as_str().unwrap_or("text");
    match kind {
        "text" => block["text"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| ApiError::field(format!("{path}.text"), "is missing")),
        "tool_reference" => Ok(block["tool_name"].as_str().unwrap_or_default().to_owned()),
        other => {
            let text = format!("found a block of type '{other}', and the model reads text alone");
            Err(ApiError::field(path, text))
        }
    }
}

/// A message as one or several of ours: results of tools are messages of their own.
fn read_message(path: &str, message: Value, out: &mut Vec<Value>) -> Result<()> {
    let mut message = Fields::of(path, message)?;
    let role = message.text("role")?;
    let role = role.ok_or_else(|| ApiError::field(format!("{path}.role"), "is missing"))?;
    let content = message.needed("content")?;
    let path = format!("{path}.content");
    match role.as_str() {
        "user" => user(&path, content, out),
        "assistant" => assistant(&path, content, out),
        "system" => {
            let text = block_text(&path, content)?;
            out.push(json!({"role": "system", "content": text}));
            Ok(())
        }
        other => {
            let text = format!("found the role '{other}', expected user, assistant or system");
            Err(ApiError::field(path, text))
        }
    }
}

fn blocks(path: &str, content: Value) -> Result<Vec<Value>> {
    match content {
        Value::String(text) => Ok(vec![json!({"type": "text", "text": text})]),
        Value::Array(blocks) => Ok(blocks),
        other => Err(wrong(path, &other, "a string or a list of blocks")),
    }
}

fn user(path: &str, content: Value, out: &mut Vec<Value>) -> Result<()> {
    let mut texts: Vec<String> = Vec::new();
    let flush = |texts: &mut Vec<String>, out: &mut Vec<Value>| {
        if !texts.is_empty() {
            let text = std::mem::take(texts).join("\n");
            out.push(json!({"role": "user", "content": text}));
        }
    };
    for (i, block) in blocks(path, content)?.into_iter().enumerate() {
        let path = format!("{path}[{i}]");
        if block["type"] != "tool_result" {
            texts.push(text_of_block(&path, &block)?);
            continue;
        }
        flush(&mut texts, out);
        let Some(id) = block["tool_use_id"].as_str() else {
            return Err(ApiError::field(format!("{path}.tool_use_id"), "is missing"));
        };
        let mut text = block_text(&format!("{path}.content"), block["content"].clone())?;
        if block["is_error"] == true {
            text = format!("Error: {text}");
        }
        let name = tool_name(out, id);
        let mut result = json!({"role": "tool", "tool_call_id": id, "content": text});
        if let Some(name) = name {
            result["name"] = name.into();
        }
        out.push(result);
    }
    flush(&mut texts, out);
    Ok(())
}

/// The tool of an earlier call.
fn tool_name(messages: &[Value], id: &str) -> Option<String> {
    let calls = messages.iter().filter_map(|m| m["tool_calls"].as_array());
    let call = calls.flatten().find(|c| c["id"] == id)?;
    call["function"]["name"].as_str().map(str::to_owned)
}

fn assistant(path: &str, content: Value, out: &mut Vec<Value>) -> Result<()> {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks(path, content)?.into_iter().enumerate() {
        let path = format!("{path}[{i}]");
        match block["type"].as_str() {
            Some("thinking") => {
                thoughts.push(block["thinking"].as_str().unwrap_or_default().to_owned());
            }
            // What was hidden from the caller cannot be shown to the model either.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let function = json!({"name": block["name"], "arguments": block["input"]});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            _ => texts.push(text_of_block(&path, &block)?),
        }
    }
    let mut message = json!({"role": "assistant", "content": texts.join("")});
    thoughts.retain(|t| !t.is_empty());
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    out.push(message);
    Ok(())
}

/// Tools as templates read them. Those that only Anthropic runs are told and left out.
fn tools(fields: &mut Fields) -> Result<Vec<Value>> {
    let mut tools = Vec::new();
    for (i, tool) in fields
        .list("tools")?
        .unwrap_or_default()
        .into_iter()
        .enumerate()
    {
        let Some(name) = tool["name"].as_str() else {
            return Err(ApiError::field(format!("tools[{i}].name"), "is missing"));
        };
        let kind = tool["type"].as_str().unwrap_or("custom");
        if kind != "custom" && tool.get("input_schema").is_none() {
            let text =
                format!("tools[{i}]: '{name}' of type {kind} is not run here and was left out");
            fields.warnings.push(text);
            continue;
        }
        let mut function = Map::new();
        function.insert("name".to_owned(), name.into());
        if let Some(description) = tool["description"].as_str() {
            function.insert("description".to_owned(), description.into());
        }
        let schema = tool.get("input_schema").filter(|s| s.is_object());
        let none = || json!({"type": "object", "properties": {}});
        let schema = schema.cloned().unwrap_or_else(none);
        function.insert("parameters".to_owned(), schema);
        tools.push(json!({"type": "function", "function": function}));
    }
    Ok(tools)
}

fn tool_choice(fields: &mut Fields, any: bool) -> Result<(ToolUse, bool)> {
    let Some(mut choice) = fields.nested("tool_choice")? else {
        return Ok((ToolUse::Auto, true));
    };
    let kind = choice.text("type")?.unwrap_or_default();
    let parallel = !choice
        .boolean("disable_parallel_tool_use")?
        .unwrap_or(false);
    let tool_use = match kind.as_str() {
        "auto" => ToolUse::Auto,
        "none" => ToolUse::None,
        "any" => ToolUse::Required,
        "tool" => {
            let name = choice.text("name")?;
            ToolUse::Named(name.ok_or_else(|| ApiError::field("tool_choice.name", "is missing"))?)
        }
        other => {
            let text = format!("found '{other}', expected auto, any, tool or none");
            return Err(ApiError::field("tool_choice.type", text));
        }
    };
    if !any && matches!(tool_use, ToolUse::Required | ToolUse::Named(_)) {
        return Err(ApiError::field(
            "tool_choice",
            "a tool must be called, and there are none",
        ));
    }
    choice.close(false, fields)?;
    Ok((tool_use, parallel))
}

/// How to think, and whether that is hidden.
fn thinking(fields: &mut Fields) -> Result<(Thinking, bool)> {
    let mut thinking = Thinking::default();
    let Some(mut given) = fields.nested("thinking")? else {
        return Ok((thinking, false));
    };
    let kind = given.text("type")?.unwrap_or_default();
    match kind.as_str() {
        "enabled" => thinking.on = Some(true),
        "disabled" => thinking.on = Some(false),
        "adaptive" => {}
        other => {
            let text = format!("found '{other}', expected enabled, disabled or adaptive");
            return Err(ApiError::field("thinking.type", text));
        }
    }
    thinking.budget = given.count(&["budget_tokens"])?;
    let hides = given.text("display")?.as_deref() == Some("omitted");
    given.close(false, fields)?;
    Ok((thinking, hides))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_turn_becomes_messages_of_their_own() {
        let mut out = Vec::new();
        let call = json!({"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}});
        let said = json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "I look."}, call]});
        read_message("m", said, &mut out).expect("an answer");
        let result = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "Go on."}]});
        read_message("m", result, &mut out).expect("a result");
        assert_eq!(out[0]["reasoning_content"], "hm");
        assert_eq!(out[0]["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert_eq!(
            out[1],
            json!({"role": "tool", "tool_call_id": "t1", "content": "Error: no", "name": "f"})
        );
        assert_eq!(out[2], json!({"role": "user", "content": "Go on."}));
        let image = json!({"role": "user", "content": [{"type": "image", "source": {}}]});
        let error = read_message("m", image, &mut out).expect_err("no eyes");
        assert_eq!(error.param.as_deref(), Some("m.content[0]"));
    }
}
