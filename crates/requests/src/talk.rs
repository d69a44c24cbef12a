//! A conversation, whatever dialect it came in, on its way to tokens.

use serde_json::{Map, Value, json};
use tokkata::chat::ends;
use tokkata::grammar::{Grammar, GrammarError, GrammarSource, ToolChoice, Trigger, constrain};
use tokkata::rules::{Excluded, ThinkingBudget, ThinkingTokens};
use tokkata::{
    ByteDecoder, ChatRequest, Clock, DecodeOptions, EncodeOptions, Request, TextDecoder,
};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::messages::{grammar_of, shown};
use crate::params::Params;
use crate::served::Served;
use crate::style::Thinking;
use crate::word_tools;

/// What templates call the switch of reasoning.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Which tools an answer calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolUse {
    /// As the model likes.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// A conversation in the terms of chat templates.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    /// As chat templates take them.
    pub messages: Vec<Value>,
    /// `{"type": "function", "function": {…}}` each.
    pub tools: Vec<Value>,
    /// Those that take a text rather than an object, by name.
    pub customs: Vec<String>,
    /// Which of them it calls.
    pub tool_use: ToolUse,
    /// Whether an answer may call several tools.
    pub parallel: bool,
    /// Documents that templates may show.
    pub documents: Option<Vec<Value>>,
    /// Whether and how long it thinks.
    pub thinking: Thinking,
    /// Further names for the template.
    pub names: Map<String, Value>,
    /// The answer goes on with the last message.
    pub continues: bool,
    /// The prompt ends where the assistant begins to speak.
    pub opens: bool,
    /// Reasoning stays in the content, as the model wrote it.
    pub raw_reasoning: bool,
}

/// How the text of an answer is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The prompt, which may have opened reasoning.
    pub prompt: String,
    /// What may be called.
    pub tools: Vec<Value>,
    /// The answer ends with its first call.
    pub one_call: bool,
    /// What begins as a call is one, since calls follow a grammar.
    pub calls_are_certain: bool,
    /// Calls are written as [`word_tools`] tells.
    pub in_words: bool,
    /// Reasoning stays in the content.
    pub raw_reasoning: bool,
}

/// Everything that is known before an answer begins.
pub struct Prepared {
    /// The prompt.
    pub ids: Vec<u32>,
    /// How answers are made.
    pub params: Params,
    /// What they follow.
    pub grammar: Option<Grammar>,
    /// The answer is split into reasoning, content and calls; otherwise all of it is content.
    pub reading: Option<Reading>,
    /// The end of reasoning, and the tokens after which it comes.
    pub thinking: Option<(ThinkingTokens, usize)>,
}

/// A rendered conversation and what it left open.
pub struct Rendered {
    /// As text.
    pub text: String,
    /// As tokens.
    pub ids: Vec<u32>,
    /// The text that closes the reasoning that the prompt has opened.
    close: Option<String>,
}

