//! A loaded model that many callers share.
//!
//! [`Model::serve`] moves the engine to a thread of its own. The [`Service`] it leaves can be shared by any number of
//! threads and tasks: each renders its conversation, compiles its grammar and submits its request, and reads its own
//! [`Answer`].
//!
//! ```no_run
//! use tokkata::{EventKind, Message, Model, OpenOptions};
//! # fn main() -> tokkata::Result<()> {
//! let service = Model::open("model.gguf", &OpenOptions::default())?.serve()?;
//! let chat = tokkata::chat::chat_request(&[Message::new("user", "Hello")], service.tokenizer()?);
//! let prompt = service.prompt(&chat)?;
//! let mut answer = service.generate(service.request(prompt.ids)?);
//! while let Some(event) = answer.next_blocking() {
//!     if let EventKind::Token { text, .. } = event {
//!         print!("{}", String::from_utf8_lossy(&text));
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokkata_engine::{
    Answer, Driver, Engine, EngineError, EngineHandle, ReadRequest, Request, Urgency,
};
use tokkata_ir::{GroupId, Limits, PlanRole, Program};
use tokkata_text::parse::OutputFormat;
use tokkata_text::template::{ChatRequest, ChatTemplate};
use tokkata_text::tokenizer::Tokenizer;

use crate::chat::encode_rendered;
use crate::checkpoint::Checkpoint;
use crate::decode::TextDecoder;
use crate::error::{Error, Result};
use crate::grammar::{Grammar, GrammarSource, ToolChoice, Trigger};
use crate::model::{Model, prompted};
use crate::rules::CallRule;
use crate::vectors::{Pooling, VectorShape};

/// Compiled grammars that are kept.
const GRAMMARS: usize = 64;
/// Bytes of their sources, each of which takes some hundred bytes of memory.
const GRAMMAR_BYTES: usize = 512 << 10;

/// A loaded model whose engine runs on a thread of its own, or gets its turns from whoever [drives](Model::driven) it.
pub struct Service {
    checkpoint: Checkpoint,
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    program: Arc<Program>,
    limits: Limits,
    n_vocab: u32,
    device: &'static str,
    memory_bytes: u64,
    vectors: Option<VectorShape>,
    template: Option<ChatTemplate>,
    format: OutputFormat,
    writes: bool,
    /// Prompts are what an encoder reads.
    encodes: bool,
    grammars: Mutex<VecDeque<(String, Grammar)>>,
    calls: OnceLock<Arc<CallRule>>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// As text.
    pub text: String,
    /// As tokens.
    pub ids: Vec<u32>,
}

/// What an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Share of the caches' memory that sequences hold, 0 to 1.
    pub cache_usage: f64,
    /// Positions of a block of the first cache group, and how many such blocks there can be.
    pub blocks: (u32, u64),
    /// Steps that the device has done.
    pub steps: u64,
}

impl Model {
    /// Moves the engine to a thread of its own, for many callers.
    ///
    /// # Errors
    /// A diffusion model, whose answers are made by its only caller; a system without a thread to give.
    pub fn serve(mut self) -> Result<Service> {
        if self.draws_text() && !self.encodes() && !self.is_diffusion() {
            self.engine.measure_costs()?;
        }
        let (mut service, thread) =
            self.served_by(|engine| engine.spawn().map_err(|source| Error::Thread { source }))?;
        service.thread = Some(thread);
        Ok(service)
    }

    /// The same without a thread: whoever calls gives the engine its turns. Nobody may block on that thread.
    ///
    /// # Errors
    /// A diffusion model, whose answers are made by its only caller.
    pub fn driven(self) -> Result<(Service, Driver)> {
        self.served_by(|engine| Ok(engine.drive()))
    }

    fn draws_text(&self) -> bool {
        let draws = self.program().plans[0].output("tokens").is_some();
        draws && self.checkpoint.must_write().is_ok()
    }

