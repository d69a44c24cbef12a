//! A request for a response as a conversation.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::messages::{text_content, text_tool, thinking};
use crate::names::LABELS;
use crate::params::{MOST_LOGPROBS, Params, text_format};
use crate::served::Served;
use crate::talk::{Talk, ToolUse};

/// What a tool is to the caller, by what the model calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolKind {
    /// A function, perhaps of a namespace.
    Function {
        namespace: Option<String>,
        name: String,
    },
    /// A tool that takes a text.
    Custom { name: String },
}

/// What was asked for.
pub(super) struct Asked {
    pub(super) talk: Talk,
    pub(super) params: Params,
    pub(super) stream: bool,
    pub(super) store: bool,
    /// The first message is the instructions, which the next turn does not inherit.
    pub(super) instructed: bool,
    pub(super) kinds: HashMap<String, ToolKind>,
    /// Members of the request that the response repeats.
    pub(super) echo: Map<String, Value>,
    /// Each token's probability goes with the text.
    pub(super) logprobs: Option<usize>,
    /// Each piece of text tells what the answer has cost so far.
    pub(super) timings: bool,
    /// The prompt's progress is told.
    pub(super) progress: bool,
    /// The prompt and the answer are shown as the model has them.
    pub(super) raw: bool,
    /// It is made while nobody waits for it.
    pub(super) background: bool,
}

pub(super) fn request(app: &App, model: &Served, fields: &mut Fields) -> Result<Asked> {
    let mut echo = echoed(fields);
    let mut messages = Vec::new();
    let instructions = fields.text("instructions")?;
    let instructed = instructions.is_some();
    if let Some(text) = instructions {
        messages.push(json!({"role": "system", "content": text}));
    }
    if let Some(id) = fields.text("previous_response_id")? {
        let before = app.responses.get(&id);
        let before = before.ok_or_else(|| ApiError {
            param: Some("previous_response_id".to_owned()),
            ..ApiError::not_found(format!("Previous response with id '{id}' not found."))
        })?;
        messages.extend(before.messages.iter().cloned());
    }
    input(fields, &mut messages)?;
    if messages.len() == usize::from(instructed) {
        return Err(ApiError::field("input", "is empty"));
    }
    let (tools, kinds) = tools(fields)?;
    let (tools, tool_use) = tool_choice(fields, tools)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    fields.refuse(
        &["conversation", "prompt"],
        "give the whole input, or previous_response_id",
    )?;
    let background = fields.boolean("background")?.unwrap_or(false);
    let thinking = thinking(fields, &Map::new())?;
    model.warn_of_template(fields, !tools.is_empty());
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let mut params = Params::take(fields, &model.defaults, model.service.tokenizer()?)?;
    params.n = 1;
    params.max_tokens = fields
        .count(&["max_output_tokens"])?
        .or(model.defaults.max_tokens);
    if let Some(mut text) = fields.nested("text")? {
        if let Some(format) = text.nested("format")? {
            params.grammar = text_format(format, fields)?;
        }
        text.hints(&["verbosity"]);
        text.close(app.options.strict_fields, fields)?;
    }
    let logprobs = include(fields)?;
    params.logprobs = logprobs;
    let timings = fields.boolean("timings_per_token")?.unwrap_or(false);
    let progress = fields.boolean("return_progress")?.unwrap_or(false);
    let raw = fields.boolean("enable_response_messages")?.unwrap_or(false);
    let store = fields.boolean("store")?.unwrap_or(true);
    if background && !store {
        let text = "background can only be used when `store` is true";
        return Err(ApiError::invalid(text));
    }
    if fields.text("truncation")?.is_some_and(|t| t == "auto") {
        let text = "truncation: nothing is cut; a prompt that does not fit is an error";
        fields.warnings.push(text.to_owned());
    }
    fields.labels(&LABELS);
    fields.labels(&["prompt_cache_key", "stream_options", "cache_prompt"]);
    fields.hints(&[
        "service_tier",
        "prompt_cache_retention",
        "max_tool_calls",
        "context_management",
    ]);
    fields.finish(app.options.strict_fields)?;
    let last = messages.last();
    let continues = app.options.prefill
        && last.is_some_and(|m| {
            m["role"] == "assistant" && m.get("tool_calls").is_none() && m["content"] != ""
        });
    echo.insert("store".to_owned(), store.into());
    echo.insert("parallel_tool_calls".to_owned(), parallel.into());
    let talk = Talk {
        messages,
        tools,
        tool_use,
        parallel,
        thinking,
        continues,
        opens: true,
        ..Talk::default()
    };
    talk.check_grammars(model, fields)?;
    Ok(Asked {
        talk,
        params,
        stream,
        store,
        instructed,
        kinds,
        echo,
        logprobs,
        timings,
        progress,
        raw,
        background,
    })
}