impl Talk {
    /// The names that the template is given.
    fn all_names(&self) -> Map<String, Value> {
        let mut names = self.names.clone();
        if self.tool_use != ToolUse::None && !self.tools.is_empty() {
            // What some older templates call the tools.
            let listed = serde_json::to_string_pretty(&self.shown_tools()).unwrap_or_default();
            names
                .entry("functions".to_owned())
                .or_insert_with(|| listed.into());
        } else {
            names
                .entry("functions".to_owned())
                .or_insert_with(|| "".into());
        }
        // Templates that show a date ask for it under these names, and show an old one where they get none.
        let now = Clock::now_utc();
        for (name, form) in [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")] {
            let date = || now.format(form).into();
            names.entry(name.to_owned()).or_insert_with(date);
        }
        let off = self.thinking.on == Some(false) || self.thinking.budget == Some(0);
        if off || self.thinking.on == Some(true) {
            for switch in SWITCHES {
                names.insert(switch.to_owned(), Value::Bool(!off));
            }
        }
        if let Some(effort) = &self.thinking.effort {
            names.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        names
    }

    /// Whether tools are told in words, since the model's template shows none.
    fn in_words(&self, model: &Served) -> bool {
        !model.service.format().has_tool_calls()
            && word_tools::are_there(&self.messages, &self.tools)
    }

    /// The tools as the template shows them.
    fn shown_tools(&self) -> Vec<Value> {
        self.tools.iter().map(shown).collect()
    }

    /// Checks the grammars that texts of tools follow. Where the template's calls cannot be put into a grammar, the model
    /// is shown them only, which `fields` is told.
    ///
    /// # Errors
    /// A grammar that cannot be followed.
    pub fn check_grammars(&self, model: &Served, fields: &mut Fields) -> Result<()> {
        for tool in &self.tools {
            let Some(lark) = grammar_of(tool) else {
                continue;
            };
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            let source = GrammarSource::Lark(lark.to_owned());
            let wrong = |e: tokkata::Error| {
                ApiError::field(
                    "tools",
                    format!("the grammar of '{name}' cannot be followed: {e}"),
                )
            };
            model.service.grammar(source, Trigger::Now).map_err(wrong)?;
            let one = std::slice::from_ref(tool);
            match self.grammar_for(model, one, (ToolChoice::Auto, None)) {
                Err(tokkata::Error::Grammar(GrammarError::Refused(why)))
                    if why.starts_with("the chat template") =>
                {
                    let text = format!(
                        "tools: the grammar of '{name}' is shown to the model, and not enforced: {why}"
                    );
                    fields.warnings.push(text);
                }
                other => drop(other.map_err(wrong)?),
            }
        }
        Ok(())
    }

    /// The tools that the answer may call.
    fn open_tools(&self) -> Result<Vec<Value>> {
        match &self.tool_use {
            ToolUse::None => Ok(Vec::new()),
            ToolUse::Named(name) => {
                let named = |tool: &&Value| tool["function"]["name"] == name.as_str();
                let one: Vec<Value> = self.tools.iter().filter(named).cloned().collect();
                if one.is_empty() {
                    let message = format!("'{name}' is none of the tools");
                    return Err(ApiError::field("tool_choice", message));
                }
                Ok(one)
            }
            _ => Ok(self.tools.clone()),
        }
    }

    /// Renders it.
    pub fn render(&self, model: &Served) -> Result<Rendered> {
        self.clone().settled(model).rendered(model)
    }

    /// With what the server was started with, where the request says nothing.
    fn settled(mut self, model: &Served) -> Self {
        self.thinking = self.thinking.or(&model.defaults.thinking);
        for (name, value) in &model.defaults.names {
            let usual = || value.clone();
            self.names.entry(name.clone()).or_insert_with(usual);
        }
        self
    }

    fn rendered(&self, model: &Served) -> Result<Rendered> {
        let service = &model.service;
        let tokenizer = service.tokenizer()?;
        let (bos_token, eos_token) = ends(tokenizer);
        let shown = match self.tool_use {
            ToolUse::None => Vec::new(),
            _ => self.shown_tools(),
        };
        let (messages, shown) = match self.in_words(model) {
            true => (word_tools::told(&self.messages, &shown), Vec::new()),
            false => (self.messages.clone(), shown),
        };
        let mut chat = ChatRequest {
            messages: model.manners.fold(&messages),
            tools: (!shown.is_empty()).then_some(shown),
            documents: self.documents.clone(),
            add_generation_prompt: self.opens && !self.continues,
            continue_final_message: self.continues,
            bos_token,
            eos_token,
            extra: self.all_names(),
            ..ChatRequest::default()
        };
        chat.alias_reasoning();
        let prompt = match service.prompt(&chat) {
            Ok(prompt) => prompt,
            Err(first) => {
                // Some templates add to a call's arguments, or to what a tool is said to do, as to a text.
                chat.messages.iter_mut().for_each(stringify_arguments);
                chat.tools.iter_mut().flatten().for_each(describe);
                service.prompt(&chat).map_err(|_| first)?
            }
        };
        let mut rendered = Rendered {
            text: prompt.text,
            ids: prompt.ids,
            close: None,
        };
        if self.opens && !self.continues {
            self.settle_thinking(model, &mut rendered);
        }
        Ok(rendered)
    }

    /// Closes reasoning that is not wanted and that the template has no switch for.
    fn settle_thinking(&self, model: &Served, rendered: &mut Rendered) {
        let Some((open, close)) = model.service.format().reasoning_markers() else {
            return;
        };
        let opened = !open.is_empty() && rendered.text.trim_end().ends_with(open);
        let off = self.thinking.on == Some(false) || self.thinking.budget == Some(0);
        if !off || (!opened && model.manners.switches_thinking) {
            rendered.close = opened.then(|| close.to_owned());
            return;
        }
        let skipped = match opened {
            true => format!("\n{close}\n\n"),
            false if open.is_empty() || rendered.text.trim_end().ends_with(close) => return,
            false => format!("{open}\n\n{close}\n\n"),
        };
        rendered.ids.extend(marker_ids(model, &skipped));
        rendered.text += &skipped;
    }

    /// Renders it and compiles what its answer must follow.
    pub fn prepare(self, model: &Served, params: Params) -> Result<Prepared> {
        let talk = self.settled(model);
        let tools = talk.open_tools()?;
        let rendered = talk.rendered(model)?;
        let close = rendered.close.as_deref();
        let grammar = match (&params.grammar, tools.is_empty()) {
            (Some(source), _) => {
                if matches!(talk.tool_use, ToolUse::Required | ToolUse::Named(_)) {
                    return Err(ApiError::invalid(
                        "a required tool call and a format of the answer cannot both be had",
                    ));
                }
                let trigger = match close {
                    Some(close) => Trigger::Once(close.as_bytes().to_vec()),
                    None => Trigger::Now,
                };
                Some(model.service.grammar(source.clone(), trigger)?)
            }
            (None, true) => None,
            (None, false) => talk.call_grammar(model, &tools, close)?,
        };
        let follows = grammar.is_some() && params.grammar.is_none();
        let format = model.service.format();
        let thinking = match (talk.thinking.budget, format.reasoning_markers()) {
            (Some(budget), Some(markers)) if budget > 0 => {
                let (ending, budget) = closing(model, (&talk.thinking.message, markers.1), budget);
                let tokens = ThinkingTokens {
                    open: marker_ids(model, markers.0),
                    close: marker_ids(model, markers.1),
                    ending,
                    opened: close.is_some(),
                };
                Some((tokens, budget))
            }
            _ => None,
        };
        Ok(Prepared {
            ids: rendered.ids,
            params,
            grammar,
            reading: Some(Reading {
                prompt: rendered.text,
                calls_are_certain: follows && !tools.is_empty(),
                tools,
                one_call: !talk.parallel,
                raw_reasoning: talk.raw_reasoning,
                in_words: talk.in_words(model) && !talk.tools.is_empty(),
            }),
            thinking,
        })
    }

    fn grammar_for(
        &self,
        model: &Served,
        tools: &[Value],
        (choice, close): (ToolChoice, Option<&str>),
    ) -> tokkata::Result<Grammar> {
        let service = &model.service;
        match word_tools::form().filter(|_| self.in_words(model)) {
            Some(form) => service.tool_grammar_of(&form.template, tools, choice, close),
            None => service.tool_grammar(tools, choice, close),
        }
    }

    /// What calls of tools must follow. Where the template shows no calls that a grammar can follow, the model's own
    /// are read as they come, but none can be required.
    fn call_grammar(
        &self,
        model: &Served,
        tools: &[Value],
        close: Option<&str>,
    ) -> Result<Option<Grammar>> {
        let choice = match self.tool_use {
            ToolUse::Auto | ToolUse::None => ToolChoice::Auto,
            ToolUse::Required | ToolUse::Named(_) => ToolChoice::Required,
        };
        match self.grammar_for(model, tools, (choice, close)) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(_) if choice == ToolChoice::Auto => Ok(None),
            Err(error) => Err(ApiError::field("tools", error.to_string())),
        }
    }
}

