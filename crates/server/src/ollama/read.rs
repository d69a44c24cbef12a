//! Requests of Ollama's as conversations and prompts.

use serde_json::{Value, json};
use tokkata::EncodeOptions;
use tokkata::grammar::GrammarSource;

use crate::app::App;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::messages::tools;
use crate::options::Thinking;
use crate::params::{MOST_LOGPROBS, Params};
use crate::prompts::infill;
use crate::served::Served;
use crate::talk::{Prepared, Talk, ToolUse};

/// What the dialect alone asks for.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    pub(super) stream: bool,
    /// So many likeliest tokens with each.
    pub(super) logprobs: Option<usize>,
}

/// A conversation, unless there is none.
pub(super) struct Chat {
    pub(super) talk: Option<Talk>,
    pub(super) params: Params,
    pub(super) wishes: Wishes,
}

pub(super) fn chat(app: &App, model: &Served, fields: &mut Fields) -> Result<Chat> {
    let given = fields.list("messages")?.unwrap_or_default();
    let each = given.into_iter().enumerate();
    let messages = each.map(|(i, m)| message(&format!("messages[{i}]"), m));
    let messages = messages.collect::<Result<Vec<Value>>>()?;
    let tools = tools(fields.list("tools")?.unwrap_or_default())?;
    let thinking = thinking(fields)?;
    let (params, wishes) = common(app, model, fields)?;
    let continues = messages.last().is_some_and(|m| m["role"] == "assistant");
    let talk = Talk {
        messages,
        tools,
        tool_use: ToolUse::Auto,
        parallel: true,
        thinking,
        continues,
        opens: true,
        ..Talk::default()
    };
    Ok(Chat {
        talk: Some(talk).filter(|t| !t.messages.is_empty()),
        params,
        wishes,
    })
}

/// A prompt.
pub(super) struct Generate {
    prompt: String,
    suffix: Option<String>,
    system: Option<String>,
    raw: bool,
    context: Vec<u32>,
    thinking: Thinking,
    params: Params,
    pub(super) wishes: Wishes,
}

pub(super) fn generate(app: &App, model: &Served, fields: &mut Fields) -> Result<Option<Generate>> {
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let suffix = fields.text("suffix")?.filter(|s| !s.is_empty());
    let system = fields.text("system")?.filter(|s| !s.is_empty());
    let raw = fields.boolean("raw")?.unwrap_or(false);
    let context = fields.list("context")?.unwrap_or_default();
    let context = crate::params::token_list("context", &context)?;
    fields.refuse(&["template"], "templates are not taken from requests")?;
    fields.refuse(&["images"], "only text is read")?;
    let thinking = thinking(fields)?;
    let (params, wishes) = common(app, model, fields)?;
    Ok(
        (!prompt.is_empty() || system.is_some()).then_some(Generate {
            prompt,
            suffix,
            system,
            raw,
            context,
            thinking,
            params,
            wishes,
        }),
    )
}

impl Generate {
    /// The prompt as it stands, or as a conversation of one turn.
    pub(super) fn prepare(self, model: &Served) -> Result<Prepared> {
        let tokenizer = model.service.tokenizer()?;
        if let Some(suffix) = &self.suffix {
            let ids = infill(tokenizer, &[], &self.prompt, suffix, "");
            let ids = ids.ok_or_else(|| {
                ApiError::field(
                    "suffix",
                    "the model has no tokens for filling in the middle",
                )
            })?;
            return Prepared::plain(model, ids, self.params);
        }
        if self.raw || model.service.template().is_none() {
            let options = EncodeOptions {
                add_special: self.context.is_empty(),
                parse_special: true,
            };
            let mut ids = self.context;
            ids.extend(tokenizer.encode(&self.prompt, options));
            return Prepared::plain(model, ids, self.params);
        }
        let system = self.system.map(|s| json!({"role": "system", "content": s}));
        let mut messages: Vec<Value> = system.into_iter().collect();
        if !self.prompt.is_empty() {
            messages.push(json!({"role": "user", "content": self.prompt}));
        }
        let talk = Talk {
            messages,
            thinking: self.thinking,
            opens: true,
            parallel: true,
            ..Talk::default()
        };
        let mut prepared = talk.prepare(model, self.params)?;
        if !self.context.is_empty() {
            let turn = std::mem::take(&mut prepared.ids);
            prepared.ids = self.context;
            prepared.ids.extend(turn);
        }
        Ok(prepared)
    }
}