/// What the response repeats of its request.
fn echoed(fields: &Fields) -> Map<String, Value> {
    const NAMES: [&str; 17] = [
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "service_tier",
    ];
    let found = NAMES
        .iter()
        .filter_map(|n| Some(((*n).to_owned(), fields.peek(n)?.clone())));
    let mut echo: Map<String, Value> = found.collect();
    let tools = echo.get_mut("tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten().filter_map(Value::as_object_mut) {
        if tool.get("type").is_some_and(|t| t == "function") {
            for name in ["description", "parameters", "strict"] {
                tool.entry(name).or_insert(Value::Null);
            }
        }
    }
    echo
}

/// Which extras are wanted: of those that are known, the probabilities of tokens.
fn include(fields: &mut Fields) -> Result<Option<usize>> {
    let top = fields.count(&["top_logprobs"])?;
    if top.is_some_and(|n| n > MOST_LOGPROBS) {
        return Err(ApiError::field(
            "top_logprobs",
            format!("expected at most {MOST_LOGPROBS}"),
        ));
    }
    let wanted = fields.texts("include")?.unwrap_or_default();
    let logprobs = wanted.iter().any(|w| w == "message.output_text.logprobs");
    for other in wanted
        .iter()
        .filter(|w| *w != "message.output_text.logprobs")
    {
        // Reasoning is sent as it is, so nobody needs it encrypted.
        if other != "reasoning.encrypted_content" {
            fields
                .warnings
                .push(format!("include: {other} is not known here"));
        }
    }
    Ok(match (logprobs, top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, Some(n)) if n > 0 => Some(n),
        _ => None,
    })
}

/// The items of the input as messages.
fn input(fields: &mut Fields, out: &mut Vec<Value>) -> Result<()> {
    let items = match fields.take("input") {
        None => return Ok(()),
        Some(Value::String(text)) => {
            out.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong("input", &other, "a string or a list")),
    };
    let mut answer: Option<Value> = None;
    for (i, item) in items.into_iter().enumerate() {
        let path = format!("input[{i}]");
        if !item.is_object() {
            return Err(wrong(&path, &item, "an object"));
        }
        let kind = item["type"].as_str().unwrap_or("message").to_owned();
        match kind.as_str() {
            "message" => message(&path, item, &mut answer, out)?,
            "reasoning" => {
                let texts = [&item["content"], &item["summary"]];
                let parts = texts.iter().filter_map(|t| t.as_array()).flatten();
                let parts: Vec<&str> = parts.filter_map(|p| p["text"].as_str()).collect();
                let open = open(&mut answer);
                if !parts.is_empty() {
                    open["reasoning_content"] = parts.join("\n").into();
                }
            }
            "function_call" | "custom_tool_call" => call(&path, &item, &mut answer)?,
            "function_call_output" | "custom_tool_call_output" => {
                out.extend(answer.take());
                out.push(result(&path, item, out)?);
            }
            "item_reference" => {
                return Err(ApiError::field(
                    path,
                    "items are not kept by themselves; use previous_response_id",
                ));
            }
            other if other.ends_with("_call") || other == "compaction" => {
                fields
                    .warnings
                    .push(format!("{path}: an item of type {other} was left out"));
            }
            other => {
                let text = format!("found an item of type '{other}', which is not known here");
                return Err(ApiError::field(path, text));
            }
        }
    }
    out.extend(answer);
    Ok(())
}

