//! Ending a rendered conversation inside its last message, by Transformers' method: a tag is appended to the
//! message, and the text is cut where the tag comes out.

use serde_json::Value as Json;

use super::error::{Result, TemplateError};
use super::text::{Ends, Text, is_space};

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The messages with the tag on the last one, and the text that is to be continued.
pub(crate) fn tag(messages: &[Json]) -> Result<(Vec<Json>, String)> {
    let mut messages = messages.to_vec();
    let last = messages
        .last_mut()
        .ok_or(TemplateError::Continue("there are no messages"))?;
    let text = match last.get_mut("content") {
        Some(Json::String(text)) => text,
        Some(Json::Array(parts)) => last_text(parts)?,
        _ => return Err(TemplateError::Continue("it has no content")),
    };
    let original = text.clone();
    text.push_str(TAG);
    Ok((messages, original))
}

fn last_text(parts: &mut [Json]) -> Result<&mut String> {
    let text = parts
        .iter_mut()
        .rev()
        .find_map(|part| match part.get_mut("text") {
            Some(Json::String(text)) => Some(text),
            _ => None,
        });
    text.ok_or(TemplateError::Continue("it has no text"))
}

/// Cuts the rendered text after the message that was tagged.
pub(crate) fn cut(rendered: &Text, message: &str) -> Result<Text> {
    let absent = TemplateError::Continue("the template does not show it as it is");
    let source = rendered.as_str();
    let at = source.rfind(TAG.trim_end()).ok_or(absent.clone())?;
    if !source.contains(message.trim_matches(is_space)) {
        return Err(absent);
    }
    let head = rendered.slice(0..at);
    let keeps_space = source[at..].starts_with(TAG);
    Ok(if keeps_space {
        head
    } else {
        head.trim_by(Ends::Right, is_space)
    })
}
