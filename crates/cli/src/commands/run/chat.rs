//! A conversation with a model.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use tokkata::answer::{Answer, OutputFormat, OutputParser};
use tokkata::chat::{chat_request, encode_rendered};
use tokkata::grammar::{Grammar, constrain};
use tokkata::rules::CallRule;
use tokkata::{
    ChatTemplate, EventKind, FinishReason, Model, Request, Sampling, SessionId, Stats, TextDecoder,
};

use super::super::complete::Format;
use super::show::{Style, Words};
use super::think::{self, Thought, Watch};
use crate::console::say;
use crate::diffusion::DiffusionArgs;
use crate::sampling::ShiftArgs;

/// Messages so far, and how answers are made.
pub(super) struct Chat {
    model: Model,
    session: SessionId,
    template: ChatTemplate,
    /// What templates take: objects with `role` and `content`.
    pub(super) messages: Vec<Value>,
    last: Option<(Stats, FinishReason)>,
    interrupted: Arc<AtomicBool>,
    pub(super) sampling: Sampling,
    pub(super) ignore_end: bool,
    pub(super) max_tokens: Option<usize>,
    pub(super) shift: ShiftArgs,
    pub(super) stop: Vec<String>,
    pub(super) output: Format,
    pub(super) grammar: Option<Grammar>,
    /// The same after reasoning that was cut.
    pub(super) grammar_after: Option<Grammar>,
    /// Keeps calls out of answers without tools.
    calls: Option<Arc<CallRule>>,
    /// Tools that the model may call.
    pub(super) tools: Option<Vec<Value>>,
    /// Further names for the template.
    pub(super) names: Map<String, Value>,
    pub(super) thought: Thought,
    pub(super) style: Style,
    /// Text that comes before the next question.
    pub(super) before: Option<String>,
}

/// An answer as it was generated.
struct Reply {
    text: String,
    tokens: Vec<u32>,
    reason: FinishReason,
    stats: Stats,
    /// Whether its reasoning was ended from outside.
    cut: bool,
}

