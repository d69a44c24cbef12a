//! Messages, tools and the rest of a conversation, as chat requests write them.

use serde_json::{Map, Value, json};
use tokkata::answer::LARK;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, kind, wrong};
use crate::names::SENSES;
use crate::served::Served;
use crate::style::Thinking;
use crate::talk::{Talk, ToolUse};

/// Reads what a chat request says of the conversation.
pub fn talk(fields: &mut Fields, model: &Served, prefill: bool) -> Result<Talk> {
    let messages = match fields.needed("messages")? {
        Value::Array(messages) if messages.is_empty() => {
            return Err(ApiError::field(
                "messages",
                "found an empty list, expected messages",
            ));
        }
        Value::Array(messages) => messages,
        other => return Err(wrong("messages", &other, "a list")),
    };
    let messages = messages.into_iter().enumerate().map(|(i, m)| message(i, m));
    let messages = messages.collect::<Result<Vec<Value>>>()?;
    let given = fields.list("tools")?.unwrap_or_default();
    let custom = |tool: &Value| {
        let name = tool["custom"]["name"].as_str();
        name.filter(|_| tool["type"] == "custom").map(str::to_owned)
    };
    let customs = given.iter().filter_map(custom).collect();
    let tools = tools(given)?;
    let (tools, tool_use) = tool_choice(fields.take("tool_choice"), tools)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    if fields.has("functions") || fields.has("function_call") {
        let message = "is no longer used; give tools and tool_choice";
        return Err(ApiError::field("functions", message));
    }
    fields.refuse(&SENSES, "only text is read and written")?;
    modalities(fields)?;
    let names = fields.object("chat_template_kwargs")?.unwrap_or_default();
    fields.refuse(
        &["chat_template"],
        "templates are not taken from requests; start the server with --chat-template-file",
    )?;
    let documents = fields.list("documents")?;
    let thinking = thinking(fields, &names)?;
    model.warn_of_template(fields, !tools.is_empty());
    let is_answer = messages.last().is_some_and(|m| m["role"] == "assistant");
    let has_calls = messages.last().is_some_and(|m| m["tool_calls"].is_array());
    let opens = fields.boolean("add_generation_prompt")?;
    let asked = fields.boolean("continue_final_message")?;
    if (opens, asked) == (Some(true), Some(true)) {
        return Err(ApiError::field(
            "continue_final_message",
            "does not go with add_generation_prompt",
        ));
    }
    let opens = opens.unwrap_or(true);
    let continues = asked.unwrap_or(prefill && is_answer && !has_calls && opens);
    let talk = Talk {
        messages,
        tools,
        customs,
        tool_use,
        parallel,
        documents,
        thinking,
        names,
        continues,
        opens,
        raw_reasoning: false,
    };
    talk.check_grammars(model, fields)?;
    Ok(talk)
}

fn modalities(fields: &mut Fields) -> Result<()> {
    for one in fields.texts("modalities")?.unwrap_or_default() {
        if one != "text" {
            let message = format!("found '{one}', expected text alone");
            return Err(ApiError::field("modalities", message));
        }
    }
    Ok(())
}

/// How to think, under the names of several servers.
pub fn thinking(fields: &mut Fields, names: &Map<String, Value>) -> Result<Thinking> {
    let mut thinking = Thinking::default();
    let effort = match fields.take("reasoning_effort") {
        None => None,
        Some(Value::String(effort)) => Some(effort),
        Some(Value::Number(share)) => {
            // SGLang's share of all there is.
            let levels = ["none", "low", "medium", "high"];
            let share = share.as_f64().unwrap_or(0.5).clamp(0.0, 1.0);
            Some(levels[(share * 3.0).ceil() as usize].to_owned())
        }
        Some(other) => return Err(wrong("reasoning_effort", &other, "a string")),
    };
    if let Some(mut reasoning) = fields.nested("reasoning")? {
        thinking.effort = reasoning.text("effort")?;
        thinking.on = reasoning.boolean("enabled")?;
        thinking.budget = reasoning.count(&["max_tokens"])?;
        reasoning.labels(&["summary", "generate_summary", "exclude"]);
        reasoning.close(false, fields)?;
    }
    thinking.effort = effort.or(thinking.effort);
    if thinking.effort.as_deref() == Some("none") {
        (thinking.effort, thinking.on) = (None, Some(false));
    }
    if let Some(on) = names.get("enable_thinking").and_then(Value::as_bool) {
        thinking.on = Some(on);
    }
    if let Some(on) = fields.boolean("enable_thinking")? {
        thinking.on = Some(on);
    }
    let budgets = [
        "thinking_token_budget",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
        "reasoning_budget",
    ];
    let budget = fields.integer(&budgets)?;
    if let Some(budget) = budget.and_then(|n| usize::try_from(n).ok()) {
        thinking.budget = Some(budget);
    }
    if let Some(message) = fields.text("reasoning_budget_message")? {
        thinking.message = message;
    }
    Ok(thinking)
}

