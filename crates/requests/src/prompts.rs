//! Prompts as requests write them: texts, token ids, and marks for filling in the middle.

use serde_json::{Map, Value};
use tokkata::{EncodeOptions, Tokenizer};

use crate::error::{ApiError, Result};
use crate::fields::wrong;
use crate::params::token_list;
use crate::served::Served;

/// A prompt as it came.
#[derive(Clone, Debug)]
pub enum Given {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// Texts and token ids, one after another.
    Mixed(Vec<Value>),
}

/// A prompt, or several: texts, token ids, lists of both, or objects that hold a text.
pub fn prompts(name: &str, value: Value) -> Result<Vec<Given>> {
    let items = match value {
        Value::String(text) => return Ok(vec![Given::Text(text)]),
        Value::Object(members) => return Ok(vec![held(name, members)?]),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::field(
                name,
                "found an empty list, expected a prompt",
            ));
        }
        Value::Array(items) => items,
        other => return Err(wrong(name, &other, "a string or a list")),
    };
    if items.iter().any(Value::is_number) {
        return Ok(vec![listed(name, items)?]);
    }
    let one = |value: Value| match value {
        Value::String(text) => Ok(Given::Text(text)),
        Value::Array(items) => listed(name, items),
        Value::Object(members) => held(name, members),
        other => Err(wrong(name, &other, "a string or token ids")),
    };
    items.into_iter().map(one).collect()
}

/// A list of token ids, perhaps with texts between them.
fn listed(name: &str, items: Vec<Value>) -> Result<Given> {
    match items.iter().any(Value::is_string) {
        true => Ok(Given::Mixed(items)),
        false => Ok(Given::Ids(token_list(name, &items)?)),
    }
}

/// The text of an object: `prompt_string`, or the parts of `content` as they follow each other.
fn held(name: &str, mut members: Map<String, Value>) -> Result<Given> {
    if let Some(Value::String(text)) = members.shift_remove("prompt_string") {
        return Ok(Given::Text(text));
    }
    let Some(Value::Array(parts)) = members.shift_remove("content") else {
        let path = format!("{name}.content");
        return Err(ApiError::field(
            path,
            "is missing, expected a list of parts",
        ));
    };
    let text = |(i, part): (usize, &Value)| {
        let text = part["text"].as_str().filter(|_| part["type"] == "text");
        text.map(str::to_owned).ok_or_else(|| {
            let kind = part["type"].as_str().unwrap_or_default();
            let why = format!("found a part of type '{kind}', and the model reads text alone");
            ApiError::field(format!("{name}.content[{i}]"), why)
        })
    };
    let texts: Result<Vec<String>> = parts.iter().enumerate().map(text).collect();
    Ok(Given::Text(texts?.concat()))
}

/// The tokens of a prompt. A text gets what the file wants around a text; with a suffix, the model's marks for filling
/// in the middle.
pub fn encode(model: &Served, prompt: &Given, suffix: Option<&str>) -> Result<Vec<u32>> {
    let tokenizer = model.service.tokenizer()?;
    let whole = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let text = match (prompt, suffix) {
        (Given::Ids(ids), None) => return Ok(ids.clone()),
        (Given::Mixed(parts), None) => {
            return mixed(tokenizer, "prompt", parts.clone().into(), whole);
        }
        (Given::Ids(_) | Given::Mixed(_), Some(_)) => {
            return Err(ApiError::field("suffix", "needs a prompt that is a text"));
        }
        (Given::Text(text), _) => text,
    };
    let Some(suffix) = suffix else {
        let mut ids = tokenizer.encode(text, whole);
        // An end that the file puts after a whole text would end a prompt that is to go on.
        let special = tokenizer.special();
        if special.add_eos && special.eos.is_some() && ids.last() == special.eos.as_ref() {
            ids.pop();
        }
        return Ok(ids);
    };
    infill(tokenizer, &[], text, suffix, "").ok_or_else(|| {
        ApiError::field(
            "suffix",
            "the model has no tokens for filling in the middle",
        )
    })
}

/// A prompt for what stands between two texts, after files that belong to them; `None` if the model has no marks for it.
pub fn infill(
    tokenizer: &Tokenizer,
    files: &[(String, String)],
    prefix: &str,
    suffix: &str,
    begun: &str,
) -> Option<Vec<u32>> {
    let special = tokenizer.special();
    let (pre, suf) = (special.fim_prefix?, special.fim_suffix?);
    let middle = special.fim_middle?;
    let plain = |text: &str| tokenizer.encode(text, EncodeOptions::default());
    let mut ids: Vec<u32> = special
        .bos
        .filter(|_| special.add_bos)
        .into_iter()
        .collect();
    if let Some(repo) = special.fim_repo.filter(|_| !files.is_empty()) {
        ids.push(repo);
        ids.extend(plain("myproject\n"));
    }
    for (name, text) in files {
        match special.fim_separator {
            Some(separator) => {
                ids.push(separator);
                ids.extend(plain(&format!("{name}\n")));
            }
            None => ids.extend(plain(&format!("\n\n--- {name} ---\n\n"))),
        }
        ids.extend(plain(text));
    }
    if let Some(separator) = special.fim_separator.filter(|_| !files.is_empty()) {
        ids.push(separator);
        ids.extend(plain("filename\n"));
    }
    ids.push(pre);
    ids.extend(plain(prefix));
    ids.push(suf);
    ids.extend(plain(suffix));
    ids.push(middle);
    ids.extend(plain(begun));
    Some(ids)
}

/// Tokens of a text, or of a list of texts and tokens; only the first text gets what the file wants around a text.
pub fn mixed(
    tokenizer: &Tokenizer,
    name: &str,
    value: Value,
    options: EncodeOptions,
) -> Result<Vec<u32>> {
    let parts = match value {
        Value::String(text) => return Ok(tokenizer.encode(&text, options)),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, &other, "a string")),
    };
    let (mut ids, mut add_special) = (Vec::new(), options.add_special);
    for part in parts {
        match part {
            Value::String(text) => {
                let options = EncodeOptions {
                    add_special,
                    ..options
                };
                ids.extend(tokenizer.encode(&text, options));
            }
            number => ids.extend(token_list(name, &[number])?),
        }
        add_special = false;
    }
    Ok(ids)
}
