//! A conversation with a model.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde_json::json;
use tokkata::answer::{Answer, OutputFormat, OutputParser};
use tokkata::chat::{chat_request, encode_rendered};
use tokkata::grammar::{Grammar, constrain};
use tokkata::{
    ChatTemplate, EventKind, FinishReason, Message, Model, Request, Sampling, SessionId, Stats,
    TextDecoder,
};

use super::super::complete::Format;
use crate::console::say;
use crate::diffusion::DiffusionArgs;

/// Messages so far, and how answers are made.
pub(super) struct Chat {
    model: Model,
    session: SessionId,
    template: ChatTemplate,
    messages: Vec<Message>,
    last: Option<(Stats, FinishReason)>,
    interrupted: Arc<AtomicBool>,
    pub(super) sampling: Sampling,
    pub(super) ignore_end: bool,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) output: Format,
    pub(super) grammar: Option<Grammar>,
    /// Tools that the model may call.
    pub(super) tools: Option<Vec<serde_json::Value>>,
}

impl Chat {
    pub(super) fn new(mut model: Model, template: ChatTemplate, system: Option<String>) -> Self {
        let session = model.open_session();
        let messages = system
            .map(|text| Message::new("system", text))
            .into_iter()
            .collect();
        Chat {
            model,
            session,
            template,
            messages,
            last: None,
            interrupted: interrupts(),
            sampling: Sampling::default(),
            ignore_end: false,
            max_tokens: None,
            stop: Vec::new(),
            output: Format::Text,
            grammar: None,
            tools: None,
        }
    }

    /// Sets how a diffusion model fills its answers; an interrupt ends one as it is.
    pub(super) fn set_diffusion(&mut self, args: &DiffusionArgs) -> Result<()> {
        let interrupted = self.interrupted.clone();
        let stop = move || interrupted.load(Ordering::Relaxed);
        args.apply(&mut self.model, stop)
    }

