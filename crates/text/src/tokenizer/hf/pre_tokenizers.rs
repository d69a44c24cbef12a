//! The `pre_tokenizer` of `tokenizer.json`.

use super::json::Node;
use super::normalizers::pattern;
use crate::tokenizer::error::TokenizerError;
use crate::tokenizer::gguf::bert_steps;
use crate::tokenizer::split::runs::Runs;
use crate::tokenizer::split::{Behavior, Prepend, Rule, Step, known};
use crate::tokenizer::unicode::{NUMBER, SPACE};

/// How a text is cut, and whether its words are bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pre {
    pub(super) steps: Vec<Step>,
    pub(super) byte_level: bool,
}

/// Reads a pre-tokenizer, a sequence of them or none.
pub(super) fn read(node: &Node<'_>) -> Result<Pre, TokenizerError> {
    let mut pre = Pre::default();
    if !node.is_null() {
        pre.add(node)?;
    }
    Ok(pre)
}

impl Pre {
    fn add(&mut self, node: &Node<'_>) -> Result<(), TokenizerError> {
        if self.byte_level {
            return Err(node.unsupported("a pre-tokenizer after `ByteLevel`"));
        }
        match node.kind()? {
            "Sequence" => {
                return node
                    .need("pretokenizers")?
                    .need_array()?
                    .iter()
                    .try_for_each(|n| self.add(n));
            }
            "BertPreTokenizer" => self.steps.extend(bert_steps()),
            "ByteLevel" => self.add_byte_level(node),
            "Metaspace" => self.add_metaspace(node)?,
            "WhitespaceSplit" => self
                .steps
                .push(Step::removed(Rule::Runs(Runs::Class(SPACE, 1)))),
            "Whitespace" => self.steps.push(Step::kept(known::rule(r"\w+|[^\w\s]+")?)),
            "Punctuation" => {
                let rule = Rule::Runs(Runs::OnePunctOrAscii);
                self.steps.push(Step::Split {
                    rule,
                    behavior: behavior(node)?,
                    invert: false,
                });
            }
            "Digits" => {
                let individual = node.get("individual_digits").bool().unwrap_or(false);
                let behavior = if individual {
                    Behavior::Isolated
                } else {
                    Behavior::Contiguous
                };
                let rule = Rule::Runs(Runs::Class(NUMBER, 1));
                self.steps.push(Step::Split {
                    rule,
                    behavior,
                    invert: false,
                });
            }
            "CharDelimiterSplit" => {
                let delimiter = node.need("delimiter")?.need_str()?.to_owned();
                self.steps.push(Step::removed(Rule::Literal(delimiter)));
            }
            "Split" => {
                let rule = pattern(&node.need("pattern")?)?;
                let invert = node.get("invert").bool().unwrap_or(false);
                self.steps.push(Step::Split {
                    rule,
                    behavior: behavior(node)?,
                    invert,
                });
            }
            "FixedLength" => {
                let n = node.need("length")?.need_usize()?.max(1);
                self.steps.push(Step::isolated(Rule::Fixed(n)));
            }
            other => return Err(node.unsupported(format!("pre-tokenizer `{other}`"))),
        }
        Ok(())
    }

    fn add_byte_level(&mut self, node: &Node<'_>) {
        if node.get("add_prefix_space").bool().unwrap_or(true) {
            self.steps.push(Step::PrefixSpace);
        }
        if node.get("use_regex").bool().unwrap_or(true) {
            self.steps.push(Step::isolated(Rule::Gpt2));
        }
        self.byte_level = true;
    }

    fn add_metaspace(&mut self, node: &Node<'_>) -> Result<(), TokenizerError> {
        let text = node.get("replacement").str().unwrap_or("▁");
        let replacement = text
            .chars()
            .next()
            .ok_or_else(|| node.wrong("a character"))?;
        let prepend = match (
            node.get("prepend_scheme").str(),
            node.get("add_prefix_space").bool(),
        ) {
            (Some("always"), _) | (None, None | Some(true)) => Prepend::Always,
            (Some("first"), _) => Prepend::First,
            (Some("never"), _) | (None, Some(false)) => Prepend::Never,
            (Some(other), _) => return Err(node.unsupported(format!("prepend_scheme `{other}`"))),
        };
        self.steps.push(Step::Metaspace {
            replacement,
            prepend,
        });
        if node.get("split").bool().unwrap_or(true) {
            let rule = Rule::Literal(replacement.to_string());
            self.steps.push(Step::Split {
                rule,
                behavior: Behavior::MergedWithNext,
                invert: false,
            });
        }
        Ok(())
    }
}

fn behavior(node: &Node<'_>) -> Result<Behavior, TokenizerError> {
    Ok(match node.get("behavior").str().unwrap_or("Isolated") {
        "Isolated" => Behavior::Isolated,
        "Removed" => Behavior::Removed,
        "MergedWithPrevious" => Behavior::MergedWithPrevious,
        "MergedWithNext" => Behavior::MergedWithNext,
        "Contiguous" => Behavior::Contiguous,
        other => return Err(node.unsupported(format!("behavior `{other}`"))),
    })
}
