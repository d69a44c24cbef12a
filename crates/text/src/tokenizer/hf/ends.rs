//! The `post_processor` of `tokenizer.json`: what stands around a text.

use super::json::Node;
use crate::tokenizer::Ends;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::vocab::Vocab;

/// Reads a post-processor; of a sequence, each stage stands around the one before.
pub(super) fn read(node: &Node<'_>, vocab: &Vocab) -> Result<Ends, TokenizerError> {
    let mut ends = Ends::default();
    match node.kind()? {
        "ByteLevel" => {}
        "Sequence" => {
            for stage in node.need("processors")?.need_array()? {
                let Ends { before, after } = read(&stage, vocab)?;
                ends.before.splice(0..0, before);
                ends.after.extend(after);
            }
        }
        "BertProcessing" | "RobertaProcessing" => {
            ends.before.push(pair_id(&node.need("cls")?)?);
            ends.after.push(pair_id(&node.need("sep")?)?);
        }
        "TemplateProcessing" => return template(node, vocab),
        other => return Err(node.unsupported(format!("post-processor `{other}`"))),
    }
    Ok(ends)
}

/// The id of a `[text, id]` pair.
fn pair_id(node: &Node<'_>) -> Result<u32, TokenizerError> {
    match node.need_array()?.get(1) {
        Some(id) => id.need_u32(),
        None => Err(node.wrong("a text and an id")),
    }
}

fn template(node: &Node<'_>, vocab: &Vocab) -> Result<Ends, TokenizerError> {
    let mut ends = Ends::default();
    let mut text_seen = false;
    for piece in node.need("single")?.need_array()? {
        if !piece.get("Sequence").is_null() {
            text_seen = true;
            continue;
        }
        let name = piece.need("SpecialToken")?.need("id")?.need_str()?;
        let side = if text_seen {
            &mut ends.after
        } else {
            &mut ends.before
        };
        let listed = node.get("special_tokens").get(name).get("ids");
        match listed.array() {
            Some(ids) => {
                for id in ids {
                    side.push(id.need_u32()?);
                }
            }
            None => side.push(
                vocab
                    .find(name.as_bytes())
                    .ok_or_else(|| listed.wrong("a list of ids"))?,
            ),
        }
    }
    Ok(ends)
}