/// The answer that its items are gathered in.
fn open(answer: &mut Option<Value>) -> &mut Value {
    answer.get_or_insert_with(|| json!({"role": "assistant", "content": ""}))
}

fn message(
    path: &str,
    mut item: Value,
    answer: &mut Option<Value>,
    out: &mut Vec<Value>,
) -> Result<()> {
    let role = item["role"].as_str().unwrap_or_default().to_owned();
    if !["user", "system", "developer", "assistant"].contains(&role.as_str()) {
        let text =
            format!("found the role '{role}', expected user, assistant, system or developer");
        return Err(ApiError::field(format!("{path}.role"), text));
    }
    let text = match item["content"].take() {
        Value::Null => return Err(ApiError::field(format!("{path}.content"), "is missing")),
        content => text_content(&format!("{path}.content"), content)?,
    };
    if role == "assistant" {
        let has_text = answer.as_ref().is_some_and(|a| a["content"] != "");
        if has_text {
            out.extend(answer.take());
        }
        open(answer)["content"] = text.into();
        return Ok(());
    }
    out.extend(answer.take());
    out.push(json!({"role": role, "content": text}));
    Ok(())
}

fn call(path: &str, item: &Value, answer: &mut Option<Value>) -> Result<()> {
    let Some(name) = item["name"].as_str() else {
        return Err(ApiError::field(format!("{path}.name"), "is missing"));
    };
    let arguments = match item["type"] == "custom_tool_call" {
        true => json!({"input": item["input"]}),
        false => {
            let text = item["arguments"].as_str().unwrap_or("{}");
            serde_json::from_str(text).unwrap_or_else(|_| text.into())
        }
    };
    let name = match item["namespace"].as_str() {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    };
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": item["call_id"], "type": "function", "function": function});
    let open = open(answer);
    match open.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => open["tool_calls"] = json!([call]),
    }
    Ok(())
}

fn result(path: &str, mut item: Value, before: &[Value]) -> Result<Value> {
    let id = item["call_id"].as_str().map(str::to_owned);
    let id = id.ok_or_else(|| ApiError::field(format!("{path}.call_id"), "is missing"))?;
    let text = text_content(&format!("{path}.output"), item["output"].take())?;
    let calls = before.iter().filter_map(|m| m["tool_calls"].as_array());
    let call = calls.flatten().find(|c| c["id"] == id.as_str());
    let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
    if let Some(call) = call {
        message["name"] = call["function"]["name"].clone();
    }
    Ok(message)
}

type Tools = (Vec<Value>, HashMap<String, ToolKind>);

/// Tools as templates read them, and what they are to the caller. Those that only OpenAI runs are told and left out.
fn tools(fields: &mut Fields) -> Result<Tools> {
    let (mut tools, mut kinds) = (Vec::new(), HashMap::new());
    for (i, tool) in fields
        .list("tools")?
        .unwrap_or_default()
        .into_iter()
        .enumerate()
    {
        let path = format!("tools[{i}]");
        match tool["type"].as_str().unwrap_or("function") {
            "function" => function(&path, &tool, None, &mut tools, &mut kinds)?,
            "custom" => custom(&path, &tool, &mut tools, &mut kinds)?,
            "namespace" => {
                let name = tool["name"].as_str();
                let name =
                    name.ok_or_else(|| ApiError::field(format!("{path}.name"), "is missing"))?;
                for (j, inner) in tool["tools"].as_array().into_iter().flatten().enumerate() {
                    let path = format!("{path}.tools[{j}]");
                    function(&path, inner, Some(name), &mut tools, &mut kinds)?;
                }
            }
            other => {
                let text =
                    format!("{path}: a tool of type {other} is not run here and was left out");
                fields.warnings.push(text);
            }
        }
    }
    Ok((tools, kinds))
}

