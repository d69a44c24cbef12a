//! `/v2/embed`: vectors of texts in several forms at once.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokkata_requests::prompts::Given;

use crate::app::{Call, Json, Shared};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::names::LABELS;
use crate::openai::embeddings::{Cut, Shape, embed as vectors, encoded};
use crate::run::id;

/// What texts may be for. Nothing is put before them for it.
const PURPOSES: [&str; 4] = [
    "search_document",
    "search_query",
    "classification",
    "clustering",
];

/// Vectors of texts.
pub(crate) async fn embed(app: Shared, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|error| {
        // Cohere's clients read one of them, and vLLM's the other.
        error.respond(&json!({"message": error.message, "error": error.object()}))
    })
}

async fn answer(app: Shared, request: Request) -> Result<Response> {
    let State(app) = app;
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let model = app.model(fields).await?;
    fields.refuse(&["images"], "vectors are made of texts")?;
    let texts = texts(fields)?;
    let forms = forms(fields)?;
    let purpose = fields.text("input_type")?;
    if let Some(other) = purpose.as_deref().filter(|p| !PURPOSES.contains(p)) {
        let text = format!(
            "Unsupported input_type '{other}', expected one of {}",
            PURPOSES.join(", ")
        );
        return Err(ApiError::invalid(text));
    }
    let cut = match fields.text("truncate")?.as_deref() {
        None | Some("END") => Some(Cut::End),
        Some("START") => Some(Cut::Start),
        Some("NONE") => None,
        Some(other) => {
            let text = format!("found '{other}', expected NONE, START or END");
            return Err(ApiError::field("truncate", text));
        }
    };
    let shape = Shape {
        dimensions: fields.count(&["output_dimension"])?.filter(|&d| d > 0),
        truncate: cut
            .map(|_| {
                fields
                    .count(&["max_tokens"])
                    .map(|n| n.unwrap_or(usize::MAX))
            })
            .transpose()?,
        cut: cut.unwrap_or_default(),
        ..Shape::default()
    };
    fields.labels(&LABELS);
    fields.finish(app.options.strict_fields)?;
    let mut warnings = std::mem::take(&mut fields.warnings);
    if let Some(purpose) = &purpose {
        warnings.push(format!(
            "input_type: nothing is put before texts for {purpose}"
        ));
    }
    let inputs = texts.iter().cloned().map(Given::Text).collect();
    let (rows, tokens) = vectors(&model, inputs, shape).await?;
    let mut embeddings = Map::new();
    for form in forms {
        let each = rows.iter().flatten().map(|row| form.of(row));
        embeddings.insert(form.name().to_owned(), each.collect());
    }
    let mut meta = json!({
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": tokens, "image_tokens": 0},
    });
    if !warnings.is_empty() {
        meta["warnings"] = warnings.into();
    }
    Ok(Json(json!({
        "id": id("embd-"),
        "response_type": "embeddings_by_type",
        "embeddings": embeddings,
        "texts": texts,
        "meta": meta,
    }))
    .into_response())
}

/// The texts: a list of them, or inputs whose parts are texts.
fn texts(fields: &mut Fields) -> Result<Vec<String>> {
    let mut texts = fields.texts("texts")?.unwrap_or_default();
    for (i, input) in fields
        .list("inputs")?
        .unwrap_or_default()
        .into_iter()
        .enumerate()
    {
        let path = format!("inputs[{i}].content");
        let content = input.get("content").cloned().unwrap_or_default();
        texts.push(tokkata_requests::messages::text_content(&path, content)?);
    }
    match texts.is_empty() {
        true => Err(ApiError::field("texts", "is missing, or empty")),
        false => Ok(texts),
    }
}

/// A form of a vector.
#[derive(Clone, Copy, Debug)]
enum Form {
    Float,
    Base64,
    /// The signs of eight columns a byte, the first in the highest bit.
    Ubinary,
    /// The same, as numbers from -128 on.
    Binary,
}

impl Form {
    const ALL: [Form; 4] = [Form::Float, Form::Base64, Form::Ubinary, Form::Binary];

    fn name(self) -> &'static str {
        match self {
            Form::Float => "float",
            Form::Base64 => "base64",
            Form::Ubinary => "ubinary",
            Form::Binary => "binary",
        }
    }

    fn of(self, row: &Vec<f32>) -> Value {
        let bytes = row.chunks(8).map(|columns| {
            let bits = columns.iter().enumerate();
            bits.fold(0, |byte, (i, x)| byte | u8::from(*x > 0.0) << (7 - i))
        });
        match self {
            Form::Float => json!(row),
            Form::Base64 => encoded(row),
            Form::Ubinary => bytes.collect(),
            Form::Binary => bytes.map(|byte| i16::from(byte) - 128).collect(),
        }
    }
}

fn forms(fields: &mut Fields) -> Result<Vec<Form>> {
    let Some(names) = fields.list("embedding_types")? else {
        return Ok(vec![Form::Float]);
    };
    let one = |name: &Value| {
        let known = Form::ALL.into_iter().find(|form| name == form.name());
        let unknown = || {
            let message = format!("found {name}, expected float, base64, binary or ubinary");
            ApiError::field("embedding_types", message)
        };
        known.ok_or_else(unknown)
    };
    names.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_bits_the_first_of_which_is_the_highest() {
        let row = vec![1.0, -1.0, 0.5, 0.0, -2.0, 3.0, 4.0, -0.5, 1.0];
        assert_eq!(Form::Ubinary.of(&row), json!([0b1010_0110, 0b1000_0000]));
        assert_eq!(Form::Binary.of(&row), json!([0b1010_0110 - 128, 0]));
        assert_eq!(Form::Base64.of(&vec![1.0]), "AACAPw==");
    }

    #[test]
    fn forms_are_known_by_their_names() {
        let of = |names: Value| {
            forms(&mut Fields::body(json!({"embedding_types": names})).expect("an object"))
        };
        assert_eq!(of(json!(["binary", "float"])).expect("forms").len(), 2);
        assert!(of(json!(["int4"])).is_err());
        assert_eq!(of(Value::Null).expect("the usual").len(), 1);
    }
}
