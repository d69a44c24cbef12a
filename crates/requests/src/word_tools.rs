//! Tools for models whose chat template shows none: they are described in the system message, and calls are written as
//! many models learned it, JSON between `<tool_call>` and `</tool_call>`.

use std::sync::LazyLock;

use serde_json::{Value, json};
use tokkata::ChatTemplate;
use tokkata::answer::OutputFormat;

/// What calls look like; only its calls matter, since the model's own template writes everything else.
const TEMPLATE: &str = "\
{%- for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\
{%- for c in m.tool_calls or [] %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\
<|end|>\n{%- endfor %}{%- if add_generation_prompt %}<|assistant|>\n{% endif %}";

/// The template of calls and the format that follows from it.
pub struct Form {
    /// How calls are written.
    pub template: ChatTemplate,
    /// How they are read.
    pub format: OutputFormat,
}

static FORM: LazyLock<Option<Form>> = LazyLock::new(|| {
    let template = ChatTemplate::parse(TEMPLATE).ok()?;
    let format = OutputFormat::derive(&template);
    Some(Form { template, format })
});

/// The form of calls.
pub fn form() -> Option<&'static Form> {
    FORM.as_ref().filter(|f| f.format.has_tool_calls())
}

/// Whether a conversation speaks of tools.
pub fn are_there(messages: &[Value], tools: &[Value]) -> bool {
    let speaks = |m: &Value| m["tool_calls"].is_array() || m["role"] == "tool";
    !tools.is_empty() || messages.iter().any(speaks)
}

/// The same conversation in words: tools in the first message, calls as text of answers, results as what a user says.
pub fn told(messages: &[Value], tools: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        let text = message["content"].as_str().unwrap_or_default();
        match message["role"].as_str() {
            Some("tool" | "function") => {
                let text = format!("<tool_response>\n{text}\n</tool_response>");
                out.push(json!({"role": "user", "content": text}));
            }
            Some("assistant") if message["tool_calls"].is_array() => {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                let texts = calls.map(|call| {
                    let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
                    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
                });
                let said = Some(text.to_owned()).filter(|t| !t.is_empty());
                let text = said.into_iter().chain(texts).collect::<Vec<_>>().join("\n");
                out.push(json!({"role": "assistant", "content": text}));
            }
            _ => out.push(message.clone()),
        }
    }
    if !tools.is_empty() {
        describe(&mut out, tools);
    }
    out
}

fn describe(messages: &mut Vec<Value>, tools: &[Value]) {
    let listed: Vec<String> = tools.iter().map(|t| t["function"].to_string()).collect();
    let text = format!(
        "You may call tools. They are described as JSON, one per line:\n{}\n\
         To call one, write only this, with its arguments:\n\
         <tool_call>\n{{\"name\": \"its name\", \"arguments\": {{}}}}\n</tool_call>\n\
         You then get its result.",
        listed.join("\n")
    );
    match messages.first_mut().filter(|m| m["role"] == "system") {
        Some(first) => {
            let before = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{before}\n\n{text}").into();
        }
        None => messages.insert(0, json!({"role": "system", "content": text})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_has_calls_that_a_grammar_can_require() {
        let form = form().expect("calls are found in the template");
        let tool = json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}});
        let required = tokkata::grammar::ToolChoice::Required;
        let grammar = form.format.tool_grammar(&[tool], required);
        assert!(grammar.is_ok_and(|g| g.is_some()));
    }

    #[test]
    fn a_tool_turn_is_told_in_words() {
        let call = json!({"function": {"name": "f", "arguments": {"a": 1}}});
        let messages = [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "assistant", "content": "I look.", "tool_calls": [call]}),
            json!({"role": "tool", "content": "sunny"}),
        ];
        let tool = json!({"function": {"name": "f"}});
        let out = told(&messages, &[tool]);
        let text = |i: usize| out[i]["content"].as_str().unwrap_or_default().to_owned();
        assert!(
            text(0).starts_with("Be brief.\n\nYou may call tools.")
                && text(0).contains("{\"name\":\"f\"}")
        );
        assert_eq!(
            text(1),
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"
        );
        assert_eq!(
            out[2],
            json!({"role": "user", "content": "<tool_response>\nsunny\n</tool_response>"})
        );
        assert!(out[1].get("tool_calls").is_none());
    }
}
