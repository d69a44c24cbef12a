//! What classifiers say: `/v1/rerank`, `/v1/score`, `/v1/classify`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::{Labels, Pooling, pair};

use crate::app::{Call, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::names::LABELS;
use crate::openai::embeddings::{Shape, rows, tokens, too_large};
use crate::prompts::prompts;
use crate::run::id;
use crate::served::Served;

fn must_rank(model: &Served) -> Result<()> {
    match model.service.pooling() {
        Some(Pooling::Rank) => Ok(()),
        _ => Err(ApiError::unsupported(
            "This server does not support reranking. Start it with `--reranking` and a model with a classifier",
        )),
    }
}

/// The first score of each pair of texts, and how many tokens there were.
async fn scores(model: &Arc<Served>, pairs: Vec<(String, String)>) -> Result<(Vec<f32>, usize)> {
    let texts = {
        let model = Arc::clone(model);
        aside(move || {
            let one = |(query, document): (String, String)| {
                let ids = pair(model.service.checkpoint(), &query, &document)?;
                let longest = model.service.longest_text();
                match ids.len() > longest {
                    true => Err(too_large(ids.len(), longest)),
                    false => Ok(ids),
                }
            };
            pairs
                .into_iter()
                .map(one)
                .collect::<Result<Vec<Vec<u32>>>>()
        })
        .await?
    };
    let count = texts.iter().map(Vec::len).sum();
    let all = rows(model, texts).await?;
    let first = |rows: &Vec<Vec<f32>>| rows.first().and_then(|r| r.first()).copied();
    let scores = all.iter().map(|rows| first(rows).unwrap_or(f32::NAN));
    Ok((scores.collect(), count))
}

/// Documents: texts, or objects with a text.
fn documents(name: &str, value: Value) -> Result<Vec<String>> {
    let Value::Array(items) = value else {
        return Err(wrong(name, &value, "a list"));
    };
    if items.is_empty() {
        return Err(ApiError::field(
            name,
            "found an empty list, expected documents",
        ));
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.shift_remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ApiError::field(name, "found a document without a text")),
        },
        other => Err(wrong(name, &other, "texts")),
    };
    items.into_iter().map(one).collect()
}

fn done(fields: &mut Fields, strict: bool) -> Result<()> {
    fields.labels(&LABELS);
    fields.hints(&[
        "max_tokens_per_doc",
        "instruction",
        "raw_scores",
        "truncate",
        "priority",
    ]);
    fields.finish(strict)
}

/// Documents in the order in which they answer a query.
pub(crate) async fn rerank(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    must_rank(&model)?;
    let query = fields.text("query")?;
    let query = query.ok_or_else(|| ApiError::field("query", "is missing"))?;
    // `texts` is what the text-embeddings-inference server calls them, and it answers with a bare list.
    let bare = fields.has("texts");
    let given = fields.take_any(&["documents", "texts"]);
    let (name, given) = given.ok_or_else(|| ApiError::field("documents", "is missing"))?;
    let documents = documents(&name, given)?;
    let most = fields.count(&["top_n"])?.unwrap_or(usize::MAX);
    let shows = fields.boolean("return_documents")?.unwrap_or(false)
        | fields.boolean("return_text")?.unwrap_or(false);
    done(fields, app.options.strict_fields)?;
    let pairs = documents.iter().map(|d| (query.clone(), d.clone()));
    let (scores, tokens) = scores(&model, pairs.collect()).await?;
    let mut order: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(most);
    let one = |&(index, score): &(usize, f32)| match (bare, shows) {
        (true, true) => json!({"index": index, "score": score, "text": documents[index]}),
        (true, false) => json!({"index": index, "score": score}),
        (false, true) => {
            let document = json!({"text": documents[index]});
            json!({"index": index, "relevance_score": score, "document": document})
        }
        (false, false) => json!({"index": index, "relevance_score": score}),
    };
    let results: Vec<Value> = order.iter().map(one).collect();
    if bare {
        return Ok(Json(results.into()).into_response());
    }
    Ok(Json(json!({
        "id": id("rerank-"),
        "object": "list",
        "model": model.id,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
    .into_response())
}

/// How well texts fit each other: one with each of several, or several with as many.
pub(crate) async fn score(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    must_rank(&model)?;
    let mut side = |names: &[&str]| -> Result<Vec<String>> {
        match fields.take_any(names) {
            None => Err(ApiError::field(names[0], "is missing")),
            Some((_, Value::String(text))) => Ok(vec![text]),
            Some((name, value)) => documents(&name, value),
        }
    };
    let left = side(&["text_1", "queries", "data_1"])?;
    let right = side(&["text_2", "documents", "items", "data_2"])?;
    done(fields, app.options.strict_fields)?;
    if left.len() != 1 && left.len() != right.len() {
        let text = format!(
            "found {} texts against {}, expected one or as many",
            left.len(),
            right.len()
        );
        return Err(ApiError::field("text_1", text));
    }
    let pairs = right.iter().enumerate();
    let pairs = pairs.map(|(i, r)| (left[i.min(left.len() - 1)].clone(), r.clone()));
    let (scores, tokens) = scores(&model, pairs.collect()).await?;
    let one =
        |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    let data: Vec<Value> = scores.iter().enumerate().map(one).collect();
    Ok(Json(json!({
        "id": id("score-"),
        "object": "list",
        "model": model.id,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
    .into_response())
}

/// The labels of texts.
pub(crate) async fn classify(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    must_rank(&model)?;
    let inputs = prompts("input", fields.needed("input")?)?;
    let shape = Shape::read(fields)?;
    done(fields, app.options.strict_fields)?;
    let (texts, labels) = {
        let model = Arc::clone(&model);
        aside(move || {
            let labels = Labels::of(model.service.checkpoint())?;
            Ok((tokens(&model, inputs, shape)?, labels))
        })
        .await?
    };
    let count: usize = texts.iter().map(Vec::len).sum();
    let all = rows(&model, texts).await?;
    let one = |(index, rows): (usize, &Vec<Vec<f32>>)| {
        let scores = rows.first().map_or(&[] as &[f32], Vec::as_slice);
        let probs = labels.probabilities(scores);
        let best = probs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let label = best.map(|(place, _)| labels.name(place));
        json!({"index": index, "label": label, "probs": probs, "num_classes": probs.len()})
    };
    let data: Vec<Value> = all.iter().enumerate().map(one).collect();
    Ok(Json(json!({
        "id": id("classify-"),
        "object": "list",
        "model": model.id,
        "data": data,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }))
    .into_response())
}