fn stringify_arguments(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        if arguments.is_object() {
            *arguments = Value::String(arguments.to_string());
        }
    }
}

/// A tool that says nothing of itself says so in no words.
fn describe(tool: &mut Value) {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        let none = || "".into();
        function
            .entry("description".to_owned())
            .or_insert_with(none);
    }
}

/// What closes reasoning once it has `budget` tokens, and how many of these the model may write: a line's end in front of
/// the marker is one of them. A message counts beside them.
fn closing(model: &Served, (message, marker): (&str, &str), budget: usize) -> (Vec<u32>, usize) {
    let bare = message.is_empty();
    let line = if bare && budget == 1 { "" } else { "\n" };
    let ending = marker_ids(model, &format!("{message}{line}{marker}\n\n"));
    let close = marker_ids(model, marker);
    let marked = ending.windows(close.len().max(1)).position(|w| w == close);
    let lead = marked.filter(|_| bare).unwrap_or(0);
    (ending, budget.saturating_sub(lead).max(1))
}

/// The tokens of text in which special ones are spelled out.
fn marker_ids(model: &Served, text: &str) -> Vec<u32> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    model
        .service
        .tokenizer()
        .map_or_else(|_| Vec::new(), |tokenizer| tokenizer.encode(text, options))
}

impl Prepared {
    /// A prompt that is continued as it stands.
    pub fn plain(model: &Served, ids: Vec<u32>, params: Params) -> Result<Self> {
        let grammar = match &params.grammar {
            Some(source) => Some(model.service.grammar(source.clone(), Trigger::Now)?),
            None => None,
        };
        Ok(Prepared {
            ids,
            params,
            grammar,
            reading: None,
            thinking: None,
        })
    }