/// A message as templates read it.
fn message(at: usize, value: Value) -> Result<Value> {
    let path = format!("messages[{at}]");
    let Value::Object(mut message) = value else {
        return Err(wrong(&path, &value, "an object"));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) => role.clone(),
        Some(other) => return Err(wrong(&format!("{path}.role"), other, "a string")),
        None => return Err(ApiError::field(format!("{path}.role"), "is missing")),
    };
    const ROLES: [&str; 6] = [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
    ];
    if !ROLES.contains(&role.as_str()) {
        let text = format!("found '{role}', expected one of {}", ROLES.join(", "));
        return Err(ApiError::field(format!("{path}.role"), text));
    }
    let has_calls = message.get("tool_calls").is_some_and(|c| !c.is_null());
    let content = match message.shift_remove("content") {
        None | Some(Value::Null) if role == "assistant" => String::new(),
        None | Some(Value::Null) => {
            return Err(ApiError::field(format!("{path}.content"), "is missing"));
        }
        Some(content) => text_content(&format!("{path}.content"), content)?,
    };
    message.insert("content".to_owned(), content.into());
    if has_calls {
        let calls = message.shift_remove("tool_calls").unwrap_or_default();
        let calls = tool_calls(&format!("{path}.tool_calls"), calls)?;
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
    } else {
        message.shift_remove("tool_calls");
    }
    message.retain(|_, v| !v.is_null());
    Ok(message.into())
}

/// The text of a content: a text, or parts of text.
pub fn text_content(path: &str, content: Value) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, &other, "a string or a list of parts")),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{i}]");
        match part {
            Value::String(text) => texts.push(text),
            Value::Object(mut part) => texts.push(part_text(&path, &mut part)?),
            other => return Err(wrong(&path, &other, "an object")),
        }
    }
    Ok(texts.join("\n"))
}

fn part_text(path: &str, part: &mut Map<String, Value>) -> Result<String> {
    let said = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let name = match said {
        "text" | "input_text" | "output_text" | "" => "text",
        "refusal" => "refusal",
        "thinking" | "reasoning" => return Ok(String::new()),
        other => {
            let text = format!("found a part of type '{other}', and the model reads text alone");
            return Err(ApiError::field(path, text));
        }
    };
    match part.shift_remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong(&format!("{path}.{name}"), &other, "a string")),
        None => Err(ApiError::field(format!("{path}.{name}"), "is missing")),
    }
}

/// Calls of tools in an earlier answer; their arguments become objects where they can.
fn tool_calls(path: &str, calls: Value) -> Result<Vec<Value>> {
    let Value::Array(calls) = calls else {
        return Err(wrong(path, &calls, "a list"));
    };
    calls
        .into_iter()
        .enumerate()
        .map(|(i, call)| {
            let path = format!("{path}[{i}]");
            let mut call = match call {
                Value::Object(call) => call,
                other => return Err(wrong(&path, &other, "an object")),
            };
            if let Some(Value::Object(custom)) = call.shift_remove("custom") {
                let input = custom.get("input").cloned().unwrap_or_default();
                let function = json!({"name": custom.get("name"), "arguments": {"input": input}});
                call.insert("function".to_owned(), function);
            }
            let Some(Value::Object(function)) = call.get_mut("function") else {
                return Err(ApiError::field(format!("{path}.function"), "is missing"));
            };
            if !function.get("name").is_some_and(Value::is_string) {
                return Err(ApiError::field(
                    format!("{path}.function.name"),
                    "is missing",
                ));
            }
            let arguments = function.get("arguments").and_then(Value::as_str);
            let read = arguments.map(|text| match text.trim() {
                "" => json!({}),
                text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
            });
            if let Some(read) = read {
                function.insert("arguments".to_owned(), read);
            }
            call.insert("type".to_owned(), "function".into());
            Ok(call.into())
        })
        .collect()
}

