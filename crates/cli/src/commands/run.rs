//! `run`: a conversation, or one question with -p.

mod chat;
mod commands;
mod line;
pub(super) mod named;
mod show;
pub(super) mod think;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use tokkata::{ChatTemplate, Checkpoint, Error};

use self::chat::Chat;
use self::line::{Input, Lines};
use self::think::ThinkArgs;
use super::client::{Asked, conversed};
use super::complete::Format;
use super::examples;
use crate::args::{
    DeviceArgs, DraftArgs, ModelArgs, PromptArgs, ServerArgs, SizeArgs, read_stdin, usage,
};
use crate::console::say;
use crate::constrain::GrammarArgs;
use crate::demo;
use crate::diffusion::DiffusionArgs;
use crate::load;
use crate::sampling::{SamplingArgs, ShiftArgs};

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::RUN)]
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
    /// Use this chat template instead of the file's: a well-known name such as chatml, or the template itself
    #[arg(long, value_name = "NAME", value_parser = named::template, hide_short_help = true)]
    chat_template: Option<ChatTemplate>,
    /// Read that from a file
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "chat_template",
        hide_short_help = true
    )]
    chat_template_file: Option<PathBuf>,
    /// Further names for the template, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = crate::args::object, hide_short_help = true)]
    chat_template_kwargs: Option<Map<String, Value>>,
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
    /// Leave after the first answer (also -st)
    #[arg(long)]
    single_turn: bool,
    /// How to print: text, or one JSON object per answer
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Whether questions and answers differ in colour
    #[arg(long, value_enum, default_value_t = Color::Auto, hide_short_help = true)]
    color: Color,
    #[command(flatten)]
    think: ThinkArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    drafts: DraftArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    shift: ShiftArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    #[command(flatten)]
    diffusion: DiffusionArgs,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On terminals, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Asks a server.