    fn served_by<T>(
        self,
        start: impl FnOnce(Engine) -> Result<(EngineHandle, T)>,
    ) -> Result<(Service, T)> {
        if self.is_diffusion() {
            return Err(Error::NotServed {
                file: self.checkpoint.path().display().to_string(),
            });
        }
        let template = match self.checkpoint.template() {
            Ok(template) => Some(template),
            Err(Error::NoTemplate { .. }) => None,
            Err(error) => return Err(error),
        };
        let (writes, encodes) = (self.draws_text(), self.encodes());
        let (limits, n_vocab) = (*self.limits(), self.n_vocab());
        let (device, memory_bytes) = (self.device(), self.memory_bytes());
        let Model {
            checkpoint,
            engine,
            vectors,
            ..
        } = self;
        let program = Arc::clone(engine.program());
        let (handle, started) = start(engine)?;
        let mut service = Service {
            checkpoint,
            handle,
            thread: None,
            program,
            limits,
            n_vocab,
            device,
            memory_bytes,
            vectors,
            template: None,
            format: OutputFormat::default(),
            writes,
            encodes,
            grammars: Mutex::default(),
            calls: OnceLock::new(),
        };
        service.set_template(template);
        Ok((service, started))
    }
}

impl Service {
    /// Uses this chat template instead of the file's.
    pub fn set_template(&mut self, template: Option<ChatTemplate>) {
        let derived = template.as_ref().map(OutputFormat::derive);
        self.format = derived.unwrap_or_default();
        self.calls = OnceLock::new();
        self.template = template;
    }

    /// Ends the engine when its requests are over, and returns when its memory is free.
    pub fn close(self) {
        drop(self.handle);
        // An engine that panicked has told those who waited for it.
        let _ = self.thread.map(JoinHandle::join);
    }

