//! `run`: a conversation, or one question with -p.

mod chat;
mod line;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use self::chat::Chat;
use self::line::{Input, Lines};
use super::complete::Format;
use super::template::read_template;
use crate::args::{DeviceArgs, ModelArgs, PromptArgs, SizeArgs};
use crate::console::say;
use crate::constrain::GrammarArgs;
use crate::demo;
use crate::diffusion::DiffusionArgs;
use crate::load;
use crate::sampling::SamplingArgs;

/// Flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Read that from a file
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt")]
    system_prompt_file: Option<PathBuf>,
    /// Use this chat template instead of the file's
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Tokens of an answer at most; -1 until the model ends or the context is full
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    predict: i64,
    /// End an answer before this text
    #[arg(
        short = 'r',
        long = "stop",
        visible_alias = "reverse-prompt",
        value_name = "TEXT"
    )]
    stop: Vec<String>,
    /// How to print: text, or one JSON object per answer
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    #[command(flatten)]
    diffusion: DiffusionArgs,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (path, rest) = named_or_demo(&args.model)?;
    let questions = args.prompt.read(rest)?;
    let mut chat = open(args, path)?;
    if !questions.is_empty() {
        for question in questions {
            let text = String::from_utf8(question)
                .map_err(|_| anyhow!("the prompt is not UTF-8; write it as UTF-8"))?;
            chat.ask(&text)?;
        }
        return Ok(());
    }
    converse(&mut chat)
}

/// The model file and the remaining arguments; without a name, the built-in model, which is said.
fn named_or_demo(model: &ModelArgs) -> Result<(&Path, &[OsString])> {
    match model.split_optional()? {
        (None, rest) if demo::BYTES.is_some() => {
            say(demo::NOTE);
            Ok((Path::new(demo::NAME), rest))
        }
        _ => model.split(),
    }
}

fn open(args: &RunArgs, path: &Path) -> Result<Chat> {
    let (checkpoint, options) = load::open_at(path, &args.model, &args.device, &args.sizes)?;
    checkpoint.must_write()?;
    let tokenizer = checkpoint.tokenizer()?.clone();
    let (sampling, made_up) = args.sampling.sampling(&tokenizer)?;
    if let Some(seed) = made_up {
        say(&format!("seed: {seed}"));
    }
    let template = match &args.chat_template_file {
        Some(path) => read_template(path)?,
        None => checkpoint.template()?,
    };
    let system = match &args.system_prompt_file {
        Some(path) => Some(read(path)?),
        None => args.system_prompt.clone(),
    };
    let close = tokkata::chat::open_reasoning(&template, &tokenizer);
    let close = close.as_deref();
    let flags = &args.grammar;
    let grammar = flags.compile(&checkpoint, Some(&template), close, &args.sampling)?;
    let model = load::load(checkpoint, &options)?;
    let mut chat = Chat::new(model, template, system);
    chat.set_diffusion(&args.diffusion)?;
    chat.sampling = sampling;
    chat.ignore_end = args.sampling.ignores_end();
    chat.max_tokens = usize::try_from(args.predict).ok();
    chat.stop.clone_from(&args.stop);
    chat.output = args.output;
    chat.grammar = grammar;
    chat.tools = flags.tools()?;
    Ok(chat)
}

fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// Answers line by line until the input ends.
fn converse(chat: &mut Chat) -> Result<()> {
    let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut lines = Lines::open(interactive)?;
    if interactive {
        say("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves");
    }
    loop {
        let text = match lines.next()? {
            Input::End => return Ok(()),
            Input::Interrupted => {
                say("Ctrl-D or /exit leaves");
                continue;
            }
            Input::Text(text) => text,
        };
        match text.trim() {
            "" => {}
            "/exit" | "/quit" | "/bye" => return Ok(()),
            command if command.starts_with('/') => self::command(chat, command)?,
            _ => {
                if let Err(error) = chat.ask(&text) {
                    recover(error)?;
                }
            }
        }
    }
}

/// An answer that failed ends a conversation only if there is nobody to go on with.
fn recover(error: anyhow::Error) -> Result<()> {
    if crate::console::is_closed_pipe(&error) || !std::io::stdin().is_terminal() {
        return Err(error);
    }
    crate::console::report(&error);
    Ok(())
}

const HELP: &str = "\
/help             this list
/clear            forget the conversation
/regen            answer the last question again
/undo             forget the last question and its answer
/system TEXT      begin anew with another system prompt
/stats            what the last answer cost
/exit             leave";

fn command(chat: &mut Chat, command: &str) -> Result<()> {
    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
    match name {
        "/help" | "/?" => {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{HELP}")?;
        }
        "/clear" => chat.clear(),
        "/undo" => chat.undo(),
        "/system" => chat.set_system(rest.trim()),
        "/stats" => say(&chat.stats()),
        "/regen" => {
            if let Err(error) = chat.again() {
                recover(error)?;
            }
        }
        _ => say(&format!("found the command {name}, expected one of /help")),
    }
    Ok(())
}