fn ask(args: &RunArgs, server: &str) -> Result<()> {
    if args.chat_template.is_some() || args.chat_template_file.is_some() {
        return Err(usage(
            "the server has the chat template; it is given where the server is started",
        ));
    }
    let (_, rest) = args.model.unsplit();
    let text = |p: Vec<u8>| String::from_utf8(p).map_err(|_| anyhow!("the prompt is not UTF-8"));
    let questions = args.prompt.read(rest)?.into_iter().map(text);
    let questions = questions.collect::<Result<Vec<_>>>()?;
    let mut body = args.sampling.body()?;
    body.insert("max_tokens".to_owned(), args.predict.into());
    body.insert("stop".to_owned(), args.stop.clone().into());
    body.insert("model".to_owned(), args.model.name().into());
    body.insert("enable_thinking".to_owned(), args.think.on().into());
    body.insert("reasoning_effort".to_owned(), args.think.effort().into());
    let message = Some(args.think.message()).filter(|m| !m.is_empty());
    body.insert("reasoning_budget_message".to_owned(), message.into());
    body.insert(
        "thinking_token_budget".to_owned(),
        args.think.budget().into(),
    );
    body.insert(
        "chat_template_kwargs".to_owned(),
        args.chat_template_kwargs.clone().into(),
    );
    let system = match &args.system_prompt_file {
        Some(path) => {
            Some(std::fs::read_to_string(path).map_err(|e| anyhow!("{}: {e}", path.display()))?)
        }
        None => args.system_prompt.clone(),
    };
    let asked = Asked {
        server,
        key: args.server.api_key.as_deref(),
        body: body.into(),
    };
    conversed(&asked, system, &questions)
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if let Some(server) = &args.server.server {
        return ask(args, server);
    }
    let (path, rest) = named_or_demo(&args.model)?;
    let mut questions = args.prompt.read(rest)?;
    let piped = questions.is_empty() && !std::io::stdin().is_terminal();
    if piped {
        // One prompt, whatever its lines; nothing at all is no question.
        questions.extend(Some(read_stdin()?).filter(|text| !text.is_empty()));
    }
    let mut chat = open(args, path)?;
    if questions.is_empty() && !piped {
        return converse(&mut chat, args.single_turn);
    }
    for question in questions {
        let text = String::from_utf8(question)
            .map_err(|_| anyhow!("the prompt is not UTF-8; write it as UTF-8"))?;
        chat.ask(text.trim_end_matches(['\n', '\r']))?;
    }
    Ok(())
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
    let (checkpoint, mut options) = load::open_at(path, &args.model, &args.device, &args.sizes)?;
    args.drafts.apply(&args.model, &mut options)?;
    checkpoint.must_write()?;
    let tokenizer = checkpoint.tokenizer()?.clone();
    let (sampling, made_up) = args.sampling.sampling(Some(&tokenizer))?;
    if let Some(seed) = made_up {
        say(&format!("seed: {seed}"));
    }
    let template = template(args, &checkpoint)?;
    let system = match &args.system_prompt_file {
        Some(path) => Some(read(path)?),
        None => args.system_prompt.clone(),
    };
    let mut names = args.chat_template_kwargs.clone().unwrap_or_default();
    let thought = args.think.settle(&template, &tokenizer, &mut names);
    let close = thought.close_of_open(&template, &tokenizer, &names);
    let flags = &args.grammar;
    let compile =
        |close: Option<&str>| flags.compile(&checkpoint, Some(&template), close, &args.sampling);
    let grammar = compile(close.as_deref())?;
    let grammar_after = match close {
        Some(_) if thought.may_cut() => compile(None)?,
        _ => None,
    };
    let model = load::load(checkpoint, &options)?;
    let mut chat = Chat::new(model, template, system);
    chat.set_diffusion(&args.diffusion)?;
    chat.sampling = sampling;
    chat.ignore_end = args.sampling.ignores_end();
    chat.max_tokens = usize::try_from(args.predict).ok();
    chat.shift = args.shift;
    chat.stop.clone_from(&args.stop);
    chat.output = args.output;
    chat.grammar = grammar;
    chat.grammar_after = grammar_after;
    chat.tools = flags.tools()?;
    chat.names = names;
    chat.thought = thought;
    chat.style = args.style();
    Ok(chat)
}

impl RunArgs {
    fn style(&self) -> show::Style {
        match self.color {
            Color::Auto => show::Style::of_terminal(),
            Color::Always => show::Style::colored(),
            Color::Never => show::Style::plain(),
        }
    }
}

/// The template of the flags or of the file. A model without one goes on with the plain text, which is said.
fn template(args: &RunArgs, checkpoint: &Checkpoint) -> Result<ChatTemplate> {
    if let Some(template) = &args.chat_template {
        return Ok(template.clone());
    }
    if let Some(path) = &args.chat_template_file {
        return super::template::read_template(path);
    }
    match checkpoint.template() {
        Err(Error::NoTemplate { .. }) => {
            say(
                "the model has no chat template, so it goes on with the text as it stands; --chat-template gives it one",
            );
            Ok(ChatTemplate::parse(named::PLAIN)?)
        }
        found => Ok(found?),
    }
}

fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// Answers until the input ends.
fn converse(chat: &mut Chat, once: bool) -> Result<()> {
    let interactive = std::io::stdout().is_terminal();
    let mut lines = Lines::open(interactive, chat.style)?;
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
            "" => continue,
            "/exit" | "/quit" | "/bye" => return Ok(()),
            command if command.starts_with('/') => commands::run(chat, command)?,
            _ => {
                if let Err(error) = chat.ask(&text) {
                    recover(error)?;
                }
            }
        }
        if once && chat.has_answered() {
            return Ok(());
        }
    }
}

/// A failure ends a conversation only if there is nobody to go on with.
fn recover(error: anyhow::Error) -> Result<()> {
    if crate::console::is_closed_pipe(&error) {
        return Err(error);
    }
    crate::console::report(&error);
    Ok(())
}