    /// Asks and prints the answer.
    pub(super) fn ask(&mut self, question: &str) -> Result<()> {
        self.messages.push(Message::new("user", question));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
        }
        answered
    }

    fn answer(&mut self) -> Result<()> {
        let (request, prompt) = self.request()?;
        let (text, reason, stats) = self.generate(request)?;
        self.last = Some((stats, reason));
        self.print_end(&text, &prompt, (reason, stats))?;
        self.messages.push(Message::new("assistant", text));
        Ok(())
    }

    /// The request for the next answer, and its prompt as text.
    fn request(&self) -> Result<(Request, String)> {
        let path = self.model.checkpoint().path().display().to_string();
        let tokenizer = self.model.tokenizer()?;
        let mut chat = chat_request(&self.messages, tokenizer);
        chat.tools.clone_from(&self.tools);
        let prompt = self.template.render(&chat);
        let prompt = prompt.with_context(|| format!("{path}: the chat template"))?;
        let mut request = self.model.request(encode_rendered(&prompt, tokenizer))?;
        if self.tools.is_some() {
            // Calls are between special tokens.
            request.decoder = Some(Box::new(TextDecoder::with_special(tokenizer.clone())));
        }
        request.sampling = self.sampling.clone();
        request.stop.max_tokens = self.max_tokens;
        request.stop.stop_strings = self.stop.iter().map(|s| s.clone().into_bytes()).collect();
        if self.ignore_end {
            let ends = request.stop.stop_ids.drain(..);
            request
                .sampling
                .bias
                .extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        if let Some(grammar) = &self.grammar {
            constrain(&mut request, grammar);
        }
        Ok((request, prompt.into_text()))
    }

    /// Generates, printing text as it comes; an interrupt ends the answer.
    fn generate(&mut self, request: Request) -> Result<(String, FinishReason, Stats)> {
        self.interrupted.store(false, Ordering::Relaxed);
        let mut stdout = std::io::stdout().lock();
        let mut all = Vec::new();
        let mut end = (FinishReason::Cancelled, Stats::default());
        let mut events = self.model.generate(request, Some(self.session))?;
        while let Some(event) = events.next() {
            let text = match event? {
                EventKind::Token { text, .. } => text,
                EventKind::Finished {
                    text,
                    reason,
                    stats,
                } => {
                    end = (reason, stats);
                    text
                }
                _ => Vec::new(),
            };
            if self.output == Format::Text && !text.is_empty() {
                stdout.write_all(&text)?;
                stdout.flush()?;
            }
            all.extend(text);
            if self.interrupted.load(Ordering::Relaxed) {
                events.cancel();
            }
        }
        Ok((String::from_utf8_lossy(&all).into_owned(), end.0, end.1))
    }

    fn print_end(
        &self,
        text: &str,
        prompt: &str,
        (reason, stats): (FinishReason, Stats),
    ) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        match self.output {
            Format::Text => writeln!(stdout)?,
            Format::Json => {
                let mut object = to_json(text, reason, stats, self.sampling.seed);
                if let Some(tools) = &self.tools {
                    object["answer"] = parsed(&self.template, prompt, text, tools);
                }
                writeln!(stdout, "{object}")?;
            }
        }
        stdout.flush()?;
        if reason == FinishReason::ContextFull {
            let ctx = self.model.limits().ctx;
            say(&format!(
                "the context of {ctx} tokens is full; use a larger one (-c), or /clear"
            ));
        }
        Ok(())
    }

    /// Answers the last question again, from another seed.
    pub(super) fn again(&mut self) -> Result<()> {
        if self.messages.last().is_some_and(|m| m.role == "assistant") {
            self.messages.pop();
        }
        if self.messages.last().is_none_or(|m| m.role != "user") {
            say("there is no question to answer again");
            return Ok(());
        }
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        self.answer()
    }

    /// Forgets the last question and its answer.
    pub(super) fn undo(&mut self) {
        let question = self.messages.iter().rposition(|m| m.role == "user");
        self.messages
            .truncate(question.unwrap_or(self.messages.len()));
    }

    /// Forgets everything but the system prompt.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// Begins anew with another system prompt.
    pub(super) fn set_system(&mut self, text: &str) {
        self.messages.clear();
        if !text.is_empty() {
            self.messages.push(Message::new("system", text));
        }
    }

    /// What the last answer cost.
    pub(super) fn stats(&self) -> String {
        let Some((stats, reason)) = &self.last else {
            return "no answer yet".to_owned();
        };
        let rate = |tokens: usize, ns: u64| tokens as f64 * 1e9 / ns.max(1) as f64;
        let Stats {
            prompt_tokens,
            reused_tokens,
            computed_tokens,
            generated_tokens,
            ..
        } = *stats;
        format!(
            "prompt {prompt_tokens} tokens ({reused_tokens} reused, {computed_tokens} computed at {:.1}/s), answer {generated_tokens} at {:.1}/s, ended by {}",
            rate(computed_tokens, stats.prompt_ns),
            rate(generated_tokens.saturating_sub(1), stats.generate_ns),
            reason.as_str(),
        )
    }
}

/// An answer split into its parts, as chat APIs name them.
fn parsed(
    template: &ChatTemplate,
    prompt: &str,
    text: &str,
    tools: &[serde_json::Value],
) -> serde_json::Value {
    let mut parser = OutputParser::new(&OutputFormat::derive(template), prompt, tools);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let answer = Answer::from_events(events);
    let calls = answer.tool_calls.iter().map(|call| {
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": call.id, "type": "function", "function": function})
    });
    let calls: Vec<serde_json::Value> = calls.collect();
    json!({
        "reasoning_content": answer.reasoning,
        "content": answer.content,
        "tool_calls": calls,
    })
}

fn to_json(text: &str, reason: FinishReason, stats: Stats, seed: u64) -> serde_json::Value {
    json!({
        "text": text,
        "finish_reason": reason.as_str(),
        "seed": seed,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "computed_tokens": stats.computed_tokens,
        "generated_tokens": stats.generated_tokens,
        "prompt_ms": stats.prompt_ns as f64 / 1e6,
        "generate_ms": stats.generate_ns as f64 / 1e6,
    })
}

/// A flag that Ctrl-C sets. Where no handler can be installed, Ctrl-C ends the program as usual.
fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let inner = flag.clone();
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let _ = ctrlc::set_handler(move || inner.store(true, Ordering::Relaxed));
    }
    flag
}