    /// The file.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The engine, from any thread.
    #[must_use]
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// What it computes.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The sizes it was loaded for.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Width of its logits.
    #[must_use]
    pub fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    /// Name of its device.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.device
    }

    /// Bytes held for weights, caches and scratch.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Whether it writes text; otherwise it gives vectors.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// The tokenizer, built when it is first asked for.
    ///
    /// # Errors
    /// A file without a tokenizer, or with one that is not known.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.checkpoint.tokenizer()
    }

    /// The chat template, if there is one.
    #[must_use]
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The format of answers that the template shows.
    #[must_use]
    pub fn format(&self) -> &OutputFormat {
        &self.format
    }

    /// What keeps calls out of answers where no tools are given.
    ///
    /// # Errors
    /// A file without a tokenizer.
    pub fn calls(&self) -> Result<&Arc<CallRule>> {
        let tokenizer = self.tokenizer()?;
        let rule = || CallRule::new(&self.format, Arc::clone(tokenizer));
        Ok(self.calls.get_or_init(rule))
    }

    /// Renders a conversation and encodes it. Special tokens are only recognised in what the template wrote.
    ///
    /// # Errors
    /// No template; what the template raises.
    pub fn prompt(&self, chat: &ChatRequest) -> Result<Prompt> {
        let path = self.checkpoint.path();
        let template = self.template.as_ref().ok_or_else(|| Error::NoTemplate {
            file: path.display().to_string(),
        })?;
        let rendered = template.render(chat).map_err(Error::template(path))?;
        Ok(Prompt {
            ids: encode_rendered(&rendered, self.tokenizer()?),
            text: rendered.into_text(),
        })
    }

    /// A request whose answer comes as text and ends where the model ends it.
    ///
    /// # Errors
    /// A model that gives vectors alone.
    pub fn request(&self, prompt: Vec<u32>) -> Result<Request> {
        if !self.writes {
            let file = self.checkpoint.path().display().to_string();
            return Err(Error::NoText { file });
        }
        let tokenizer = self.tokenizer()?;
        let mut request = prompted(&self.checkpoint, self.encodes, prompt);
        request.stop.stop_ids = tokenizer.eog().to_vec();
        request.decoder = Some(Box::new(TextDecoder::new(tokenizer.clone())));
        Ok(request)
    }

    /// Asks for an answer. Whatever may be wrong with the request comes as its only event.
    #[must_use]
    pub fn generate(&self, request: Request) -> Answer {
        self.handle.generate(request)
    }

    /// Asks for the vector of a text: one row of [`Service::vector_width`], or one per token without pooling.
    ///
    /// # Errors
    /// A model that was opened for text.
    pub fn vector(&self, tokens: Vec<u32>, urgency: Urgency) -> Result<Answer> {
        let shape = self.vector_shape()?;
        Ok(self.handle.read(ReadRequest {
            urgency,
            ..shape.request(tokens)
        }))
    }

    /// Asks for the logits after each of these tokens: rows of [`Service::n_vocab`].
    #[must_use]
    pub fn logits(&self, tokens: Vec<u32>, urgency: Urgency) -> Answer {
        self.handle.read(ReadRequest {
            urgency,
            ..ReadRequest::new(tokens, PlanRole::Main, "logits")
        })
    }

    /// Columns of a vector.
    ///
    /// # Errors
    /// A model that was opened for text.
    pub fn vector_width(&self) -> Result<usize> {
        Ok(self.vector_shape()?.width())
    }

    /// How its vectors are pooled; `None` for a model that was opened for text.
    #[must_use]
    pub fn pooling(&self) -> Option<Pooling> {
        self.vectors.map(VectorShape::pooling)
    }

    /// The longest text that gets a vector, in tokens.
    #[must_use]
    pub fn longest_text(&self) -> usize {
        let whole = self.vectors.is_some_and(|shape| !shape.is_chunked());
        let rows = if whole { self.limits.rows } else { u32::MAX };
        self.limits.ctx.min(rows) as usize
    }

    fn vector_shape(&self) -> Result<VectorShape> {
        self.vectors.ok_or_else(|| Error::NoVectors {
            file: self.checkpoint.path().display().to_string(),
            why: "it was opened for text",
        })
    }

    /// Compiles a grammar for the vocabulary, or finds it among those that were compiled before.
    ///
    /// # Errors
    /// As [`Checkpoint::grammar`].
    pub fn grammar(&self, source: GrammarSource, trigger: Trigger) -> Result<Grammar> {
        let key = format!("{source:?} {trigger:?}");
        self.compiled(key, || self.checkpoint.grammar(source, trigger))
    }

    /// The same for calls of tools as the template writes them. `close` ends the reasoning that the prompt opened.
    ///
    /// # Errors
    /// No template; as [`Checkpoint::tool_grammar`].
    pub fn tool_grammar(
        &self,
        tools: &[serde_json::Value],
        choice: ToolChoice,
        close: Option<&str>,
    ) -> Result<Grammar> {
        let template = self.template.as_ref().ok_or_else(|| Error::NoTemplate {
            file: self.checkpoint.path().display().to_string(),
        })?;
        self.tool_grammar_of(template, tools, choice, close)
    }

    /// The same for calls as another template writes them.
    ///
    /// # Errors
    /// As [`Checkpoint::tool_grammar`].
    pub fn tool_grammar_of(
        &self,
        template: &ChatTemplate,
        tools: &[serde_json::Value],
        choice: ToolChoice,
        close: Option<&str>,
    ) -> Result<Grammar> {
        let listed = serde_json::to_string(tools).unwrap_or_default();
        let source = template.source();
        let key = format!("tools {choice:?} {close:?} {listed} {source}");
        self.compiled(key, || {
            self.checkpoint.tool_grammar(template, tools, choice, close)
        })
    }

    fn compiled(&self, key: String, compile: impl FnOnce() -> Result<Grammar>) -> Result<Grammar> {
        let kept = || self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, grammar)) = kept().iter().find(|(k, _)| *k == key) {
            return Ok(grammar.clone());
        }
        let grammar = compile()?;
        let mut grammars = kept();
        grammars.truncate(GRAMMARS - 1);
        grammars.push_front((key, grammar.clone()));
        let mut bytes = 0;
        let fits = |(key, _): &&(String, Grammar)| {
            bytes += key.len();
            bytes <= GRAMMAR_BYTES
        };
        let kept = grammars.iter().take_while(fits).count();
        grammars.truncate(kept);
        Ok(grammar)
    }

    /// What the engine is doing. Waits for the end of its turn.
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub fn figures(&self) -> std::result::Result<Figures, EngineError> {
        self.handle.with(|engine| figures(engine))
    }

    /// Forgets every stored prefix. Waits for the end of the engine's turn.
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub fn forget_prefixes(&self) -> std::result::Result<(), EngineError> {
        self.handle.with(Engine::forget_prefixes)
    }
}

fn figures(engine: &Engine) -> Figures {
    let (waiting, running) = engine.load();
    let pools = engine.cache().pools();
    let arena = pools.arena();
    let caches = &engine.program().caches;
    let held = |group: usize| {
        let block = arena.block_bytes(GroupId(group as u32));
        pools.held(group) as u64 * block
    };
    let used: u64 = (0..caches.len()).map(held).sum();
    let blocks = caches.first().map_or((0, 0), |group| {
        let all = u64::from(arena.slabs()) * u64::from(arena.per_slab(GroupId(0)));
        (group.block_size, all)
    });
    Figures {
        waiting,
        running,
        cache_usage: used as f64 / (arena.bytes() as f64).max(1.0),
        blocks,
        steps: engine.steps(),
    }
}
