//! `complete`: continues a text, byte for byte.

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokkata::{
    ByteDecoder, Checkpoint, DecodeOptions, EncodeOptions, EventKind, FinishReason, Model, Request,
    Sampling, SessionId, Stats, Tokenizer,
};

use super::client::{Asked, continued};
use super::examples;
use crate::args::{
    DeviceArgs, DraftArgs, ModelArgs, PromptArgs, ServerArgs, SizeArgs, read_stdin, token_ids,
    usage,
};
use crate::console::say;
use crate::constrain::GrammarArgs;
use crate::diffusion::DiffusionArgs;
use crate::load;
use crate::sampling::{SamplingArgs, ShiftArgs};

/// Flags of `complete`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::COMPLETE)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The prompt as token ids
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
    /// Tokens to generate; -1 until the model ends or the context is full
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    predict: i64,
    /// End the answer before this text
    #[arg(
        short = 'r',
        long = "stop",
        visible_alias = "reverse-prompt",
        value_name = "TEXT"
    )]
    stop: Vec<String>,
    /// How to print: text, or one JSON object per prompt
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Print special tokens too
    #[arg(long)]
    special: bool,
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

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The answer alone.
    Text,
    /// An object with the answer and what it cost.
    Json,
}

/// Asks a server.
fn ask(args: &CompleteArgs, server: &str) -> Result<()> {
    let (_, rest) = args.model.unsplit();
    if args.ids.is_some() || args.special {
        return Err(usage("--ids and --special are for models that are loaded"));
    }
    let mut prompts = args.prompt.read_exact(rest)?;
    if prompts.is_empty() {
        prompts.push(read_stdin()?);
    }
    let text = |p: Vec<u8>| String::from_utf8(p).map_err(|_| anyhow!("the prompt is not UTF-8"));
    let prompts = prompts.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    let mut body = args.sampling.body()?;
    body.insert("max_tokens".to_owned(), args.predict.into());
    body.insert("stop".to_owned(), args.stop.clone().into());
    body.insert("model".to_owned(), args.model.name().into());
    let asked = Asked {
        server,
        key: args.server.api_key.as_deref(),
        body: body.into(),
    };
    continued(&asked, &prompts)
}

pub(crate) fn run(args: &CompleteArgs) -> Result<()> {
    if let Some(server) = &args.server.server {
        return ask(args, server);
    }
    let (_, rest) = args.model.split()?;
    let prompts = prompts(args, args.prompt.read(rest)?)?;
    let (checkpoint, mut options) = load::open(&args.model, &args.device, &args.sizes)?;
    args.drafts.apply(&args.model, &mut options)?;
    checkpoint.must_write()?;
    let tokenizer = checkpoint.tokenizer()?.clone();
    let encode = |i: usize, prompt: &Prompt| encode(&checkpoint, &tokenizer, prompt, i == 0);
    let prompts: Result<Vec<Vec<u32>>> = prompts
        .iter()
        .enumerate()
        .map(|(i, p)| encode(i, p))
        .collect();
    let prompts = prompts?;
    let (sampling, made_up) = args.sampling.sampling(Some(&tokenizer))?;
    if let Some(seed) = made_up {
        say(&format!("seed: {seed}"));
    }
    let grammar = args
        .grammar
        .compile(&checkpoint, None, None, &args.sampling)?;
    let mut model = load::load(checkpoint, &options)?;
    args.diffusion.apply(&mut model, || false)?;
    let session = model.open_session();
    let mut tokens = Vec::new();
    for prompt in prompts {
        tokens.extend(prompt);
        let prompt = model.prompted(tokens.clone());
        let mut request = request(args, &tokenizer, &sampling, prompt);
        if let Some(grammar) = &grammar {
            tokkata::grammar::constrain(&mut request, grammar);
        }
        let answer = answer(&mut model, session, request, args.output)?;
        print_end(args.output, &answer, sampling.seed)?;
        note_context(&model, &answer);
        tokens.extend(&answer.tokens);
    }
    Ok(())
}

