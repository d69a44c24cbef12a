//! The `decoder` of `tokenizer.json`, turned into the bytes that each token adds to a text.

use super::json::Node;
use super::normalizers::pattern;
use crate::tokenizer::Trim;
use crate::tokenizer::bytes::from_alphabet;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::split::Rule;
use crate::tokenizer::vocab::{Blob, TokenKind, Vocab, byte_of};

/// What happens to a token's text.
#[derive(Clone, Debug)]
enum Step {
    /// It is spelled in the byte alphabet.
    ByteLevel,
    /// It may be spelled `<0xHH>`.
    ByteFallback,
    /// Matches are replaced.
    Replace(Rule, String),
    /// A word begins with a space unless it is marked as the rest of one.
    WordPiece { prefix: String, cleanup: bool },
    /// So many of a character go from its ends.
    Strip { c: char, start: usize, stop: usize },
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoder {
    steps: Vec<Step>,
    /// Whether the space at the start of a text is not part of it.
    pub(super) strips_first_space: bool,
    fused: bool,
    /// Words end with a space, the last one without.
    drops_last_space: bool,
    /// There is no decoder: tokens stand apart.
    apart: bool,
}

/// Reads a decoder, a sequence of them or none.
pub(super) fn read(node: &Node<'_>) -> Result<Decoder, TokenizerError> {
    let mut decoder = Decoder::default();
    if node.is_null() {
        decoder.apart = true;
        decoder.strips_first_space = true;
    } else {
        decoder.add(node)?;
    }
    Ok(decoder)
}

impl Decoder {
    fn add(&mut self, node: &Node<'_>) -> Result<(), TokenizerError> {
        let step = match node.kind()? {
            "Sequence" => {
                return node
                    .need("decoders")?
                    .need_array()?
                    .iter()
                    .try_for_each(|n| self.add(n));
            }
            "Fuse" => {
                self.fused = true;
                return Ok(());
            }
            "ByteLevel" => Step::ByteLevel,
            "ByteFallback" => Step::ByteFallback,
            "Replace" => Step::Replace(
                pattern(&node.need("pattern")?)?,
                node.need("content")?.need_str()?.to_owned(),
            ),
            "Metaspace" => {
                let never = node.get("prepend_scheme").str() == Some("never");
                self.strips_first_space =
                    !never && node.get("add_prefix_space").bool() != Some(false);
                let replacement = node.get("replacement").str().unwrap_or("▁");
                Step::Replace(Rule::Literal(replacement.to_owned()), " ".to_owned())
            }
            "WordPiece" => {
                self.strips_first_space = true;
                Step::WordPiece {
                    prefix: node.get("prefix").str().unwrap_or("##").to_owned(),
                    cleanup: node.get("cleanup").bool().unwrap_or(true),
                }
            }
            "BPEDecoder" => {
                self.drops_last_space = true;
                let suffix = node.get("suffix").str().unwrap_or("</w>").to_owned();
                Step::Replace(Rule::Literal(suffix), " ".to_owned())
            }
            "Strip" => return self.add_strip(node),
            other => return Err(node.unsupported(format!("decoder `{other}`"))),
        };
        self.steps.push(step);
        Ok(())
    }

    /// Before `Fuse` each token is stripped, after it the whole text.
    fn add_strip(&mut self, node: &Node<'_>) -> Result<(), TokenizerError> {
        let c = node
            .get("content")
            .str()
            .and_then(|s| s.chars().next())
            .unwrap_or(' ');
        let (start, stop) = (
            node.need("start")?.need_usize()?,
            node.need("stop")?.need_usize()?,
        );
        if !self.fused {
            self.steps.push(Step::Strip { c, start, stop });
        } else if (c, start, stop) == (' ', 1, 0) {
            self.strips_first_space = true;
        } else {
            return Err(node.unsupported("stripping more than one space from a text"));
        }
        Ok(())
    }

    /// What of a decoded text's ends is not part of it.
    pub(super) fn trim(&self) -> Trim {
        Trim {
            leading: self.strips_first_space.into(),
            trailing: self.drops_last_space.into(),
        }
    }

    /// The bytes each token adds to a text.
    pub(super) fn pieces(&self, vocab: &Vocab) -> Blob {
        let mut pieces = Blob::default();
        for (id, text) in vocab.texts.iter() {
            let as_is = matches!(vocab.kind(id), TokenKind::UserDefined | TokenKind::Control);
            let piece = if as_is {
                self.added(text)
            } else {
                self.piece(text)
            };
            pieces.push(&piece);
        }
        pieces
    }

    /// Tokens cut out of the text are spelled as they were found.
    fn added(&self, text: &[u8]) -> Vec<u8> {
        match self.steps.first() {
            Some(Step::WordPiece { .. }) => [b" ", text].concat(),
            _ => self.apart_from_last(text),
        }
    }

    fn apart_from_last(&self, text: &[u8]) -> Vec<u8> {
        if self.apart {
            [b" ", text].concat()
        } else {
            text.to_vec()
        }
    }

    fn piece(&self, text: &[u8]) -> Vec<u8> {
        let mut bytes = self.apart_from_last(text);
        for step in &self.steps {
            bytes = step.apply(bytes);
        }
        bytes
    }
}

impl Step {
    fn apply(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Step::ByteLevel => from_alphabet(&bytes).unwrap_or(bytes),
            Step::ByteFallback => byte_of(&bytes).map_or(bytes, |b| vec![b]),
            // A single byte may be no text any more.
            _ => match String::from_utf8(bytes) {
                Ok(text) => self.apply_text(text).into_bytes(),
                Err(error) => error.into_bytes(),
            },
        }
    }

    fn apply_text(&self, text: String) -> String {
        match self {
            Step::Replace(rule, content) => {
                let mut out = String::new();
                rule.pieces(&text, &mut |piece, found| {
                    out.push_str(if found { content } else { piece });
                });
                out
            }
            Step::WordPiece { prefix, cleanup } => {
                let spaced = text
                    .strip_prefix(prefix.as_str())
                    .map_or_else(|| format!(" {text}"), str::to_owned);
                if *cleanup { clean(&spaced) } else { spaced }
            }
            Step::Strip { c, start, stop } => {
                let left = text.chars().take(*start).take_while(|d| d == c).count();
                let right = text
                    .chars()
                    .rev()
                    .take(*stop)
                    .take_while(|d| d == c)
                    .count();
                let n = text.chars().count();
                text.chars()
                    .skip(left)
                    .take(n.saturating_sub(left + right))
                    .collect()
            }
            Step::ByteLevel | Step::ByteFallback => text,
        }
    }
}

/// English punctuation joins the word before it.
fn clean(text: &str) -> String {
    const JOINED: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    JOINED
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
