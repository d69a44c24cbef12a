//! The paths and their bodies as an OpenAPI document, at `/openapi.json`.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::app::Json;

/// A path that takes a body: what it is for, and the members that it needs or that most callers send.
type Posted = (&'static str, &'static str, &'static [Member]);

/// A member of a body: its name, its kind, and whether it must be there.
type Member = (&'static str, Kind, bool);

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Flag,
    Count,
    Number,
    Texts,
    Ids,
    /// A text, or several.
    Prompt,
    Messages,
    Object,
    Objects,
    Any,
}

use Kind::{Any, Count, Flag, Ids, Messages, Number, Object, Objects, Prompt, Text, Texts};

const MODEL: Member = ("model", Text, false);
const STREAM: Member = ("stream", Flag, false);
const MAX: Member = ("max_tokens", Count, false);
const TEMPERATURE: Member = ("temperature", Number, false);
const TOOLS: Member = ("tools", Objects, false);

const POSTED: &[Posted] = &[
    (
        "/v1/chat/completions",
        "Answers a conversation",
        &[
            MODEL,
            ("messages", Messages, true),
            MAX,
            TEMPERATURE,
            STREAM,
            TOOLS,
            ("tool_choice", Any, false),
            ("response_format", Object, false),
            ("stop", Prompt, false),
            ("n", Count, false),
            ("seed", Count, false),
            ("logprobs", Flag, false),
        ],
    ),
    (
        "/v1/chat/completions/input_tokens",
        "Counts the tokens of a conversation",
        &[MODEL, ("messages", Messages, true), TOOLS],
    ),
    (
        "/v1/completions",
        "Continues texts",
        &[
            MODEL,
            ("prompt", Prompt, true),
            MAX,
            TEMPERATURE,
            STREAM,
            ("echo", Flag, false),
            ("suffix", Text, false),
            ("logprobs", Count, false),
        ],
    ),
    (
        "/v1/responses",
        "Answers, and keeps the answer",
        &[
            MODEL,
            ("input", Any, true),
            ("instructions", Text, false),
            ("max_output_tokens", Count, false),
            TEMPERATURE,
            STREAM,
            TOOLS,
            ("previous_response_id", Text, false),
            ("store", Flag, false),
        ],
    ),
    (
        "/v1/responses/input_tokens",
        "Counts the tokens of an input",
        &[MODEL, ("input", Any, true)],
    ),
    (
        "/v1/embeddings",
        "Gives vectors of texts",
        &[
            MODEL,
            ("input", Prompt, true),
            ("dimensions", Count, false),
            ("encoding_format", Text, false),
        ],
    ),
    (
        "/v2/chat",
        "Answers a conversation, as Cohere's clients ask",
        &[
            ("model", Text, true),
            ("messages", Messages, true),
            MAX,
            TEMPERATURE,
            STREAM,
            TOOLS,
            ("stop_sequences", Texts, false),
        ],
    ),
    (
        "/v2/embed",
        "Gives vectors of texts in several forms",
        &[
            MODEL,
            ("texts", Texts, true),
            ("input_type", Text, false),
            ("embedding_types", Texts, false),
            ("output_dimension", Count, false),
        ],
    ),
    (
        "/generative_scoring",
        "Tells how likely texts are answered with one token rather than others",
        &[
            MODEL,
            ("query", Text, true),
            ("items", Texts, true),
            ("label_token_ids", Ids, true),
            ("apply_softmax", Flag, false),
        ],
    ),
    (
        "/v1/messages",
        "Answers a conversation, as Anthropic's clients ask",
        &[
            MODEL,
            ("messages", Messages, true),
            ("max_tokens", Count, true),
            ("system", Any, false),
            STREAM,
            TOOLS,
        ],
    ),
    (
        "/v1/messages/count_tokens",
        "Counts the tokens of such a conversation",
        &[MODEL, ("messages", Messages, true), TOOLS],
    ),
    (
        "/v1/rerank",
        "Orders documents by how they answer a query",
        &[
            MODEL,
            ("query", Text, true),
            ("documents", Texts, true),
            ("top_n", Count, false),
        ],
    ),
    (
        "/v1/score",
        "Scores pairs of texts",
        &[MODEL, ("text_1", Any, true), ("text_2", Any, true)],
    ),
    (
        "/pooling",
        "Gives texts vectors, or what a classifier says of them",
        &[MODEL, ("input", Prompt, true), ("task", Text, false)],
    ),
    (
        "/v1/classify",
        "Labels texts",
        &[MODEL, ("input", Prompt, true)],
    ),
    (
        "/api/chat",
        "Answers a conversation, as Ollama's clients ask",
        &[
            MODEL,
            ("messages", Messages, true),
            STREAM,
            TOOLS,
            ("options", Object, false),
            ("format", Any, false),
        ],
    ),
    (
        "/api/generate",
        "Answers a prompt, as Ollama's clients ask",
        &[
            MODEL,
            ("prompt", Text, false),
            STREAM,
            ("raw", Flag, false),
            ("options", Object, false),
        ],
    ),
    (
        "/api/embed",
        "Gives vectors, as Ollama's clients ask",
        &[MODEL, ("input", Prompt, true)],
    ),
    ("/api/show", "Tells what a model is", &[MODEL]),
    (
        "/v1/models/load",
        "Brings a model into memory",
        &[("model", Text, true)],
    ),
    (
        "/v1/models/unload",
        "Takes a model out of memory",
        &[("model", Text, true)],
    ),
    (
        "/completion",
        "Continues prompts, as llama.cpp's clients ask",
        &[
            MODEL,
            ("prompt", Prompt, true),
            ("n_predict", Count, false),
            TEMPERATURE,
            STREAM,
            ("n_probs", Count, false),
            ("grammar", Text, false),
        ],
    ),
    (
        "/infill",
        "Fills in what stands between two texts",
        &[
            MODEL,
            ("input_prefix", Text, true),
            ("input_suffix", Text, true),
        ],
    ),
    (
        "/tokenize",
        "Gives the tokens of a text",
        &[
            MODEL,
            ("content", Text, true),
            ("add_special", Flag, false),
            ("with_pieces", Flag, false),
        ],
    ),
    (
        "/detokenize",
        "Gives the text of tokens",
        &[MODEL, ("tokens", Ids, true)],
    ),
    (
        "/apply-template",
        "Gives the prompt of a conversation",
        &[MODEL, ("messages", Messages, true), TOOLS],
    ),
];

/// Paths that are only asked.
const ASKED: &[(&str, &str)] = &[
    ("/v1/models", "Lists the models"),
    ("/health", "Tells whether the engine takes its turns"),
    ("/ready", "Tells whether new calls are taken"),
    ("/version", "Tells the version"),
    ("/props", "Tells how the first model answers"),
    (
        "/tokenizer_info",
        "Tells what the first model's tokenizer is",
    ),
    ("/v1/metrics", "Tells what was counted"),
    ("/api/tags", "Lists the models, as Ollama's clients ask"),
    (
        "/api/ps",
        "Lists the loaded models, as Ollama's clients ask",
    ),
    ("/api/version", "Tells the version, as Ollama's clients ask"),
];

impl Kind {
    fn schema(self) -> Value {
        let text = || json!({"type": "string"});
        match self {
            Text => text(),
            Flag => json!({"type": "boolean"}),
            Count => json!({"type": "integer", "minimum": 0, "maximum": 64}),
            Number => json!({"type": "number", "minimum": 0, "maximum": 2}),
            Texts => json!({"type": "array", "items": text(), "minItems": 1}),
            Ids => json!({"type": "array", "items": {"type": "integer", "minimum": 0}}),
            Prompt => json!({"oneOf": [text(), {"type": "array", "items": text(), "minItems": 1}]}),
            Messages => json!({"type": "array", "minItems": 1, "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {"role": {"enum": ["user", "assistant"]}, "content": text()},
            }}),
            Object => json!({"type": "object"}),
            Objects => json!({"type": "array", "items": {"type": "object"}}),
            Any => json!({}),
        }
    }
}