/// A prompt as text or as ids.
enum Prompt {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

fn prompts(args: &CompleteArgs, texts: Vec<Vec<u8>>) -> Result<Vec<Prompt>> {
    let mut prompts: Vec<Prompt> = texts.into_iter().map(Prompt::Bytes).collect();
    if let Some(ids) = &args.ids {
        prompts.insert(0, Prompt::Ids(token_ids(ids).map_err(usage)?));
    }
    if prompts.is_empty() {
        if std::io::stdin().is_terminal() {
            return Err(usage(
                "no prompt was given; give -p TEXT, -f FILE or standard input",
            ));
        }
        prompts.push(Prompt::Bytes(read_stdin()?));
    }
    Ok(prompts)
}

fn encode(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    first: bool,
) -> Result<Vec<u32>> {
    match prompt {
        Prompt::Ids(ids) => Ok(ids.clone()),
        Prompt::Bytes(bytes) => {
            let options = EncodeOptions {
                add_special: first,
                parse_special: true,
            };
            let ids = tokenizer.encode_bytes(bytes, options);
            ids.map_err(|e| anyhow!("{}: the prompt: {e}", checkpoint.path().display()))
        }
    }
}

fn request(
    args: &CompleteArgs,
    tokenizer: &Arc<Tokenizer>,
    sampling: &Sampling,
    mut request: Request,
) -> Request {
    let options = DecodeOptions {
        special: args.special,
        continues: true,
    };
    request.decoder = Some(Box::new(ByteDecoder::new(tokenizer.clone(), options)));
    request.stop.stop_ids = tokenizer.eog().to_vec();
    request.stop.stop_strings = args.stop.iter().map(|s| s.clone().into_bytes()).collect();
    request.stop.max_tokens = usize::try_from(args.predict).ok();
    request.shift = args.shift.kept(request.prompt.len());
    args.sampling.apply(sampling, &mut request);
    request
}

/// A finished answer.
struct Answer {
    text: Vec<u8>,
    tokens: Vec<u32>,
    reason: FinishReason,
    stats: Stats,
}

/// Generates, printing text as it comes.
fn answer(
    model: &mut Model,
    session: SessionId,
    request: Request,
    output: Format,
) -> Result<Answer> {
    let mut stdout = std::io::stdout().lock();
    let (mut all, mut tokens) = (Vec::new(), Vec::new());
    for event in model.generate(request, Some(session))? {
        let (text, end) = match event? {
            EventKind::Token { id, text, .. } => {
                tokens.push(id);
                (text, None)
            }
            EventKind::Finished {
                text,
                reason,
                stats,
            } => (text, Some((reason, stats))),
            EventKind::Prompt { .. } | EventKind::Values { .. } | EventKind::Failed(_) => continue,
        };
        if output == Format::Text && !text.is_empty() {
            stdout.write_all(&text)?;
            stdout.flush()?;
        }
        all.extend(text);
        if let Some((reason, stats)) = end {
            return Ok(Answer {
                text: all,
                tokens,
                reason,
                stats,
            });
        }
    }
    Err(anyhow!("the answer ended without a reason"))
}

fn print_end(output: Format, answer: &Answer, seed: u64) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match output {
        // A shell's prompt should not stick to the answer; a pipe gets the bytes alone.
        Format::Text if stdout.is_terminal() => writeln!(stdout)?,
        Format::Text => {}
        Format::Json => writeln!(stdout, "{}", to_json(answer, seed))?,
    }
    Ok(stdout.flush()?)
}

fn to_json(answer: &Answer, seed: u64) -> serde_json::Value {
    let stats = &answer.stats;
    json!({
        "text": String::from_utf8_lossy(&answer.text),
        "tokens": answer.tokens,
        "finish_reason": answer.reason.as_str(),
        "seed": seed,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "computed_tokens": stats.computed_tokens,
        "generated_tokens": stats.generated_tokens,
        "prompt_ms": stats.prompt_ns as f64 / 1e6,
        "generate_ms": stats.generate_ns as f64 / 1e6,
        "draft_n": stats.drafted_tokens,
        "draft_n_accepted": stats.accepted_tokens,
    })
}

fn note_context(model: &Model, answer: &Answer) {
    if answer.reason == FinishReason::ContextFull {
        let ctx = model.limits().ctx;
        say(&format!(
            "the context of {ctx} tokens is full; use a larger one (-c) or --context-shift"
        ));
    }
}
