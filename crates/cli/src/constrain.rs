//! Flags of grammars that an answer must follow.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::Value;
use tokkata::grammar::{Grammar, GrammarSource, ToolChoice, Trigger};
use tokkata::{ChatTemplate, Checkpoint};

use crate::args::{read_bytes, usage};
use crate::sampling::SamplingArgs;

/// What an answer must follow.
#[derive(Debug, Args)]
#[command(next_help_heading = "Grammar")]
pub(crate) struct GrammarArgs {
    /// Answer with JSON that this schema allows: a file, or the schema itself
    #[arg(long, value_name = "FILE", group = "constraint")]
    json_schema: Option<PathBuf>,
    /// Follow a grammar: a file or the text itself, GBNF, or Lark in a file named *.lark
    #[arg(long, value_name = "FILE", group = "constraint")]
    grammar: Option<PathBuf>,
    /// Answer with text that this regular expression matches
    #[arg(long, value_name = "REGEX", group = "constraint")]
    regex: Option<String>,
    /// Let the model call these tools: a file with a list of them in JSON, or the list itself. Calls follow the
    /// tools' schemas
    #[arg(long, value_name = "FILE", group = "constraint")]
    tools: Option<PathBuf>,
    /// Whether to call one: auto, required, none or a tool's name
    #[arg(
        long,
        value_name = "CHOICE",
        requires = "tools",
        default_value = "auto",
        hide_short_help = true
    )]
    tool_choice: String,
    /// Answer freely up to this text, and follow the grammar after it
    #[arg(
        long,
        value_name = "TEXT",
        requires = "constraint",
        hide_short_help = true
    )]
    grammar_after: Option<String>,
}

impl GrammarArgs {
    /// The tools that the model may call.
    pub(crate) fn tools(&self) -> Result<Option<Vec<Value>>> {
        let Some(path) = &self.tools else {
            return Ok(None);
        };
        let value = json(path, "--tools", "the list of tools")?;
        let list = match value {
            Value::Array(tools) => Some(tools),
            Value::Object(mut request) => match request.remove("tools") {
                Some(Value::Array(tools)) => Some(tools),
                _ => None,
            },
            _ => None,
        };
        let list = list.ok_or_else(|| anyhow!("{}: found no list of tools", path.display()))?;
        match self.tool_choice.as_str() {
            "none" => Ok(None),
            "auto" | "required" => Ok(Some(list)),
            name => {
                let named = |tool: &Value| tool.get("function").unwrap_or(tool)["name"] == name;
                let one: Vec<Value> = list.into_iter().filter(named).collect();
                if one.is_empty() {
                    return Err(usage(format!(
                        "found the tool choice '{name}', expected auto, required, none or the name of a tool"
                    )));
                }
                Ok(Some(one))
            }
        }
    }

    fn choice(&self) -> ToolChoice {
        match self.tool_choice.as_str() {
            "auto" => ToolChoice::Auto,
            _ => ToolChoice::Required,
        }
    }

    /// The grammar, compiled. It applies after `close`, the end of reasoning that the prompt has opened, unless the
    /// flags say otherwise. Calls of tools are written as `template` shows, or else the file's template.
    pub(crate) fn compile(
        &self,
        checkpoint: &Checkpoint,
        template: Option<&ChatTemplate>,
        close: Option<&str>,
        sampling: &SamplingArgs,
    ) -> Result<Option<Grammar>> {
        let file = || checkpoint.path().display().to_string();
        let grammar = match (self.source()?, self.tools()?) {
            (Some(source), _) => {
                let after = self.grammar_after.as_deref().or(close);
                let trigger =
                    after.map_or(Trigger::Now, |text| Trigger::Once(text.as_bytes().to_vec()));
                checkpoint.grammar(source, trigger)
            }
            (None, Some(tools)) => {
                let own = template.is_none().then(|| checkpoint.template());
                let own = own.transpose()?;
                let template = template.or(own.as_ref());
                let template = template.expect("one of the two is there");
                checkpoint.tool_grammar(template, &tools, self.choice(), close)
            }
            (None, None) => return Ok(None),
        };
        if sampling.ignores_end() {
            return Err(usage(
                "found --ignore-eos and a grammar, expected one of them: a grammar says where answers end",
            ));
        }
        Ok(Some(grammar.with_context(file)?))
    }

    fn source(&self) -> Result<Option<GrammarSource>> {
        if let Some(path) = &self.json_schema {
            return Ok(Some(GrammarSource::JsonSchema(json(
                path,
                "--json-schema",
                "the schema",
            )?)));
        }
        if let Some(path) = &self.grammar {
            let written = path.to_str().filter(|text| text.contains("::="));
            if let Some(written) = written {
                return Ok(Some(GrammarSource::Gbnf(written.to_owned())));
            }
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

/// JSON from a file, or written out in place of its name.
fn json(path: &Path, flag: &str, what: &str) -> Result<Value> {
    let inline = path
        .to_str()
        .filter(|text| text.trim_start().starts_with(['{', '[']));
    let (text, name) = match inline {
        Some(text) => (text.to_owned(), flag.to_owned()),
        None => (text(path)?, path.display().to_string()),
    };
    serde_json::from_str(&text).with_context(|| format!("{name}: {what} is no JSON"))
}

fn text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?)
        .map_err(|_| anyhow!("{}: found bytes that are not UTF-8", path.display()))
}
