//! Conversations as token ids.

use serde_json::json;
use tokkata_text::parse::OutputFormat;
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
    let (bos_token, eos_token) = ends(tokenizer);
    ChatRequest {
        messages: messages
            .iter()
            .map(|m| json!({"role": m.role, "content": m.content}))
            .collect(),
        add_generation_prompt: true,
        bos_token,
        eos_token,
        ..ChatRequest::default()
    }
}

/// The text that closes the reasoning, if prompts of this template open it.
#[must_use]
pub fn open_reasoning(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<String> {
    let format = OutputFormat::derive(template);
    let (open, close) = format.reasoning_markers()?;
    let request = chat_request(&[Message::new("user", "?")], tokenizer);
    let rendered = template.render(&request).ok()?;
    let opened = !open.is_empty() && rendered.text().trim_end().ends_with(open);
    opened.then(|| close.to_owned())
}

/// How a file spells the tokens that begin and end a text.
#[must_use]
pub fn ends(tokenizer: &Tokenizer) -> (Option<String>, Option<String>) {
    let special = tokenizer.special();
    let of = |id: Option<u32>| id.map(|id| spelling(tokenizer, id));
    (of(special.bos), of(special.eos))
}

/// How a file spells a token.
#[must_use]
pub fn spelling(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_text(id)).into_owned()
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
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    let mut ids = tokenizer.encode_guarded(rendered.text(), rendered.untrusted(), options);
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
