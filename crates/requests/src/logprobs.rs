//! Probabilities of tokens as chat and completion APIs write them.

use serde_json::{Map, Value, json};
use tokkata::{Logprob, Logprobs, Tokenizer};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::params::{MOST_LOGPROBS, token_list};
use crate::run::Token;
use crate::scores::Scored;
use crate::served::Served;
use crate::style::Style;

/// How probabilities are told.
#[derive(Clone, Debug, Default)]
pub struct Telling {
    /// So many of the likeliest tokens beside each one.
    pub most: usize,
    /// These tokens instead of the likeliest.
    pub told: Vec<u32>,
    /// Tokens are called by their ids.
    by_id: bool,
}

impl Telling {
    /// So many of the likeliest tokens, by their texts.
    pub fn likeliest(most: usize) -> Self {
        Telling {
            most,
            ..Telling::default()
        }
    }

    /// Reads what is asked for besides `most`; `None` where probabilities are not told.
    ///
    /// # Errors
    /// Tokens that the model does not have, more of them than may be told, or where nothing is told.
    pub fn take(
        fields: &mut Fields,
        most: Option<usize>,
        (model, style): (&Served, &Style),
    ) -> Result<Option<Self>> {
        let by_id = fields.boolean("return_tokens_as_token_ids")?;
        let by_id = by_id.unwrap_or(style.tokens_by_id);
        let told = match fields.list("logprob_token_ids")? {
            Some(ids) => token_list("logprob_token_ids", &ids)?,
            None => Vec::new(),
        };
        let fail = |text: String| Err(ApiError::field("logprob_token_ids", text));
        if let Some(id) = told.iter().find(|&&id| id >= model.service.n_vocab()) {
            return fail(format!("{id} is not a token of the model"));
        }
        let bound = most_told(model);
        if told.len() > bound {
            return fail(format!(
                "found {} tokens, expected at most {bound}",
                told.len()
            ));
        }
        if !told.is_empty() && most.is_none() {
            return fail("needs logprobs".to_owned());
        }
        Ok(most.map(|most| Telling { most, told, by_id }))
    }

    fn name(&self, tokenizer: &Tokenizer, id: u32) -> String {
        match self.by_id {
            true => format!("token_id:{id}"),
            false => text_of(tokenizer, id),
        }
    }

    /// The tokens that are told beside the one that was picked, which is among those that were chosen.
    fn others<'l>(&self, logprobs: &'l Logprobs) -> impl Iterator<Item = &'l Logprob> {
        let chosen = !self.told.is_empty();
        let own =
            (chosen && !self.told.contains(&logprobs.picked.token)).then_some(&logprobs.picked);
        let most = if chosen { usize::MAX } else { self.most };
        own.into_iter().chain(logprobs.top.iter().take(most))
    }

    fn entry(&self, tokenizer: &Tokenizer, one: &Logprob) -> Value {
        json!({
            "id": one.token,
            "token": self.name(tokenizer, one.token),
            "bytes": tokenizer.token_bytes(one.token),
            "logprob": finite(one.logprob),
        })
    }
}

/// The likeliest tokens that a model's server tells at most.
fn most_told(model: &Served) -> usize {
    model.defaults.most_logprobs.unwrap_or(MOST_LOGPROBS)
}

/// A number of likeliest tokens; -1 for all, where so many may be told.
///
/// # Errors
/// More than may be told.
pub fn at_most(fields: &mut Fields, name: &str, model: &Served) -> Result<Option<usize>> {
    match fields.integer(&[name])? {
        None => Ok(None),
        Some(n) => likeliest(name, n, model).map(Some),
    }
}

/// As [`at_most`], of a number.
///
/// # Errors
/// More than may be told.
pub fn likeliest(name: &str, n: i64, model: &Served) -> Result<usize> {
    let bound = most_told(model);
    let asked = match n {
        -1 => Some(model.service.n_vocab() as usize),
        n => usize::try_from(n).ok(),
    };
    asked
        .filter(|&n| n <= bound)
        .ok_or_else(|| ApiError::field(name, format!("found {n}, expected at most {bound}")))
}

/// A logarithm that JSON can say.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// The text of a token, whose bytes may be half a character.
pub fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

/// An entry of a chat's `logprobs.content`. A token that a grammar forces was not drawn: it is certain.
pub fn chat_entry(tokenizer: &Tokenizer, token: &Token, telling: &Telling) -> Value {
    let certain = Logprobs {
        picked: Logprob {
            token: token.id,
            logprob: 0.0,
        },
        top: Vec::new(),
    };
    let logprobs = token.logprobs.as_ref().unwrap_or(&certain);
    let mut object = telling.entry(tokenizer, &logprobs.picked);
    let others = telling.others(logprobs);
    object["top_logprobs"] = others.map(|l| telling.entry(tokenizer, l)).collect();
    object
}

/// The tokens of a prompt as vLLM tells them: by id, each with the likeliest ones in its place; the first has none.
pub fn prompt_entries(tokenizer: &Tokenizer, scored: &[Option<Scored>]) -> Value {
    let entry = |one: &Logprob, rank: usize| {
        json!({
            "logprob": finite(one.logprob),
            "rank": rank,
            "decoded_token": text_of(tokenizer, one.token),
        })
    };
    let place = |scored: &Scored| {
        let picked = &scored.logprobs.picked;
        let mut all = Map::new();
        all.insert(picked.token.to_string(), entry(picked, scored.rank));
        for (i, one) in scored.logprobs.top.iter().enumerate() {
            all.insert(one.token.to_string(), entry(one, i + 1));
        }
        Value::from(all)
    };
    scored.iter().map(|one| one.as_ref().map(place)).collect()
}

/// The `logprobs` of a completion, gathered token by token.
#[derive(Clone, Debug, Default)]
pub struct TextLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token at an offset in characters; without a probability, the first of a prompt.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        logprobs: Option<&Logprobs>,
        (telling, offset): (&Telling, usize),
    ) {
        let name = telling.name(tokenizer, id);
        self.tokens.push(name.as_str().into());
        self.text_offset.push(offset);
        let Some(logprobs) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        self.token_logprobs
            .push(finite(logprobs.picked.logprob).into());
        // The token itself is always among them, before the others.
        let own = finite(logprobs.picked.logprob);
        let mut top = Map::from_iter([(name, own.into())]);
        for one in telling.others(logprobs) {
            top.entry(telling.name(tokenizer, one.token))
                .or_insert_with(|| finite(one.logprob).into());
        }
        self.top_logprobs.push(top.into());
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// As an object.
    pub fn object(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