fn message(role: &str, content: impl Into<String>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn has_role(message: &Value, role: &str) -> bool {
    message["role"] == role
}

impl Chat {
    pub(super) fn new(mut model: Model, template: ChatTemplate, system: Option<String>) -> Self {
        let session = model.open_session();
        let messages = system.map(|text| message("system", text));
        let format = OutputFormat::derive(&template);
        let rule = |tokenizer: &Arc<_>| CallRule::new(&format, Arc::clone(tokenizer));
        // A diffusion model's answers follow no order that a rule could.
        let text = model.tokenizer().ok().filter(|_| !model.is_diffusion());
        let calls = text.map(rule);
        Chat {
            calls,
            model,
            session,
            template,
            messages: messages.into_iter().collect(),
            last: None,
            interrupted: interrupts(),
            sampling: Sampling::default(),
            ignore_end: false,
            max_tokens: None,
            shift: ShiftArgs::default(),
            stop: Vec::new(),
            output: Format::Text,
            grammar: None,
            grammar_after: None,
            tools: None,
            names: Map::new(),
            thought: Thought::default(),
            style: Style::plain(),
            before: None,
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
        let question = match self.before.take() {
            Some(before) => format!("{before}\n{question}"),
            None => question.to_owned(),
        };
        self.say_and_answer(message("user", question))
    }

    /// Gives the result of the tool that was called last, and prints the answer to it.
    pub(super) fn give_result(&mut self, result: &str) -> Result<()> {
        let last = self.messages.last().filter(|m| has_role(m, "assistant"));
        let calls = last.and_then(|m| m["tool_calls"].as_array());
        let call = calls.and_then(|calls| calls.first());
        let call =
            call.ok_or_else(|| anyhow!("no tool was called, so there is no result to give"))?;
        let mut given = message("tool", result);
        given["name"] = call["function"]["name"].clone();
        given["tool_call_id"] = call["id"].clone();
        self.say_and_answer(given)
    }

    fn say_and_answer(&mut self, said: Value) -> Result<()> {
        self.messages.push(said);
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
        }
        answered
    }

    /// Whether there was an answer.
    pub(super) fn has_answered(&self) -> bool {
        self.last.is_some()
    }

    fn answer(&mut self) -> Result<()> {
        let (request, prompt) = self.request()?;
        let ids = request.prompt.clone();
        let watch = self.thought.watch(&prompt, self.model.tokenizer()?);
        let mut words = Words::new(self.style);
        let mut reply = self.generate(request, watch, &mut words)?;
        if reply.cut {
            reply = self.after_thought((ids, &prompt), reply, &mut words)?;
        }
        self.last = Some((reply.stats, reply.reason));
        self.print_end(&reply, &prompt, &mut words)?;
        let said = self.remembered(&reply.text, &prompt);
        if std::io::stdin().is_terminal() && said["tool_calls"].is_array() {
            say("a tool was called; /tool TEXT gives its result");
        }
        self.messages.push(said);
        Ok(())
    }

    /// The answer as a message; calls of tools are told apart, for the template to write them.
    fn remembered(&self, text: &str, prompt: &str) -> Value {
        let mut said = message("assistant", text);
        let Some(tools) = &self.tools else {
            return said;
        };
        let parsed = parsed(&self.template, prompt, text, tools);
        if parsed["tool_calls"]
            .as_array()
            .is_some_and(|c| !c.is_empty())
        {
            said["content"] = parsed["content"].clone();
            said["tool_calls"] = parsed["tool_calls"].clone();
        }
        said
    }

    /// The request for the next answer, and its prompt as text.
    fn request(&self) -> Result<(Request, String)> {
        let path = self.model.checkpoint().path().display().to_string();
        let tokenizer = self.model.tokenizer()?;
        let mut chat = chat_request(&[], tokenizer);
        chat.messages.clone_from(&self.messages);
        chat.tools.clone_from(&self.tools);
        chat.extra.clone_from(&self.names);
        let prompt = self.template.render(&chat);
        let prompt = prompt.with_context(|| format!("{path}: the chat template"))?;
        let mut ids = encode_rendered(&prompt, tokenizer);
        let mut prompt = prompt.into_text();
        if let Some(skipped) = self.thought.skipped(&prompt) {
            ids.extend(think::ids(&skipped, tokenizer));
            prompt += &skipped;
        }
        let request = self.request_for((ids, &prompt), self.grammar.as_ref())?;
        Ok((request, prompt))
    }

    /// The request for an answer to a prompt, as ids and as text.
    fn request_for(
        &self,
        (ids, text): (Vec<u32>, &str),
        grammar: Option<&Grammar>,
    ) -> Result<Request> {
        let mut request = self.model.request(ids)?;
        if self.tools.is_some() {
            // Calls are between special tokens.
            let tokenizer = self.model.tokenizer()?.clone();
            request.decoder = Some(Box::new(TextDecoder::with_special(tokenizer)));
        }
        request.sampling = self.sampling.clone();
        if self.tools.is_none()
            && grammar.is_none()
            && let Some(calls) = &self.calls
        {
            calls.forbid(&mut request, text);
        }
        request.shift = self.shift.kept(request.prompt.len());
        request.stop.max_tokens = self.max_tokens;
        request.stop.stop_strings = self.stop.iter().map(|s| s.clone().into_bytes()).collect();
        if self.ignore_end {
            let ends = request.stop.stop_ids.drain(..);
            request
                .sampling
                .bias
                .extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        if let Some(grammar) = grammar {
            constrain(&mut request, grammar);
        }
        Ok(request)
    }

    /// Goes on after reasoning whose budget is spent: the model reads that it is over.
    fn after_thought(
        &mut self,
        (prompt, text): (Vec<u32>, &str),
        first: Reply,
        words: &mut Words,
    ) -> Result<Reply> {
        let ending = self.thought.ending();
        let tokenizer = self.model.tokenizer()?;
        let ids = [prompt, first.tokens, think::ids(&ending, tokenizer)].concat();
        let text = format!("{text}{}{ending}", first.text);
        let grammar = self.grammar_after.as_ref().or(self.grammar.as_ref());
        let mut request = self.request_for((ids, &text), grammar)?;
        let left = self.max_tokens;
        let used = first.stats.generated_tokens;
        request.stop.max_tokens = left.map(|n| n.saturating_sub(used).max(1));
        if self.output == Format::Text {
            words.write(ending.as_bytes())?;
        }
        let second = self.generate(request, None, words)?;
        Ok(Reply {
            text: first.text + &ending + &second.text,
            stats: Stats {
                generated_tokens: used + second.stats.generated_tokens,
                generate_ns: first.stats.generate_ns + second.stats.generate_ns,
                ..first.stats
            },
            ..second
        })
    }

    /// Generates, printing text as it comes; an interrupt ends the answer, and so does thinking for too long.
    fn generate(
        &mut self,
        request: Request,
        mut watch: Option<Watch>,
        words: &mut Words,
    ) -> Result<Reply> {
        self.interrupted.store(false, Ordering::Relaxed);
        let (mut all, mut tokens, mut cut) = (Vec::new(), Vec::new(), false);
        let mut end = (FinishReason::Cancelled, Stats::default());
        let mut events = self.model.generate(request, Some(self.session))?;
        while let Some(event) = events.next() {
            let text = match event? {
                EventKind::Token { id, text, .. } => {
                    tokens.push(id);
                    cut |= watch.as_mut().is_some_and(|w| w.spent(id));
                    text
                }
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
            let stopped = self.interrupted.load(Ordering::Relaxed);
            if self.output == Format::Text && !stopped {
                words.write(&text)?;
            }
            all.extend(text);
            if stopped || cut {
                events.cancel();
            }
        }
        Ok(Reply {
            text: String::from_utf8_lossy(&all).into_owned(),
            tokens,
            reason: end.0,
            stats: end.1,
            cut: cut && !self.interrupted.load(Ordering::Relaxed),
        })
    }

    fn print_end(&self, reply: &Reply, prompt: &str, words: &mut Words) -> Result<()> {
        if reply.reason == FinishReason::Cancelled {
            words.forget();
        }
        match self.output {
            Format::Text => words.end()?,
            Format::Json => {
                let mut object = to_json(reply, self.sampling.seed);
                if let Some(tools) = &self.tools {
                    object["answer"] = parsed(&self.template, prompt, &reply.text, tools);
                }
                let mut stdout = std::io::stdout().lock();
                writeln!(stdout, "{object}")?;
                stdout.flush()?;
            }
        }
        if reply.reason == FinishReason::ContextFull {
            let ctx = self.model.limits().ctx;
            say(&format!(
                "the context of {ctx} tokens is full; use a larger one (-c) or --context-shift, or /clear"
            ));
        }
        Ok(())
    }

    /// Answers the last question again, from another seed.
    pub(super) fn again(&mut self) -> Result<()> {
        if self
            .messages
            .last()
            .is_some_and(|m| has_role(m, "assistant"))
        {
            self.messages.pop();
        }
        let asked = |m: &Value| has_role(m, "user") || has_role(m, "tool");
        if !self.messages.last().is_some_and(asked) {
            say("there is no question to answer again");
            return Ok(());
        }
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        self.answer()
    }

    /// Forgets the last question and its answer, if there is one.
    pub(super) fn undo(&mut self) -> bool {
        let question = self.messages.iter().rposition(|m| has_role(m, "user"));
        question.inspect(|&at| self.messages.truncate(at)).is_some()
    }

    /// Forgets everything but the system prompt.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|m| has_role(m, "system"));
    }

    /// Begins anew with another system prompt.
    pub(super) fn set_system(&mut self, text: &str) {
        self.messages.clear();
        if !text.is_empty() {
            self.messages.push(message("system", text));
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
fn parsed(template: &ChatTemplate, prompt: &str, text: &str, tools: &[Value]) -> Value {
    let mut parser = OutputParser::new(&OutputFormat::derive(template), prompt, tools);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let answer = Answer::from_events(events);
    let calls = answer.tool_calls.iter().map(|call| {
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": call.id, "type": "function", "function": function})
    });
    let calls: Vec<Value> = calls.collect();
    json!({
        "reasoning_content": answer.reasoning,
        "content": answer.content,
        "tool_calls": calls,
    })
}

fn to_json(reply: &Reply, seed: u64) -> Value {
    let stats = &reply.stats;
    json!({
        "text": reply.text,
        "finish_reason": reply.reason.as_str(),
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

/// A flag that Ctrl-C sets. Where no handler can be installed, Ctrl-C ends the program as usual.
fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let inner = flag.clone();
    if std::io::stdin().is_terminal() {
        let _ = ctrlc::set_handler(move || inner.store(true, Ordering::Relaxed));
    }
    flag
}