fn function(
    path: &str,
    tool: &Value,
    namespace: Option<&str>,
    tools: &mut Vec<Value>,
    kinds: &mut HashMap<String, ToolKind>,
) -> Result<()> {
    let Some(name) = tool["name"].as_str() else {
        return Err(ApiError::field(format!("{path}.name"), "is missing"));
    };
    let known = namespace.map_or_else(|| name.to_owned(), |n| format!("{n}__{name}"));
    let kind = ToolKind::Function {
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    };
    kinds.insert(known.clone(), kind);
    let parameters = tool.get("parameters").filter(|p| p.is_object()).cloned();
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    let mut function = json!({"name": known});
    if let Some(description) = tool["description"].as_str() {
        function["description"] = description.into();
    }
    function["parameters"] = parameters;
    tools.push(json!({"type": "function", "function": function}));
    Ok(())
}

/// A tool that takes a text, as one that takes an object with that text.
fn custom(
    path: &str,
    tool: &Value,
    tools: &mut Vec<Value>,
    kinds: &mut HashMap<String, ToolKind>,
) -> Result<()> {
    let Some(name) = tool["name"].as_str() else {
        return Err(ApiError::field(format!("{path}.name"), "is missing"));
    };
    kinds.insert(
        name.to_owned(),
        ToolKind::Custom {
            name: name.to_owned(),
        },
    );
    let format = &tool["format"];
    let path = format!("{path}.format");
    tools.push(text_tool(
        name,
        &tool["description"],
        &path,
        (format, format),
    )?);
    Ok(())
}

fn tool_choice(fields: &mut Fields, tools: Vec<Value>) -> Result<(Vec<Value>, ToolUse)> {
    let choice = fields.take("tool_choice");
    let kind = choice.as_ref().and_then(|c| c["type"].as_str());
    if let Some(kind) = kind.filter(|k| !["function", "custom", "allowed_tools"].contains(k)) {
        let text = format!("a tool of type {kind} is not run here");
        return Err(ApiError::field("tool_choice", text));
    }
    crate::messages::tool_choice(choice, tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_of_an_answer_are_one_message() {
        let body = json!({"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "n", "arguments": "{\"x\":1}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "web_search_call", "id": "w"},
        ]});
        let mut fields = Fields::body(body).expect("an object");
        let mut out = Vec::new();
        input(&mut fields, &mut out).expect("items");
        assert_eq!(out.len(), 4);
        assert_eq!(out[1]["reasoning_content"], "r");
        assert_eq!(
            out[1]["tool_calls"][0]["function"],
            json!({"name": "n__f", "arguments": {"x": 1}})
        );
        assert_eq!(out[1]["tool_calls"][1]["id"], "c2");
        assert_eq!(
            out[2],
            json!({"role": "tool", "tool_call_id": "c1", "content": "done", "name": "n__f"})
        );
        assert_eq!(out[3], json!({"role": "assistant", "content": "b"}));
        assert_eq!(fields.warnings.len(), 1);
    }

    #[test]
    fn tools_of_a_namespace_keep_their_name() {
        let body = json!({"tools": [
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}},
            {"type": "web_search"},
        ]});
        let mut fields = Fields::body(body).expect("an object");
        let (tools, kinds) = tools(&mut fields).expect("tools");
        assert_eq!(tools.len(), 2);
        let function = ToolKind::Function {
            namespace: Some("n".to_owned()),
            name: "f".to_owned(),
        };
        assert_eq!(kinds["n__f"], function);
        assert_eq!(
            kinds["patch"],
            ToolKind::Custom {
                name: "patch".to_owned()
            }
        );
        assert_eq!(fields.warnings.len(), 1);
        assert_eq!(crate::messages::grammar_of(&tools[1]), Some("start: \"x\""));
    }
}