/// Tools as templates read them.
pub fn tools(given: Vec<Value>) -> Result<Vec<Value>> {
    let one = |(i, tool): (usize, Value)| {
        let path = format!("tools[{i}]");
        let Value::Object(mut tool) = tool else {
            return Err(wrong(&path, &tool, "an object"));
        };
        let said = tool
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("function");
        if said == "custom" {
            return custom(&path, tool.shift_remove("custom"));
        }
        if said != "function" {
            let text = format!("found a tool of type '{said}', expected function or custom");
            return Err(ApiError::field(path, text));
        }
        let Some(Value::Object(mut function)) = tool.shift_remove("function") else {
            return Err(ApiError::field(format!("{path}.function"), "is missing"));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::field(
                format!("{path}.function.name"),
                "is missing",
            ));
        }
        function.shift_remove("strict");
        let parameters = function.get("parameters").filter(|p| !p.is_null());
        if let Some(other) = parameters.filter(|p| !p.is_object()) {
            let path = format!("{path}.function.parameters");
            return Err(ApiError::field(
                path,
                format!("found {}, expected a schema", kind(other)),
            ));
        }
        if parameters.is_none() {
            let none = json!({"type": "object", "properties": {}});
            function.insert("parameters".to_owned(), none);
        }
        Ok(json!({"type": "function", "function": function}))
    };
    given.into_iter().enumerate().map(one).collect()
}

/// A tool that takes a text, as one that takes an object with that text.
fn custom(path: &str, tool: Option<Value>) -> Result<Value> {
    let tool = tool.unwrap_or_default();
    let Some(name) = tool["name"].as_str() else {
        return Err(ApiError::field(format!("{path}.custom.name"), "is missing"));
    };
    let format = &tool["format"];
    let grammar = format.get("grammar").unwrap_or(format);
    let path = format!("{path}.custom.format");
    text_tool(name, &tool["description"], &path, (format, grammar))
}

/// A tool that takes a text, as one that takes an object with that text, which a grammar may rule: its kind is said by a
/// format, and it stands in the format or below it. The model is shown the grammar in the tool's description.
///
/// # Errors
/// A format that is neither text nor a grammar.
pub fn text_tool(
    name: &str,
    description: &Value,
    path: &str,
    (format, grammar): (&Value, &Value),
) -> Result<Value> {
    let mut description = description.as_str().unwrap_or_default().to_owned();
    let mut input = json!({"type": "string"});
    match format["type"].as_str() {
        None | Some("text") => {}
        Some("grammar") => {
            let definition = grammar["definition"].as_str();
            let definition =
                definition.ok_or_else(|| ApiError::field(path, "its definition is missing"))?;
            let lark = match grammar["syntax"].as_str() {
                Some("lark") => definition.to_owned(),
                Some("regex") => format!("start: /{}/", definition.replace('/', "\\/")),
                _ => return Err(ApiError::field(path, "expected the syntax lark or regex")),
            };
            description = format!("{description}\nThe input follows this grammar:\n{definition}");
            input[LARK] = lark.into();
        }
        Some(other) => {
            let text = format!("found '{other}', expected text or grammar");
            return Err(ApiError::field(path, text));
        }
    }
    let parameters = json!({
        "type": "object",
        "properties": {"input": input},
        "required": ["input"],
    });
    let function =
        json!({"name": name, "description": description.trim(), "parameters": parameters});
    Ok(json!({"type": "function", "function": function}))
}

/// The grammar that a tool's text follows.
pub fn grammar_of(tool: &Value) -> Option<&str> {
    tool["function"]["parameters"]["properties"]["input"][LARK].as_str()
}

