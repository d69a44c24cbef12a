//! `/v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use serde_json::{Value, json};
use tokkata::{EncodeOptions, EventKind, Pooling, Urgency, normalize};

use crate::app::{Call, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::names::LABELS;
use crate::prompts::mixed;
use crate::prompts::{Given, prompts};
use crate::run::id;
use crate::served::{Served, now};

/// Texts of one call at most.
const MOST: usize = 2048;

/// Vectors of texts.
pub(crate) async fn create(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let given = fields.take_any(&["input", "content"]);
    let (name, value) = given.ok_or_else(|| ApiError::field("input", "is missing"))?;
    let inputs = prompts(&name, value)?;
    if model.service.pooling() == Some(Pooling::None) {
        return Err(ApiError::invalid(
            "the server gives a vector per token (--pooling none), and this call is for one per text; use /embedding",
        ));
    }
    let base64 = encoding(fields)?;
    let shape = Shape::read(fields)?;
    fields.labels(&LABELS);
    fields.finish(app.options.strict_fields)?;
    let warnings = std::mem::take(&mut fields.warnings);
    let (vectors, tokens) = embed(&model, inputs, shape).await?;
    let write = |(index, rows): (usize, Vec<Vec<f32>>)| json!({"object": "embedding", "index": index, "embedding": written(&rows, base64)});
    let data: Vec<Value> = vectors.into_iter().enumerate().map(write).collect();
    let mut body = json!({
        "object": "list",
        "data": data,
        "model": model.id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    if !warnings.is_empty() {
        body["warnings"] = warnings.into();
    }
    Ok(crate::app::Json(body).into_response())
}

/// llama.cpp's own `/embedding`: a list of vectors per text.
pub(crate) async fn plain(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let given = fields.take_any(&["content", "input"]);
    let (name, value) = given.ok_or_else(|| ApiError::field("content", "is missing"))?;
    let inputs = prompts(&name, value)?;
    let shape = Shape::read(fields)?;
    fields.labels(&LABELS);
    fields.finish(app.options.strict_fields)?;
    let (vectors, _) = embed(&model, inputs, shape).await?;
    let write = |(index, rows): (usize, Vec<Vec<f32>>)| json!({"index": index, "embedding": rows});
    let data: Vec<Value> = vectors.into_iter().enumerate().map(write).collect();
    Ok(crate::app::Json(Value::from(data)).into_response())
}

/// vLLM's `/pooling`: vectors of texts, or what a classifier says of them, as the model gives them.
pub(crate) async fn pooling(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let ranks = model.service.pooling() == Some(Pooling::Rank);
    match fields.text("task")?.as_deref() {
        None => {}
        Some("embed") if !ranks => {}
        Some("classify") if ranks => {}
        // As vLLM's clients read it.
        Some(other) => {
            let message = match other {
                "plugin" => "No IOProcessor plugin installed.".to_owned(),
                _ => format!("Unsupported task: '{other}'"),
            };
            return Err(ApiError {
                kind: "BadRequestError",
                ..ApiError::invalid(message)
            });
        }
    }
    let inputs = prompts("input", fields.needed("input")?)?;
    let base64 = encoding(fields)?;
    let shape = Shape::read(fields)?;
    fields.labels(&LABELS);
    fields.finish(app.options.strict_fields)?;
    let (vectors, tokens) = embed(&model, inputs, shape).await?;
    let write = |(index, rows): (usize, Vec<Vec<f32>>)| json!({"object": "pooling", "index": index, "data": written(&rows, base64)});
    let data: Vec<Value> = vectors.into_iter().enumerate().map(write).collect();
    Ok(crate::app::Json(json!({
        "id": id("pool-"),
        "object": "list",
        "created": now(),
        "model": model.id,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
    .into_response())
}

/// A text's vector, or a list of them where it has several.
fn written(rows: &[Vec<f32>], base64: bool) -> Value {
    let one = |v: &Vec<f32>| if base64 { encoded(v) } else { json!(v) };
    match rows {
        [row] => one(row),
        rows => rows.iter().map(one).collect(),
    }
}

/// Whether vectors are written in base64.
fn encoding(fields: &mut Fields) -> Result<bool> {
    match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Ok(false),
        Some("base64") => Ok(true),
        Some(other) => {
            let text = format!("found '{other}', expected float or base64");
            Err(ApiError::field("encoding_format", text))
        }
    }
}

/// What becomes of a vector.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// The first so many columns.
    pub(crate) dimensions: Option<usize>,
    /// Its length stays as it is.
    pub(crate) raw: bool,
    /// Texts that are too long are cut to so many tokens.
    pub(crate) truncate: Option<usize>,
    /// Where they are cut.
    pub(crate) cut: Cut,
}

/// Which end of a text is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cut {
    /// What comes before.
    Start,
    /// What comes last.
    #[default]
    End,
}

impl Shape {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self> {
        let normalize = match fields.integer(&["embd_normalize"])? {
            None | Some(2) => true,
            Some(-1) => false,
            Some(other) => {
                let text = format!("found {other}, expected 2 (length 1) or -1 (as it is)");
                return Err(ApiError::field("embd_normalize", text));
            }
        };
        let truncate = fields.integer(&["truncate_prompt_tokens"])?;
        Ok(Shape {
            dimensions: fields.count(&["dimensions"])?.filter(|&d| d > 0),
            raw: !normalize || fields.boolean("normalize")? == Some(false),
            truncate: truncate.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            cut: Cut::End,
        })
    }

    /// How many tokens of a text are read at most, where a model reads so many at once.
    ///
    /// # Errors
    /// Texts cannot be cut to more than that.
    pub(crate) fn most(&self, longest: usize) -> Result<usize> {
        match self.truncate {
            Some(n) if n > longest && n != usize::MAX => {
                let text = format!(
                    "found {n}, expected at most {longest}, the longest text that is read at once. Please request a smaller truncation size."
                );
                Err(ApiError::field("truncate_prompt_tokens", text))
            }
            most => Ok(most.unwrap_or(usize::MAX).min(longest)),
        }
    }
}

/// Tokens of each text.
pub(crate) fn tokens(model: &Served, inputs: Vec<Given>, shape: Shape) -> Result<Vec<Vec<u32>>> {
    let longest = model.service.longest_text();
    let most = shape.most(longest)?;
    let one = |input: Given| {
        let mut ids = match input {
            Given::Ids(ids) => ids,
            Given::Text(text) => model.service.checkpoint().encode_text(text.as_bytes())?,
            Given::Mixed(parts) => {
                let options = EncodeOptions {
                    add_special: true,
                    parse_special: false,
                };
                mixed(model.service.tokenizer()?, "input", parts.into(), options)?
            }
        };
        if ids.is_empty() {
            return Err(ApiError::field("input", "found a text without tokens"));
        }
        match shape.cut {
            _ if shape.truncate.is_none() => {}
            Cut::End => ids.truncate(most),
            // What marks a beginning stays.
            Cut::Start if ids.len() > most => drop(ids.drain(1..=ids.len() - most)),
            Cut::Start => {}
        }
        match ids.len() > longest {
            true => Err(too_large(ids.len(), longest)),
            false => Ok(ids),
        }
    };
    inputs.into_iter().map(one).collect()
}

/// A text that is longer than what gets one vector.
pub(crate) fn too_large(tokens: usize, longest: usize) -> ApiError {
    let message = format!(
        "the input ({tokens} tokens) is too large to process: a text has at most {longest} tokens. Please reduce the length of the input prompt, give truncate_prompt_tokens, or start the server with a larger context (-c)"
    );
    let error = ApiError::too_long(tokens, longest);
    ApiError { message, ..error }
}

/// The rows of each text's vector, and how many tokens there were.
pub(crate) async fn embed(
    model: &Arc<Served>,
    inputs: Vec<Given>,
    shape: Shape,
) -> Result<(Vec<Vec<Vec<f32>>>, usize)> {
    if inputs.len() > MOST {
        let text = format!("found {} texts, expected at most {MOST}", inputs.len());
        return Err(ApiError::field("input", text));
    }
    let width = model.service.vector_width()?;
    let shape = Shape {
        raw: shape.raw || model.service.pooling() == Some(Pooling::None),
        ..shape
    };
    if shape.dimensions.is_some_and(|d| d > width) {
        let text = format!("expected at most {width}, the model's own");
        return Err(ApiError::field("dimensions", text));
    }
    let texts = {
        let model = Arc::clone(model);
        aside(move || tokens(&model, inputs, shape)).await?
    };
    let count = texts.iter().map(Vec::len).sum();
    let mut out = rows(model, texts).await?;
    let ranks = model.service.pooling() == Some(Pooling::Rank);
    for row in out.iter_mut().flatten() {
        if let Some(d) = shape.dimensions {
            row.truncate(d);
        }
        if !shape.raw && !ranks {
            normalize(row);
        }
    }
    Ok((out, count))
}

/// What the model gives for each text, as it is.
pub(crate) async fn rows(model: &Arc<Served>, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<Vec<f32>>>> {
    let width = model.service.vector_width()?;
    let pooled = model.service.pooling() != Some(Pooling::None);
    let _permit = model.admit()?;
    let arrived = Instant::now();
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let ask = |ids: Vec<u32>| model.service.vector(ids, Urgency::default());
    let asked: tokkata::Result<Vec<tokkata::Answer>> = texts.into_iter().map(ask).collect();
    let mut out = Vec::new();
    for mut answer in asked? {
        let mut floats: Vec<f32> = Vec::new();
        while let Some(event) = answer.next().await {
            match event {
                EventKind::Values { values, .. } => {
                    if pooled {
                        floats.clear();
                    }
                    floats.extend(values);
                }
                EventKind::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        if floats.iter().any(|x| !x.is_finite()) {
            return Err(ApiError::internal(
                "a vector is not made of numbers: the model or its file is broken",
            ));
        }
        out.push(floats.chunks(width).map(<[f32]>::to_vec).collect());
    }
    model.metrics.read(tokens, arrived.elapsed().as_secs_f64());
    Ok(out)
}

/// The bytes of a vector in base64, of each number the lowest first.
pub(crate) fn encoded(vector: &[f32]) -> Value {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD
        .encode(bytes)
        .into()
}
