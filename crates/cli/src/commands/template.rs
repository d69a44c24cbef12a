//! `template`: a conversation as its chat template writes it.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use tokkata::{ChatRequest, ChatTemplate, Checkpoint, Clock};

use super::examples;
use crate::args::{ModelArgs, read_bytes, refuse, usage};
use crate::load;

/// Flags of `template`. The argument is the request: `messages`, `tools`, `documents`, `add_generation_prompt`,
/// `continue_final_message`, `bos_token`, `eos_token`, and further names for the template.
#[derive(Debug, Args)]
#[command(after_long_help = examples::TEMPLATE)]
pub(crate) struct TemplateArgs {
    #[command(flatten)]
    source: TemplateSource,
    #[command(flatten)]
    model: ModelArgs,
}

/// Which template, and the time it is told.
#[derive(Debug, Args)]
pub(crate) struct TemplateSource {
    /// A template instead of a model's
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    template: Option<PathBuf>,
    /// The local time that templates see: YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS [default: now, in UTC]
    #[arg(long, value_name = "TIME", value_parser = time)]
    now: Option<Clock>,
}

fn time(text: &str) -> Result<Clock, String> {
    let expected = || format!("found '{text}', expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS");
    Clock::parse(text).ok_or_else(expected)
}

pub(crate) fn run(args: &TemplateArgs) -> Result<()> {
    let (opened, rest) = args.source.open(&args.model)?;
    let Some((request, rest)) = rest.split_first() else {
        return Err(usage("no request was given, expected a JSON file"));
    };
    refuse(rest)?;
    let text = opened.render(Path::new(request))?.into_text();
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// A template that was read.
pub(crate) struct Opened {
    /// The template.
    pub(crate) template: ChatTemplate,
    name: String,
    checkpoint: Option<Checkpoint>,
    now: Option<Clock>,
}

impl TemplateSource {
    /// Reads the template, and says which arguments are left.
    pub(crate) fn open<'a>(&self, model: &'a ModelArgs) -> Result<(Opened, &'a [OsString])> {
        let (template, checkpoint, path, rest) = match &self.template {
            Some(path) => (
                read_template(path)?,
                None,
                path.as_path(),
                model.unsplit().1,
            ),
            None => {
                let (path, rest) = model.split()?;
                let checkpoint = load::checkpoint(path, &model.arch_files)?;
                (checkpoint.template()?, Some(checkpoint), path, rest)
            }
        };
        let name = path.display().to_string();
        let now = self.now;
        let opened = Opened {
            template,
            name,
            checkpoint,
            now,
        };
        Ok((opened, rest))
    }
}

impl Opened {
    /// The request in a JSON file, with what the model says where the request says nothing.
    pub(crate) fn request(&self, path: &Path) -> Result<ChatRequest> {
        let bytes = read_bytes(path)?;
        let request = serde_json::from_slice(&bytes);
        let mut request: ChatRequest =
            request.with_context(|| format!("{}: the request", path.display()))?;
        request.now = self.now;
        if let Some(checkpoint) = &self.checkpoint {
            let (bos, eos) = tokkata::chat::ends(checkpoint.tokenizer()?);
            request.bos_token = request.bos_token.or(bos);
            request.eos_token = request.eos_token.or(eos);
        }
        Ok(request)
    }

    /// The text of the request in a JSON file.
    pub(crate) fn render(&self, path: &Path) -> Result<tokkata::Rendered> {
        let request = self.request(path)?;
        let rendered = self.template.render(&request);
        rendered.with_context(|| format!("{}: the chat template", self.name))
    }
}

/// A template from a file of its own.
pub(crate) fn read_template(path: &Path) -> Result<ChatTemplate> {
    let text = String::from_utf8(read_bytes(path)?)
        .map_err(|_| anyhow!("{}: found bytes that are not UTF-8", path.display()))?;
    ChatTemplate::parse(&text).with_context(|| path.display().to_string())
}
