//! `/tokenize` and `/detokenize`, which answer in llama.cpp's terms and in vLLM's at once, and vLLM's `/tokenizer_info`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::chat::spelling;
use tokkata::{DecodeOptions, EncodeOptions, Tokenizer};

use crate::app::{Call, Shared, aside};
use crate::error::{ApiError, Result};
use crate::names::LABELS;
use crate::openai::chat;
use crate::params::token_list;
use crate::prompts::mixed;

/// Tokens of a text, or of a conversation.
pub(crate) async fn tokenize(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let ids = if fields.has("messages") {
        let asked = tokkata_requests::chat::read(&app.style, &model, fields)?;
        chat::render(&model, asked).await?.ids
    } else {
        // A text of vLLM's is a whole prompt, one of llama.cpp's is a piece.
        let is_prompt = fields.has("prompt");
        let value = fields.take_any(&["content", "prompt"]);
        let add = fields.take_any(&["add_special", "add_special_tokens"]);
        let add = add.and_then(|(_, v)| v.as_bool()).unwrap_or(is_prompt);
        let parse = fields.boolean("parse_special")?.unwrap_or(true);
        fields.labels(&LABELS);
        fields.finish(app.options.strict_fields)?;
        let options = EncodeOptions {
            add_special: add,
            parse_special: parse,
        };
        let (name, value) = value.ok_or_else(|| ApiError::field("content", "is missing"))?;
        let model = Arc::clone(&model);
        aside(move || mixed(model.service.tokenizer()?, &name, value, options)).await?
    };
    let tokenizer = model.service.tokenizer()?;
    let tokens: Vec<Value> = match pieces {
        true => ids.iter().map(|&id| piece(tokenizer, id)).collect(),
        false => ids.iter().map(|&id| id.into()).collect(),
    };
    let mut body = json!({
        "tokens": tokens,
        "count": ids.len(),
        "max_model_len": model.service.limits().ctx,
        "token_strs": null,
    });
    if strings {
        body["token_strs"] = ids.iter().map(|&id| spelling(tokenizer, id)).collect();
    }
    Ok(crate::app::Json(body).into_response())
}

fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    let piece = match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!(bytes),
    };
    json!({"id": id, "piece": piece})
}

/// What the first model's tokenizer is, as Transformers would say it.
pub(crate) async fn tokenizer_info(app: Shared) -> Result<Response> {
    let State(app) = app;
    let model = app.fleet.here_all().into_iter().next();
    let model = model.ok_or_else(|| ApiError::not_found("no model is loaded"))?;
    let service = &model.service;
    let tokenizer = service.tokenizer()?;
    let text = |id: Option<u32>| id.map(|id| spelling(tokenizer, id));
    let special = tokenizer.special();
    let mut info = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": service.limits().ctx,
    });
    let named = [
        ("bos_token", text(special.bos)),
        ("eos_token", text(special.eos)),
        ("unk_token", text(special.unk)),
        ("sep_token", text(special.sep)),
        ("pad_token", text(special.pad)),
        ("cls_token", text(special.cls)),
        ("mask_token", text(special.mask)),
        (
            "chat_template",
            service.template().map(|t| t.source().to_owned()),
        ),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            info[name] = value.into();
        }
    }
    Ok(crate::app::Json(info).into_response())
}

/// The text of tokens.
pub(crate) async fn detokenize(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let ids = fields.list("tokens")?;
    let ids = ids.ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    let ids = token_list("tokens", &ids)?;
    fields.labels(&LABELS);
    fields.finish(app.options.strict_fields)?;
    let n_vocab = model.service.n_vocab();
    if let Some(id) = ids.iter().find(|&&id| id >= n_vocab) {
        let text = format!("token {id} is not in the vocabulary of {n_vocab} tokens");
        return Err(ApiError::field("tokens", text));
    }
    let options = DecodeOptions {
        special: true,
        continues: true,
    };
    let bytes = model.service.tokenizer()?.decode(&ids, options);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(crate::app::Json(json!({"content": text, "prompt": text})).into_response())
}
