//! How well texts fit, by classifiers or by vectors: `/v1/rerank`, `/v1/score`; what classifiers call them:
//! `/v1/classify`; and a model that writes, by its next token: `/generative_scoring`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::{EncodeOptions, Labels, Logprob, Pooling, pair};

use crate::app::{Call, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::names::LABELS;
use crate::openai::embeddings::{Shape, embed, rows, tokens, too_large};
use crate::params::{Params, token_list};
use crate::prompts::{Given, mixed, prompts};
use crate::run::{Run, Usage, collect, id};
use crate::served::{Served, now};
use crate::talk::Prepared;

fn must_rank(model: &Served) -> Result<()> {
    match model.service.pooling() {
        Some(Pooling::Rank) => Ok(()),
        _ => Err(ApiError::unsupported(
            "This server does not support classifying. Start it with `--reranking` and a model with a classifier",
        )),
    }
}

/// How well texts fit those beside them, one with each of several or as many, and how many tokens there were: what a
/// classifier says first of each pair, or the cosine of their vectors.
async fn scores(
    model: &Arc<Served>,
    (left, right): (Vec<String>, Vec<String>),
    shape: Shape,
) -> Result<(Vec<f32>, usize)> {
    let of = |i: usize| i.min(left.len() - 1);
    match model.service.pooling() {
        Some(Pooling::Rank) => {
            let right = right.into_iter().enumerate();
            let pairs = right.map(|(i, text)| (left[of(i)].clone(), text));
            classified(model, pairs.collect(), shape).await
        }
        None | Some(Pooling::None) => Err(ApiError::unsupported(
            "This server does not support reranking. Start it with `--reranking` and a model with a classifier, or with `--embeddings` and one that gives texts a vector",
        )),
        Some(_) => {
            let texts = left.iter().cloned().chain(right).map(Given::Text);
            let (vectors, tokens) = embed(model, texts.collect(), shape).await?;
            let (left, right) = vectors.split_at(left.len());
            let cosine = |(i, b): (usize, &Vec<Vec<f32>>)| {
                let products = left[of(i)].iter().flatten().zip(b.iter().flatten());
                products.map(|(x, y)| x * y).sum()
            };
            Ok((right.iter().enumerate().map(cosine).collect(), tokens))
        }
    }
}

/// What a classifier says first of each pair of texts, and how many tokens there were.
async fn classified(
    model: &Arc<Served>,
    pairs: Vec<(String, String)>,
    shape: Shape,
) -> Result<(Vec<f32>, usize)> {
    let texts = {
        let model = Arc::clone(model);
        aside(move || {
            let longest = model.service.longest_text();
            let most = shape.most(longest)?;
            let one = |(query, document): (String, String)| {
                let mut ids = pair(model.service.checkpoint(), &query, &document)?;
                if shape.truncate.is_some() {
                    ids.truncate(most);
                }
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
    let shape = Shape::read(fields)?;
    done(fields, app.options.strict_fields)?;
    let texts = (vec![query], documents.clone());
    let (scores, tokens) = scores(&model, texts, shape).await?;
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
    let mut side = |names: &[&str]| -> Result<Vec<String>> {
        match fields.take_any(names) {
            None => Err(ApiError::field(names[0], "is missing")),
            Some((_, Value::String(text))) => Ok(vec![text]),
            Some((name, value)) => documents(&name, value),
        }
    };
    let left = side(&["text_1", "queries", "data_1"])?;
    let right = side(&["text_2", "documents", "items", "data_2"])?;
    let shape = Shape::read(fields)?;
    done(fields, app.options.strict_fields)?;
    if left.len() != 1 && left.len() != right.len() {
        let text = format!(
            "found {} texts against {}, expected one or as many",
            left.len(),
            right.len()
        );
        return Err(ApiError::field("text_1", text));
    }
    let (scores, tokens) = scores(&model, (left, right), shape).await?;
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

/// How likely a model that writes goes on with the first of some tokens, rather than with another of them.
pub(crate) async fn generative(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    let query = piece("query", fields.needed("query")?)?;
    let items = match fields.needed("items")? {
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field("items", "found an empty list"));
        }
        Value::Array(items) => items,
        other => return Err(wrong("items", &other, "a list")),
    };
    let labels = token_list(
        "label_token_ids",
        &fields.list("label_token_ids")?.unwrap_or_default(),
    )?;
    let n_vocab = model.service.n_vocab();
    if labels.is_empty() || labels.iter().any(|&id| id >= n_vocab) {
        let text = format!("expected tokens of the vocabulary of {n_vocab}, at least one");
        return Err(ApiError::field("label_token_ids", text));
    }
    let among = fields.boolean("apply_softmax")?.unwrap_or(true);
    let item_first = fields.boolean("item_first")?.unwrap_or(false);
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    done(fields, app.options.strict_fields)?;
    let options = EncodeOptions {
        add_special,
        parse_special: true,
    };
    let params = Params {
        max_tokens: Some(1),
        logprobs: Some(0),
        told: labels,
        ignore_eos: true,
        ..Params::new(&model.defaults)
    };
    let prepared = {
        let model = Arc::clone(&model);
        let one = move |item: Value| {
            let item = piece("items", item)?;
            let both = match item_first {
                true => [item, query.clone()],
                false => [query.clone(), item],
            };
            let ids = mixed(model.service.tokenizer()?, "query", joined(&both), options)?;
            Prepared::plain(&model, ids, params.clone())
        };
        aside(move || {
            items
                .into_iter()
                .map(one)
                .collect::<Result<Vec<Prepared>>>()
        })
        .await?
    };
    let mut run = Run::start(&model, prepared)?;
    let answers = collect(&mut run).await?;
    let mut usage = Usage::default();
    let mut data = Vec::with_capacity(answers.len());
    for (index, answer) in answers.iter().enumerate() {
        answer.end.iter().for_each(|end| usage.add(end, true));
        let told = answer.tokens.first().and_then(|t| t.logprobs.as_ref());
        let told = told.map_or(&[] as &[Logprob], |l| &l.top);
        let of = |l: &Logprob| f64::from(l.logprob).exp();
        let first = told.first().map_or(0.0, of);
        let all: f64 = if among {
            told.iter().map(of).sum()
        } else {
            1.0
        };
        let score = if all > 0.0 { first / all } else { 0.0 };
        data.push(json!({"index": index, "object": "score", "score": score}));
    }
    Ok(Json(json!({
        "id": id("generative-scoring-"),
        "object": "list",
        "created": now(),
        "model": model.id,
        "data": data,
        "usage": usage.object(),
    }))
    .into_response())
}

/// A text or tokens, as parts of a prompt.
fn piece(name: &str, value: Value) -> Result<Vec<Value>> {
    match value {
        Value::String(_) => Ok(vec![value]),
        Value::Array(ids) => Ok(ids),
        other => Err(wrong(name, &other, "a text or token ids")),
    }
}

/// Parts of a prompt behind each other. Two texts are one, so that tokens may reach over where they meet.
fn joined(pieces: &[Vec<Value>; 2]) -> Value {
    match pieces.each_ref().map(Vec::as_slice) {
        [[Value::String(a)], [Value::String(b)]] => format!("{a}{b}").into(),
        _ => pieces.concat().into(),
    }
}
