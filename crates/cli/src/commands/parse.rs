//! `parse`: how a raw answer is split into reasoning, content and tool calls.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::{Value, json};
use tokkata::answer::{Answer, Event, OutputFormat, OutputParser, Parsed, ToolCall};

use super::examples;
use super::template::TemplateSource;
use crate::args::{ModelArgs, read_bytes, read_stdin, refuse};

/// Flags of `parse`. The answer is read from the file or from standard input, special tokens spelled out.
#[derive(Debug, Args)]
#[command(after_long_help = examples::PARSE)]
pub(crate) struct ParseArgs {
    #[command(flatten)]
    source: TemplateSource,
    #[command(flatten)]
    model: ModelArgs,
    /// Read the answer from a file, byte for byte
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The request that was answered: its prompt may have opened the reasoning, and its tools know their types
    #[arg(long, value_name = "JSON")]
    request: Option<PathBuf>,
    /// Print one line per piece, with the text it stands for
    #[arg(long)]
    events: bool,
}

pub(crate) fn run(args: &ParseArgs) -> Result<()> {
    let (opened, rest) = args.source.open(&args.model)?;
    refuse(rest)?;
    let raw = match &args.file {
        Some(path) => read_bytes(path)?,
        None => read_stdin()?,
    };
    let raw = String::from_utf8(raw).map_err(|e| {
        let offset = e.utf8_error().valid_up_to();
        anyhow!("the answer: found invalid UTF-8 at byte {offset}, expected UTF-8")
    })?;
    let (prompt, tools) = match &args.request {
        Some(path) => {
            let tools = opened.request(path)?.tools.unwrap_or_default();
            (opened.render(path)?.into_text(), tools)
        }
        None => (String::new(), Vec::new()),
    };
    let format = OutputFormat::derive(&opened.template);
    let mut parser = OutputParser::new(&format, &prompt, &tools);
    let mut events = parser.push(&raw);
    events.extend(parser.finish());
    print(args.events, events)
}

fn print(one_by_one: bool, events: Vec<Parsed>) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if one_by_one {
        for event in &events {
            writeln!(out, "{}", event_json(event))?;
        }
    } else {
        let answer = answer_json(&Answer::from_events(events));
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    }
    Ok(out.flush()?)
}

fn answer_json(answer: &Answer) -> Value {
    json!({
        "reasoning": answer.reasoning,
        "content": answer.content,
        "tool_calls": answer.tool_calls.iter().map(call_json).collect::<Vec<_>>(),
    })
}

fn event_json(parsed: &Parsed) -> Value {
    let (kind, value) = match &parsed.event {
        Event::Reasoning(text) => ("reasoning", json!(text)),
        Event::Content(text) => ("content", json!(text)),
        Event::ToolCall(call) => ("tool_call", call_json(call)),
        Event::Markup => ("markup", Value::Null),
    };
    json!({ "kind": kind, "value": value, "raw": parsed.raw })
}

fn call_json(call: &ToolCall) -> Value {
    json!({ "id": call.id, "name": call.name, "arguments": call.arguments })
}