/// A tool as templates show it.
pub fn shown(tool: &Value) -> Value {
    let mut tool = tool.clone();
    let input = tool.pointer_mut("/function/parameters/properties/input");
    if let Some(input) = input.and_then(Value::as_object_mut) {
        input.shift_remove(LARK);
    }
    tool
}

/// Which of the tools may be called, and which must be.
pub fn tool_choice(choice: Option<Value>, tools: Vec<Value>) -> Result<(Vec<Value>, ToolUse)> {
    const NAME: &str = "tool_choice";
    let Some(choice) = choice else {
        return Ok((tools, ToolUse::Auto));
    };
    let tool_use = match &choice {
        Value::String(word) => match word.as_str() {
            "auto" => ToolUse::Auto,
            "none" => ToolUse::None,
            "required" | "any" => ToolUse::Required,
            other => {
                let text = format!("found '{other}', expected auto, none, required or a tool");
                return Err(ApiError::field(NAME, text));
            }
        },
        Value::Object(object) => {
            if object.get("type").is_some_and(|t| t == "allowed_tools") {
                return allowed(object.get("allowed_tools").unwrap_or(&choice), tools);
            }
            let inner = object.get("function").or(object.get("custom"));
            let name = inner.unwrap_or(&choice)["name"].as_str();
            match name {
                Some(name) => ToolUse::Named(name.to_owned()),
                None => return Err(ApiError::field("tool_choice.function.name", "is missing")),
            }
        }
        other => return Err(wrong(NAME, other, "a string or an object")),
    };
    if tools.is_empty() && matches!(tool_use, ToolUse::Required | ToolUse::Named(_)) {
        return Err(ApiError::field(
            NAME,
            "a tool must be called, and there are none",
        ));
    }
    Ok((tools, tool_use))
}

/// Only some of the tools may be called.
fn allowed(choice: &Value, tools: Vec<Value>) -> Result<(Vec<Value>, ToolUse)> {
    let listed = choice["tools"].as_array().cloned().unwrap_or_default();
    let name = |t: &Value| {
        let inner = t.get("function").unwrap_or(t);
        inner["name"].as_str().map(str::to_owned)
    };
    let names: Vec<String> = listed.iter().filter_map(name).collect();
    let is = |tool: &Value| name(tool).is_some_and(|n| names.contains(&n));
    let tools: Vec<Value> = tools.into_iter().filter(is).collect();
    let required = choice["mode"] == "required";
    if required && tools.is_empty() {
        return Err(ApiError::field(
            "tool_choice",
            "none of the tools is allowed",
        ));
    }
    let tool_use = if required {
        ToolUse::Required
    } else {
        ToolUse::Auto
    };
    Ok((tools, tool_use))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_text_are_joined_and_others_refused() {
        let text = |v: Value| text_content("c", v);
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(text(parts), Ok("a\nb".to_owned()));
        let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        let error = text(image).expect_err("refused");
        assert_eq!(error.param.as_deref(), Some("c[0]"));
        assert!(error.message.contains("image_url"));
    }

    #[test]
    fn all_forms_of_a_tool_choice_are_read() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let read = |choice: Value| {
            let tools = tools(vec![tool.clone()]).expect("a tool");
            tool_choice(Some(choice), tools).map(|(tools, tool_use)| (tools.len(), tool_use))
        };
        assert_eq!(read(json!("auto")), Ok((1, ToolUse::Auto)));
        assert_eq!(read(json!("none")), Ok((1, ToolUse::None)));
        assert_eq!(read(json!("required")), Ok((1, ToolUse::Required)));
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(read(named), Ok((1, ToolUse::Named("f".to_owned()))));
        let other = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "g"}]}});
        assert_eq!(read(other), Ok((0, ToolUse::Auto)));
        assert!(read(json!("perhaps")).is_err() && read(json!({})).is_err());
        assert!(tool_choice(Some(json!("required")), Vec::new()).is_err());
    }

    #[test]
    fn arguments_of_earlier_calls_become_objects() {
        let call = json!({"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let read = message(
            0,
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        );
        let read = read.expect("a message");
        assert_eq!(read["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert_eq!(read["content"], "");
        let error = message(3, json!({"role": "nobody", "content": ""})).expect_err("no role");
        assert_eq!(error.param.as_deref(), Some("messages[3].role"));
    }
}