    /// Refuses a prompt that cannot be answered, before anything is sent.
    pub fn check(&self, model: &Served) -> Result<()> {
        let ctx = model.service.limits().ctx as usize;
        if self.ids.len() >= ctx && self.params.max_tokens != Some(0) || self.ids.len() > ctx {
            return Err(ApiError::too_long(self.ids.len(), ctx));
        }
        if self.ids.is_empty() {
            return Err(ApiError::invalid(
                "the prompt has no tokens; give at least one",
            ));
        }
        let n_vocab = model.service.n_vocab();
        if let Some(id) = self.ids.iter().find(|&&id| id >= n_vocab) {
            let message = format!("token {id} is not in the vocabulary of {n_vocab} tokens");
            return Err(ApiError::field("prompt", message));
        }
        self.params
            .sampling
            .check()
            .map_err(|e| ApiError::invalid(e.to_string()))
    }

    /// The engine's request for one of the answers.
    pub fn request(&self, model: &Served, choice: usize) -> Result<Request> {
        let service = &model.service;
        let tokenizer = service.tokenizer()?;
        let params = &self.params;
        let mut request = service.request(self.ids.clone())?;
        let marked = self.reading.is_some() && model.manners.is_marked;
        if marked || params.special {
            let tokenizer = tokenizer.clone();
            request.decoder = Some(match self.reading {
                Some(_) => Box::new(TextDecoder::with_special(tokenizer)),
                None => {
                    let options = DecodeOptions {
                        special: true,
                        continues: true,
                    };
                    Box::new(ByteDecoder::new(tokenizer, options))
                }
            });
        }
        request.sampling = params.sampling.clone();
        request.sampling.seed = params.seed_of(choice);
        request.stop.max_tokens = params.max_tokens;
        request.stop.stop_strings = params.stop.iter().map(|s| s.clone().into_bytes()).collect();
        request.logprobs = params.logprobs;
        request.told.clone_from(&params.told);
        request.urgency = params.urgency;
        request.salt = params.salt;
        request.shift = params.shift.map(|n| n.min(self.ids.len()));
        if params.ignore_eos {
            let ends = request.stop.stop_ids.drain(..);
            let bias = &mut request.sampling.bias;
            bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        request.stop.stop_ids.extend(&params.stop_ids);
        let no_calls = |r: &Reading| r.tools.is_empty() && self.grammar.is_none();
        if let Some(reading) = self.reading.as_ref().filter(|r| no_calls(r)) {
            service.calls()?.forbid(&mut request, &reading.prompt);
        }
        self.constrain(model, &mut request);
        Ok(request)
    }

    fn constrain(&self, model: &Served, request: &mut Request) {
        if let Some(grammar) = &self.grammar {
            constrain(request, grammar);
        }
        if let Some((tokens, budget)) = &self.thinking {
            let rule = ThinkingBudget::new(tokens.clone(), *budget, request.constraint.take());
            request.constraint = Some(Box::new(rule));
        }
        let allowed = self.params.allowed.as_deref();
        if allowed.is_some() || self.params.min_tokens > 0 {
            let early = (request.stop.stop_ids.as_slice(), self.params.min_tokens);
            let inner = request.constraint.take();
            let rule = Excluded::new(model.service.n_vocab(), allowed, early, inner);
            request.constraint = Some(Box::new(rule));
        }
    }
}

/// How a template treats what not all of them allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// Several system messages may begin a conversation.
    several_systems: bool,
    /// System messages may come later.
    late_systems: bool,
    /// It knows the role `developer`.
    developers: bool,
    /// A name switches reasoning on and off.
    switches_thinking: bool,
    /// Answers have markers of reasoning or calls, which are special tokens.
    is_marked: bool,
}