fn answers() -> Value {
    let json = json!({"application/json": {}});
    let answer =
        json!({"application/json": {}, "text/event-stream": {}, "application/x-ndjson": {}});
    let mut all = Map::new();
    all.insert(
        "200".to_owned(),
        json!({"description": "The answer", "content": answer}),
    );
    for (status, text) in [
        (
            "400",
            "The request cannot be answered; the message names the field",
        ),
        ("401", "The key is missing"),
        ("403", "Not from there"),
        ("404", "There is no such thing"),
        ("408", "It did not come, or was not answered, in time"),
        ("413", "The body is too large"),
        ("415", "The body is no JSON"),
        (
            "429",
            "Too many calls of this client; try again after `Retry-After`",
        ),
        ("501", "The server was not started for this"),
        ("503", "Too many calls; try again after `Retry-After`"),
        ("529", "The same, for Anthropic's clients"),
    ] {
        all.insert(
            status.to_owned(),
            json!({"description": text, "content": json}),
        );
    }
    all.into()
}

fn body(members: &[Member]) -> Value {
    let properties: Map<String, Value> = members
        .iter()
        .map(|(name, kind, _)| ((*name).to_owned(), kind.schema()))
        .collect();
    let needed: Vec<&str> = members.iter().filter(|m| m.2).map(|m| m.0).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !needed.is_empty() {
        schema["required"] = needed.into();
    }
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut paths = Map::new();
    for (path, summary, members) in POSTED {
        let post =
            json!({"summary": summary, "requestBody": body(members), "responses": answers()});
        paths.insert((*path).to_owned(), json!({"post": post}));
    }
    for (path, summary) in ASKED {
        let get = json!({"summary": summary, "responses": answers()});
        paths.insert((*path).to_owned(), json!({"get": get}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Tokkata", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
    })
});

/// The document.
pub(crate) async fn document() -> Response {
    Json(DOCUMENT.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_summary_and_answers() {
        let paths = DOCUMENT["paths"].as_object().expect("paths");
        assert_eq!(paths.len(), POSTED.len() + ASKED.len());
        for (path, methods) in paths {
            let methods = methods.as_object().expect("methods");
            let method = methods.values().next().expect("a method");
            assert!(method["summary"].is_string(), "{path}");
            assert!(method["responses"]["400"].is_object(), "{path}");
        }
        let chat = &DOCUMENT["paths"]["/v1/chat/completions"]["post"]["requestBody"];
        assert_eq!(
            chat["content"]["application/json"]["schema"]["required"],
            json!(["messages"])
        );
    }
}