/// What both kinds of calls say.
fn common(app: &App, model: &Served, fields: &mut Fields) -> Result<(Params, Wishes)> {
    let mut options = fields.nested("options")?.unwrap_or_default();
    let tokenizer = model.service.tokenizer()?;
    let mut params = Params::take(&mut options, &model.defaults, tokenizer)?;
    params.max_tokens = match options.integer(&["num_predict"])? {
        None => model.defaults.max_tokens,
        Some(n) => usize::try_from(n).ok(),
    };
    if let Some(wanted) = options.count(&["num_ctx"])? {
        let ctx = model.service.limits().ctx;
        if wanted > ctx as usize {
            let text = format!(
                "num_ctx is {wanted} and the context holds {ctx}; start the server with -c"
            );
            options.warnings.push(text);
        }
    }
    options.labels(&[
        "num_batch",
        "num_gpu",
        "main_gpu",
        "low_vram",
        "use_mmap",
        "use_mlock",
        "num_thread",
        "numa",
        "num_keep",
        "penalize_newline",
        "tfs_z",
        "f16_kv",
        "vocab_only",
    ]);
    options.close(app.options.strict_fields, fields)?;
    match fields.take("format") {
        None => {}
        Some(Value::String(word)) if word.is_empty() => {}
        Some(Value::String(word)) if word == "json" => {
            params.grammar = Some(GrammarSource::JsonSchema(json!({"type": "object"})));
        }
        Some(schema @ Value::Object(_)) => params.grammar = Some(GrammarSource::JsonSchema(schema)),
        Some(other) => return Err(wrong("format", &other, "json or a schema")),
    }
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count(&["top_logprobs"])?.unwrap_or(0);
    if top > MOST_LOGPROBS {
        let text = format!("found {top}, expected at most {MOST_LOGPROBS}");
        return Err(ApiError::field("top_logprobs", text));
    }
    let wishes = Wishes {
        stream: fields.boolean("stream")?.unwrap_or(true),
        logprobs: logprobs.then_some(top),
    };
    params.logprobs = wishes.logprobs;
    fields.labels(&["keep_alive"]);
    fields.hints(&["truncate", "shift", "_debug_render_only"]);
    fields.finish(app.options.strict_fields)?;
    Ok((params, wishes))
}

/// `think` is a switch or a level.
fn thinking(fields: &mut Fields) -> Result<Thinking> {
    let mut thinking = Thinking::default();
    match fields.take("think") {
        None => {}
        Some(Value::Bool(on)) => thinking.on = Some(on),
        Some(Value::String(level)) => {
            (thinking.on, thinking.effort) = (Some(true), Some(level));
        }
        Some(other) => return Err(wrong("think", &other, "true, false or a level")),
    }
    Ok(thinking)
}

fn message(path: &str, value: Value) -> Result<Value> {
    let Value::Object(mut message) = value else {
        return Err(wrong(path, &value, "an object"));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(ApiError::field(format!("{path}.role"), "is missing"));
    }
    if message
        .get("images")
        .and_then(Value::as_array)
        .is_some_and(|i| !i.is_empty())
    {
        return Err(ApiError::field(
            format!("{path}.images"),
            "only text is read",
        ));
    }
    message.retain(|_, v| !v.is_null());
    message.shift_remove("images");
    message.entry("content").or_insert_with(|| "".into());
    if let Some(name) = message.shift_remove("tool_name") {
        message.insert("name".to_owned(), name);
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (i, call) in calls.into_iter().flatten().enumerate() {
        if let Some(call) = call.as_object_mut() {
            call.entry("type").or_insert_with(|| "function".into());
            call.entry("id")
                .or_insert_with(|| format!("call_{i}").into());
        }
    }
    Ok(message.into())
}