impl Manners {
    /// What a model's template does with short conversations.
    pub fn of(service: &tokkata::Service) -> Self {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let shows = |messages: Vec<Value>, words: &[&str]| {
            let chat = ChatRequest {
                messages,
                add_generation_prompt: true,
                ..ChatRequest::default()
            };
            let rendered = service.template().and_then(|t| t.render(&chat).ok());
            rendered.is_some_and(|r| {
                let mut rest = r.text();
                words.iter().all(|word| match rest.split_once(word) {
                    Some((_, after)) => {
                        rest = after;
                        true
                    }
                    None => false,
                })
            })
        };
        let words = ["Alpha", "Bravo", "Charlie"];
        let with = |roles: [&str; 3]| {
            let all = roles.iter().zip(words).map(|(r, w)| message(r, w));
            shows(all.collect(), &words)
        };
        let switched = |on: bool| {
            let extra = SWITCHES.map(|s| (s.to_owned(), Value::Bool(on)));
            let chat = ChatRequest {
                messages: vec![message("user", "?")],
                add_generation_prompt: true,
                extra: extra.into_iter().collect(),
                ..ChatRequest::default()
            };
            let rendered = service.template().and_then(|t| t.render(&chat).ok());
            rendered.map(tokkata::Rendered::into_text)
        };
        let format = service.format();
        let source = service.template().map_or("", |t| t.source());
        Manners {
            several_systems: with(["system", "system", "user"]),
            late_systems: with(["user", "system", "user"]),
            developers: source.contains("developer"),
            switches_thinking: switched(true) != switched(false),
            is_marked: format.has_tool_calls() || format.reasoning_markers().is_some(),
        }
    }

    /// A conversation that the template allows: what it cannot show where it stands goes into the neighbouring turn, so
    /// that whatever came before stays the same when the conversation goes on.
    fn fold(&self, messages: &[Value]) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::with_capacity(messages.len());
        let mut carried: Option<String> = None;
        for message in messages {
            let mut message = message.clone();
            if message["role"] == "developer" && !self.developers {
                message["role"] = "system".into();
            }
            let is_system = message["role"] == "system" || message["role"] == "developer";
            let leads = out
                .iter()
                .all(|m| m["role"] == "system" || m["role"] == "developer");
            if is_system && leads && !out.is_empty() && !self.several_systems {
                join(out.last_mut(), &text_of(&message));
            } else if is_system && !leads && !self.late_systems {
                let block = format!("<system>\n{}\n</system>", text_of(&message));
                let takes = |m: &&mut Value| m["role"] == "user" || m["role"] == "tool";
                match out.last_mut().filter(takes) {
                    Some(last) => join(Some(last), &block),
                    None => carried = Some(carried.map_or(block.clone(), |c| c + "\n\n" + &block)),
                }
            } else {
                if let Some(block) = carried.take() {
                    match message["role"] == "user" {
                        true => message["content"] = (block + "\n\n" + &text_of(&message)).into(),
                        false => out.push(json!({"role": "user", "content": block})),
                    }
                }
                out.push(message);
            }
        }
        out.extend(carried.map(|block| json!({"role": "user", "content": block})));
        out
    }
}

fn join(message: Option<&mut Value>, text: &str) {
    if let Some(message) = message {
        let before = text_of(message);
        message["content"] = format!("{before}\n\n{text}").into();
    }
}

/// The text of a message's content.
pub fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|p| p["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manners(several_systems: bool, late_systems: bool) -> Manners {
        Manners {
            several_systems,
            late_systems,
            developers: false,
            switches_thinking: false,
            is_marked: false,
        }
    }

    fn roles(messages: &[Value]) -> Vec<(&str, &str)> {
        let pair = |m| member(m, "role").zip(member(m, "content"));
        messages.iter().filter_map(pair).collect()
    }

    fn member<'a>(message: &'a Value, name: &str) -> Option<&'a str> {
        message[name].as_str()
    }

    #[test]
    fn a_late_system_message_goes_into_the_turn_before_it() {
        let talk = [
            json!({"role": "developer", "content": "a"}),
            json!({"role": "system", "content": "b"}),
            json!({"role": "user", "content": "c"}),
            json!({"role": "system", "content": "d"}),
            json!({"role": "assistant", "content": "e"}),
            json!({"role": "system", "content": "f"}),
            json!({"role": "user", "content": "g"}),
        ];
        let folded = manners(false, false).fold(&talk);
        assert_eq!(
            roles(&folded),
            [
                ("system", "a\n\nb"),
                ("user", "c\n\n<system>\nd\n</system>"),
                ("assistant", "e"),
                ("user", "<system>\nf\n</system>\n\ng"),
            ]
        );
        let kept = manners(true, true).fold(&talk);
        assert_eq!(kept.len(), talk.len());
        assert_eq!(kept[0]["role"], "system");
    }

    #[test]
    fn what_came_before_stays_the_same_as_a_conversation_grows() {
        let mut talk = vec![json!({"role": "user", "content": "a"})];
        let mut before = Vec::new();
        for turn in 0..4 {
            talk.push(json!({"role": "system", "content": format!("s{turn}")}));
            let folded = manners(false, false).fold(&talk);
            assert_eq!(folded[..before.len()], before[..]);
            before = folded;
            talk.push(json!({"role": "assistant", "content": "x"}));
            talk.push(json!({"role": "tool", "content": "y"}));
        }
    }
}
