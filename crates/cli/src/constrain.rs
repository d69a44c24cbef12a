//! Flags of grammars that an answer must follow.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use tokkata::Checkpoint;
use tokkata::grammar::{Grammar, GrammarSource, Trigger};

use crate::args::{read_bytes, usage};
use crate::sampling::SamplingArgs;

/// What an answer must follow.
#[derive(Debug, Args)]
#[command(next_help_heading = "Grammar")]
pub(crate) struct GrammarArgs {
    /// Answer with JSON that this schema allows: a file, or the schema itself
    #[arg(long, value_name = "FILE", group = "constraint")]
    json_schema: Option<PathBuf>,
    /// Follow a grammar: GBNF, or Lark in a file named *.lark
    #[arg(long, value_name = "FILE", group = "constraint")]
    grammar: Option<PathBuf>,
    /// Answer with text that this regular expression matches
    #[arg(long, value_name = "REGEX", group = "constraint")]
    regex: Option<String>,
    /// Answer freely up to this text, and follow the grammar after it
    #[arg(long, value_name = "TEXT", requires = "constraint")]
    grammar_after: Option<String>,
}

impl GrammarArgs {
    /// The grammar, compiled. It applies after `close`, the end of reasoning that the prompt has opened, unless the
    /// flags say otherwise.
    pub(crate) fn compile(
        &self,
        checkpoint: &Checkpoint,
        close: Option<&str>,
        sampling: &SamplingArgs,
    ) -> Result<Option<Grammar>> {
        let Some(source) = self.source()? else {
            return Ok(None);
        };
        if sampling.ignores_end() {
            return Err(usage(
                "found --ignore-eos and a grammar, expected one of them: a grammar says where answers end",
            ));
        }
        let after = self.grammar_after.as_deref().or(close);
        let trigger = after.map_or(Trigger::Now, |text| Trigger::Once(text.as_bytes().to_vec()));
        let grammar = checkpoint.grammar(source, trigger);
        let file = || checkpoint.path().display().to_string();
        Ok(Some(grammar.with_context(file)?))
    }

    fn source(&self) -> Result<Option<GrammarSource>> {
        if let Some(path) = &self.json_schema {
            return Ok(Some(GrammarSource::JsonSchema(schema(path)?)));
        }
        if let Some(path) = &self.grammar {
            let text = text(path)?;
            let is_lark = path.extension().is_some_and(|e| e == "lark");
            return Ok(Some(if is_lark {
                GrammarSource::Lark(text)
            } else {
                GrammarSource::Gbnf(text)
            }));
        }
        Ok(self.regex.clone().map(GrammarSource::Regex))
    }
}

/// A schema from a file, or written out in place of its name.
fn schema(path: &Path) -> Result<serde_json::Value> {
    let inline = path
        .to_str()
        .filter(|text| text.trim_start().starts_with('{'));
    let (text, name) = match inline {
        Some(text) => (text.to_owned(), "--json-schema".to_owned()),
        None => (text(path)?, path.display().to_string()),
    };
    serde_json::from_str(&text).with_context(|| format!("{name}: the schema is no JSON"))
}

fn text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?)
        .map_err(|_| anyhow!("{}: found bytes that are not UTF-8", path.display()))
}
