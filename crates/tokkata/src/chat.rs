//! Conversations as token ids.

use serde_json::json;
use tokkata_text::template::{ChatRequest, ChatTemplate, Rendered};
use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message.
    #[must_use]
    pub fn new(role: &'static str, content: impl Into<String>) -> Self {
        Message {
            role,
            content: content.into(),
        }
    }
}

/// The request for the next answer in a conversation.
#[must_use]
pub fn chat_request(messages: &[Message], tokenizer: &Tokenizer) -> ChatRequest {
    let spelling = |id: Option<u32>| {
        id.map(|id| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned())
    };
    ChatRequest {
        messages: messages
            .iter()
            .map(|m| json!({"role": m.role, "content": m.content}))
            .collect(),
        add_generation_prompt: true,
        bos_token: spelling(tokenizer.special().bos),
        eos_token: spelling(tokenizer.special().eos),
        ..ChatRequest::default()
    }
}

/// Token ids of a conversation up to where the assistant begins.
///
/// # Errors
/// What the template raises.
pub fn chat_prompt(
    template: &ChatTemplate,
    messages: &[Message],
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, tokkata_text::template::TemplateError> {
    let rendered = template.render(&chat_request(messages, tokenizer))?;
    Ok(encode_rendered(&rendered, tokenizer))
}

/// Token ids of a rendered conversation, in which special tokens are only recognised in what the template wrote.
#[must_use]
pub fn encode_rendered(rendered: &Rendered, tokenizer: &Tokenizer) -> Vec<u32> {
    let parse = |special| EncodeOptions {
        add_special: false,
        parse_special: special,
    };
    let segments = rendered.segments();
    let harmless = segments
        .iter()
        .filter(|s| !s.trusted)
        .all(|s| tokenizer.encode(s.text, parse(true)) == tokenizer.encode(s.text, parse(false)));
    let mut ids = if harmless {
        tokenizer.encode(rendered.text(), parse(true))
    } else {
        let pieces = segments
            .iter()
            .map(|s| tokenizer.encode(s.text, parse(s.trusted)));
        pieces.collect::<Vec<_>>().concat()
    };
    // Templates that do not write the beginning-of-text token rely on the tokenizer for it.
    let bos = tokenizer
        .special()
        .bos
        .filter(|_| tokenizer.special().add_bos);
    if let Some(bos) = bos.filter(|&bos| ids.first() != Some(&bos)) {
        ids.insert(0, bos);
    }
    ids
}
