//! Probabilities of tokens as chat and completion APIs write them.

use serde_json::{Map, Value, json};
use tokkata::{Logprobs, Tokenizer};

use crate::run::Token;

/// A logarithm that JSON can say.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// The text of a token, whose bytes may be half a character.
pub fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    json!({
        "id": id,
        "token": text_of(tokenizer, id),
        "bytes": tokenizer.token_bytes(id),
        "logprob": finite(logprob),
    })
}

/// An entry of a chat's `logprobs.content`. A token that a grammar forces was not drawn: it is certain.
pub fn chat_entry(tokenizer: &Tokenizer, token: &Token, most: usize) -> Value {
    let certain = Logprobs {
        picked: tokkata::Logprob {
            token: token.id,
            logprob: 0.0,
        },
        top: Vec::new(),
    };
    let logprobs = token.logprobs.as_ref().unwrap_or(&certain);
    let mut object = entry(tokenizer, token.id, logprobs.picked.logprob);
    let top = logprobs.top.iter().take(most);
    let top: Vec<Value> = top.map(|l| entry(tokenizer, l.token, l.logprob)).collect();
    object["top_logprobs"] = top.into();
    object
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
        (most, offset): (usize, usize),
    ) {
        self.tokens.push(text_of(tokenizer, id).into());
        self.text_offset.push(offset);
        let Some(logprobs) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        self.token_logprobs
            .push(finite(logprobs.picked.logprob).into());
        let mut top = Map::new();
        for one in logprobs.top.iter().take(most) {
            let text = text_of(tokenizer, one.token);
            top.entry(text)
                .or_insert_with(|| finite(one.logprob).into());
        }
        // The token itself is always among them.
        let own = finite(logprobs.picked.logprob);
        top.entry(text_of(tokenizer, id))
            .or_insert_with(|| own.into());
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
